"""The turns that run on the model of Gluon, whose findings say more than a comparison of answers could.

None imports ``kernels.gluon_model``, which the oldest Triton cannot load: the reader's function brings its own run, and
returns the model's result, and whether its numbers are right.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelTurn:
    """``run(**case)`` for each case, whatever the order of events.

    causes: kind of finding -> what in the answer leads to it; the first that was found is named. beyond: what is said where
    a slot is asked for that there is not. also: what else is wrong with ``run`` where the model finds nothing.
    """

    about: str
    cases: tuple[Mapping[str, int], ...]
    causes: Mapping[str, str]
    beyond: str
    also: Callable[[Callable], str] = lambda run: ""

    def wrong(self, run: Callable) -> str:
        """What is wrong with an answer, in a sentence; empty if nothing is."""
        for case in self.cases:
            sizes = ", ".join(f"{name} = {size}" for name, size in case.items())
            try:
                result, right = run(**case)
            except RuntimeError as stopped:
                if not re.search(r": index -?\d+ of \d+$", str(stopped)):
                    raise
                return f"With {sizes}: {self.beyond}"
            findings = {finding.kind: finding for finding in reversed(result.findings)}
            if findings:
                kind = next((kind for kind in self.causes if kind in findings), next(reversed(findings)))
                said = " ".join(findings[kind].text.split("\n")[0].split())
                cause = f"{self.causes[kind]}. " if kind in self.causes else ""
                return f"{cause}The model's finding, with {sizes}: {said}"
            if not result.completed or not right:
                return f"With {sizes} the model finds nothing, and the numbers are wrong"
        return self.also(run)


def _in_flight(run) -> str:
    """Whether fewer than three products are ever in flight."""
    result, _ = run(K=320, STAGES=5, schedule="greedy")
    last = int(result.state(0).splitlines()[0].split()[-1])
    most = max(result.state(n).count("matrix product of") for n in range(last + 1))
    if most >= 3:
        return ""
    return (
        f"Nothing is wrong, but at most {most} product{'s are' if most != 1 else ' is'} in flight, and three are meant to be "
        "when the newest has just started: let two of them run on"
    )


TURNS = {
    "50-late": ModelTurn(
        "a release two steps late",
        ({"K": 320, "STAGES": 3}, {"K": 320, "STAGES": 5}),
        {
            "wrong phase": "A buffer is released that nobody has read: the one of step i − 2 is, and in the first two steps "
            "none",
            "early overwrite": "You hand a buffer back while its product may still run: with two left running, it is the one "
            "before these two that is surely over",
            "deadlock": "Nobody can go on: with three buffers the one of step i − 2 has to be released in step i",
        },
        "There is no slot of that number: it is below STAGES, and in the first steps i − 2 is negative, as its `%` on a GPU "
        "is. Add STAGES first",
        _in_flight,
    ),
    "52-store": ModelTurn(
        "a storer behind a ring of sums",
        ({"SUMS": 1}, {"SUMS": 2}, {"SUMS": 3}),
        {
            "wrong phase": "The storer waits for another round than its own, or signals for another accumulator: the slot is "
            "tile % SUMS, for both barriers, and the parity turns once in SUMS tiles",
            "early read": "Sums are read before they are complete: wait for the phase of this round",
            "barrier": "The arrival goes to a barrier that waits for somebody else's: the storer says that the sums are "
            "*stored*",
            "early overwrite": "An accumulator is filled again while it is read: tell whoever fills it, on its own barrier",
            "deadlock": "Nobody can go on: the multiplier waits to be told that an accumulator is stored",
        },
        "There is no accumulator of the number that you ask for: how many there are is SUMS",
    ),
    "53-last": ModelTurn(
        "the values of the last tile",
        tuple({"tiles": tiles, "STAGES": STAGES} for tiles, STAGES in ((3, 2), (4, 2), (5, 2), (1, 2), (4, 3))),
        {
            "missing wait": "The sums leave while their last product may still run: let none of them run on",
            "wrong phase": "The wait is for another round than that of the last tile, whose number is tiles − 1",
            "early read": "The values that are multiplied are not those that were waited for, or not the last tile's",
            "barrier": "Another buffer is handed back than the last tile's",
            "deadlock": "Nobody brings the tile that you wait for: the last one's number is tiles − 1",
        },
        "There is no buffer of the number that you ask for: a slot is below STAGES",
    ),
}
