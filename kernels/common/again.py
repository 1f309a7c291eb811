"""Start a compiled kernel again, without asking Triton anew which of its compiled kernels that is.

``kernel[grid](...)`` looks at each argument, writes down what it saw as text, and finds the compiled kernel by that text:
of a kernel with 60 arguments that is most of the host's time for a call. What Triton compiles for is known beforehand:

    of a tensor          its dtype, and whether its address is a multiple of 16
    of a descriptor      its element type, tile and layout
    of a number          its value (Triton asks for less: whether it is 1, a multiple of 16, or needs 64 bits)
    of everything else   constants by value, kernels by what they are

A call that is alike an earlier one in all of them starts what that one compiled. Triton's launcher is called as Triton itself
calls it, with the hooks that are set. Everything else is Triton's: the first call, calls while something stands in its
place or looks on before a launch (a tracer, the model of Gluon, ``pre_run_hooks``, sanitizers), and the interpreter.
"""

import itertools

import torch
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.common.checks import PLAIN

MOST = 1024  # calls of one kernel that are remembered; one more, and they are all forgotten
_known = {}  # id of a kernel -> _Known
_run = JITFunction.run if torch.version.hip is None else object()  # AMD's compiler looks at the size of memory, too
_VALUES = {int, float, bool, str}
_INTS = {int}


class Constants:
    """Compile-time arguments and options of a kernel that is launched with them again and again: they are looked at once."""

    settle_all = False
    known = None  # of those that settle all: the ``_Known`` of their kernel

    def __init__(self, **meta):
        self.meta, self.seen = meta, (*meta, *meta.values())
        self.hash = hash(self.seen)

    def settling_all(self):
        """The same, for launches whose other arguments, too, are always alike: nothing is looked at then. Whoever launches
        with these has looked at its tensors, or made them: what torch allocates begins at a multiple of 16 bytes."""
        made = Constants(**self.meta)
        made.settle_all = True
        return made

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        return self is other or type(other) is Constants and self.seen == other.seen


class Settled(dict):
    """Of launches of calls that are alike: ``(Constants, what else tells them apart)`` -> the same, settling all."""

    def of(self, constants, which=None):
        """``constants`` that settle all. which: what differs among those launches nonetheless, such as what is not wanted."""
        found = self.get((constants, which))
        if found is None:
            found = self[constants, which] = constants.settling_all()
        return found


def with_constants(meta, constants):
    """All of a launch's compile-time arguments and options, by their names."""
    return meta if constants is None else meta | constants.meta


class _Known:
    """A kernel's compiled kernels, all, or those of ``Constants`` that settle all. ``numbers``: the longest run of its
    arguments in which there is nothing else."""

    def __init__(self, kernel, args):
        others = [-1, *(i for i, arg in enumerate(args) if type(arg) not in (int, float)), len(args)]
        before, after = max(itertools.pairwise(others), key=lambda pair: pair[1] - pair[0])
        self.kernel, self.numbers, self.started = kernel, (before + 1, after), {}


def start(kernel, grid, args, meta, device, constants=None):
    """``kernel[grid](*args, **meta)`` on the current device, whose index is ``device``; ``constants``: more of ``meta``, as
    ``Constants``. A kernel's parameter is always given numbers of one type: 1 is not told from 1.0."""
    if (
        getattr(type(kernel), "run", None) is not _run
        or kernel.pre_run_hooks
        or knobs.compilation.instrumentation_mode
        or getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None
    ):
        kernel[grid](*args, **with_constants(meta, constants))
        return
    settled = constants is not None and constants.settle_all and not meta
    known = constants.known if settled else _known.get(id(kernel))
    if known is None or known.kernel is not kernel:
        known = _Known(kernel, args)
        if settled:
            constants.known = known
        else:
            _known[id(kernel)] = known
    key = (device, knobs.runtime.debug) if settled else _key(*known.numbers, device, args, meta, constants)
    found = known.started.get(key)
    if found is None:
        meta = with_constants(meta, constants)
        compiled = kernel[grid](*args, **meta)
        if isinstance(compiled, CompiledKernel):  # no hook of Triton's has taken its place
            _remember(known, key, compiled, args, meta)
        return
    launcher, function, packed, compiled, rest, _ = found
    runtime = knobs.runtime
    stream = driver.active.get_current_stream(device)
    before, after, metadata = _asked(runtime.launch_enter_hook), _asked(runtime.launch_exit_hook), None
    if before is not None or after is not None:
        metadata = compiled.launch_metadata(grid, stream, *args, *rest)
    x, y, z = (grid[0], 1, 1) if len(grid) == 1 else (*grid, 1)[:3]
    launcher(x, y, z, stream, function, packed, metadata, before, after, *args, *rest)


def _asked(hooks):
    """Triton's chain of hooks, ``None`` of one in which nothing hangs."""
    return hooks if getattr(hooks, "calls", hooks) else None


def _key(first, end, device, args, meta, constants):
    """All that the compiled kernel depends on, but the kernel; from ``first`` on and before ``end`` arguments are numbers."""
    seen = [device, knobs.runtime.debug, constants, len(args), args[first:end]]
    if meta:
        seen += *meta, *meta.values()
    _look(seen, args[:first])
    if end < len(args):
        _look(seen, args[end:])
    return tuple(seen)


def _look(seen, args):
    """Put into ``seen`` what the compiled kernel depends on of arguments that may be something else than a number."""
    for arg in args:
        kind = type(arg)
        if arg is None:
            seen.append(None)
        elif kind in PLAIN:
            dtype = arg.dtype
            seen.append(dtype if arg.data_ptr() & 15 == 0 else (dtype,))
        elif kind in _VALUES:
            seen += kind, arg
        elif kind is tuple and set(map(type, arg)) <= _INTS:
            seen.append(arg)
        elif (alike := getattr(arg, "alike", None)) is not None:  # a descriptor, of one maker of such
            seen.append(alike)
        elif isinstance(arg, tuple):
            seen += kind, len(arg)
            _look(seen, arg)
        elif isinstance(arg, torch.Tensor):
            seen += arg.dtype, arg.data_ptr() & 15 == 0
        elif hasattr(arg, "block_shape"):
            layout = id(getattr(arg, "layout", None))  # layouts have no hash: whose number this is, an entry keeps
            seen += kind, arg.base.dtype, arg.base.data_ptr() & 15 == 0, len(arg.shape), *arg.block_shape, layout
        else:
            seen.append(arg)


def _remember(known, key, compiled, args, meta):
    if len(known.started) >= MOST:
        known.started.clear()
    parameters = list(known.kernel.signature.parameters.values())[len(args) :]
    rest = tuple(meta.get(parameter.name, parameter.default) for parameter in parameters)
    layouts = [getattr(arg, "layout", None) for arg in args if hasattr(arg, "block_shape")]
    known.started[key] = compiled.run, compiled.function, compiled.packed_metadata, compiled, rest, layouts
