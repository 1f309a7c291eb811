"""What a trace is made of: the tensors of a launch, each access to their elements, and what is counted of these."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from kernels.common.lines import wrapped

SECTOR_BYTES = 32  # the unit in which an NVIDIA GPU moves data between L2, L1 and DRAM


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor argument of a launch: its name in the kernel, shape, strides (in elements) and bytes an element."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str

    def flat(self, offsets: np.ndarray) -> np.ndarray:
        """Row-major flat indices of the elements at memory ``offsets`` (in elements), −1 where the tensor has none.

        An element that several indices share (stride 0, overlapping windows) has the smallest of them.
        """
        if prod(self.shape) == 0:
            return np.full(offsets.shape, -1)
        if not self._nested:
            addresses, first = self._table
            slot = np.minimum(np.searchsorted(addresses, offsets), len(addresses) - 1)
            return np.where(addresses[slot] == offsets, first[slot], -1)
        flat, rest, inside = np.zeros_like(offsets), offsets, offsets >= 0
        for size, stride, weight in self._dims:
            index = rest // stride
            inside = inside & (index < size)
            flat, rest = flat + index * weight, rest - index * stride
        return np.where(inside & (rest == 0), flat, -1)

    def offsets(self, flat: np.ndarray) -> np.ndarray:
        """Memory offsets (in elements) of the elements with row-major flat indices ``flat``."""
        return sum((flat // weight % size * stride for size, stride, weight in self._dims), np.zeros_like(flat))

    @cached_property
    def elements(self) -> int:
        """How many distinct elements the tensor has in memory."""
        return prod(size for size, *_ in self._dims) if self._nested else len(self._table[0])

    @cached_property
    def _dims(self) -> list[tuple[int, int, int]]:
        """(size, stride, row-major weight) of each dimension that moves through memory, largest stride first."""
        weights = [prod(self.shape[d + 1 :]) for d in range(len(self.shape))]
        dims = zip(self.shape, self.strides, weights, strict=True)
        return sorted((d for d in dims if d[0] != 1 and d[1] != 0), key=lambda d: -d[1])

    @cached_property
    def _nested(self) -> bool:
        """Whether each stride steps over all that smaller ones can reach, so that division takes an offset apart."""
        dims = self._dims
        return all(d[1] > sum((size - 1) * stride for size, stride, _ in dims[i + 1 :]) for i, d in enumerate(dims))

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """For overlapping layouts: every memory offset, sorted, and the first flat index that has it."""
        return np.unique(self.offsets(np.arange(prod(self.shape))), return_index=True)


@dataclass(frozen=True, eq=False, repr=False)
class Access:
    """What one ``tl.load``, ``tl.store`` or atomic, executed once by one program, does to one tensor argument."""

    kernel: str
    program: tuple[int, int, int]
    order: int  # the program's first access is number 0
    kind: str  # "load", "store" or "atomic"
    tensor: str | None  # the parameter's name; None when the address was computed from no tensor argument
    offsets: np.ndarray  # row-major flat index of the element, for each active lane that hits one; repeats kept
    outside: np.ndarray  # distance from the tensor's first element, in elements, for each active lane that hits none
    nbytes: int  # bytes requested by the lanes that hit elements
    sectors: int  # distinct 32-byte sectors that those lanes touch
    line: int  # in the file or cell
    source: str  # that line's text

    def __repr__(self) -> str:
        where = f"{self.kernel}, program {self.program}, line {self.line} `{self.source}`"
        name = self.tensor or "an address that no tensor argument leads to"
        text = f"{self.kind} {'of' if self.kind == 'load' else 'to'} {name}: {self.offsets.size} elements"
        if self.outside.size:
            text += f", {self.outside.size} lanes outside it (element {self.outside[0]} first)"
        return f"<{text}; {where}>"


class RaceInside(NamedTuple):
    """Two lanes of one program touch one element, at least one of them writes, and no barrier is between.

    ``kinds``, ``lines`` and ``sources`` are those of the earlier access and of the later one.
    """

    program: tuple[int, int, int]
    tensor: str  # the parameter's name, of the earlier access if there are two
    element: int  # row-major flat index
    kinds: tuple[str, str]  # "load", "store" or "atomic"
    lines: tuple[int, int]
    sources: tuple[str, str]


@dataclass(eq=False, repr=False)
class Launch:
    """One recorded launch: ``kernel`` (its name), ``grid``, ``operands`` by parameter name, ``accesses`` in order.

    ``undefined`` lists the lines that load without ``other`` and leave masked lanes undefined. ``executed`` counts how often
    each line loads, stores or updates, in all programs, also where all its lanes are masked out and no access is made.
    ``largest_exponent`` is the largest number whose exponential is taken, or −inf. ``spoilt``: NaN was stored after such a
    load. ``races_inside`` holds the first race inside a program of each pair of lines (see ``lab.races``).
    """

    kernel: str
    grid: tuple[int, ...] = ()
    operands: dict[str, Operand] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    undefined: list[str] = field(default_factory=list)
    executed: Counter[str] = field(default_factory=Counter)
    largest_exponent: float = -math.inf
    spoilt: bool = False
    races_inside: list[RaceInside] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<{self.kernel}, grid {' × '.join(map(str, self.grid))}: {len(self.accesses)} accesses>"

    @property
    def requested_bytes(self) -> dict[str, int]:
        """Bytes asked for, by tensor: active lanes times bytes a lane, summed over all accesses."""
        return {name: sum(a.nbytes for a in self._of(name)) for name in self.operands}

    @property
    def sectors(self) -> dict[str, int]:
        """32-byte sectors asked for, by tensor: the distinct sectors of each access, summed over all accesses."""
        return {name: sum(a.sectors for a in self._of(name)) for name in self.operands}

    @property
    def unique_bytes(self) -> dict[str, int]:
        """The floor, by tensor: bytes of the distinct elements read plus bytes of the distinct elements written."""
        return {name: sum(self._unique(name, write) for write in (False, True)) for name in self.operands}

    def _of(self, name: str, kind: str | None = None) -> list[Access]:
        if name not in self.operands:
            raise ValueError(f"name is {name!r}: the tensors of {self.kernel} are {', '.join(self.operands)}")
        if kind not in (None, "load", "store", "atomic"):
            raise ValueError(f'kind is {kind!r}: it must be "load", "store", "atomic" or None for all')
        return [a for a in self.accesses if a.tensor == name and kind in (None, a.kind)]

    def _unique(self, name: str, write: bool) -> int:
        touched = [a.offsets for a in self._of(name) if (a.kind != "load") == write]
        return len(distinct(np.concatenate(touched))) * self.operands[name].itemsize if touched else 0

    def programs(self, name: str, kind: str | None = None) -> dict[tuple[int, int, int], list[int]]:
        """Which elements each program touches, program -> sorted flat indices: by loads, stores and atomics, or one
        ``kind`` of them."""
        return {program: elements.tolist() for program, elements in self._touched(name, kind)}

    def _touched(self, name: str, kind: str | None = None) -> Iterator[tuple[tuple[int, int, int], np.ndarray]]:
        """``programs`` as arrays, one after the other: all of them together could be more than there is memory for."""
        touched: dict[tuple[int, int, int], list[np.ndarray]] = {}
        for access in self._of(name, kind):
            touched.setdefault(access.program, []).append(access.offsets)
        return ((program, distinct(np.concatenate(parts))) for program, parts in touched.items())

    def elements(self, name: str, kind: str | None = None, *, programs: int = 1) -> np.ndarray:
        """Flat indices, sorted, of the elements that at least so many programs touch, or do one ``kind`` of access to."""
        counts = np.zeros(math.prod(self.operands[name].shape), dtype=np.int32)
        for _, elements in self._touched(name, kind):
            counts[elements] += 1
        return np.flatnonzero(counts >= programs)

    def conflicts(self, name: str) -> np.ndarray:
        """The elements of ``races`` of one tensor, sorted: those that one program stores and another touches."""
        return np.intersect1d(self.elements(name, "store"), self.elements(name, programs=2), assume_unique=True)

    def outside(self) -> list[Access]:
        """The accesses with active lanes outside their tensor: before it, past it, or in a strided view's gaps."""
        return [a for a in self.accesses if a.outside.size]

    def writes_everywhere(self, name: str) -> bool:
        """Whether every element of the tensor is stored to (or atomically updated) by some program."""
        return self._unique(name, write=True) == self.operands[name].elements * self.operands[name].itemsize

    def races(self) -> dict[str, dict[int, list[tuple[int, int, int]]]]:
        """Elements on which programs conflict: tensor -> flat index -> the programs.

        Programs run in no fixed order, so an element that one program stores must not be loaded, stored or updated by
        another. Two atomic updates are no conflict. Not seen: an order that programs agree on through an atomic flag,
        and conflicts between two arguments that share memory.
        """
        found = {}
        for name in self.operands:
            touching: dict[int, list] = {i: [] for i in self.conflicts(name).tolist()}
            for program, elements in self._touched(name) if touching else ():
                for i in touching.keys() & elements.tolist():
                    touching[i].append(program)
            if touching:
                found[name] = touching
        return found

    def table(self) -> None:
        """Print what the launch requests of each tensor, beside the floor."""
        head = ("tensor", "access", "requested", "in 32-byte sectors", "floor", "ratio")
        rows = []
        for name in self.operands:
            for kind, write in (("read", False), ("written", True)):
                accesses = [a for a in self._of(name) if (a.kind != "load") == write]
                if accesses:
                    requested = sum(a.nbytes for a in accesses)
                    rows.append((name, kind, requested, sum(a.sectors for a in accesses), self._unique(name, write)))
        rows.append(("total", "", *(sum(row[i] for row in rows) for i in (2, 3, 4))))
        lines = [
            (
                name,
                kind,
                f"{requested:,}",
                f"{sectors:,} = {sectors * SECTOR_BYTES:,}",
                f"{floor:,}",
                _times(requested, floor),
            )
            for name, kind, requested, sectors, floor in rows
        ]
        widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
        grid = " × ".join(map(str, self.grid))
        what = "bytes that its programs request, beside the floor, each byte once (not DRAM traffic: caches serve repeats)"
        print(wrapped(f"{self.kernel}, grid {grid}: {what}"))
        for line in (head, *lines):
            left, right = line[:2], line[2:]
            cells = [f"{c:<{w}}" for c, w in zip(left, widths, strict=False)]
            cells += [f"{c:>{w}}" for c, w in zip(right, widths[2:], strict=True)]
            print(wrapped("  ".join(cells).rstrip()))
        if self.outside():
            print(f"{len(self.outside())} accesses reach outside their tensor: see outside()")

    def picture(
        self,
        name: str,
        *,
        program: tuple[int, ...] | int | None = None,
        index=None,
        axes: tuple[str, ...] | None = None,
        alt: str | None = None,
    ):
        """Draw which program touches which element of a tensor; with ``program``, which of its accesses touches what.

        name: the parameter's name.
        program: draw one program only (``(1, 0)``, or ``1`` on a 1-D grid): elements carry the number of the access
            (1 is the program's first load of this tensor or store to it), in order.
        index: for a tensor of more than two dimensions, the part to draw, as in ``tensor[index]``: ``index=0`` or
            ``np.s_[0, :, :, 2]``. The part must have one or two dimensions.
        axes: what the drawn dimensions mean, for the axis labels: ``("time t", "channel d")``.
        alt: what the picture looks like, for whoever cannot see it, instead of a text made from what is drawn.

        Loads and stores have a panel each. Colour and number give the first program (or access) that touches an
        element; ``×n`` says that n programs (accesses) do; blank elements are touched by none. Returns a matplotlib
        figure.
        """
        from kernels.lab import _pictures

        return _pictures.draw(self, name, program, index, axes, alt)


class Trace:
    """Recorded launches. Bytes, sectors and ``outside`` are those of all of them, and ``table`` prints all.

    The rest is about one launch, the first unless told: programs of two launches are not the same programs.
    """

    def __init__(self, launches: list[Launch] | None = None):
        self.launches: list[Launch] = [] if launches is None else launches

    def __repr__(self) -> str:
        return f"<Trace of {self.launches}>"

    def _launch(self, launch: int) -> Launch:
        if not -len(self.launches) <= launch < len(self.launches):
            raise ValueError(f"launch is {launch}, but {len(self.launches)} launches were recorded")
        return self.launches[launch]

    @property
    def accesses(self) -> list[Access]:
        """All accesses of all launches, in order."""
        return [access for launch in self.launches for access in launch.accesses]

    @property
    def requested_bytes(self) -> dict[str, int]:
        """``Launch.requested_bytes`` of all launches: parameters of one name are added up."""
        return self._sum("requested_bytes")

    @property
    def unique_bytes(self) -> dict[str, int]:
        """``Launch.unique_bytes`` of all launches: what one leaves in a cache does not count for the next."""
        return self._sum("unique_bytes")

    @property
    def sectors(self) -> dict[str, int]:
        """``Launch.sectors`` of all launches."""
        return self._sum("sectors")

    def _sum(self, name: str) -> dict[str, int]:
        if not self.launches:
            raise ValueError("0 launches were recorded: nothing to count")
        total = Counter()
        for launch in self.launches:
            total.update(getattr(launch, name))
        return dict(total)

    def outside(self) -> list[Access]:
        """``Launch.outside``, over all launches."""
        return [access for launch in self.launches for access in launch.outside()]

    def programs(self, name: str, kind: str | None = None, *, launch: int = 0) -> dict[tuple[int, int, int], list[int]]:
        """See ``Launch.programs``."""
        return self._launch(launch).programs(name, kind)

    def writes_everywhere(self, name: str, *, launch: int = 0) -> bool:
        """See ``Launch.writes_everywhere``."""
        return self._launch(launch).writes_everywhere(name)

    def races(self, *, launch: int = 0) -> dict[str, dict[int, list[tuple[int, int, int]]]]:
        """See ``Launch.races``."""
        return self._launch(launch).races()

    def races_inside(self) -> list[RaceInside]:
        """``Launch.races_inside``, over all launches."""
        return [race for launch in self.launches for race in launch.races_inside]

    def table(self, *, launch: int | None = None) -> None:
        """``Launch.table`` of each launch, and what they come to together; or of one of them."""
        for one in [self._launch(launch or 0)] if launch is not None or not self.launches else self.launches:
            one.table()
        if launch is None and len(self.launches) > 1:
            requested, floor = (sum(counts.values()) for counts in (self.requested_bytes, self.unique_bytes))
            print(wrapped(f"{len(self.launches)} launches: {requested:,} bytes requested, the floors come to {floor:,}"))

    def picture(self, name: str, *, launch: int = 0, program=None, index=None, axes=None, alt=None):
        """See ``Launch.picture``."""
        return self._launch(launch).picture(name, program=program, index=index, axes=axes, alt=alt)


def distinct(values: np.ndarray) -> np.ndarray:
    """``np.unique`` of one-dimensional whole numbers, which asks less: a trace calls it twice an access."""
    values = values if (values[1:] >= values[:-1]).all() else np.sort(values)
    return values[np.concatenate(([True], values[1:] != values[:-1]))] if values.size else values


def _times(requested: int, floor: int) -> str:
    return f"{requested / floor:.2f}×" if floor else "-"
