"""Races inside a program: two lanes touch one element, one of them writes, and no barrier orders them."""

from functools import cached_property
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from kernels.lab.accesses import Operand, RaceInside


class Touched(NamedTuple):
    """What one access, executed once, touches: the address of each lane that hits its tensor, and that lane's number."""

    kind: str  # "load", "store" or "atomic"
    line: int
    source: str
    window: int  # of the tensor, as the recorder numbers them
    shape: tuple[int, ...]  # of the block
    nbytes: int  # a lane
    addresses: np.ndarray
    lanes: np.ndarray  # positions in the flattened block


class BarrierInterval:
    """The accesses of one program since its last ``tl.debug_barrier``, and the races among them.

    A lane is a position in the flattened block. Accesses of equal block shape have the same lanes. Those of different shapes
    have none in common, as a GPU may give an element of each to another thread; a scalar has one lane, as a block of one
    element has. Two accesses to an element race if their lanes differ and one stores, or one updates atomically and the
    other does not. Memory is told by its addresses, so two tensors that share some are one.

    Programs run one after another here. So no more is kept than one of them touches between two barriers.
    """

    def __init__(self, found: list[RaceInside]):
        self.found = found  # of each pair of lines the first race is added to it
        self.operands: dict[int, tuple[Operand, int]] = {}  # window -> the tensor, and its first element's address
        self.program: tuple[int, int, int] | None = None
        self.touched: list[Touched] = []
        self._pairs: set[tuple] = set()  # of lines that were found

    def add(self, program: tuple[int, int, int], touched: Touched) -> None:
        """The next access; the first one of another program ends the interval."""
        if program != self.program:
            self.end()
            self.program = program
        if touched.lanes.size:
            self.touched.append(touched)

    def end(self) -> None:
        """A barrier, or the launch's end: look for races, and begin anew."""
        touched, self.touched = self.touched, []
        written = {one.window for one in touched if one.kind != "load"}
        for windows in self._memories:
            together = [one for one in touched if one.window in windows] if written & windows else []
            if len(together) > 1:
                self._search(together)

    @cached_property
    def _memories(self) -> list[set[int]]:
        """The windows, those that may share memory together."""
        memories: list[tuple[int, int, set[int]]] = []  # first byte, end, windows
        for window, (operand, begin) in self.operands.items():
            last = sum((size - 1) * stride for size, stride in zip(operand.shape, operand.strides, strict=True))
            this = begin, begin + (last + 1) * operand.itemsize, {window}
            joined = [this, *(one for one in memories if one[0] < this[1] and this[0] < one[1])]
            firsts, ends, windows = zip(*joined, strict=True)
            memories = [one for one in memories if one not in joined]
            memories.append((min(firsts), max(ends), set().union(*windows)))
        return [windows for *_, windows in memories]

    def _search(self, touched: list[Touched]) -> None:
        """Find the races among accesses to one memory."""
        unit = min(one.nbytes for one in touched)
        firsts: dict[tuple[int, ...], int] = {}  # shape -> the number of its first lane, none of another shape's
        cells, lanes, count = [], [], 0
        for one in touched:
            size = int(np.prod(one.shape))
            shape = one.shape if size > 1 else ()
            if shape not in firsts:
                firsts[shape], count = count, count + size
            parts = np.arange(one.nbytes // unit, dtype=np.uint64)
            cells.append((one.addresses[:, None] // np.uint64(unit) + parts).ravel())
            lanes.append(np.repeat(one.lanes + firsts[shape], len(parts)))
        numbers = np.repeat(np.arange(len(touched)), [len(each) for each in cells])
        cells, lanes = np.concatenate(cells), np.concatenate(lanes)
        low = cells.min()
        cells = (cells - low).astype(np.int64)
        one_lane = np.empty(cells.max() + 1, dtype=np.int64)  # of each cell; nothing is sorted unless it has several
        one_lane[cells] = lanes
        several = cells[one_lane[cells] != lanes]
        if not several.size:
            return
        shared = np.zeros(len(one_lane), dtype=bool)
        shared[several] = True
        kept = np.flatnonzero(shared[cells])
        kept = kept[np.argsort(cells[kept], kind="stable")]
        cells, lanes, numbers = cells[kept], lanes[kept], numbers[kept]
        places = list(dict.fromkeys((one.line, one.source, one.kind) for one in touched))
        place = np.array([places.index((one.line, one.source, one.kind)) for one in touched])[numbers]
        for a, b in combinations_with_replacement(range(len(places)), 2):
            pair, kinds = frozenset((places[a], places[b])), {places[a][2], places[b][2]}
            if pair in self._pairs or kinds in ({"load"}, {"atomic"}):
                continue
            those = np.flatnonzero((place == a) | (place == b))
            if those.size and (found := _first(cells[those], lanes[those], place[those] if a != b else numbers[those])):
                self._pairs.add(pair)
                one, other = those[found[0]], those[found[1]]
                self._add(touched[numbers[one]], touched[numbers[other]], (int(cells[one]) + int(low)) * unit)

    def _add(self, one: Touched, other: Touched, address: int) -> None:
        operand, begin = self.operands[one.window]
        element = int(operand.flat(np.array([(address - begin) // operand.itemsize]))[0])
        both = [(each.kind, each.line, each.source) for each in (one, other)]
        self.found.append(RaceInside(self.program, operand.name, element, *zip(*both, strict=True)))


def _first(cells: np.ndarray, lanes: np.ndarray, sides: np.ndarray) -> tuple[int, int] | None:
    """The first two events of one cell that differ in lane and side; the events are sorted by cell, then by time."""
    begins = np.flatnonzero(np.concatenate(([True], cells[1:] != cells[:-1])))
    differ = np.ones(len(begins), dtype=bool)
    for each in (lanes, sides):
        differ &= np.minimum.reduceat(each, begins) != np.maximum.reduceat(each, begins)
    if not differ.any():
        return None
    begin = int(begins[differ.argmax()])
    later = begin
    while True:
        later += 1
        differ = (lanes[begin:later] != lanes[later]) & (sides[begin:later] != sides[later])
        if differ.any():
            return begin + int(differ.argmax()), later
