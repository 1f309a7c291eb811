"""The two checks of each clinic's kernel: a diagnosis, which is data, and a test, which is held to kernels that it never saw.

Neither says what is right. Of a diagnosis one learns which part is accepted, of a test which kind of kernel it wrongly lets
pass or accuses.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.check import watch
from kernels.check.clinics.disguise import disguised
from kernels.check.clinics.faulty_kernel import CAUSES, FaultyKernel, launcher, patched
from kernels.check.explanations import SLOW, explain, explain_slow
from kernels.check.framework import seeded
from kernels.check.say import say
from kernels.check.stale import broken_since
from kernels.lab.trace import trace


@dataclass(frozen=True)
class Item:
    """One line of a check and its points; ``lesson`` says where what it asks for is taught."""

    name: str
    points: int
    lesson: str
    needs: str = ""


@dataclass(frozen=True)
class Worksheet:
    """One check: of which kernel, and what it is held to."""

    name: str
    faulty: FaultyKernel
    properties: tuple[Item, ...]
    missing: str

    @property
    def worth(self) -> dict[str, int]:
        """The most that its verdict, there is but one, can earn."""
        return {"right": self.points}

    @property
    def points(self) -> int:
        """The most that can be earned."""
        return sum(item.points for item in self.properties)

    def say(self, verdicts: dict[str, str], drawn: str = "") -> int:
        """Print a line an item, ``verdicts`` giving what is wrong or nothing, and the points; return those."""
        earned = 0
        for item in self.properties:
            why = verdicts[item.name]
            earned += 0 if why else item.points
            say(f"FAILED  {item.name}: {why}." if why else f"passed  {item.name} ({_points(item.points)})")
        say(f"{self.name}: {earned} of {self.points} points{drawn}")
        return earned

    def lacks(self) -> int:
        """Print that there is nothing to check."""
        say(f"missing: {self.missing}")
        say(f"{self.name}: 0 of {self.points} points")
        return 0


def _points(number: int) -> str:
    return f"{number} point{'s' * (number != 1)}"


def diagnosis(faulty: FaultyKernel) -> Worksheet:
    """The check of a diagnosis of ``faulty``."""
    items = Item("line", 1, faulty.lesson), Item("cause", 1, faulty.lesson), Item("smallest input", 2, faulty.lesson)
    missing = (
        f"a diagnosis is dict(line=..., cause=..., smallest=dict({', '.join(f'{n}=...' for n in faulty.sizes)}))."
    )
    return Worksheet(f"diagnosis_{faulty.key}", faulty, items, missing)


def finds(faulty: FaultyKernel) -> Worksheet:
    """The check of a test for ``faulty``."""
    items = (
        Item("tells the broken kernel from a right one", 2, faulty.lesson),
        Item("finds the same mistake elsewhere", 2, faulty.lesson),
        Item("accuses no right kernel", 2, faulty.lesson),
    )
    return Worksheet(f"finds_{faulty.key}", faulty, items, "the test gives neither True nor False yet.")


def check_diagnosis(worksheet: Worksheet, answer: object) -> int:
    """Hold ``dict(line, cause, smallest)`` to the kernel, print which parts are accepted, return the points.

    The smallest input is verified by running: it fails, and none that is smaller does.
    """
    if answer is None or answer is ...:
        return worksheet.lacks()
    parts, faulty = ("line", "cause", "smallest"), worksheet.faulty
    if not isinstance(answer, dict) or set(answer) - set(parts):
        found = ", ".join(map(str, answer)) if isinstance(answer, dict) else type(answer).__name__
        say(f"missing: {worksheet.missing[:-1]}, and this is {found}.")
        say(f"{worksheet.name}: 0 of {worksheet.points} points")
        return 0
    line, cause, smallest = map(answer.get, parts)
    told = {"line": "" if faulty.is_line(line) else "not accepted"}
    told["cause"] = "" if cause == faulty.cause else "not accepted"
    if not isinstance(cause, str) or cause not in CAUSES:
        told["cause"] = f"it is one of {', '.join(CAUSES)}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told["smallest input"] = _form(faulty, smallest) or ("" if faulty.smallest(smallest) else "not accepted")
    return worksheet.say(told)


def _form(faulty: FaultyKernel, smallest: object) -> str:
    """What is wrong with the form of an input."""
    if not isinstance(smallest, dict) or smallest.keys() != faulty.sizes.keys():
        return f"it says {', '.join(faulty.sizes)}, and nothing else"
    for name, value in smallest.items():
        allowed = faulty.sizes[name]
        if value not in allowed or type(value) is not type(allowed[allowed.index(value)]):
            said = ", ".join(map(repr, allowed)) if len(allowed) < 9 else f"{allowed[0]} to {allowed[-1]}"
            return f"{name} may be {said}"
    return ""


class Tester:
    """A learner's test in this process. Whoever runs it elsewhere derives a class with this method."""

    def __init__(self, fn: Callable):
        self.fn = fn

    def finds(self, source: str, function: str) -> tuple[object, tuple[str, str] | None]:
        """What the test says of the kernel that ``source`` defines, and the error in which it ended, if it did."""
        return self.said(launcher(source, function))

    def said(self, kernel: Callable) -> tuple[object, tuple[str, str] | None]:
        """The same of a kernel by its launcher."""
        error, answer = None, None
        with torch.random.fork_rng(devices=[]), trace.recording() as recorded:
            torch.manual_seed(0)
            try:
                with watch.limited():
                    answer = self.fn(kernel)
            except watch.TooSlow as raised:
                error = explain_slow(raised, recorded.launches, watch.CALL_SECONDS, ())
            except Exception as raised:
                error = explain(raised)
        if isinstance(answer, torch.Tensor) and answer.numel() == 1 and answer.dtype == torch.bool:
            answer = bool(answer)
        return answer, error


def check_finds(worksheet: Worksheet, fn, *, seed: int | None = 0, grading: bool | None = None) -> int:
    """Hold a test, ``fn(kernel) -> bool``, to the broken kernel, the right one and their relatives; return the points.

    It finds nothing where nothing is wrong, and the mistake wherever it stands. One that always says the same earns nothing.
    The kernels come in an order, and in words, that are drawn anew for each grading: none is known by its lines.
    """
    if fn is None or not (isinstance(fn, Tester) or callable(fn)):
        return worksheet.lacks()
    if not isinstance(fn, Tester) and (broken := broken_since(fn)):
        say(f"{worksheet.name}: {broken}")
        return 0
    tester, faulty = fn if isinstance(fn, Tester) else Tester(fn), worksheet.faulty
    seed, grading = seeded(seed, grading)
    shown = [(item, *one) for item, members in _groups(faulty).items() for one in members]
    order = torch.randperm(len(shown), generator=torch.Generator().manual_seed(seed)).tolist()
    judged, silent = {}, True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in order:
            _, what, patch, wanted = shown[number]
            text = disguised(patched(faulty.right, patch), f"{seed}, {number}")
            answer, error = tester.finds(text, faulty.function)
            judged[number] = _wrong(what, answer, error, wanted)
            silent = silent and answer is None and not error
            if error and error[1] == SLOW:
                break
    if silent:
        return worksheet.lacks()
    told = {item.name: [] for item in worksheet.properties}
    for number, (item, what, *_) in enumerate(shown):
        told[item].append(judged.get(number, f"it was not asked about {what}: a call before took too long"))
    told = {item: "; ".join(filter(None, wrong)) for item, wrong in told.items()}
    first = worksheet.properties[0].name
    if told[first]:
        told = {item: why or "only for a test that tells those two apart" for item, why in told.items()}
    return worksheet.say(told, f" (graded with seed {seed})" if grading else "")


def _wrong(what: str, answer: object, error: tuple[str, str] | None, wanted: bool) -> str:
    """What is wrong with a test's answer for one kernel; empty if nothing is."""
    if error:
        return f"your test ends in an error with {what}, {error[0]}: {error[1]}"
    if not isinstance(answer, bool):
        return f"it gives {answer!r:.40} for {what}, it must give True or False"
    if answer is wanted:
        return ""
    return f"it lets {what} pass" if wanted else f"it accuses {what}"


def _groups(faulty: FaultyKernel) -> dict:
    """What a test is shown: by item, what is said of a kernel, its patch, and whether something is to be found."""
    two, elsewhere, sound = (item.name for item in finds(faulty).properties)
    return {
        two: [("the kernel as it was brought in", faulty.fault, True), ("the right kernel", (), False)],
        elsewhere: [(one.said, one.patch, True) for one in faulty.broken],
        sound: [(one.said, one.patch, False) for one in faulty.sound],
    }
