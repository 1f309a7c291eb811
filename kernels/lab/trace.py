"""Run a kernel and record which element every program loads, stores or updates, from the accesses themselves.

Two ways in: ``trace(kernel, grid, *args, **kwargs)`` for one launch, ``with trace.recording() as t:`` for all
launches made inside a block, for example by a finished operator. Both give a ``Trace``.

Counts are *requests*: what the programs ask for. Caches answer repeated requests, so they are not DRAM traffic; the
floor beside them (each element once) is what DRAM must at least deliver.

How it works: the kernel runs in Triton's interpreter and is shown made-up addresses, one window of 16 TiB for each
tensor argument. Every access is translated back just before it happens. So an address tells which argument it was
computed from, even where two arguments share memory or lie side by side in it.

What a masked lane holds after a load without ``other`` is undefined on a GPU, though the interpreter makes it 0. Here it
is poison: NaN in floats, a large odd number in integers, so that a result that depends on it shows.
"""

import bisect
import contextlib
import dataclasses
import inspect
import io
import linecache
from typing import ClassVar

import numpy as np
import torch

from kernels import runtime
from kernels.lab.accesses import SECTOR_BYTES, Access, Launch, Operand, Trace, distinct
from kernels.lab.races import BarrierInterval, Touched

_WINDOW_BITS = 44


class Undefined:
    """What is done about undefined lanes in the launches that are recorded now: ``with Undefined(0.0) as undefined:``.

    poison: what such a lane holds. A result that depends on it is spoilt by one of ``POISONS``: a maximum or a minimum passes
    NaN over. 0.0 is what the interpreter has there. ``lines`` are the loads that had such lanes, once each.
    The innermost ``with`` counts; outside of any, the poison is NaN.
    """

    POISONS = (float("nan"), 3e4, -3e4)  # float16 has them all
    _now: ClassVar[list["Undefined"]] = []

    def __init__(self, poison: float = POISONS[0]):
        self.poison, self.lines = poison, []

    def __enter__(self):
        self._now.append(self)
        return self

    def __exit__(self, *raised):
        self._now.remove(self)

    @classmethod
    def now(cls) -> float:
        """What undefined lanes hold in the launches that are recorded now."""
        return cls._now[-1].poison if cls._now else cls.POISONS[0]

    @classmethod
    def seen(cls, lines: list[str]) -> None:
        """Add to the lines of whoever asks."""
        for now in cls._now[-1:]:
            now.lines += [line for line in lines if line not in now.lines]


class _Recorder:
    """The observer that turns launches and addresses into ``Launch`` and ``Access`` objects."""

    def __init__(
        self,
        guard: bool,
        exported: str = "",
        origins: list[tuple[int, int]] | None = None,
        poison: float | None = None,
        helpers: tuple[str, ...] = (),
    ):
        self.guard = guard
        self.helpers = frozenset(helpers)
        self.poison = Undefined.now() if poison is None else poison
        self.exported, self.origins = (
            exported,
            origins or [],
        )  # see _child.export: lines of this file come from elsewhere
        self.launches: list[Launch] = []
        self.told: dict[tuple, tuple[int, ...]] = {}  # where a tensor lies and how -> the strides that it says it has
        self.running = False

    def launch(self, kernel: str):
        launch = Launch(kernel)
        self.launches.append(launch)
        self.running = True
        self.windows: dict[int, tuple[Operand, Operand, int, int]] = {}  # number -> operand, as told, shown base, real base
        self.order: dict[tuple[int, int, int], int] = {}
        self.interval = BarrierInterval(launch.races_inside)

        def finish(grid):
            self.interval.end()
            launch.grid, self.running = _trim(grid), False

        return finish

    def operand(self, name: str, tensor, address: int) -> int:
        operand = Operand(name, tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size(), str(tensor.dtype))
        self.launches[-1].operands[name] = operand
        told = self.told.get((address, operand.shape, operand.strides))
        seen = operand if told is None else dataclasses.replace(operand, strides=told)
        window = len(self.windows) + 1
        # Half a window of room on either side, and the real address's place in its page: alignment stays what it was.
        shown = (window << _WINDOW_BITS) + (1 << (_WINDOW_BITS - 1)) + address % 4096
        self.windows[window] = operand, seen, shown, address
        self.interval.operands[window] = operand, address
        return shown

    def barrier(self) -> None:
        self.interval.end()

    def access(self, kind: str, program, addresses: np.ndarray, active: np.ndarray, nbytes: int, frame):
        from kernels.lab import _triton_private

        launch, frame = self.launches[-1], _triton_private.caller(frame, self.helpers)
        order = self.order.get(program, 0)
        self.order[program] = order + 1
        flat, active = addresses.ravel(), active.ravel()
        real, allowed = flat.copy(), active.copy()
        line, name = frame.f_lineno, frame.f_code.co_filename
        source = linecache.getline(name, line).strip()
        launch.executed[source] += 1
        if name == self.exported:
            start, original = self.origins[bisect.bisect(self.origins, line, key=lambda pair: pair[0]) - 1]
            line += original - start
        lanes_window = (flat >> np.uint64(_WINDOW_BITS)).astype(np.int64)
        for window in distinct(lanes_window[active]).tolist():
            lanes = np.flatnonzero(active & (lanes_window == window))
            if window in self.windows:
                operand, seen, shown, base = self.windows[window]
                distance = (flat[lanes] - np.uint64(shown)).view(np.int64)
                elements = _elements(seen, distance, nbytes)
                hit = (elements >= 0).all(axis=1)
                if seen is not operand:
                    distance = np.where(hit, operand.offsets(elements[:, 0]) * operand.itemsize, distance)
                real[lanes] = distance.view(np.uint64) + np.uint64(base)
                touched, inside = real[lanes[hit]], lanes[hit].astype(np.int32)
                self.interval.add(
                    program, Touched(kind, line, source, window, addresses.shape, nbytes, touched, inside)
                )
                start = touched // np.uint64(SECTOR_BYTES)
                end = (touched + np.uint64(nbytes - 1)) // np.uint64(SECTOR_BYTES)
                sectors = len(distinct(start if nbytes == 1 or (start == end).all() else np.concatenate((start, end))))
                offsets, outside, tensor = elements[hit].ravel(), distance[~hit] // operand.itemsize, operand.name
            else:
                hit, sectors, tensor = np.zeros(len(lanes), dtype=bool), 0, None
                offsets, outside = np.empty(0, dtype=np.int64), flat[lanes].view(np.int64)
            if self.guard:
                allowed[lanes[~hit]] = False
            size = int(hit.sum()) * nbytes
            launch.accesses.append(
                Access(launch.kernel, program, order, kind, tensor, offsets, outside, size, sectors, line, source)
            )
        return real, allowed

    def exponent(self, largest: float) -> None:
        launch = self.launches[-1]
        launch.largest_exponent = max(launch.largest_exponent, largest)

    def stored(self, values: np.ndarray, allowed: np.ndarray) -> None:
        launch = self.launches[-1]
        if launch.undefined and values.dtype.kind == "f":  # before that, no poison can be among them
            launch.spoilt = launch.spoilt or bool(np.isnan(values[np.broadcast_to(allowed, values.shape)]).any())

    def undefined(self, frame) -> float:
        from kernels.lab import _triton_private

        frame = _triton_private.caller(frame, self.helpers)
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if source not in self.launches[-1].undefined:
            self.launches[-1].undefined.append(source)
            Undefined.seen([source])
        return self.poison


def _elements(operand: Operand, distance: np.ndarray, nbytes: int) -> np.ndarray:
    """Flat indices [lanes, elements a lane] that lanes of ``nbytes`` touch at byte ``distance``; −1 outside.

    A lane may be wider than an element (four 16-bit values read as one 64-bit word) or narrower.
    """
    width = operand.itemsize
    parts = distance[:, None] + np.arange(0, max(nbytes, width), width) if nbytes > width else distance[:, None]
    elements = operand.flat(parts // width)
    return elements if nbytes < width else np.where(parts % width == 0, elements, -1)


def _trim(grid) -> tuple[int, ...]:
    """The grid without trailing ones, at least one-dimensional."""
    grid = tuple(grid)
    while len(grid) > 1 and grid[-1] == 1:
        grid = grid[:-1]
    return grid


@contextlib.contextmanager
def telling(far, recorder: _Recorder | None = None):
    """Let tensors say, outside of launches, that their strides are others: ``far`` holds pairs of a tensor and strides."""
    from kernels.lab import _triton_private

    original = torch.Tensor.stride

    def place(tensor):
        return tensor.data_ptr(), tuple(tensor.shape), tuple(original(tensor))

    def stride(self, *dim, **named):
        with torch._C.DisableTorchFunctionSubclass():  # which would be told that this function is called, not torch's
            told = None if recorder and recorder.running else known.get(place(self))
            if told is None:
                return original(self, *dim, **named)
        return told[[*dim, *named.values()][0]] if dim or named else told

    known = {place(tensor): tuple(strides) for tensor, strides in far}
    if recorder:
        recorder.told = known
    try:
        torch.Tensor.stride = stride
        with _triton_private.typed_loops():
            yield
    finally:
        del torch.Tensor.stride  # torch has it from a base class


@contextlib.contextmanager
def recording(*, guard: bool = True, helpers: tuple[str, ...] = (), far=()):
    """Record every kernel launched in ``with trace.recording() as t:``, also those that an operator launches.

    helpers: names of Triton functions whose accesses are said to be those of the line that calls them.

    far: pairs of a tensor and strides. The tensor says that it has these, and the kernels' addresses are taken to mean
        them: so a tensor of some elements passes for one of 2**32. In the interpreter alone, and with ``guard``.

    guard: leave out accesses outside their tensor (a load gives ``other``, or 0; a store does nothing), because one
        that is far off kills the process; they are recorded either way. ``guard=False`` performs them, as a GPU
        would.

    Tensors are those passed at the launch: an operator may have made copies of what it was given. The trace fills up as
    launches happen, and stays readable if one raises. Where kernels are compiled, each launch is first recorded on copies,
    in a child process that interprets, then made; with ``guard``, one that reaches outside its tensors is made in such a
    process too.
    """
    from kernels.lab import _triton_private

    if runtime.interpreted:
        recorder = _Recorder(guard, helpers=helpers)
        with _triton_private.observed(recorder), telling(far, recorder) if far else contextlib.nullcontext():
            yield Trace(recorder.launches)
        return
    recorded = Trace()

    def also_in_child(*launch) -> bool:
        launches = _record_in_child(*launch, guard=guard, write_back=False, helpers=helpers)
        recorded.launches.extend(launches)
        stray = guard and any(one.outside() for one in launches)
        if stray:  # a GPU would perform it, or stop for good: this launch is made where it is left out
            _record_in_child(*launch, guard=True, write_back=True)
        return not stray

    with _triton_private.before_launches(also_in_child):
        yield recorded


def trace(kernel, grid, *args, **kwargs) -> Trace:
    """Run ``kernel[grid](*args, **kwargs)`` in the interpreter and record what each program accesses.

    kernel: a ``@triton.jit`` function, also one defined in a notebook cell.
    grid: a tuple, or a function of the arguments.

    The kernel does its work: tensors that it writes are written. Accesses outside a tensor are recorded and left out
    (see ``trace.recording``, which can also perform them). Returns a ``Trace`` with one launch.

    Raises ``ValueError`` if ``kernel`` is not a Triton kernel, ``grid`` no grid or an argument a numpy array; what the
    kernel raises comes through.
    """
    from kernels.lab import _triton_private

    if not hasattr(kernel, "run") or not hasattr(kernel, "__getitem__"):
        raise ValueError(
            f"kernel is {kernel!r}: trace needs a @triton.jit function, and its grid and arguments after it"
        )
    if not callable(grid) and not isinstance(grid, (tuple, list)):
        raise ValueError(f"grid is {grid!r}: it must be a tuple, such as ({grid!r},), or a function of the arguments")
    for i, arg in enumerate((*args, *kwargs.values())):
        if isinstance(arg, np.ndarray):
            name = [*(f"argument {n}" for n in range(len(args))), *kwargs][i]
            raise ValueError(f"{name} is a numpy array: a kernel takes tensors, torch.from_numpy makes one of it")
    if runtime.interpreted:
        with recording() as recorded:
            kernel[grid](*args, **kwargs)
        return recorded
    recorded = Trace()

    def in_child_instead(*launch) -> bool:
        recorded.launches.extend(_record_in_child(*launch, guard=True, write_back=True))
        return False

    with _triton_private.before_launches(in_child_instead):
        kernel[grid](*args, **kwargs)
    return recorded


def _record_in_child(
    kernel, grid, args, kwargs, *, guard: bool, write_back: bool, helpers: tuple[str, ...] = ()
) -> list[Launch]:
    """Record one launch in a child process that interprets; ``write_back``: copy what it wrote into our tensors."""
    from kernels.lab import _child, _triton_private

    signature = inspect.signature(kernel.fn)
    bound = signature.bind(*args, **{name: value for name, value in kwargs.items() if name in signature.parameters})
    bound.apply_defaults()
    grid = grid(bound.arguments) if callable(grid) else grid
    tensors = {name: value for name, value in bound.arguments.items() if any(_triton_private.leaves(name, value))}
    values = {name: value for name, value in bound.arguments.items() if name not in tensors}
    details = {"tensors": _packed(tensors), "order": list(bound.arguments), "grid": tuple(grid), "guard": guard}
    details |= {"poison": Undefined.now(), "helpers": helpers}
    answer = _child.run("trace", True, kernel, values, **details)
    if "error" in answer:
        raise RuntimeError(f"{kernel.fn.__name__} failed in the interpreter: {answer['error']}")
    if write_back:
        written = torch.load(io.BytesIO(answer["tensors"]), weights_only=False)
        for name, value in tensors.items():
            pairs = zip(_triton_private.leaves(name, value), _triton_private.leaves(name, written[name]), strict=True)
            for (_, ours), (_, theirs) in pairs:
                ours.untyped_storage().copy_(theirs.untyped_storage())
    for launch in answer["launches"]:
        Undefined.seen(launch.undefined)
    return answer["launches"]


def record_exported(module, details: dict) -> dict:
    """In the child: launch ``module.KERNEL`` as ``_record_in_child`` describes; returns the launches and the
    tensors."""
    from kernels.lab import _triton_private

    tensors = torch.load(io.BytesIO(details["tensors"]), map_location="cpu", weights_only=False)
    arguments = tensors | module.VALUES
    recorder = _Recorder(details["guard"], module.__file__, details["lines"], details["poison"], details["helpers"])
    with _triton_private.observed(recorder):
        module.KERNEL[details["grid"]](**{name: arguments[name] for name in details["order"]})
    return {"launches": recorder.launches, "tensors": _packed(tensors)}


def _packed(tensors: dict) -> bytes:
    """Tensors as bytes; shared storage stays shared."""
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


trace.recording = recording
