"""Start a kernel on its tensors' own device, or in the interpreter, one at a time."""

import os
import threading

import numpy as np
import torch

from kernels import runtime
from kernels.common.again import Constants, start, with_constants
from kernels.common.validate import PLAIN

__all__ = ["Constants", "Launches", "launch", "lock_over_forks", "with_constants"]


def lock_over_forks():
    """A reentrant lock that a forked process finds free, and what it guards whole: a fork waits for the thread that holds it.

    Of two that one thread may hold at once, the one that it takes last is made first.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


_one_at_a_time = lock_over_forks()


def launch(kernel, grid, *args, constants=None, **meta):
    """Run ``kernel[grid](*args, **meta)`` on the device of its tensors; an empty grid runs nothing.

    Args:
        kernel: a ``@triton.jit`` function.
        grid: tuple of 1 to 3 ints, the number of programs along each axis.
        args: the kernel's positional arguments; ``None`` stands for a tensor the kernel does not use.
        constants: those of ``meta`` that are the same in many calls, as ``Constants``; ``None`` for none.
        meta: constexpr arguments, ``num_warps``, ``num_stages``.
    """
    if 0 in grid:
        return
    if not runtime.interpreted:
        device = _device_of(args)
        # CPU tensors where kernels are compiled: the model of Gluon executes this launch, and there is no device to enter.
        if device < 0 or device == torch._C._cuda_getDevice():
            start(kernel, grid, args, meta, device, constants)
        else:
            with torch.cuda.device(device):
                start(kernel, grid, args, meta, device, constants)
        return

    # The interpreter keeps the running program's place in globals, which threads would overwrite. And it computes with numpy,
    # which warns of what lies in memory that nobody has written, in lanes that nobody stores.
    with _one_at_a_time, np.errstate(all="ignore"):
        kernel[grid](*args, **with_constants(meta, constants))


def launch_anew(kernel, told, *tensors, which=None):
    """``launch`` of ``kernel`` on tensors, ``None`` among them, by ``(grid, numbers behind the tensors, meta)``, which
    ``told()`` gives. which: what the ``Launches`` of this signature tells launches of one kernel apart by."""
    grid, numbers, meta = told()
    launch(kernel, grid, *tensors, *numbers, **meta)


class Launches:
    """``launch_anew`` for passes that are alike: what a kernel is told beside its tensors is made in the first of them, and
    nothing is looked at in the others. Alike are those whose tensors differ in their addresses alone, all of them multiples
    of 16 bytes, and that launch the same in the same order."""

    def __init__(self):
        self.made = {}

    def __call__(self, kernel, told, *tensors, which=None):
        """As ``launch_anew``."""
        key = id(kernel), which
        made = self.made.get(key)
        if made is None:
            grid, numbers, meta = told()
            made = self.made[key] = grid, tuple(numbers), Constants(**meta).settling_all(), kernel
        grid, numbers, constants, _ = made
        launch(kernel, grid, *tensors, *numbers, constants=constants)


def _device_of(args):
    for arg in args:
        if type(arg) in PLAIN or isinstance(arg, torch.Tensor):
            return arg.get_device()
    raise ValueError("a launch is given no tensor")
