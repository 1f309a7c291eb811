"""What every check does: run a learner's function on inputs that catch a known mistake, and name the mistake.

A check is an :class:`Exercise`: a list of named :class:`Property` objects, each worth points. A property draws a few
:class:`Case` objects, each one call of the learner's function together with the answer it must give. Three experiments,
not guesses, lead from a wrong answer to its cause:

* every tensor is the inner part of a larger buffer. What lies around an input is poison (NaN), what lies around and in
  the output is a bit pattern that no arithmetic makes, so a store outside the output, and an element that was never
  stored, are seen exactly;
* after a wrong answer the call is repeated with harmless surroundings, then with poison beyond one end of one axis of
  one input at a time: the run that goes wrong again names the mask that is missing. In the interpreter the addresses
  themselves say which ends to try;
* failing that, the answer is compared with what known mistakes would give (:attr:`Exercise.suspects`).
"""

import os
import random
import re
import secrets
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy
import torch
import triton

# Functions, not modules: what a later cell of the notebook assigns to `numpy.isnan` or `torch.equal` changes no check.
from numpy import argwhere, array, errstate, float64, isfinite, isnan, mean, prod, sqrt

from kernels import runtime
from kernels.lab.trace import Undefined, trace

MARGIN = 1 << 15  # elements before and after each buffer, so that an address gone astray still meets poison
UNTOUCHED = 0x7FC0BAD5  # as an integer far from any index, as float32 a NaN
_UNTOUCHED = {  # NaNs with a payload that arithmetic does not produce
    torch.int32: (torch.int32, UNTOUCHED),
    torch.float32: (torch.int32, UNTOUCHED),
    torch.float16: (torch.int16, 0x7EB5),
    torch.bfloat16: (torch.int16, 0x7FEB),
}
_TOLERANCE = {torch.int32: 0.0, torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
_SIDES = ("before", "after")
NAN = float("nan")
_POISON = {torch.bool: True, torch.int64: 7, torch.int32: 7}  # for what cannot be NaN
ADDRESSES = "no mask can mend this: look at the strides and offsets in the address"


class Draw:
    """Where a property's numbers come from: fixed shapes while learning, fresh ones when grading."""

    def __init__(self, seed, grading: bool):
        self.grading = grading
        self._random = random.Random(str(seed))
        self._generator = torch.Generator().manual_seed(self._random.getrandbits(62))

    def size(self, shown: int, low: int, high: int, *, multiple_of: int = 1, but_not_of: int = 0) -> int:
        """``shown`` while learning; when grading, one of low..high that divides as asked."""
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
        return [(axis, side) for axis, pad in zip(self.axes, self._pads) if pad for side in _SIDES]

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

    def locate(self, distance: int) -> dict[str, int] | None:
        """The index, by axis, of what lies ``distance`` elements from the first one; None outside the buffer."""
        place = self._core.storage_offset() + distance
        if not 0 <= place < self.flat.numel():
            return None
        place, index = place - MARGIN, {}
        moving = [i for i, axis in enumerate(self.axes) if axis not in self._shared]
        for i in sorted(moving, key=lambda i: (-self._buffer.stride(i), -self._buffer.shape[i])):
            index[self.axes[i]], place = divmod(place, self._buffer.stride(i))
            index[self.axes[i]] -= self._pads[i]
        return index


class Stray(NamedTuple):
    """Active lanes of one load or store that lie outside their tensor, beyond one end of one axis."""

    kind: str  # "load" or "store"
    tensor: str
    axis: str  # empty: beyond no single end
    side: str
    source: str  # the learner's line
    far: bool  # outside the buffer too: the access must not be performed


@dataclass
class Output:
    """A tensor that the call writes, and the answer it must hold; None where the case does not judge it.

    An element is wrong where it is further from the answer than ``tolerance`` times its own size and the root mean
    square of its group: ``groups``, a tensor of integers, keeps small elements that matter apart from large ones.
    Where ``free``, a tensor of booleans, is true, anything may be stored, or nothing.
    """

    tensor: Fenced
    expected: torch.Tensor | None  # float64
    groups: torch.Tensor | None = None
    tolerance: float | None = None
    free: torch.Tensor | None = None

    def __post_init__(self):
        self.tolerance = self.tolerance or _TOLERANCE[self.tensor.flat.dtype]
        if self.expected is not None:
            self.answer = self.array(self.expected)
            self._groups = array([] if self.groups is None else self.groups.tolist())
            self._free = False if self.free is None else self.free.numpy()

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.tensor.name

    def array(self, values: torch.Tensor) -> numpy.ndarray:
        """Values of this output in float64, for numpy."""
        return array(values.tolist(), dtype=float64).reshape(self.tensor.shape)

    def wrong(self, got: numpy.ndarray, answer: numpy.ndarray | None = None) -> numpy.ndarray:
        """True at each element that is further from the answer than rounding explains; NaN is wrong unless expected."""
        answer = self.answer if answer is None else answer
        if not self._groups.size:
            return self._wrong(got, answer) & ~array(self._free)
        bad = answer != answer
        for group in set(self._groups.ravel().tolist()):
            members = self._groups == group
            bad[members] = self._wrong(got[members], answer[members])
        return bad

    def unstored(self, seen: "Seen") -> numpy.ndarray:
        """True at each element that had to be stored and was not."""
        return ~(seen.stored | self._free)

    def _wrong(self, got, answer):
        if not answer.size:
            return answer != answer
        with errstate(all="ignore"):
            finite = answer[abs(answer) < float("inf")]
            scale = sqrt(mean(finite**2)) if finite.size else 0.0
            near = (abs(got - answer) <= self.tolerance * (abs(answer) + scale)) | (got == answer)
            return ~(near | (isnan(got) & isnan(answer)))


class Seen(NamedTuple):
    """What one call left in one output."""

    got: numpy.ndarray  # in float64
    stored: numpy.ndarray  # bool: this element was stored
    spilled: list  # the ends beyond which something was stored


class Run(NamedTuple):
    """What one call left behind."""

    seen: dict[str, Seen]  # by the output's name
    changed: list  # names of inputs that were written to

    @property
    def stored(self) -> bool:
        """Whether anything was stored inside an output."""
        return any(seen.stored.any() for seen in self.seen.values())


_NOTHING = "nothing is stored"
_NO_KERNEL = "no Triton kernel stores anything"


@dataclass
class Case:
    """One call of the learner's function, and the answers it must give.

    ``neutral`` is a surrounding value that does not change the answer. ``poison`` lists the ends of axes beyond which
    there is poison instead; None puts it all around every input. So each property looks for its own mistake.
    """

    inputs: list[Fenced]
    outs: list[Output]
    launch: dict = field(default_factory=dict)  # keyword arguments: block sizes, and what else is no fenced tensor
    neutral: float = 0.0
    poison: tuple[tuple[str, str], ...] | None = None

    @property
    def tensors(self) -> list[Fenced]:
        """The call's positional arguments."""
        return [*self.inputs, *(out.tensor for out in self.outs)]

    @property
    def sizes(self) -> str:
        """The sizes and block sizes of this call, as text."""
        sizes = {axis: n for tensor in self.tensors for axis, n in zip(tensor.axes, tensor.shape)}
        return ", ".join(f"{name} = {_text(value)}" for name, value in (sizes | self.launch).items())

    def run(self, fn, only: dict[str, list[tuple[str, str]]] | None = None) -> Run:
        """Call ``fn``. ``only`` maps an input's name to the ends that are poisoned, instead of what the case says."""
        for tensor in self.inputs:
            if only is None and self.poison is None:
                tensor.fill(None)
            else:
                ends = self.poison if only is None else only.get(tensor.name, ())
                tensor.fill(self.neutral, [end for end in ends if end in tensor.ends()])
        for out in self.outs:
            out.tensor.erase()
        fn(*(tensor.view for tensor in self.tensors), **self.launch)
        seen = {out.name: Seen(out.array(out.tensor.view.cpu().double()), *out.tensor.touched()) for out in self.outs}
        return Run(seen, [tensor.name for tensor in self.inputs if not tensor.intact()])

    def traced(self, fn) -> tuple[Run, list[Stray], bool]:
        """The same, with accesses outside their tensors left out and listed; and whether a kernel stored anything."""
        with trace.recording() as recorded:
            run = self.run(fn)
        outside = [(launch, access) for launch in recorded.launches for access in launch.outside()]
        strays = [stray for launch, access in outside for stray in self._strays(launch.operands, access)]
        return run, strays, any(access.kind != "load" for access in recorded.accesses)

    def tensor_of(self, operand) -> Fenced | None:
        """Which of the call's tensors a launch's operand is: by shape and strides, and by name where several fit."""
        alike = [t for t in self.tensors if operand and (t.shape, t.view.stride()) == (operand.shape, operand.strides)]
        named = (t for t in alike if t.name == operand.name.removesuffix("_ptr"))
        return next(named, alike[0] if len(alike) == 1 else None)

    def _strays(self, operands, access):
        tensor = self.tensor_of(operands.get(access.tensor))
        if tensor is None:
            name = (access.tensor or "an unknown tensor").removesuffix("_ptr")
            return [Stray(access.kind, name, "", "", access.source, far=True)]
        ends, far = {}, not tensor.view.numel()  # the address of an empty tensor is 0
        for distance in access.outside.tolist():
            index = tensor.locate(distance)
            far = far or index is None
            beyond = [(axis, _SIDES[i >= 0]) for axis, i in (index or {}).items() if not 0 <= i < tensor.size(axis)]
            ends.setdefault(beyond[0] if len(beyond) == 1 else ("", ""), None)
        named = [end for end in ends if end[0]] or [("", "")]
        return [Stray(access.kind, tensor.name, *end, access.source, far) for end in named]


def _text(value) -> str:
    """A keyword argument in a message: tensors as lists, numbers to three digits, functions by name."""
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    return f"{value:.3g}" if isinstance(value, float) else getattr(value, "__name__", str(value))


class Finding(NamedTuple):
    """One failure: where, how much, and the likely cause."""

    where: str
    amount: str
    cause: str


@dataclass(frozen=True)
class Property:
    """One thing that must hold.

    ``cases(draw)`` gives the calls; ``otherwise`` is the likely cause when no experiment names one, ``not_finite`` that
    of NaN or infinity where a number is due; ``lesson`` says what to read again. Where an earlier property failed, a
    guess gives way to it: one bug, one cause.
    ``needs`` is "gpu" or "interpreter" where the property can only be seen there; such a property is worth no points.
    ``addresses`` asks for the addresses a call touches instead of its answer, ``shared_updates`` for elements of an
    output that several programs of one launch update: they come in no fixed order.
    """

    name: str
    points: int
    lesson: str
    cases: Callable[[Draw], Iterable[Case]]
    otherwise: str = "the answer is not the formula's"
    not_finite: str = ""
    needs: str = ""
    addresses: bool = False
    shared_updates: bool = False


@dataclass(frozen=True)
class Exercise:
    """A function that the learner writes, and what must hold for it."""

    name: str
    missing: str  # what an unsolved exercise lacks
    properties: tuple[Property, ...]
    suspects: Callable[[Case, Output], Iterable[tuple[str, torch.Tensor]]]  # known mistakes, the answer each would give
    masks: dict = field(default_factory=dict)  # (tensor, axis, side) -> the mask's name, where it is not mask_<axis>
    unit: str = "points"  # what is counted

    @property
    def points(self) -> int:
        """The most a submission can earn."""
        return sum(item.points for item in self.properties)

    def mask(self, tensor: str, axis: str, side: str) -> str:
        """The name of the mask that keeps an access from passing this end of ``axis``, if there is one."""
        return self.masks.get((tensor, axis, side), f"mask_{axis.lower()}" if side == "after" else "")


def check(exercise: Exercise, fn, *, seed=0, grading: bool | None = None) -> int:
    """Hold ``fn`` to every property of ``exercise``, print one line a property, return the points earned.

    ``seed`` fixes the values; None draws a fresh one. ``grading=True`` draws other shapes too. Where ``grading`` is not
    given, ``KERNELS_GRADING=1`` in the environment asks for both: so autograding needs no change in the notebook.
    A learner's error is explained, never raised.
    """
    if grading is None:
        grading = os.environ.get("KERNELS_GRADING") == "1"
        seed = None if grading else seed
    if seed is None:
        seed = secrets.randbits(32)
    if not callable(fn):
        print(f"{exercise.name}: nothing to check, the function is {fn!r}. Run the cell that defines it first.")
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # poison makes numpy warn, and nbgrader counts anything on stderr as a failure
        earned = _check(exercise, fn, seed, grading)
    drawn = f" (graded with seed {seed})" if grading else ""
    print(f"{exercise.name}: {earned} of {exercise.points} {exercise.unit}{drawn}")
    return earned


def _check(exercise, fn, seed, grading) -> int:
    earned, failed, printed = 0, [], set()
    for number, item in enumerate(exercise.properties):
        experiment = _touches if item.addresses else _shares if item.shared_updates else _judge
        if item.needs and (item.needs == "the interpreter") != runtime.interpreted:
            print(f"not verified on this machine: {item.name} (needs {item.needs})")
            continue
        finding = None
        for case in item.cases(Draw(f"{seed}, {exercise.name}, {item.name}", grading)):
            try:
                finding = experiment(exercise, item, fn, case)
            except Exception as raised:
                finding = Finding(f"an error with {case.sizes}", *explain(raised))
            if finding:
                break
        if number == 0 and finding and finding.where in (_NOTHING, _NO_KERNEL):
            print(f"missing: {exercise.missing if finding.where is _NOTHING else 'no Triton kernel stores anything.'}")
            return 0
        if not finding:
            earned += item.points
            worth = f" ({item.points} point{'s' * (item.points != 1)})" if exercise.unit == "points" else ""
            print(f"passed  {item.name}{worth}")
            continue
        if finding.cause in printed:
            print(f"FAILED  {item.name}: as above, {finding.cause}.")
        elif finding.cause == item.otherwise and failed:
            print(f'FAILED  {item.name}: {finding.where}; mend "{failed[0]}" first, then look again.')
        else:
            print(f"FAILED  {item.name}: {finding.where}, {finding.amount}: {finding.cause}. {item.lesson}.")
        failed.append(item.name)
        printed.add(finding.cause)
    return earned


def _judge(exercise, item, fn, case) -> Finding | None:
    """Compare one call with its answers, and look for the cause of a difference."""
    strays, bare = [], []
    if runtime.interpreted:
        with Undefined(0.0) as undefined:
            run, strays, launched = case.traced(fn)
        bare = [] if strays else undefined.lines
        if run.stored and not launched:
            return Finding(_NO_KERNEL, f"with {case.sizes}", "something else filled the output")
        for stray in strays:
            if stray.far:  # performing it could end the process
                where = f"a {stray.kind} reaches far outside {stray.tensor}"
                return Finding(where, f"`{stray.source}` (with {case.sizes})", item.otherwise)
    if strays or not runtime.interpreted:
        run = case.run(fn)
    if run.changed:
        names = " and ".join(run.changed)
        return Finding(f"{names} changed", f"with {case.sizes}", f"the kernel stores into {names}, which is an input")
    judged = [out for out in case.outs if out.expected is not None]
    if any(out.answer.size for out in judged) and not run.stored and not any(s.spilled for s in run.seen.values()):
        return Finding(_NOTHING, f"with {case.sizes}", "no tl.store reaches the output")
    findings = (_judge_output(exercise, item, fn, case, out, run.seen[out.name], strays) for out in judged)
    return next(filter(None, findings), None) or (_undefined(fn, case, judged, bare) if bare else None)


def _undefined(fn, case, judged, bare) -> Finding | None:
    """Look for outputs that are right only as long as the masked lanes of the ``bare`` loads hold the interpreter's 0."""
    for poison in Undefined.POISONS:
        with Undefined(poison):
            seen = case.traced(fn)[0].seen
        for out in judged:
            bad = out.wrong(seen[out.name].got)
            if bad.any():
                amount = _amount(case, out, seen[out.name], bad)
                return Finding(_where(out, bad), amount, without_other(bare))
    return None


def without_other(lines: list[str]) -> str:
    """The cause of an answer that is right only as long as masked lanes happen to hold 0."""
    name = f"`{lines[0]}`" + f" (and {len(lines) - 1} more)" * (len(lines) > 1)
    return f"{name}: `other` is missing. What a masked lane holds is undefined on a GPU, and poison here"


def _judge_output(exercise, item, fn, case, out, seen, strays) -> Finding | None:
    """Compare one output with its answer, and look for the cause of a difference."""
    bad = out.wrong(seen.got)
    if not bad.any() and not out.unstored(seen).any() and not seen.spilled:
        return None
    if out.answer.size and not seen.stored.any() and not seen.spilled:
        return Finding(f"nothing is stored in {out.name}", f"with {case.sizes}", f"no tl.store reaches {out.name}")

    where, amount = _where(out, bad), _amount(case, out, seen, bad)
    clean = case.run(fn, only={}).seen[out.name]
    if not out.wrong(clean.got).any():
        reached = {(stray.tensor, stray.axis, stray.side) for stray in strays}
        causes = [
            f"the load of {tensor.name} is not masked along {axis} ({exercise.mask(tensor.name, axis, side)})"
            for tensor in case.inputs
            for axis, side in tensor.ends()
            if bad.any() and (case.poison is None or (axis, side) in case.poison)
            if not reached or (tensor.name, axis, side) in reached
            if exercise.mask(tensor.name, axis, side)
            if out.wrong(case.run(fn, only={tensor.name: [(axis, side)]}).seen[out.name].got).any()
        ]
        if bad.any() and not causes:
            causes = ["a load reads outside its tensor, and what it finds there enters the answer"]
        causes += [
            f"the store of {out.name} is not masked along {axis} ({exercise.mask(out.name, axis, side)})"
            for axis, side in seen.spilled
            if exercise.mask(out.name, axis, side)
        ] or ["a store reaches outside its tensor"] * bool(seen.spilled)
        if not bad.any():
            where, amount = f"elements outside {out.name} were overwritten", f"with {case.sizes}"
        return Finding(where, amount, "; ".join(dict.fromkeys(causes)))

    for cause, answer in exercise.suspects(case, out):
        if not out.wrong(clean.got, out.array(answer)).any():
            return Finding(where, amount, cause)
    if out.unstored(seen).any() and not seen.spilled:  # with spilled ones, they went elsewhere
        return _never_stored(case, out, out.unstored(seen))
    if item.not_finite and not isfinite(clean.got[isfinite(out.answer)]).all():
        return Finding(where, amount, item.not_finite)
    factor = clean.got.sum() / out.answer.sum() if out.answer.sum() else NAN
    if 0.01 < abs(factor - 1) < float("inf") and not out.wrong(clean.got, factor * out.answer).any():
        return Finding(where, amount, f"every element is {factor:.3g} times what it should be")
    return Finding(where, amount, item.otherwise)


def _touches(exercise, item, fn, case) -> Finding | None:
    """Look at the addresses that one call touches: all must lie inside their tensors."""
    run, strays, _ = case.traced(fn)
    if not run.stored:
        return Finding(_NOTHING, f"with {case.sizes}", "no tl.store reaches the output")
    if not strays:
        return None
    causes = {}
    for kind, tensor, axis, side, _, _ in strays:
        mask = exercise.mask(tensor, axis, side)
        causes[f"the {kind} of {tensor} is not masked along {axis} ({mask})" if mask else item.otherwise] = None
    first = strays[0]
    where = f"a {first.kind} reaches outside {first.tensor}"
    cause = item.otherwise if item.otherwise in causes else "; ".join(causes)
    return Finding(where, f"`{first.source}` (with {case.sizes})", cause)


def _shares(exercise, item, fn, case) -> Finding | None:
    """Look for elements of an output that several programs of one launch update, atomically or by load and store."""
    with trace.recording() as recorded:
        run = case.run(fn)
    if not run.stored:
        return Finding(_NOTHING, f"with {case.sizes}", "no tl.store reaches the output")
    written = set()
    for launch in recorded.launches:
        races = launch.races()
        for name, operand in launch.operands.items():
            out = next((out for out in case.outs if out.tensor is case.tensor_of(operand)), None)
            if out is None:
                continue
            if launch.programs(name, "store") or launch.programs(name, "atomic"):
                written.add(out.name)
            updates = Counter(i for elements in launch.programs(name, "atomic").values() for i in elements)
            shared = {i for i, programs in updates.items() if programs > 1} | races.get(name, {}).keys()
            if shared:
                where = f"{len(shared)} of {out.answer.size} elements of {out.name} are updated by several programs"
                return Finding(where, f"with {case.sizes}", item.otherwise)
    unwritten = [out.name for out in case.outs if out.answer.size and out.name not in written]
    where = f"no Triton kernel stores {' and '.join(unwritten)}"
    return Finding(where, f"with {case.sizes}", "something else filled it") if unwritten else None


def _never_stored(case, out, missing) -> Finding:
    places = argwhere(missing)
    extent, axes = (places.max(axis=0) - places.min(axis=0) + 1).tolist(), out.tensor.axes
    axes = [axis for axis, n, size in zip(axes, extent, missing.shape) if n < size] or list(axes)
    cause = f"no program stores them: look at grid, offsets, strides and mask along {' and '.join(axes)}"
    return Finding(f"{_box(out, missing)} {_is(missing)} never stored", f"with {case.sizes}", cause)


def _where(out, bad) -> str:
    return f"{_box(out, bad)} {_is(bad)} wrong"


def _is(bad) -> str:
    return "is" if int(bad.sum()) == 1 else "are"


def _box(out, bad) -> str:
    """The wrong elements as one block of indices where they fill it, else their number and the first of them."""
    places = argwhere(bad)
    if not len(places):
        return f"{out.name}[]"
    low, high = places.min(axis=0).tolist(), places.max(axis=0).tolist()
    volume = 1
    for first, last in zip(low, high):
        volume *= last - first + 1
    if volume == len(places):
        inside = ", ".join(str(first) if first == last else f"{first}..{last}" for first, last in zip(low, high))
        return f"{out.name}[{inside}]"
    first = ", ".join(str(i) for i in places[0].tolist())
    return f"{len(places)} of {bad.size} elements, the first {out.name}[{first}],"


def _amount(case, out, seen, bad) -> str:
    places = argwhere(bad)
    if not len(places):
        return f"with {case.sizes}"
    first = tuple(places[0].tolist())
    value, answer = float(seen.got[first]), float(out.answer[first])
    got, expected = f"{value:.3g}" if seen.stored[first] else "nothing stored", f"{answer:.3g}"
    error = f", a relative error of {abs(value / answer - 1):.0e}" if got == expected != "0" else ""
    return f"got {got}, expected {expected}{error} (with {case.sizes})"


_EXPLAINED = (
    ("Expected dtype ['fp32'", "this function takes float32: convert right after the load"),
    ("is not defined", "a name is used that no line above defines"),
    ("cannot access local variable", "a name is used before a line defines it"),
    ("must be a power of 2", "a block's length must be a power of two: round it up and mask the rest"),
    ("incompatible dimensions", "two blocks of different shapes meet: look at each [:, None] and [None, :]"),
    ("must match", "two blocks of different shapes meet: look at each [:, None] and [None, :]"),
    ("to have shape", "two blocks of different shapes meet: look at each [:, None] and [None, :]"),
    ("'tuple' object has no attribute", "a tuple of strides is not a number: take one of them, stride_x[0]"),
    ("tuple index out of range", "a tensor has one stride for each of its axes, and this one has fewer"),
    ("to unpack", "the function on the right returns another number of values than the line takes"),
    ("positional argument", "the launcher and the kernel's signature do not agree"),
    ("multiple values for argument", "the launcher and the kernel's signature do not agree"),
    ("unexpected keyword", "the launcher and the kernel's signature do not agree"),
    ("outside of the scope of a kernel", "a kernel is launched as kernel[grid](...), not called"),
    ("Did you forget to add @triton.jit", "tl functions work inside a function decorated with @triton.jit only"),
    (
        "does not fill the tile",
        "a result has the shape of what it depends on: add it to tl.zeros(score.shape, tl.float32)",
    ),
    (
        "'int' object is not iterable",
        "a pointer is not indexed but added to, tl.load(x_ptr + ...); a block has no elements to pick: load the ones that "
        "you want; and Python's own sum, max and min take no block, but tl.sum, tl.max and tl.min do",
    ),
    ("unsupported tensor index", "a block has no part to pick: load the elements that you want, tl.load(x_ptr + ...)"),
    ("does not support item assignment", "a kernel stores with tl.store(out_ptr + ..., value)"),
    ("Unsupported ptr type", "tl.load and tl.store take addresses, x_ptr + ..., and this is a block of values"),
    (
        "out of bounds for shape",
        "the second argument of tl.max, tl.min and tl.sum is an axis: tl.maximum and tl.minimum compare two blocks",
    ),
    ("KeyError", "a table lacks this entry: each operation needs its own"),
    ("is no Python", "the text must be a function that Python can read: print it"),
    ("defines no function", "the text must define the function that the exercise names"),
    (
        "'function' object is not subscriptable",
        "a kernel that is launched as kernel[grid](...) is decorated with @triton.jit",
    ),
)

_EXPLAINED_IN_PYTHON = {  # where no kernel is at work
    "positional argument": "the call and the function's signature do not agree",
    "multiple values for argument": "the call and the function's signature do not agree",
    "unexpected keyword": "the call and the function's signature do not agree",
    "must match": "two tensors of different shapes meet: look at each [:, None] and [None, :]",
    "'int' object is not iterable": "a number stands where a tuple or a list is needed",
    "NoneType": "something is None here: does a function lack its `return`?",
}


def explain(error: BaseException) -> tuple[str, str]:
    """A learner's exception in two phrases: what and on which line of theirs, and what it usually means."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    text = re.sub(r"\[[^\[\]]{80,}\]", "[…]", str(root).strip()) or type(root).__name__  # no printed blocks
    said = f"{type(root).__name__}: {text.splitlines()[-1].strip()}"
    chain, seen = error, None
    while chain is not None:
        theirs = [frame for frame in traceback.extract_tb(chain.__traceback__) if _is_theirs(frame.filename)]
        seen = theirs[-1] if theirs else seen
        chain = chain.__cause__
    place = "text" if seen and seen.filename.startswith("<generated") else "cell"
    line = f" in line {seen.lineno} of your {place}, `{seen.line}`" if seen else ""
    named = f"{type(root).__name__}: {text}"
    explained = _EXPLAINED if _in_triton(error) else {**dict(_EXPLAINED), **_EXPLAINED_IN_PYTHON}.items()
    otherwise = f"{'Triton' if _in_triton(error) else 'Python'} cannot run this line"
    means = next((means for part, means in explained if part in named), otherwise)
    return f"{said}{line}", means


def _in_triton(error: BaseException | None) -> bool:
    """Whether Triton was at work when the error, or what caused it, was raised."""
    folder = os.path.dirname(os.path.abspath(triton.__file__)) + os.sep
    while error is not None:
        if any(frame.filename.startswith(folder) for frame in traceback.extract_tb(error.__traceback__)):
            return True
        error = error.__cause__
    return False


_LIBRARIES = (runtime.__file__, triton.__file__, torch.__file__, os.__file__)
CHECKS_OWN = "<generated by a check"  # the file names of kernels that a check writes itself
_OURS = tuple(os.path.dirname(os.path.abspath(place)) + os.sep for place in _LIBRARIES)


def _is_theirs(filename: str) -> bool:
    installed = f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename
    return not installed and not filename.startswith((*_OURS, "<frozen", CHECKS_OWN))
