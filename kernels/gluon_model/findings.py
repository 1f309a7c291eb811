"""Findings: what kinds there are, what one says, and those of a run, each pair of lines once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from kernels.common.lines import wrapped
from kernels.gluon_model.source import Place

#: What each kind of finding means.
KINDS = {
    "byte count": "the bytes that a barrier was told to expect are not the bytes that its loads bring",
    "barrier": "a barrier is used before init, after invalidate, or by more arrivals than it was initialized for",
    "deadlock": "every partition, or every program, waits for something that none of the others will do",
    "wrong phase": "a wait asks for a parity that an older phase satisfies, or that a newer one can take away",
    "early read": "memory is read although nothing makes sure that the load or product that fills it is complete",
    "early overwrite": "memory is overwritten although nothing makes sure that its reader is done",
    "missing wait": "the accumulator of an asynchronous matrix product is used before warpgroup_mma_wait",
    "missing fence": "what ordinary stores wrote is read by a copy or a product without fence_async_shared",
    "uninitialized": "memory is read that nobody has written",
    "race": "two partitions touch the same memory, one of them writes, and nothing orders them",
    "order of sums": "two additions to the same block of global memory, and nothing says which comes first",
    "out of bounds": "an active lane of a pointer access lies outside its tensor",
    "unfinished": "the program ends while an operation is in flight",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a kernel.

    kind: a key of ``KINDS``. program: the first one in which it was seen. partition: whose line it is. place: that
    line. barrier: the barrier in question as the kernel calls it, such as ``ready[1]``, or None. message: the
    explanation. step: of the program, at which it showed. count: how often it did (other buffers, rounds, programs).
    """

    kind: str
    program: tuple[int, int, int]
    partition: str
    place: Place
    barrier: str | None
    message: str
    step: int = 0
    count: int = 1

    def __str__(self) -> str:
        return wrapped(self.text)

    @property
    def text(self) -> str:
        """All of it, in lines as long as they are."""
        again = "" if self.count == 1 else f"\n  ({self.count - 1} more of this kind at the same lines.)"
        return f"{self.kind}: {self.message}{again}"


@dataclass
class Findings:
    """All findings of a run, each pair of lines once."""

    found: dict[tuple, Finding] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)

    def add(self, key: tuple, finding: Finding) -> None:
        """Count a finding; ``key`` says which ones are the same."""
        key = (finding.kind, *key)
        self.found.setdefault(key, finding)
        self.counts[key] += 1

    def __iter__(self):
        for key, one in sorted(self.found.items(), key=lambda item: (item[1].program, item[1].step)):
            yield replace(one, count=self.counts[key])
