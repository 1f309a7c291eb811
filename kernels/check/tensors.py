"""What a case is made of: numbers drawn by a seed, and tensors inside larger buffers, with poison around them."""

import contextlib
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

# Functions, not modules: what a later cell of the notebook assigns to `numpy.isnan` or `torch.equal` changes no check.
from numpy import prod, unique, where

from kernels import runtime

MARGIN = 1 << 15  # elements before and after each buffer, so that an address gone astray still meets poison
UNTOUCHED = 0x7FC0BAD5  # as an integer far from any index, as float32 a NaN
_UNTOUCHED = {  # NaNs with a payload that arithmetic does not produce
    torch.int32: (torch.int32, UNTOUCHED),
    torch.float64: (torch.int64, 0x7FF8BAD57FC0BAD5),
    torch.float32: (torch.int32, UNTOUCHED),
    torch.float16: (torch.int16, 0x7EB5),
    torch.bfloat16: (torch.int16, 0x7FEB),
}
FAR = (1 << 30) + (1 << 10)  # a stride of 32 bits, and twice it has more
SIDES = ("before", "after")
NAN = float("nan")
_POISON = {  # for what cannot be NaN
    torch.bool: True,
    torch.int64: 7,
    torch.int32: 7,
    torch.int16: 7,
    torch.int8: 127,
    torch.uint8: 255,
}


@contextlib.contextmanager
def one_thread():
    """Meanwhile torch works in one thread: its others take longer to wake than a case's tensors to copy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def both_ends(axes: str) -> tuple[tuple[str, str], ...]:
    """Both ends of each axis: where a case puts poison."""
    return tuple((axis, side) for axis in axes for side in SIDES)


class Size(NamedTuple):
    """A size that is ``shown`` while learning; when grading, one of low..high that divides as asked."""

    shown: int
    low: int
    high: int
    multiple_of: int = 1
    but_not_of: int = 0


class Draw:
    """Where a property's numbers come from: fixed shapes while learning, fresh ones when grading.

    Of one seed all ``turn``s have the same shapes, and values of their own.
    """

    def __init__(self, seed, grading: bool, turn: int = 0):
        self.grading, self.turn = grading, turn
        self._random = random.Random(str(seed))
        self._generator = torch.Generator().manual_seed(self._random.getrandbits(62) + turn)

    def size(self, shown: int, low: int, high: int, multiple_of: int = 1, but_not_of: int = 0) -> int:
        """A ``Size``, by its parts."""
        if not self.grading:
            return shown
        fits = [n for n in range(low, high + 1) if n % multiple_of == 0 and not (but_not_of and n % but_not_of == 0)]
        return self._random.choice(fits)

    def normal(self, *shape: int, dtype=torch.float32, scale: float = 1.0) -> torch.Tensor:
        """Normal values of the given standard deviation, rounded to ``dtype``."""
        return (torch.randn(shape, generator=self._generator, dtype=torch.float64) * scale).to(dtype)


class Fenced:
    """A tensor inside a larger buffer.

    ``axes`` names the axes (``"MN"``); ``fence`` is the width kept free at both ends of every axis, or ``None`` for a
    packed tensor. ``order`` lists the axes from outermost in memory to innermost: ``"NM"`` stores the transpose.
    The axes in ``shared`` have stride 0: all their indices are one and the same element.
    """

    def __init__(self, name, axes, values, *, fence: dict[str, int] | None = None, order: str = "", shared: str = ""):
        self.name, self.axes, self.shape, self.values = name, axes, tuple(values.shape), values
        self._distinct = values[tuple(slice(0, 1) if axis in shared else slice(None) for axis in axes)]
        order = order or axes
        self._shared = shared
        self._pads = [0 if fence is None or axis in shared else fence.get(axis, 2) for axis in axes]
        outer = dict(zip(axes, (n + 2 * pad for n, pad in zip(self._distinct.shape, self._pads))))
        elements = int(prod(list(outer.values())))
        self.flat = torch.empty(2 * MARGIN + elements, dtype=values.dtype, device=runtime.device)
        stored = self.flat[MARGIN : MARGIN + elements].view([outer[axis] for axis in order])
        self._buffer = stored.permute([order.index(axis) for axis in axes])
        self._core = self._buffer[tuple(slice(pad, pad + n) for pad, n in zip(self._pads, self._distinct.shape))]
        self.view = self._core.expand(self.shape)
        self.far = None

    @classmethod
    def of(cls, name: str, axes: str, sizes: dict[str, int], make: Callable, *, shared: str = "", **how) -> "Fenced":
        """The tensor of these sizes that ``make(*shape)`` gives; ``shared`` axes have length 1 there."""
        one = (1 if axis in shared else sizes[axis] for axis in axes)
        return cls(name, axes, make(*one).expand([sizes[axis] for axis in axes]), shared=shared, **how)

    def stretch(self, axis: str) -> None:
        """Let the tensor say in a traced call that its stride along ``axis``, of three or more, passes 2**30."""
        strides = zip(self.axes, self.view.stride())
        self.far = tuple(FAR if name == axis else stride for name, stride in strides)

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct elements."""
        return self._distinct.numel() * self._distinct.element_size()

    def size(self, axis: str) -> int:
        """The tensor's length along ``axis``."""
        return self.shape[self.axes.index(axis)]

    def slab(self, axis: str, side: str, of=None):
        """The part of the buffer beyond one end of one axis, within the tensor's range on every other axis."""
        of = self._buffer if of is None else of
        index = [slice(pad, pad + n) for pad, n in zip(self._pads, self._distinct.shape)]
        i = self.axes.index(axis)
        index[i] = slice(0, self._pads[i]) if side == "before" else slice(self._pads[i] + self._distinct.shape[i], None)
        return of[tuple(index)]

    def ends(self):
        """Every (axis, side) that has a fence."""
        return [(axis, side) for axis, pad in zip(self.axes, self._pads) if pad for side in SIDES]

    def fill(self, around: float | None, poisoned: Iterable[tuple[str, str]] = ()):
        """Write the values, ``around`` (None: poison) everywhere else, and poison beyond each of the given ends of axes."""
        poison = _POISON.get(self.flat.dtype, NAN)
        self.flat.fill_(poison if around is None else around)
        for end in poisoned:
            self.slab(*end).fill_(poison)
        self._core.copy_(self._distinct)

    def intact(self) -> bool:
        """True while the tensor still holds its values."""
        bits = (torch.int8, torch.int16, torch.int32, torch.int64)[self.flat.element_size().bit_length() - 1]
        now, then = (x.cpu().contiguous().view(bits).numpy() for x in (self._core, self._distinct))
        return bool((now == then).all())

    def erase(self):
        """Make every element untouched."""
        bits, pattern = _UNTOUCHED[self.flat.dtype]
        self.flat.view(bits).fill_(pattern)

    def touched(self):
        """Where something was stored: a boolean array over the tensor, and the ends beyond which it was stored."""
        bits, pattern = _UNTOUCHED[self.flat.dtype]
        flat = self.flat.cpu().view(bits) != pattern
        buffer = flat.as_strided(self._buffer.shape, self._buffer.stride(), self._buffer.storage_offset())
        core = flat.as_strided(self._core.shape, self._core.stride(), self._core.storage_offset())
        spilled = [end for end in self.ends() if bool(self.slab(*end, of=buffer).any())]
        if not spilled and int(flat.sum()) > int(core.sum()):
            spilled = [("", "")]  # outside, but beyond no single end: in a corner, or far away
        return core.numpy(), spilled

    def beyond(self, distances) -> tuple[list[tuple[str, str]], bool]:
        """Beyond which ends of axes elements so far from the first one are, in the order of their first; ``("", "")`` is for
        no single end. And whether any of them is outside the buffer.
        """
        places = distances + self._core.storage_offset()
        inside = (places >= 0) & (places < self.flat.numel()) & bool(self.view.numel())  # an empty tensor's address is 0
        rest, found = places - MARGIN, where(inside, 0, -1)  # the number of ends that it is beyond, and the last one's place
        end, ends = found * 0, [(axis, side) for axis in self.axes for side in SIDES]
        moving = [i for i, axis in enumerate(self.axes) if axis not in self._shared]
        for i in sorted(moving, key=lambda i: (-self._buffer.stride(i), -self._buffer.shape[i])):
            index, rest = divmod(rest, self._buffer.stride(i))
            for after, out in enumerate((index < self._pads[i], index >= self._pads[i] + self.shape[i])):
                found, end = found + out, where(out, 2 * i + after, end)
        single = where(inside & (found == 1), end, len(ends))
        numbers, first = unique(single, return_index=True)
        return [[*ends, ("", "")][n] for n in numbers[first.argsort()].tolist()], not inside.all()
