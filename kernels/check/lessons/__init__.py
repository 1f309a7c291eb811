"""What a lesson's reader writes, held to what the lesson itself goes on with: a kernel, or a function.

>>> check.step("01-windows", windows)
Your turn 01-windows: not written yet (line 2 of the cell still has `...`).

The right answer is the lesson's own (``kernels/lessons``, made from the block below the cell). Both are run on the same drawn
inputs, by the same launcher, with poison around their tensors and NaN in what the launcher allocates; every access is looked
at. What each lesson adds is data, in ``lesson_NN.py`` beside this file: the cases, and the slips. A slip is the lesson's own
text with something left out or exchanged. It serves as a planted bug, which the check has to find, and as a diagnosis: an
answer that gives what a slip gives, or raises what it raises, is told that slip's cause.
"""

import ast
import contextlib
import importlib
import inspect
import re
import textwrap
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels import runtime
from kernels.check import watch
from kernels.check.answers import described, difference, unwritten
from kernels.check.clinics.faulty_kernel import patched
from kernels.check.compiling import compiled, precisions, refusal
from kernels.check.costs import traffic
from kernels.check.experiments import without_other
from kernels.check.explanations import SLOW, explain, explain_slow
from kernels.check.guard import out_of_bounds, races
from kernels.check.lessons import by_model
from kernels.check.replay import Unfilled
from kernels.check.say import say
from kernels.check.tensors import MARGIN, Draw, one_thread
from kernels.check.wording import misread
from kernels.lab import _triton_private
from kernels.lab.accesses import Trace
from kernels.lab.compile_report import prepare
from kernels.lab.source import readable
from kernels.lab.trace import Undefined, trace

#: How far two answers may differ, relative to their size, by the coarsest dtype that takes part.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HALF = (torch.float16, torch.bfloat16)
ROUNDS = 'a product of float32 keeps 10 of 23 bits unless it says input_precision="ieee", or "tf32x3"'
LATE = "the next block is asked for after this one is stored: ask first, so that the wait and the store overlap"
DEARER = 1.05  # times the lesson's own bytes and sectors
DOES = ("loads ask for", "stores write", "whole sectors come to")


@dataclass(frozen=True)
class Turn:
    """A function that the reader writes.

    about: what it is, as a noun phrase that completes "right, …". ``arguments(draw, **case)`` gives what it is called with,
    by name, ``cases`` what each property asks of them. A slip is a text of the lesson's own, what stands in its place, and
    the cause, empty where an access itself tells the fault. ``run(answer, **arguments)`` gives the results where they are
    not those of one call: it launches a kernel, or calls a helper inside one. cheap: as a kernel's.
    """

    about: str
    arguments: Callable[..., Mapping]
    cases: Mapping[str, Mapping]
    slips: tuple[tuple[str, str, str], ...] = ()
    run: Callable | None = None
    cheap: bool = False


@dataclass(frozen=True)
class LessonKernel:
    """A kernel whose heart the reader writes; ``arguments`` are those of its launcher, by name, and slips as a turn's."""

    arguments: Callable[..., Mapping]
    cases: Mapping[str, Mapping]
    slips: tuple[tuple[str, str, str], ...] = ()
    cheap: bool = True  # whether it must ask for no more memory than the lesson's own
    ahead: bool = False  # whether a program must ask for its next block before it stores this one


def as_given(draw, **case) -> Mapping:
    """The arguments of a turn whose cases have them all."""
    return case


def listed(names: str, *rows: tuple) -> dict[str, Mapping]:
    """A case for each row of numbers, called by them."""
    return {_said(case): case for case in (dict(zip(names.split(), row)) for row in rows)}


class Answered(NamedTuple):
    """What one call gave, or why it gave nothing, and what was seen of it."""

    results: tuple = ()
    error: str = ""  # and where
    means: str = ""
    trace: Trace = Trace()
    undefined: list[str] = []
    launched: dict = {}  # kernel and dtypes -> what the compiler needs of the first such launch, or why there is nothing
    names: tuple = ()  # of results that came as a dictionary


def data_of(name: str, kind: str):
    """What a lesson's file says of ``name``, ``NN-topic``, under ``KERNELS`` or ``TURNS``; None where it says nothing."""
    module = f"kernels.check.lessons.lesson_{name.split('-')[0]}"
    try:
        return getattr(importlib.import_module(module), kind, {}).get(name)
    except ModuleNotFoundError as missing:
        if missing.name != module:
            raise
        return None


def own_of(name: str, function: str):
    """The lesson's own function or kernel. ``ValueError`` where the lesson has none of this name."""
    module = importlib.import_module(f"kernels.lessons.lesson_{name.split('-')[0]}")
    if not hasattr(module, function):
        raise ValueError(f"the function is called {function!r}: {module.__name__} has none of this name")
    return getattr(module, function)


def slipped(own, slip: tuple[str, str, str]):
    """The lesson's own kernel or function with a slip in it; of several functions, the one that has its text."""
    if isinstance(own, tuple):
        return tuple(slipped(one, slip) if slip[0] in _text(one) else one for one in own)
    function = _triton_private.python_function(own)
    namespace = dict(function.__globals__)
    exec(readable(patched(_text(own), slip[:2]), f"<slip in {function.__name__}: {slip[1]}>"), namespace)
    return namespace[function.__name__]


def _text(function) -> str:
    return textwrap.dedent(inspect.getsource(_triton_private.python_function(function)))


def check_kernel(name: str, kernel, launcher: Callable):
    """Hold a reader's kernel to the lesson's own, say what is wrong with it, and give back the one to go on with."""
    wanted = data_of(name, "KERNELS")
    if wanted is None:
        raise ValueError(f"name is {name!r}: kernels/check/lessons has no kernel of this name")
    called = getattr(_triton_private.python_function(kernel), "__name__", "")
    if not _triton_private.is_kernel(kernel):
        raise ValueError(f"kernel is {kernel!r}: check.kernel takes the @triton.jit function, its launcher after it")
    own = own_of(name, called)
    if place := unwritten((kernel,)):
        say(f"{called}: not written yet ({place}).\nThe lesson goes on with its own.")
        return own
    with held_kernel(name, wanted, own, kernel, launcher) as held:
        good = held.judge()
    say(f"The lesson goes on with {'yours' if good else 'its own'}.")
    return kernel if good else own


@contextlib.contextmanager
def held_kernel(name: str, wanted: LessonKernel, own, kernel, launcher: Callable):
    """What judges a kernel; the launcher finds afterwards what it found before."""
    called = _triton_private.python_function(own).__name__

    def run(which, **arguments):
        with _named(launcher, called, which):
            return launcher(**arguments)

    with _quietly(), _found_by_name(called, launcher):
        yield _Held(name, wanted, own, kernel, run, launcher)


def verdict(name: str, *answer) -> str:
    """One line on what the cell of a turn hands over: not written yet, what is wrong with it, or that it is right."""
    wanted = data_of(name, "TURNS") or by_model.TURNS.get(name)
    if wanted is None:
        raise ValueError(f"name is {name!r}: kernels/check/lessons has no turn of this name")
    if place := unwritten(answer):
        return f"Your turn {name}: not written yet ({place})."
    try:
        with _quietly():
            wrong = _wrong(name, wanted, answer) if isinstance(wanted, Turn) else wanted.wrong(*answer)
    except Exception as raised:  # of a run on the model: a learner's error is explained, never raised
        if isinstance(wanted, Turn):
            raise
        wrong = ": ".join(explain(raised))
    if not wrong:
        return f"Your turn {name}: right, {wanted.about}."
    return f"Your turn {name}: not yet. {wrong}" + "." * (not wrong.rstrip().endswith((".", "?", "!")))


def _wrong(name: str, wanted: Turn, answer: tuple) -> str:
    """What is wrong with what a reader hands over, a function or more, in a sentence; empty if nothing is."""
    functions = [_triton_private.python_function(one) for one in answer]
    try:
        own = tuple(own_of(name, getattr(function, "__name__", "")) for function in functions)
    except ValueError as unknown:
        return f"The check cannot use what it was given ({', '.join(map(described, answer))}): {unknown}"
    for one, ours in zip(answer, own):
        if _triton_private.is_kernel(ours) and not _triton_private.is_kernel(one):
            return f"A Triton function is asked for here, and this is {described(one)}: is it decorated with @triton.jit?"
    run = wanted.run or (lambda function, **arguments: function(**arguments))
    held = _Held(name, wanted, own, answer, lambda which, **arguments: run(*which, **arguments), wanted.run or own[0])
    for case in wanted.cases:
        if found := held.finding(case):
            return f"{case}: {found.said}"
    refused = held.refused() or (wanted.cheap and held.dearer())
    return f"The numbers are right, but {refused}" if refused else ""


@contextlib.contextmanager
def _quietly():
    """Meanwhile torch works in one thread, and numpy doesn't warn of the NaN that a check plants."""
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore")
        yield


class Finding(NamedTuple):
    """What is wrong in one case: the sentence, its cause where one is known, and the line and kind of a faulty access."""

    said: str
    cause: str = ""
    line: str = ""


class _Held:
    """A reader's answer, held to the lesson's own: ``run(which, **arguments)`` calls either, ``returns`` names what comes."""

    def __init__(self, name: str, wanted, own, answer, run: Callable, returns: Callable):
        self.name, self.wanted, self.own, self.answer, self.run = name, wanted, own, answer, run
        self.names = _returned(returns)
        self.given: dict = {}  # (case, slip) -> what the lesson's own gives with it
        self.found: list = []  # slips whose answer this is, so that they are tried first in the next case
        self.launched: dict = {}  # kernel and dtypes -> what the compiler needs of the first such launch

    def judge(self) -> bool:
        """Print a line a verdict; whether the lesson can go on with this kernel."""
        found = {case: self.finding(case) for case in self.wanted.cases}
        passed = ", ".join(case for case in found if not found[case])
        if passed:
            say(f"passed  {passed}" if any(found.values()) else f"passed  right: {passed}")
        told: set[str] = set()
        for case, finding in found.items():
            if finding:
                say(f"FAILED  {case}: " + ("the same." if (finding.cause or finding.line) in told else finding.said))
                told |= {finding.cause, finding.line} - {""}
        if any(found.values()):
            return False
        if refused := self.refused():
            say(f"FAILED  compiles: {refused}")
            return False
        say("passed  compiles")
        if self.wanted.cheap:
            say(f"FAILED  cheap: {dearer}" if (dearer := self.dearer()) else "passed  cheap")
        return True

    def finding(self, case: str) -> Finding | None:
        """What is wrong with the answer in one case, and why: a condition that is not what it looks like, before all else."""
        if found := self.observed(case):
            answer = self.answer if isinstance(self.answer, tuple) else (self.answer,)
            texts = [_text(one) for one in answer if _triton_private.is_kernel(one)]
            return next((Finding(f"`{shown}`: {why}.", why) for shown, why in misread(texts)), found)
        return None

    def observed(self, case: str) -> Finding | None:
        """What its results and accesses in one case show, and the slip whose results those are."""
        sizes = self.wanted.cases[case]
        with_sizes = f" ({_said(sizes)})" if _said(sizes) not in ("", case) else ""
        theirs, right = self.call(self.answer, sizes), self.known(case)
        self.launched = theirs.launched | self.launched
        if right.error:
            raise RuntimeError(f"the lesson's own {self.name} fails in the case {case}: {right.error}: {right.means}")
        tensors = [*right.results, *self.drawn(sizes).values()]
        tolerance = max((TOLERANCE.get(x.dtype, 0.0) for x in tensors if isinstance(x, torch.Tensor)), default=1e-9)

        def unlike(a: Answered, b: Answered) -> str:
            if a.error or b.error:
                return "" if _raised(a) == _raised(b) else a.error or b.error
            return _unlike(a, b, tolerance, self.names)

        def cause() -> str:
            for slip in sorted(filter(lambda slip: slip[2], self.wanted.slips), key=lambda slip: slip not in self.found):
                made = self.known(case, slip)
                if not unlike(theirs, made) and (unlike(made, right) or _outside(theirs) == _outside(made) != []):
                    self.found.append(slip)
                    return slip[2]
            return ""

        if theirs.error:
            means = theirs.means if theirs.means == SLOW else cause() or theirs.means
            return Finding(f"{theirs.error}{with_sizes}: {means}.", theirs.error)
        wrong = unlike(theirs, right)
        for poison in Undefined.POISONS[1:] if theirs.undefined and not wrong else ():
            wrong = wrong or unlike(self.call(self.answer, sizes, poison), right)
        between = [] if _between(right.trace) else _between(theirs.trace)
        if told := [*out_of_bounds(theirs.trace), *races(theirs.trace), *between]:
            why, where = cause(), self.blamed(theirs.trace)
            alike = " ".join(re.findall(r"`.*`|reads?\b|writes?\b|of \w+, and", told[0]))
            return Finding(where + told[0] + f" Why: {why}." * bool(why), why, alike)
        if not wrong and getattr(self.wanted, "ahead", False) and _late(theirs.trace):
            return Finding(f"{LATE}{with_sizes}.", LATE)
        if not wrong:
            return self.imprecise(theirs, right, sizes)
        if theirs.undefined and not unlike(self.call(self.answer, sizes, 0.0), right):
            why = without_other(theirs.undefined)
        else:
            why = cause()
        said = _never_stored(theirs.trace, right.trace) or wrong
        return Finding(f"{said}{with_sizes}" + f": {why}" * bool(why) + ".", why)

    def known(self, case: str, slip: tuple[str, str, str] | None = None) -> Answered:
        """What the lesson's own gives in a case, as it is or with a slip in it."""
        if (case, slip) not in self.given:
            which = slipped(self.own, slip) if slip else self.own
            self.given[case, slip] = self.call(which, self.wanted.cases[case])
        return self.given[case, slip]

    def blamed(self, recorded: Trace) -> str:
        """What goes before a sentence on a line that is not the reader's: a kernel above calls what they wrote."""
        if isinstance(self.wanted, Turn):
            return ""
        name = _triton_private.python_function(self.answer).__name__
        other = next((one.kernel for one in recorded.launches if one.kernel != name), "")
        return other and f"with what {name} gives, in {other} above, which calls it: "

    def imprecise(self, theirs: Answered, right: Answered, sizes: Mapping) -> Finding | None:
        """What is wrong where an answer to 16-bit inputs has lost more digits than the lesson's own, which sums in float32.

        Both are held to what the lesson's own gives for the same numbers in float32.
        """
        drawn = self.drawn(sizes)
        half = [x.dtype for x in drawn.values() if isinstance(x, torch.Tensor) and x.dtype in HALF]
        exact = self.call(self.own, sizes, arguments=dict(zip(drawn, map(_widened, drawn.values())))) if half else right
        for place, (a, b, best) in enumerate(zip(theirs.results, right.results, exact.results)):
            if exact is right or not b.is_floating_point() or not bool(b.isfinite().all()):
                continue
            lost, usual, size = (float(x.double().square().mean().sqrt()) for x in (a - best, b - best, best))
            if lost > 1.25 * usual + size * torch.finfo(half[0]).eps / 16:
                why = "convert to tl.float32 right after the load, and keep sums in it"
                times = f"{lost / max(usual, 1e-30):.2g} times that of the lesson's own"
                times = f"the error of {_named_result(self.names, place)} is {times}"
                return Finding(f"digits are lost, {times} ({_said(sizes)}): {why}.", why)
        return None

    def refused(self) -> str:
        """What a GPU's compiler says against the launches that were made, in a sentence."""
        for prepared in self.launched.values():
            if isinstance(prepared, ValueError):
                return f"no GPU's compiler can be shown this: {prepared}."
            if isinstance(made := compiled(prepared, (90,)), str):
                found = refusal(prepared.kernel, made, "")
                return f"{found.where}: {found.cause}."
            if "tf32" in precisions(made[90]):
                return f"{prepared.kernel} rounds float32 operands to TF32: {ROUNDS}."
            if spilled := made[90].spill_bytes:
                return f"{prepared.kernel} spills {spilled} bytes a thread: more is alive at once than registers hold."
        return ""

    def dearer(self) -> str:
        """What the reader's kernel asks of memory beyond the lesson's own, on the largest case, in a sentence."""
        sizes = max(self.wanted.cases.values(), key=lambda sizes: _elements(self.drawn(sizes)))
        theirs, ours = (self.call(kernel, sizes).trace.accesses for kernel in (self.answer, self.own))
        for does, amount, own in zip(DOES, traffic(theirs), traffic(ours), strict=True):
            if amount > DEARER * own:
                lines = {access.source for access in ours}
                most = max(theirs, key=lambda access: (access.source not in lines, access.nbytes)).source
                with_sizes = f" ({_said(sizes)})" if sizes else ""
                return f"{does} {amount:,} bytes, the lesson's {own:,}{with_sizes}; `{most}` takes part."
        return ""

    def drawn(self, sizes: Mapping) -> dict:
        """A case's arguments, the same each time; tensors lie amid poison."""
        return {name: _fenced(value) for name, value in self.wanted.arguments(Draw(self.name, False), **sizes).items()}

    def call(self, which, sizes: Mapping, poison=Undefined.POISONS[0], arguments: dict | None = None) -> Answered:
        """What a kernel, by the launcher, or a function gives for one case, or for other arguments."""
        launched: dict = {}

        def note(kernel, grid, args, kwargs) -> bool:
            dtypes = tuple(x.dtype for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
            if runtime.interpreted and (kernel, dtypes) not in launched:
                try:
                    launched[kernel, dtypes] = prepare(kernel, *args, **kwargs)
                except ValueError as error:
                    launched[kernel, dtypes] = error
            return True

        arguments, helpers = arguments or self.drawn(sizes), ()
        if isinstance(self.wanted, LessonKernel):  # what the lesson gives is not to blame
            helpers = _triton_private.python_function(which).__code__.co_names
        with Unfilled(), Undefined(poison) as undefined, trace.recording(helpers=helpers) as recorded:
            try:
                with _triton_private.before_launches(note), watch.limited():
                    results = self.run(which, **arguments)
            except watch.TooSlow as raised:
                return Answered((), *explain_slow(raised, recorded.launches, watch.CALL_SECONDS, helpers), recorded)
            except Exception as raised:
                said, means = explain(raised, helpers)
                return Answered((), said if isinstance(self.wanted, Turn) else _placed(said, which), means, recorded)
        names = ()
        if isinstance(results, Mapping):
            names, results = tuple(sorted(results)), tuple(results[name] for name in sorted(results))
        results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        return Answered(results, "", "", recorded, list(undefined.lines), launched, names)


def _placed(said: str, function) -> str:
    """A sentence on an error, whose line may be that of a cell above: it calls what the reader wrote."""
    found = re.search(r"in line \d+ of your cell, (`.*?`)", said)
    if found and found[1].strip("`") not in _text(function):
        return said.replace(found[0], f"in a cell above, {found[1]}, with what you gave it")
    return said


def _raised(call: Answered) -> str:
    """What a call raised, without the line that did."""
    return call.error.partition(" in line ")[0]


def _outside(call: Answered) -> list[str]:
    """What a call's lanes do outside of which tensor, without the lines that do it."""
    return [said.partition("): ")[2] for said in out_of_bounds(call.trace)]


def _between(recorded: Trace) -> list[str]:
    """A sentence for each tensor on whose elements programs of one launch conflict: their order is not fixed."""
    found = []
    for launch in recorded.launches:
        for name, elements in launch.races().items():
            element, (one, other, *_) = next(iter(elements.items()))
            stored = launch.programs(name, "store")
            does = "store" if sum(element in those for those in stored.values()) > 1 else "store and load"
            some = f"{len(elements)} element{'s' * (len(elements) > 1)} of {name.removesuffix('_ptr')}"
            found.append(
                f"programs {one} and {other} both {does} element {element}, one of {some}, and nothing orders them."
            )
    return found


def _late(recorded: Trace) -> bool:
    """Whether a program of several blocks loads its last one only after all the others are stored."""
    for launch in recorded.launches:
        kinds: dict[tuple, str] = {}
        for access in launch.accesses:
            kinds[access.program] = kinds.get(access.program, "") + access.kind[0]
        if any("s" in done.rstrip("s") and not done.endswith("ss") for done in kinds.values()):
            return True
    return False


def _never_stored(theirs: Trace, right: Trace) -> str:
    """A phrase on the first tensor of which elements are never stored that the lesson's own kernel stores."""
    for ours, own in zip(theirs.launches, right.launches):
        for name in filter(ours.operands.__contains__, own.operands):
            wanted, stored = (
                {i for kind in ("store", "atomic") for those in one.programs(name, kind).values() for i in those}
                for one in (own, ours)
            )
            if missing := len(wanted - stored):
                return f"{missing} of {len(wanted)} elements of {name.removesuffix('_ptr')} are never stored"
    return ""


def _fenced(value):
    """A tensor in a larger storage, as it was, with NaN around it and in its gaps; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    span = sum((n - 1) * stride for n, stride in zip(value.shape, value.stride())) + 1 if value.numel() else 0
    poison = float("nan") if value.dtype.is_floating_point else 1 if value.dtype == torch.bool else 111
    flat = torch.full((2 * MARGIN + span,), poison, dtype=value.dtype, device=runtime.device)
    view = flat.as_strided(value.shape, value.stride(), MARGIN)
    once = tuple(slice(None if stride else 1) for stride in value.stride())  # an axis of stride 0 holds one element
    if value.numel():
        view[once].copy_(value[once])
    return view


def _widened(value):
    """A 16-bit tensor in float32, laid out as it was."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value


def _elements(arguments: Mapping) -> int:
    return sum(value.numel() for value in arguments.values() if isinstance(value, torch.Tensor))


@contextlib.contextmanager
def _named(launcher, name: str, kernel):
    """Meanwhile the launcher finds this kernel under this name."""
    names = launcher.__globals__
    kept = names.get(name)
    names[name] = kernel
    try:
        yield
    finally:
        names[name] = kept


def _found_by_name(name: str, launcher):
    """``_named`` with what is there now; ``ValueError`` where the launcher doesn't find its kernel by this name."""
    if not isinstance(launcher, types.FunctionType) or name not in launcher.__code__.co_names:
        raise ValueError(f"launcher is {launcher!r}: it must be the function that launches {name}[grid](...)")
    return _named(launcher, name, launcher.__globals__.get(name))


def _returned(function) -> list[str]:
    """What a function calls the things that it returns."""
    function = _triton_private.python_function(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value is not None]
    if not found:
        return []
    values = found[-1].elts if isinstance(found[-1], ast.Tuple) else [found[-1]]
    return [value.id if isinstance(value, ast.Name) else "" for value in values]


def _unlike(got: Answered, expected: Answered, tolerance: float, names: list[str]) -> str:
    """What differs first between two calls' results, as a phrase; empty if nothing does."""
    if got.names != expected.names:
        return f"there are {', '.join(map(str, got.names)) or 'no names'}, expected {', '.join(expected.names)}"
    if (one := len(got.results)) != (other := len(expected.results)):
        return f"{one} thing{'s are' if one != 1 else ' is'} returned, expected {other}"
    for place, (ours, theirs) in enumerate(zip(got.results, expected.results)):
        if said := difference(_named_result(list(expected.names) or names, place), ours, theirs, tolerance=tolerance):
            return said.rstrip(".")
    return ""


def _named_result(names: list[str], place: int) -> str:
    """What a result is called: as the function calls it, or by its place."""
    return (names[place] if place < len(names) else "") or (f"result {place}" if len(names) > 1 else "the result")


def _said(sizes: Mapping) -> str:
    return ", ".join(f"{key} = {getattr(value, '__name__', value)}" for key, value in sizes.items())
