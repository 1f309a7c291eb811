"""What one pass through a compiled loop asks of the warp that runs it: instructions, trips through shared memory, turns."""

from collections import Counter
from typing import NamedTuple

from kernels.lab.compile_report import CompileReport
from kernels.lab.loops import SASS, Code
from kernels.lab.machine_record import numbers

WIDE = {".128": 4, ".64": 2}  # a turn serves 32 lanes with 4 bytes each


class LoopParts(NamedTuple):
    """One pass, one warp. ``counts`` has every instruction by its name.

    trips: how often the warp hands numbers to shared memory, or to its own other lanes, and waits for what comes back.
    turns: how many turns of shared memory it takes, each 128 bytes; a shuffle is one.
    """

    instructions: int
    trips: int
    turns: int
    counts: Counter

    def work_ns(self, num_warps: int = 1) -> float:
        """What a program alone needs for a pass whose rows are there: a warp starts an instruction in a tick, the warps
        share the turns, and each trip takes as long as one to L1."""
        known = numbers()
        return max(self.instructions, num_warps * self.turns) / known["ghz"] + self.trips * known["l1_ns"]


def loop_parts(report: CompileReport) -> LoopParts:
    """Those of the longest loop in ``report``. ``ValueError`` if it has none."""
    code = Code(report.sass, SASS)
    loops = code.loops().values()
    if not loops:
        raise ValueError(f"report is of {report.kernel}, in which no loop is left")
    counts = Counter(code.instructions[i].opcode for i in max(loops, key=len))
    shared = {name: count for name, count in counts.items() if name.startswith(("LDS", "STS", "SHFL"))}
    turns = sum(count * next((n for end, n in WIDE.items() if name.endswith(end)), 1) for name, count in shared.items())
    return LoopParts(counts.total(), sum(n for name, n in shared.items() if not name.startswith("LDS")), turns, counts)
