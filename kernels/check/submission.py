"""The learner's side of a check: it is recorded and replayed, and knows no answer.

A case's launches are recorded once, on two other draws of its values (``replay``), and made on the case's own values as
often as an experiment needs them. Cases, expected values, seeds, comparison and points are in ``cases``, ``experiments`` and
``framework``. Whoever runs the learner's code in other processes derives a class with ``recording``, ``replay`` and
``kernels``, and hands an instance to a check in place of the function.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import torch

from kernels.check import replay, watch
from kernels.check.explanations import explain, explain_slow, is_theirs
from kernels.check.wording import is_pythonic
from kernels.lab import _triton_private
from kernels.lab.accesses import Launch
from kernels.lab.compile_report import Prepared, prepare
from kernels.lab.trace import Undefined, telling, trace


class Outcome(NamedTuple):
    """What one call leaves, besides what stands in the buffers of its tensors."""

    error: tuple[str, str] | None = None  # as ``explain`` says it: what and where, and what it usually means
    on_host: tuple[str, str] | None = None  # what the launcher computed itself, and what to do
    launches: list[Launch] = []  # as traced, with those of a call that ended in an error
    undefined: list[str] = []  # lines that load without ``other`` and leave lanes undefined


class Kernels(NamedTuple):
    """The kernels that one call would launch, as text."""

    prepared: list[Prepared] = []  # what the compiler needs of each launch
    texts: list[str] = []  # the source of each function of the learner's that takes part
    error: tuple[str, str] | None = None
    numbers: list[tuple[str, dict[str, int]]] = []  # of each launch: its kernel, and whole numbers by parameter


class Call(NamedTuple):
    """What a function is called with; ``far``: tensors that say that their strides are others, and these strides."""

    args: list[torch.Tensor]
    launch: dict
    far: list[tuple[torch.Tensor, tuple[int, ...]]] = []

    @property
    def given(self) -> list[torch.Tensor]:
        """All its tensors, also those inside keyword arguments."""
        found = list(self.args)
        replay.each(tuple(self.launch.values()), lambda tensor: found.append(tensor) or tensor)
        return found


class Recorded(NamedTuple):
    """The launches of one call; or the error that ended it, or what it computed where no kernel does."""

    recording: replay.Recording | None = None
    error: tuple[str, str] | None = None
    on_host: tuple[str, str] | None = None


def recorded(fn: Callable, calls: list[Call], outputs: dict[int, str], given: tuple[str, ...] = ()) -> Recorded:
    """What ``fn`` launches in two calls; see ``replay.record``. given: helpers that the exercise gives."""

    def call(number):
        one = calls[number]
        with watch.limited(), telling(one.far) if one.far else contextlib.nullcontext():
            fn(*one.args, **one.launch)

    try:
        return Recorded(replay.record(call, *(one.given for one in calls), outputs))
    except replay.OnHost as found:
        return Recorded(on_host=found.args)
    except watch.TooSlow as raised:
        return Recorded(error=explain_slow(raised, [], watch.CALL_SECONDS, given))
    except Exception as raised:
        return Recorded(error=explain(raised, given))


def replayed(recording, call: Call, given=(), **how) -> Outcome:
    """What the launches of a recording leave, made on a call's tensors; see ``Submission.replay``."""
    return performed(lambda: replay.replay(recording, call.given), call, given, **how)


def performed(run: Callable, call: Call, given=(), *, traced=False, poison=None, products=1.0) -> Outcome:
    """What ``run()`` leaves, which launches kernels on a call's tensors."""
    launches, undefined, error = [], [], None
    with contextlib.ExitStack() as stack:
        if products != 1.0:
            stack.enter_context(_triton_private.scaled_products(products))
        if poison is not None:
            undefined = stack.enter_context(Undefined(poison)).lines
        if traced:
            launches = stack.enter_context(trace.recording(helpers=given, far=call.far)).launches
        try:
            with watch.limited():
                run()
        except watch.TooSlow as raised:
            error = explain_slow(raised, launches, watch.CALL_SECONDS, given)
        except Exception as raised:
            error = explain(raised, given)
    return Outcome(error, None, launches, undefined)


class Submission:
    """A learner's function in this process; ``given`` names the helpers that the exercise gives, which are not to blame."""

    def __init__(self, fn: Callable, given: tuple[str, ...] = ()):
        self.fn, self.given = fn, given
        self.written: set[str] = set()  # the texts of what is launched
        self.pythonic: list = []  # cases that launch what is Python's alone

    def recording(self, case, far: bool = False) -> Recorded:
        """What the function launches for a case, whose values it never sees. far: tensors say what ``Fenced.far`` says."""
        if (self, far) not in case.recordings:
            calls = [draw.filled().call(far) for draw in case.draws or (case, case)]
            found = case.recordings[self, far] = self.record(calls, case.stored)
            if found.recording is not None:
                texts = set(self.texts(found.recording))
                self.written |= texts
                self.pythonic += [case] * any(map(is_pythonic, texts))
        return case.recordings[self, far]

    def texts(self, recording: replay.Recording):
        """The source of each function of the learner's that takes part."""
        for launch in recording.launches:
            yield from sources_of(launch.kernel)

    def record(self, calls: list[Call], outputs: dict[int, str]) -> Recorded:
        """What two calls launch."""
        return recorded(self.fn, calls, outputs, self.given)

    def replay(self, case, *, traced: bool = False, **how) -> Outcome:
        """Make a case's launches on its own tensors.

        traced: record them, and leave out accesses outside their tensors. ``how``: ``poison``, what undefined lanes hold
        then; ``products``, by which the interpreter multiplies each product of blocks.
        """
        call = case.call(traced)
        found = self.recording(case, bool(call.far))
        if found.recording is None:
            return Outcome(found.error, found.on_host)
        return replayed(found.recording, call, self.given, traced=traced, **how)

    def kernels(self, case) -> Kernels:
        """What the function launches for a case, as text; no kernel runs."""
        found = self.recording(case)
        if found.recording is None:
            return Kernels(error=found.error or found.on_host)
        numbers = []
        try:
            launches = replay.launches_on(found.recording, case.call().given)
            prepared = [prepare(launch.kernel, **given, **launch.options) for launch, given in launches]
        except Exception as raised:
            return Kernels(error=explain(raised, self.given))
        for launch in found.recording.launches:
            whole = {name: value for name, value in launch.arguments.items() if type(value) is int}
            numbers.append((_triton_private.python_function(launch.kernel).__name__, whole))
        return Kernels(prepared, list(dict.fromkeys(self.texts(found.recording))), numbers=numbers)


@functools.lru_cache
def _source(function, code) -> str:
    return inspect.getsource(function)


def sources_of(kernel, known: set | None = None):
    """The source text of a kernel and of the helpers that it names, where they are the learner's."""
    known = set() if known is None else known
    function = _triton_private.python_function(kernel)
    if function is None or function in known or not is_theirs(function.__code__.co_filename):
        return
    known.add(function)
    try:
        yield _source(function, function.__code__)
    except (OSError, TypeError):
        return
    for name in function.__code__.co_names:
        if _triton_private.is_kernel(used := function.__globals__.get(name)):
            yield from sources_of(used, known)
