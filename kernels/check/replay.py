"""Record what a launcher launches, and replay it on other values: so the numbers come from kernels, or from nowhere.

The learner's function is called twice, on two draws of the values with the same shapes, strides and integers. Its launches
are noted and not run: the tensors that a kernel may have stored to are filled with noise, of which each call has its own.
What a launch is given must then be the same in both calls:

* numbers, grids and kernels are equal, or they were computed from values on the host;
* a tensor that the launcher made holds the same in both (zeros, a table of indices, or nothing yet, which is NaN), or copies
  of elements of a tensor that it had, in other places or in another dtype. Anything else was computed on the host.

:func:`replay` makes the launches on a third draw, of which the launcher has never seen a value.
"""

import dataclasses
import functools
import inspect
import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from kernels.check.explanations import is_theirs
from kernels.lab import _triton_private

NO_KERNEL = "no Triton kernel stores anything"
ON_HOST = "a launcher sees shapes and strides, and numbers come from kernels: load it in a kernel, and compute there"
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_stride = torch._C.TensorBase.stride  # what a tensor really has: a check may let one say that it has others


class OnHost(Exception):
    """A launch was given what the host computed from values: what that is, and what to do."""


class View(NamedTuple):
    """A tensor by the storage that it lies in, a number: those of the call's tensors come first."""

    storage: int
    dtype: torch.dtype
    offset: int
    shape: tuple
    strides: tuple

    def of(self, storage) -> torch.Tensor:
        """The tensor, in this storage; or in its bytes."""
        storage = storage.untyped_storage() if isinstance(storage, torch.Tensor) else storage
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(
            storage, self.offset, self.shape, self.strides
        )

    def places(self) -> torch.Tensor:
        """Where its elements are in their storage, in elements, row by row."""
        at = torch.full(self.shape, self.offset, dtype=torch.int64)
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            at += (torch.arange(size) * stride).reshape([-1 if i == axis else 1 for i in range(len(self.shape))])
        return at.reshape(-1)


class Described(NamedTuple):
    """A tensor descriptor whose base is a view: its class, and its other fields."""

    kind: type
    base: View
    fields: dict


class Copies(NamedTuple):
    """Elements of a storage that are copies of another's."""

    to: torch.Tensor  # places, in elements
    source: int
    dtype: torch.dtype  # of the source
    places: torch.Tensor  # there


class Fill(NamedTuple):
    """What the launcher itself wrote into a storage since the launch before."""

    dtype: torch.dtype
    to: torch.Tensor  # places, in elements
    constants: torch.Tensor  # what stands there, as bits
    copies: list[Copies]


@dataclass
class Launch:
    """One launch: ``arguments`` by parameter, a tensor as its :class:`View`; ``options`` such as ``num_warps``."""

    kernel: object
    grid: tuple
    arguments: dict
    options: dict
    line: tuple[str, int]  # the launcher's
    fills: dict[int, Fill] = field(default_factory=dict)


class Recording(NamedTuple):
    """The launches of one call, how large the storages are that it made itself, in bytes, and what it wrote at its end."""

    launches: list[Launch]
    made: list[int]
    after: dict[int, Fill]


def record(call: Callable, first: list, second: list, outputs: dict[int, str]) -> Recording:
    """What ``call(0)`` and ``call(1)`` launch, on two draws of the values; no kernel runs.

    first, second: the tensors of each draw. outputs: the names of those that are stored to, by their place.

    Raises ``OnHost`` where a launch is given what the host computed from values; what the call raises comes through.
    """
    made: dict[int, torch.Tensor] = {}  # storages that a call kept for the next one: as they were before
    watches = [_Watch(tensors, outputs, number, made) for number, tensors in enumerate((first, second))]
    for watch in watches:
        with Unfilled(), _triton_private.before_launches(watch.launch):
            call(watch.number)
        watch.end()
        watch.restore()
        if not watch.launches and any(map(watch.ended.changed, outputs)):
            raise OnHost(NO_KERNEL, ON_HOST)
    one, other = watches
    if len(one.launches) != len(other.launches):
        both = f"{len(one.launches)} launches on one draw of the values, {len(other.launches)} on another"
        raise OnHost(f"{both} of the same shapes", ON_HOST)
    for a, b in zip(one.launches, other.launches, strict=True):
        _same_launch(a, b)
        a.launch.fills.update(_fills(a, b, a.views, one.views))
    after = _fills(one.ended, other.ended, outputs, one.views)
    sizes = [storage.nbytes() for storage in one.storages[one.given :]]
    return Recording([noted.launch for noted in one.launches], sizes, after)


def _fills(a: "_Noted", b: "_Noted", storages, views: list[View]) -> dict[int, Fill]:
    """What the launcher wrote into these storages since the launch before."""
    return {place: _fill(a, b, place, views) for place in storages if a.changed(place) or b.changed(place)}


def replay(recording: Recording, tensors: list) -> None:
    """Make the launches of a recording on these tensors: others' values, the same shapes, strides and places."""
    for launch, given in launches_on(recording, tensors):
        _at_line(launch, given)


def launches_on(recording: Recording, tensors: list):
    """``(launch, its arguments)`` of each launch, one after the other, with what the launcher itself wrote before it."""
    storages, device = [tensor.untyped_storage() for tensor in tensors], tensors[0].device
    storages += [torch.empty(size, dtype=torch.uint8, device=device).untyped_storage() for size in recording.made]
    for launch in recording.launches:
        _write(launch.fills, storages, device)
        of = lambda view: view.of(storages[view.storage])  # noqa: E731
        yield launch, {name: each(value, of) for name, value in launch.arguments.items()}
    _write(recording.after, storages, device)


def _write(fills: dict[int, Fill], storages, device) -> None:
    """Write what the launcher wrote."""
    for storage, fill in fills.items():
        whole = _elements(storages[storage], fill.dtype)
        whole.view(BITS[fill.dtype.itemsize])[fill.to.to(device)] = fill.constants.to(device)
        for copies in fill.copies:
            source = _elements(storages[copies.source], copies.dtype)
            whole[copies.to.to(device)] = source[copies.places.to(device)].to(fill.dtype)


def tensors_of(launch: Launch) -> list[tuple[str, View]]:
    """The tensors of a launch, each by its parameter's name."""
    return [(name, view) for name, value in launch.arguments.items() for view in views(value)]


def _at_line(launch: Launch, given: dict) -> None:
    """Launch as if from the learner's line, which an error then names."""
    filename, line = launch.line
    code = compile("\n" * (line - 1) + "kernel[grid](**given)", filename, "exec")
    exec(code, {"kernel": launch.kernel, "grid": launch.grid, "given": given | launch.options})


class _Noted(NamedTuple):
    """A launch as one call made it: all storages' bytes, as the launch before left them (``None`` of new ones), and now."""

    launch: Launch | dict[int, str]  # at a call's end the outputs' names
    left: list[torch.Tensor | None]
    now: list[torch.Tensor]
    views: dict[int, View]  # of this launch, by storage

    def changed(self, storage: int) -> bool:
        """Whether the launcher has written to a storage since the launch before."""
        return self.left[storage] is None or not torch.equal(self.left[storage], self.now[storage])


class _Watch:
    """One call of the launcher."""

    def __init__(self, tensors: list, outputs: dict, number: int, made: dict):
        self.number, self.outputs, self.made = number, outputs, made
        self.storages, self.places, self.left, self.views, self.launches = [], {}, [], [], []
        self.given = 0
        self.generator = torch.Generator().manual_seed(0x5EED0000 + number)  # no draw has this one
        for tensor in tensors:
            self.view(tensor)
        self.given = len(self.storages)
        self.left = list(map(_bytes, self.storages))
        self.begun = list(self.left)

    def view(self, tensor: torch.Tensor) -> View:
        """A tensor as a view of its storage, which has a number from its first on."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr() if storage.nbytes() else -1 - storage._cdata
        place = self.places.setdefault(key, len(self.storages))
        view = View(place, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(_stride(tensor)))
        if place == len(self.storages):
            self.storages.append(storage)
            self.left.append(None)
            self.views.append(view)
            if self.given and key not in self.made:
                self.made[key] = storage, _bytes(storage)
        return view

    def restore(self) -> None:
        """Let all tensors, also those that a launcher keeps from call to call, hold what they held before this one."""
        for storage, content in (*zip(self.storages, self.begun), *self.made.values()):
            _elements(storage, torch.uint8).copy_(content)

    def launch(self, kernel, grid, args, kwargs) -> bool:
        """Note one launch; ``False``: it is not to run."""
        options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
        bound = inspect.getcallargs(kernel.fn, *args, **{k: v for k, v in kwargs.items() if k not in options})
        for name in _triton_private.constant_parameters(kernel.fn):
            each(bound[name], functools.partial(_no_tensor, name))
        grid = tuple(grid(bound) if callable(grid) else grid)
        views = {}

        def noted(tensor):
            with torch._C.DisableTorchFunction():  # with a mode at work, its strides would be those that it says it has
                view = self.view(tensor)
            return views.setdefault(view.storage, view) and view

        launch = Launch(kernel, grid, {name: each(value, noted) for name, value in bound.items()}, options, _line())
        self.launches.append(_Noted(launch, list(self.left), list(map(_bytes, self.storages)), views))
        self.left[:] = self.launches[-1].now
        for place, view in views.items():
            if place in self.outputs or place >= self.given and view.dtype.is_floating_point:
                self.noise(self.storages[place], view.dtype)
                self.left[place] = _bytes(self.storages[place])
        return False

    def end(self) -> None:
        """Note what stands in the storages when the call ends."""
        views = {place: self.views[place] for place in self.outputs}
        self.ended = _Noted(self.outputs, list(self.left), list(map(_bytes, self.storages)), views)

    def noise(self, storage, dtype) -> None:
        """Fill a storage with what no launcher knows, as a kernel might."""
        whole = _elements(storage, dtype)
        noise = torch.randn(whole.shape, generator=self.generator)
        whole.copy_((noise if dtype.is_floating_point else 1000 * noise).to(dtype))


class Unfilled(TorchFunctionMode):
    """Meanwhile ``torch.empty`` and its like hold NaN, and the largest number where there is none."""

    MAKE = {torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted}
    MAKE |= {torch.Tensor.new_empty, torch.Tensor.new_empty_strided, torch.Tensor.resize_}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if function in self.MAKE:
            dtype = made.dtype
            made.fill_(math.nan if dtype.is_floating_point else True if dtype == torch.bool else torch.iinfo(dtype).max)
        return made


def _no_tensor(name: str, tensor):
    raise OnHost(
        f"{name} is a tensor, and a tl.constexpr", "a constant is part of the kernel's text: leave tl.constexpr out"
    )


def _line() -> tuple[str, int]:
    """The learner's line that launches."""
    frame = sys._getframe(1)
    while frame is not None and not is_theirs(frame.f_code.co_filename):
        frame = frame.f_back
    return ("<launch>", 1) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _elements(storage, dtype) -> torch.Tensor:
    """A storage as a tensor of one axis."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(
        storage, 0, (storage.nbytes() // dtype.itemsize,), (1,)
    )


def _bytes(storage) -> torch.Tensor:
    return _elements(storage, torch.uint8).cpu().clone()


def each(value, function):
    """``value`` with ``function`` of each tensor, or view of one, in it."""
    if isinstance(value, (View, torch.Tensor)):
        return function(value)
    if isinstance(value, tuple) and not isinstance(value, Described):
        members = [each(member, function) for member in value]
        return type(value)(*members) if hasattr(value, "_fields") else tuple(members)
    if dataclasses.is_dataclass(value) and hasattr(value, "block_shape"):  # a tensor descriptor
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        value = Described(type(value), fields.pop("base"), fields)
    if isinstance(value, Described):
        base = each(value.base, function)
        return value._replace(base=base) if isinstance(base, View) else value.kind(base=base, **value.fields)
    return value


def views(value) -> list[View]:
    found = []
    each(value, lambda view: found.append(view) or view)
    return found


def _same_launch(a: _Noted, b: _Noted) -> None:
    """Raise ``OnHost`` where two calls launch differently."""
    one, other = a.launch, b.launch
    name = _triton_private.python_function(one.kernel).__name__
    if not _same(one.kernel, other.kernel):
        theirs = _triton_private.python_function(other.kernel).__name__
        raise OnHost(f"{name} is launched on one draw of the values, {theirs} on another", ON_HOST)
    if one.grid != other.grid:
        raise OnHost(f"the grid of {name} is {one.grid} on one draw of the values, {other.grid} on another", ON_HOST)
    for which in ("arguments", "options"):
        mine, theirs = getattr(one, which), getattr(other, which)
        for key in mine.keys() | theirs.keys():
            if not _same(mine.get(key), theirs.get(key)):
                said = " on one draw of the values, ".join(_shown(values.get(key)) for values in (mine, theirs))
                raise OnHost(f"{key} of {name} is {said} on another", ON_HOST)


def _same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if (function := _triton_private.python_function(a)) is not None:
        return function.__code__ == _triton_private.python_function(b).__code__
    return a is b or a == b or (a != a and b != b)


def _shown(value) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, View) else f"{value!r:.60}"


def _fill(a: _Noted, b: _Noted, storage: int, views: list[View]) -> Fill:
    """How what stands in a storage before a launch is made anew; ``views``: the first of each storage.

    Raises ``OnHost`` where it is neither the same in both calls nor a copy.
    """
    dtype = a.views[storage].dtype
    bits = [_as_bits(noted.now[storage], dtype) for noted in (a, b)]
    if a.left[storage] is None:
        to = torch.arange(len(bits[0]))
    else:
        left = [_as_bits(noted.left[storage], dtype) for noted in (a, b)]
        to = ((bits[0] != left[0]) | (bits[1] != left[1])).nonzero()[:, 0]
    copies = _laid_out_anew(a, b, storage, views, to) if not torch.equal(bits[0][to], bits[1][to]) else []
    to = to[~torch.isin(to, copies[0].to)] if copies else to
    for source, view in enumerate(views[: len(a.now)]):
        rest = to[bits[0][to] != bits[1][to]]
        if len(rest) and source != storage:
            sources = [_as_bits(_typed(noted.now[source], view.dtype).to(dtype), dtype) for noted in (a, b)]
            places = _find([bit[rest] for bit in bits], sources)
            copies.append(Copies(rest[places >= 0], source, view.dtype, places[places >= 0]))
            to = to[~torch.isin(to, copies[-1].to)]
    if not torch.equal(bits[0][to], bits[1][to]):
        raise OnHost(*_computed(a, storage))
    return Fill(dtype, to, bits[0][to], [copy for copy in copies if len(copy.to)])


def _laid_out_anew(a: _Noted, b: _Noted, storage: int, views: list[View], to: torch.Tensor) -> list[Copies]:
    """The tensor whose elements, in another order of axes or another dtype, are those of a storage's view, if there is one.

    Unlike ``_find`` this is sure of booleans and small integers too, most of which are equal by chance.
    """
    target = a.views[storage]
    wanted = [target.of(noted.now[storage]).reshape(-1) for noted in (a, b)]
    places = target.places()
    for source, view in enumerate(views[: len(a.now)]):
        if source == storage or len(wanted[0]) != math.prod(view.shape) or not torch.isin(places, to).all():
            continue
        for axes in itertools.permutations(range(len(view.shape))):
            sources = [view.of(noted.now[source]).permute(axes).reshape(-1).to(target.dtype) for noted in (a, b)]
            if all(map(_equal_bits, wanted, sources)):
                order = view.places().reshape(view.shape).permute(axes).reshape(-1)
                return [Copies(places, source, view.dtype, order)]
    return []


def _find(wanted: list[torch.Tensor], sources: list[torch.Tensor]) -> torch.Tensor:
    """Where in two sources, at one place in both, the wanted bits of each stand; −1 where nowhere."""
    key = lambda one, other: one.long() * 1_000_003 + other.long()  # noqa: E731
    (keys, order), want = key(*sources).sort(stable=True), key(*wanted)
    if not len(keys):
        return torch.full(want.shape, -1)
    place = order[torch.searchsorted(keys, want).clamp(max=len(keys) - 1)]
    hit = (sources[0][place] == wanted[0]) & (sources[1][place] == wanted[1])
    return torch.where(hit, place, -1)


def _computed(noted: _Noted, storage: int) -> tuple[str, str]:
    """What is said of a tensor whose values the host computed."""
    if isinstance(noted.launch, dict):
        return f"{noted.launch[storage]} is written by the launcher, after its last launch", ON_HOST
    names = [name for name, view in tensors_of(noted.launch) if view.storage == storage]
    kernel = _triton_private.python_function(noted.launch.kernel).__name__
    return f"{names[0]} of {kernel} holds what the host computed from values", ON_HOST


def _typed(content: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A storage's bytes as elements."""
    return content[: len(content) // dtype.itemsize * dtype.itemsize].view(dtype)


def _as_bits(content: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _typed(content, BITS[dtype.itemsize]) if content.dtype == torch.uint8 else content.view(BITS[dtype.itemsize])


def _equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    bits = BITS[a.dtype.itemsize]
    return torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))
