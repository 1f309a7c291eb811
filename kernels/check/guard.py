"""A learner's launches outside a check: a wild address is a sentence, an error is their own line, nothing runs for ever."""

import contextlib
import sys
from collections import Counter

from triton.compiler.errors import CompilationError
from triton.runtime.errors import InterpreterError

from kernels.check import watch
from kernels.check.experiments import without_other
from kernels.check.explanations import explain, explain_race, explain_slow
from kernels.check.say import say
from kernels.lab.accesses import Trace
from kernels.lab.trace import trace


@contextlib.contextmanager
def guarded(*, given: tuple[str, ...] = ()):
    """Run the launches of ``with check.guarded() as t:`` where they can do no harm; ``t`` is their ``Trace``.

    What lies outside a tensor is neither read nor written, and is said in a sentence after the block; a call that takes
    longer than 10 s is ended; an error is said with the line that it comes from and what it usually means, and the notebook
    goes on. Where lanes of one program race, both lines are said. Where NaN is stored and a load has no ``other``, that
    load is named.

    given: Triton functions that are not to blame: what goes wrong in them is the doing of the line that calls them.
    """
    with trace.recording(helpers=given) as recorded:
        try:
            with watch.limited():
                yield recorded
        except watch.TooSlow as raised:
            _say(explain_slow(raised, recorded.launches, watch.CALL_SECONDS, given))
        except Exception as raised:
            _say(explain(raised, given))
    for sentence in (*out_of_bounds(recorded), *races(recorded)):
        say(sentence, 4)
    lines = [line for launch in recorded.launches if launch.spoilt for line in launch.undefined]
    if lines:
        say(f"{without_other(list(dict.fromkeys(lines)))}: hence the nan in the result.", 4)


def line_first() -> None:
    """In a notebook, say an error of a kernel in a line before its traceback: the learner's own line, and what it means.

    The interpreter's traceback is long and ends in Triton's code.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return

    def shown(shell, kind, error, traceback, tb_offset=None):
        with contextlib.suppress(Exception):  # whatever is wrong with the sentence, the traceback comes
            _say(explain(error))
        shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)

    shell.set_custom_exc((InterpreterError, CompilationError), shown)


def _say(explained: tuple[str, str]) -> None:
    say(f"{explained[0]}: {explained[1]}.", 4)


def out_of_bounds(recorded: Trace) -> list[str]:
    """A sentence for each line that reaches outside a tensor, the first line first."""
    lanes, first = Counter(), {}
    for launch in recorded.launches:
        for access in launch.outside():
            key = access.kind, access.tensor, access.source
            lanes[key] += access.outside.size
            first.setdefault(key, (access, launch.operands.get(access.tensor)))
    return [_sentence(count, *first[key]) for key, count in lanes.items()]


def races(recorded: Trace) -> list[str]:
    """A sentence for each pair of lines between which lanes of one program race."""
    found = [explain_race(race, one.operands[race.tensor]) for one in recorded.launches for race in one.races_inside]
    return list(dict.fromkeys(f"{where}, {lines}: {why}." for where, lines, why in found))


def _sentence(count: int, access, operand) -> str:
    name = (access.tensor or "").removesuffix("_ptr")
    does = {"load": "read", "store": "write", "atomic": "update"}[access.kind]
    where = f"`{access.source}` in program {access.program}"
    if operand is None:
        return f"{where} makes an address that no tensor leads to: nothing was done there."
    distance, size = int(access.outside[0]), operand.elements
    before = f"{-distance} element{'s' * (distance < -1)} before {name}"
    place = before if distance < 0 else f"element {distance} of {name}, which has {size}"
    lanes = f"1 lane {does}s" if count == 1 else f"{count} lanes {does}"
    said = f"{where}: {lanes} outside {name}, the first at {place}" + f": its last is {size - 1}" * (distance == size)
    return f"{said}. On a GPU that is another tensor's memory, or nobody's."
