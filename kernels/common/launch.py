"""From a call's tensors to its launch: their layouts, the plan for these, and the kernel on their own device.

A plan is all that is launched for tensors with given layouts: kernels, grids, sizes, tiles. It is made once and kept
(``planned``), which is the one cache between a call and its launch; ``forget`` empties it.
"""

import functools
import os
import threading
from typing import NamedTuple

import numpy as np
import torch

from kernels import runtime

MOST = 1024  # plans of one kind that are kept; the least recently used goes first
planners = []  # the functions whose answers are kept


def lock_over_forks():
    """A reentrant lock that a forked process finds free, and what it guards whole: a fork waits for the thread that holds it.

    Of two that one thread may hold at once, the one that it takes last is made first.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


_one_at_a_time = lock_over_forks()


class Layout(NamedTuple):
    """What a plan may depend on of a tensor; ``address`` is modulo 16 bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    address: int

    def meta(self):
        """A tensor that lies so, of no memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


def strided(tensor):
    """The ``Layout`` of a tensor whose address doesn't matter, ``None`` of ``None``."""
    return None if tensor is None else Layout(tensor.shape, tensor.stride(), tensor.dtype, 0)


def layout(tensor):
    """The ``Layout`` of a tensor, ``None`` of ``None``."""
    return None if tensor is None else Layout(tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr() & 15)


def strides(layout, ndim):
    """The strides of a ``Layout``, zeros for ``None``."""
    return (0,) * ndim if layout is None else layout.strides


class Launch(NamedTuple):
    """A grid, the integers behind the tensors, and the options."""

    grid: tuple[int]
    numbers: tuple[int, ...]
    meta: dict


def planned(function):
    """``function`` of hashable arguments, its latest ``MOST`` answers kept until ``forget``; safe among threads."""
    cached = functools.lru_cache(MOST)(function)
    planners.append(cached)
    return cached


def launch(kernel, grid, *args, constants=None, **meta):
    """Run ``kernel[grid](*args, **meta)`` on the device of its tensors; an empty grid runs nothing.

    Args:
        kernel: a ``@triton.jit`` function.
        grid: tuple of 1 to 3 ints, the number of programs along each axis.
        args: the kernel's positional arguments; ``None`` stands for a tensor the kernel does not use.
        constants: more of ``meta``, as ``Constants``; ``None`` for none.
        meta: constexpr arguments, ``num_warps``, ``num_stages``.
    """
    if 0 in grid:
        return
    if runtime.interpreted:
        meta = meta if constants is None else meta | constants.meta
        # The interpreter keeps the running program's place in globals, which threads would overwrite. And it computes with
        # numpy, which warns of what lies in memory that nobody has written, in lanes that nobody stores.
        with _one_at_a_time, np.errstate(all="ignore"):
            kernel[grid](*args, **meta)
        return
    device = next(arg.get_device() for arg in args if isinstance(arg, torch.Tensor))
    if constants is not None:
        from kernels.common.again import start

        run = functools.partial(start, kernel, grid, args, meta, device, constants)
    else:
        run = functools.partial(kernel[grid], *args, **meta)
    # CPU tensors where kernels are compiled: the model of Gluon executes this launch, and there is no device to enter.
    if device < 0 or device == torch.cuda.current_device():
        run()
    else:
        with torch.cuda.device(device):
            run()


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
            from kernels.common.again import Constants

            made = self.made[key] = grid, tuple(numbers), Constants(**meta).settling_all(), kernel
        grid, numbers, constants, _ = made
        launch(kernel, grid, *tensors, *numbers, constants=constants)
