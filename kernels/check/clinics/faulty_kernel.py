"""A kernel that is brought into a clinic: its text, what is wrong with it, and its relatives, broken and sound.

All that is known of one is a text of the right kernel and patches of it: the fault, the same mistake elsewhere, and other
ways to write what is right. So nothing drifts apart, and whether an input fails is found by running, not written down.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from kernels.check.cases import Case, Failed
from kernels.check.submission import Outcome, Submission, performed
from kernels.check.tensors import Draw
from kernels.lab.source import readable

#: Every cause that a clinic knows, and how its notebook says it. The faults of all clinics are among them.
CAUSES = {
    "neutral": "what masked lanes hold, or what an accumulator starts with, is not neutral for what is computed of it",
    "mask": "a mask is made of another axis than the one that it must guard",
    "bound": "a loop or a grid ends before the last block, which is not whole",
    "stride": "a stride is taken for granted that a tensor need not have",
    "boundary": "what belongs to one sequence, batch entry or image is read by its neighbour",
    "race": "several programs, or several lanes of one, touch one element, in no fixed order",
    "precision": "a sum is kept, or a product is rounded, in 16 bits",
    "rescale": "what was summed against an old maximum is not rescaled to the new one",
    "empty": "where nothing is left to sum, an undefined expression is formed: −∞ − (−∞), or 0 / 0",
    "index": "a flat index is taken apart by the wrong size: / or % by the size of another axis",
    "time": "a factor that belongs to one step is applied at the step before or after it",
    "carry": "what must be carried to the next block starts anew, or what must start anew is carried",
    "overflow": "an offset is computed in fewer bits than the tensor needs",
}

_SERIAL = itertools.count()
_DRAWS = 2  # an input fails if the values of any draw show it
MOST_TRIED = 2000  # smaller inputs of one answer


def patched(source: str, patch: tuple[str, ...]) -> str:
    """``source`` with each old text, which must occur once, replaced by its new text."""
    for old, new in zip(patch[::2], patch[1::2], strict=True):
        if source.count(old) != 1:
            raise ValueError(f"patch: {old!r} occurs {source.count(old)} times, it must occur once")
        source = source.replace(old, new)
    return source


def launcher(source: str, name: str) -> Callable:
    """The function ``name`` that a text of kernels and their launcher defines, every time anew."""
    file = f"<kernel {next(_SERIAL)}>"  # Triton reads a kernel's source back by this name
    text = f"import torch\nimport triton\nimport triton.language as tl\n\n\n{source}"
    namespace = {"__name__": "clinic"}
    exec(readable(text, file), namespace)
    return namespace[name]


@dataclass(frozen=True)
class Relative:
    """Another kernel for a learner's test: ``said`` is all that a check tells of it, ``patch`` makes it of the right one."""

    said: str
    patch: tuple[str, ...]


class _Given(Submission):
    """The course's own launcher: it is called as it stands, and may compute what it likes."""

    def replay(self, case, *, traced: bool = False, **how) -> Outcome:
        """One call."""
        call = case.call(traced)
        return performed(lambda: self.fn(*call.args, **call.launch), call, traced=traced, **how)


@dataclass(frozen=True)
class FaultyKernel:
    """A broken kernel. ``key`` is its clinic's part and a letter, ``function`` its launcher.

    ``fault`` patches ``right``, the source of the right one; ``lines`` are the lines of the broken one that may be named, by
    their text, and ``cause`` is a key of ``CAUSES``. ``sizes`` lists what an input is made of and what each number may be,
    ascending; ``case(draw, **sizes)`` makes the call. ``broken`` are relatives with the same mistake, ``sound`` ones without
    any. ``races``: programs of one launch that conflict make an input fail, whatever the numbers.
    """

    key: str
    function: str
    right: str
    fault: tuple[str, ...]
    lines: tuple[str, ...]
    cause: str
    sizes: dict[str, tuple]
    case: Callable[..., Case]
    broken: tuple[Relative, ...]
    sound: tuple[Relative, ...]
    lesson: str
    races: bool = False

    @cached_property
    def source(self) -> str:
        """The broken kernel's text, as the notebook shows it."""
        return patched(self.right, self.fault)

    def fails(self, kernel: Callable, sizes: dict) -> bool:
        """Whether an input of these sizes shows that ``kernel`` is broken.

        A wrong or missing number, a load or store outside a tensor, a race inside a program, an error; amid NaN, and with
        outputs full of it.
        """
        submission = _Given(kernel)
        for number in range(_DRAWS):
            case = self.case(Draw(f"{number}, {self.key}", False), **sizes)
            try:
                traced = case.traced(submission)
            except Failed:
                return True
            seen = traced.run.seen
            racing = (launch.races_inside or self.races and launch.races() for launch in traced.launches)
            if traced.out_of_bounds or any(racing):
                return True
            for out in case.outs:
                found = seen[out.name]
                if found.spilled or out.unstored(found).any() or out.wrong(found.got).any():
                    return True
        return False

    def smaller(self, sizes: dict) -> Iterator[dict]:
        """Every other input of which nothing is larger, the smallest first."""
        ranks = {name: range(allowed.index(sizes[name]) + 1) for name, allowed in self.sizes.items()}
        for chosen in sorted(itertools.product(*ranks.values()), key=sum):
            found = {name: self.sizes[name][rank] for name, rank in zip(ranks, chosen)}
            if found != sizes:
                yield found

    def smallest(self, sizes: object) -> bool:
        """Whether an input fails and none that is smaller does, as found by running the broken kernel."""
        if not isinstance(sizes, dict) or sizes.keys() != self.sizes.keys():
            return False
        for name, value in sizes.items():
            alike = [one for one in self.sizes[name] if type(one) is type(value) and one == value]
            if not alike:
                return False
        if not self._fails(sizes):
            return False
        tried = itertools.islice(self.smaller(sizes), MOST_TRIED)
        return not any(map(self._fails, tried))

    def _fails(self, sizes: dict) -> bool:
        """Whether the broken kernel fails on an input, run once: answers are many, and small inputs few."""
        key = tuple(sizes[name] for name in self.sizes)
        if key not in self._ran:
            self._ran[key] = self.fails(launcher(self.source, self.function), sizes)
        return self._ran[key]

    @cached_property
    def _ran(self) -> dict[tuple, bool]:
        return {}

    def is_line(self, line: object) -> bool:
        """Whether a line's number or text is one of those that may be named."""
        rows = self.source.splitlines()
        if isinstance(line, int) and not isinstance(line, bool):
            line = rows[line - 1] if 1 <= line <= len(rows) else ""
        return isinstance(line, str) and " ".join(line.split()) in {" ".join(one.split()) for one in self.lines}
