"""Start a compiled kernel again, without asking Triton anew which of its compiled kernels that is.

``kernel[grid](...)`` looks at each argument, writes down what it saw as text, and finds the compiled kernel by that text:
of a kernel with 60 arguments that is most of the host's time for a call. What Triton compiles for is known beforehand:

    of a tensor          its dtype, and whether its address is a multiple of 16
    of a descriptor      its element type, tile and layout
    of a number          its value (Triton asks for less: whether it is 1, a multiple of 16, or needs 64 bits)
    of everything else   constants by value, kernels by what they are

A call that is alike an earlier one in all of them starts what that one compiled, by Triton's launcher (``launchers``), with
the hooks that are set. Everything else is Triton's: the first call, calls while something stands in its place or looks on
before a launch (a tracer, the model of Gluon, ``pre_run_hooks``), and the interpreter.
"""

import torch
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.common import launchers
from kernels.common.validate import PLAIN

MOST = 1024  # calls of one kernel that are remembered; one more, and they are all forgotten
_known = {}  # id of a kernel -> _Known
_run = JITFunction.run if torch.version.hip is None else object()  # AMD's compiler looks at the size of memory, too
_VALUES = {int, float, bool, str, type(None)}


class _Known:
    """A kernel's compiled kernels. ``leading``: how many of its first arguments may be something else than a number."""

    def __init__(self, kernel, args):
        numbers = next((i for i, arg in enumerate(reversed(args)) if type(arg) not in (int, float)), len(args))
        self.kernel, self.leading, self.started = kernel, len(args) - numbers, {}


def start(kernel, grid, args, meta, device):
    """``kernel[grid](*args, **meta)`` on the current device, whose index is ``device``. A kernel's parameter is always given
    numbers of one type: 1 is not told from 1.0."""
    if (
        getattr(type(kernel), "run", None) is not _run
        or kernel.pre_run_hooks
        or getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None
    ):
        kernel[grid](*args, **meta)
        return
    known = _known.get(id(kernel))
    if known is None:
        known = _known[id(kernel)] = _Known(kernel, args)
    key = _key(known.leading, device, args, meta)
    found = known.started.get(key)
    if found is None:
        compiled = kernel[grid](*args, **meta)
        if isinstance(compiled, CompiledKernel):  # no hook of Triton's has taken its place
            _remember(known, key, compiled, args, meta)
        return
    launcher, starter, function, packed, compiled, constants, _ = found
    stream = driver.active.get_current_stream(device)
    before, after, metadata = _asked(knobs.runtime.launch_enter_hook), _asked(knobs.runtime.launch_exit_hook), None
    if before is not None or after is not None:
        metadata = compiled.launch_metadata(grid, stream, *args, *constants)
    x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
    if starter is None:
        launcher(x, y, z, stream, function, packed, metadata, before, after, *args, *constants)
    else:
        starter(x, y, z, stream, function, packed, metadata, before, after, (*args, *constants))


def _asked(hooks):
    """Triton's chain of hooks, ``None`` of one in which nothing hangs."""
    return hooks if getattr(hooks, "calls", hooks) else None


def _key(leading, device, args, meta):
    """All that the compiled kernel depends on, but the kernel."""
    seen = [
        device, knobs.runtime.debug, knobs.compilation.instrumentation_mode, *meta, *meta.values(), len(args),
        *args[leading:],
    ]  # fmt: skip
    for arg in args[:leading]:
        if arg is None:
            seen.append(None)
        elif type(arg) in PLAIN:
            seen.append(arg.dtype)
            seen.append(arg.data_ptr() & 15 == 0)
        elif (alike := getattr(arg, "alike", None)) is not None:  # a descriptor, of one maker of such
            seen.append(alike)
        else:
            seen.append(_seen(arg))
    return tuple(seen)


def _seen(arg):
    """What the compiled kernel depends on of an argument that is neither a number nor a plain tensor."""
    kind = type(arg)
    if kind in _VALUES:
        return kind, arg
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() & 15 == 0
    if isinstance(arg, tuple):
        return kind, *[_seen(item) for item in arg]
    if hasattr(arg, "block_shape"):
        layout = id(getattr(arg, "layout", None))  # layouts have no hash: whose number this is, an entry keeps
        return kind, arg.base.dtype, arg.base.data_ptr() & 15 == 0, len(arg.shape), *arg.block_shape, layout
    return arg


def _remember(known, key, compiled, args, meta):
    if len(known.started) >= MOST:
        known.started.clear()
    parameters = list(known.kernel.signature.parameters.values())[len(args) :]
    constants = tuple(meta.get(parameter.name, parameter.default) for parameter in parameters)
    layouts = [getattr(arg, "layout", None) for arg in args if hasattr(arg, "block_shape")]
    known.started[key] = (
        compiled.run, launchers.starter(compiled), compiled.function, compiled.packed_metadata, compiled, constants, layouts
    )  # fmt: skip
