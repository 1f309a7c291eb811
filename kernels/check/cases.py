"""One call of a learner's function: its tensors, the answers it must give, and what it left behind."""

import contextlib
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy
import torch

# Functions, not modules: what a later cell of the notebook assigns to `numpy.isnan` or `torch.equal` changes no check.
from numpy import array, errstate, float64, isnan, mean, sqrt, where

from kernels.check.submission import Call, Outcome, Submission
from kernels.check.tensors import Fenced
from kernels.lab.accesses import Launch

_TOLERANCE = {torch.int32: 0.0, torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
ROUNDED = 8 * 2.0**-24  # of the terms that a sum has: what float32 may lose, a few roundings (2.4 were seen)


class OutOfBounds(NamedTuple):
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
    Where ``free``, a tensor of booleans, is true, anything may be stored, or nothing. ``slack`` [as the answer] is allowed
    on top, in its own unit: what the formula itself makes of its inputs' rounding.
    """

    tensor: Fenced
    expected: torch.Tensor | None  # float64
    groups: torch.Tensor | None = None
    tolerance: float | None = None
    free: torch.Tensor | None = None
    slack: torch.Tensor | None = None

    def __post_init__(self):
        self.tolerance = self.tolerance or _TOLERANCE[self.tensor.flat.dtype]
        if self.expected is not None:
            self.answer = self.array(self.expected)
            self._groups = array([] if self.groups is None else self.groups.tolist())
            self._free = False if self.free is None else self.free.numpy()
            self._slack = 0.0 if self.slack is None else self.array(self.slack)

    @property
    def name(self) -> str:
        return self.tensor.name

    def array(self, values: torch.Tensor) -> numpy.ndarray:
        """Values of this output in float64, for numpy."""
        return array(values.tolist(), dtype=float64).reshape(self.tensor.shape)

    def wrong(self, got: numpy.ndarray, answer: numpy.ndarray | None = None) -> numpy.ndarray:
        """True at each element that is further from the answer than rounding explains; NaN is wrong unless expected."""
        return ~(self.share(got, answer) <= 1)

    def share(self, got: numpy.ndarray, answer: numpy.ndarray | None = None) -> numpy.ndarray:
        """What each element has of the error allowed there: NaN where it or the answer is not finite, and they differ."""
        answer = self.answer if answer is None else answer
        if not self._groups.size:
            return where(self._free, 0.0, self._share(got, answer, self._slack))
        shares = 0 * answer
        for group in set(self._groups.ravel().tolist()):
            members = self._groups == group
            shares[members] = self._share(got[members], answer[members])
        return shares

    def unstored(self, seen: "Seen") -> numpy.ndarray:
        """True at each element that had to be stored and was not."""
        return ~(seen.stored | self._free)

    def _share(self, got, answer, slack=0.0):
        with errstate(all="ignore"):
            finite = answer[abs(answer) < float("inf")]
            scale = sqrt(mean(finite**2)) if finite.size else 0.0
            share = abs(got - answer) / (self.tolerance * (abs(answer) + scale) + slack)
            return where((got == answer) | (isnan(got) & isnan(answer)), 0.0, share)


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


class Traced(NamedTuple):
    """A call that was traced: what it left, its launches, its out_of_bounds, and the lines that left lanes undefined."""

    run: Run
    launches: list[Launch]
    out_of_bounds: list[OutOfBounds]
    undefined: list[str]

    @property
    def stored(self) -> bool:
        """Whether a kernel stored anything."""
        return any(access.kind != "load" for launch in self.launches for access in launch.accesses)


class Failed(Exception):
    """The learner's code raised: what and where, and what it usually means."""


class OnHost(Failed):
    """The learner's launcher computed what a kernel has to: what, and what to do."""


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
    draws: "tuple[Case, Case] | None" = None  # the same call with other values, on which launches are recorded
    recordings: dict = field(default_factory=dict, init=False, repr=False)  # kept by ``Submission``

    def call(self, far: bool = False) -> Call:
        """What the learner's function is called with; ``far``: its tensors may say that their strides are others."""
        told = [(tensor.view, tensor.far) for tensor in self.tensors if tensor.far]
        return Call([tensor.view for tensor in self.tensors], self.launch, told if far else [])

    @property
    def stored(self) -> dict[int, str]:
        """Which of a call's tensors are outputs, and their names."""
        return {len(self.inputs) + i: out.name for i, out in enumerate(self.outs)}

    def filled(self) -> "Case":
        """The same call, with poison around its inputs and nothing in its outputs."""
        for tensor in self.inputs:
            tensor.fill(None)
        for out in self.outs:
            out.tensor.erase()
        return self

    def relaunched(self, launch: dict) -> "Case":
        """The same call with other keyword arguments."""
        return replace(self, launch=launch, draws=self.draws and tuple(draw.relaunched(launch) for draw in self.draws))

    @property
    def tensors(self) -> list[Fenced]:
        """The call's positional arguments."""
        return [*self.inputs, *(out.tensor for out in self.outs)]

    @property
    def sizes(self) -> str:
        """The sizes and block sizes of this call, as text."""
        sizes = {axis: n for tensor in self.tensors for axis, n in zip(tensor.axes, tensor.shape)}
        return ", ".join(f"{name} = {_text(value)}" for name, value in (sizes | self.launch).items())

    def stretched(self, **axes: str) -> "Case":
        """The same call; in a trace, strides along the axes named for tensors need 64 bits (``Fenced.stretch``)."""
        for tensor in self.tensors:
            if tensor.name in axes:
                tensor.stretch(axes[tensor.name])
        return self

    @contextlib.contextmanager
    def near(self):
        """Meanwhile nothing is stretched."""
        kept = [tensor.far for tensor in self.tensors]
        for tensor in self.tensors:
            tensor.far = None
        try:
            yield
        finally:
            for tensor, far in zip(self.tensors, kept):
                tensor.far = far

    def run(self, submission: Submission, only: dict[str, list[tuple[str, str]]] | None = None, **how) -> Run:
        """Make the call. ``only`` maps an input's name to the ends that are poisoned, instead of what the case says; ``how``
        is ``Submission.replay``'s.

        Raises ``Failed`` where the learner's code raises.
        """
        return self._run(submission, only, **how)[0]

    def traced(self, submission: Submission, poison: float | None = None) -> "Traced":
        """The same, with accesses outside their tensors left out and listed; ``poison``: what undefined lanes hold."""
        run, outcome = self._run(submission, traced=True, poison=poison)
        outside = [(launch, access) for launch in outcome.launches for access in launch.outside()]
        out_of_bounds = [beyond for launch, access in outside for beyond in self._out_of_bounds(launch.operands, access)]
        return Traced(run, outcome.launches, out_of_bounds, outcome.undefined)

    def _run(self, submission, only=None, **how) -> tuple[Run, Outcome]:
        for tensor in self.inputs:
            if only is None and self.poison is None:
                tensor.fill(None)
            else:
                ends = self.poison if only is None else only.get(tensor.name, ())
                tensor.fill(self.neutral, [end for end in ends if end in tensor.ends()])
        for out in self.outs:
            out.tensor.erase()
        outcome = submission.replay(self, **how)
        if outcome.error:
            raise Failed(*outcome.error)
        if outcome.on_host:
            raise OnHost(*outcome.on_host)
        seen = {out.name: Seen(out.array(out.tensor.view.cpu().double()), *out.tensor.touched()) for out in self.outs}
        return Run(seen, [tensor.name for tensor in self.inputs if not tensor.intact()]), outcome

    def tensor_of(self, operand) -> Fenced | None:
        """Which of the call's tensors a launch's operand is: by shape and strides, and by name where several fit."""
        alike = [t for t in self.tensors if operand and (t.shape, t.view.stride()) == (operand.shape, operand.strides)]
        named = (t for t in alike if t.name == operand.name.removesuffix("_ptr"))
        return next(named, alike[0] if len(alike) == 1 else None)

    def _out_of_bounds(self, operands, access):
        tensor = self.tensor_of(operands.get(access.tensor))
        if tensor is None:
            name = (access.tensor or "an unknown tensor").removesuffix("_ptr")
            return [OutOfBounds(access.kind, name, "", "", access.source, far=True)]
        ends, far = tensor.beyond(access.outside)
        named = [end for end in ends if end[0]] or [("", "")]
        return [OutOfBounds(access.kind, tensor.name, *end, access.source, far) for end in named]


def _text(value) -> str:
    """A keyword argument in a message: tensors as lists, numbers to three digits, functions by name."""
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    return f"{value:.3g}" if isinstance(value, float) else getattr(value, "__name__", str(value))
