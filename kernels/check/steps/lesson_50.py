"""Lesson 50's "Your turn" cells: one count for all tiles, a release two steps late, clocks that learn from each other.

None of them imports ``kernels.gluon_model``, which older releases of Triton cannot load: the answer brings its own run.
"""

import itertools

from kernels.check.steps import described, step


@step("50-count", "a ring that goes on from tile to tile")
def count(answer):
    """Rings of one to four buffers, tiles whose steps they divide and tiles whose steps they do not."""
    for D, steps in ((2, 3), (3, 4), (2, 4), (4, 5), (1, 3)):
        places = list(itertools.product(range(4), range(steps)))
        answers = [answer(tile, i, steps, D) for tile, i in places]
        for one in answers:
            if not isinstance(one, (tuple, list)) or len(one) != 3 or not all(type(n) is int for n in one):
                return f"It must return three integers, slot, loads, multiplies, and returns {described(one)}: {one!r}"
        got = [tuple(one) for one in answers]
        right = [_turn(tile * steps + i, D) for tile, i in places]
        if got == right:
            continue
        known = (
            (
                [_turn(i, D) for _, i in places],
                "You begin anew with every tile, and the barriers don't: they stand where the last tile left them. Count "
                "the steps of all tiles before, too",
            ),
            (
                [(n % D, *_turn(i, D)[1:]) for n, (_, i) in enumerate(places)],
                "The slot goes on, the parities begin anew",
            ),
            (
                [(i % D, *_turn(n, D)[1:]) for n, (_, i) in enumerate(places)],
                "The parities go on, the slot begins anew",
            ),
            (
                [_turn((tile + i), D) for tile, i in places],
                "A tile has `steps` steps, so it moves the count on by as many, not by one",
            ),
            (
                [(n, b, a) for n, a, b in right],
                "The parities are exchanged: the loader's fresh barrier must let it pass",
            ),
            (
                [(n, b, b) for n, _, b in right],
                "The loader waits for the phase *before* the multiplier's, in round 0 for −1",
            ),
            (
                [(n, a, a) for n, a, _ in right],
                "The multiplier waits for this round's copy, phase r, not for the one before",
            ),
        )
        why = next((f". {why}" for answer, why in known if got == answer), "")
        place = next(i for i, (a, b) in enumerate(zip(got, right)) if a != b)
        tile, i = places[place]
        return (
            f"With {D} buffers and {steps} steps a tile, step {i} of tile {tile} is the ring's step {tile * steps + i} and "
            f"gets {got[place]}, expected {right[place]}{why}"
        )
    return ""


def _turn(n: int, D: int) -> tuple[int, int, int]:
    return n % D, (n // D + 1) % 2, n // D % 2


#: Kind of finding -> what in this multiplier leads to it.
CAUSES = {
    "wrong phase": "A buffer is released that nobody has read: in the first two steps no product is surely over",
    "early overwrite": "You hand a buffer back while its product may still run: with two left running, it is the one "
    "before these two that is surely over",
    "deadlock": "Nobody can go on: with three buffers the one of step i − 2 has to be released in step i",
}


@step("50-late", "a release two steps late")
def late(run):
    """Ten steps through three and five buffers, whatever the order of events; then, how many products are in flight."""
    for STAGES in (3, 5):
        try:
            result, right = run(K=320, STAGES=STAGES)
        except RuntimeError as stopped:
            if "index -" not in str(stopped):
                raise
            return "In the first steps the slot is negative: on a GPU `%` of a negative number is negative. Add STAGES first"
        kinds = [finding.kind for finding in result.findings]
        if kinds:
            first = next((kind for kind in CAUSES if kind in kinds), kinds[0])
            finding = next(finding for finding in result.findings if finding.kind == first)
            said = " ".join(str(finding).split("\n")[0].split())
            cause = f"{CAUSES[first]}. " if first in CAUSES else ""
            return f"{cause}The model's finding, with {STAGES} buffers: {said}"
        if not result.completed or not right:
            return f"With {STAGES} buffers the model finds nothing, and the numbers are wrong"
    result, _ = run(K=320, STAGES=5, schedule="greedy")
    last = int(result.state(0).splitlines()[0].split()[-1])
    most = max(result.state(n).count("matrix product of") for n in range(last + 1))
    if most < 3:
        return (
            f"Nothing is wrong, but at most {most} product{'s are' if most != 1 else ' is'} in flight, and three are meant "
            "to be when the newest has just started: let two of them run on"
        )
    return ""


@step("50-clocks", "what an actor learns, and what it knows")
def clocks(learns, before):
    """Clocks of which either may be ahead, in another place; then events seen, not yet seen, and never heard of."""
    cases = (
        ({"loader": 3, "multiplier": 1}, {"multiplier": 2}, {"loader": 3, "multiplier": 2}),
        ({"loader": 3, "multiplier": 5}, {"loader": 4, "multiplier": 2}, {"loader": 4, "multiplier": 5}),
        ({}, {"product": 2}, {"product": 2}),
        ({"product": 2}, {}, {"product": 2}),
    )
    for mine, other, right in cases:
        given = dict(mine), dict(other)
        got = learns(*given)
        if not isinstance(got, dict):
            return f"What learns returns must be a clock, a dict, and is {described(got)}"
        got = {actor: n for actor, n in got.items() if n}
        if got == right:
            continue
        case = f"Whoever knows {mine} and is told {other} comes to know {right}; yours knows {got}"
        if got == {**mine, **other}:
            actor = next(actor for actor in right if got[actor] < right[actor])
            return f"{case}. It has forgotten events of the {actor}: older news must not replace newer"
        if got == {**other, **mine}:
            return f"{case}. It has learnt nothing that is new: where both have a number, the larger counts"
        if set(got) != set(right):
            return f"{case}. Who is in one clock only has a number, too: the other's is 0"
        return case
    for actor, number, clock, right in (
        ("product", 1, {"product": 1}, True),
        ("product", 2, {"product": 1}, False),
        ("product", 1, {"product": 3}, True),
        ("product", 1, {"multiplier": 4}, False),
        ("loader", 2, {"loader": 1, "product": 9}, False),
    ):
        got = before(actor, number, dict(clock))
        if bool(got) != right:
            why = {
                True: "a clock's number is the *last* event it knows of, and it knows all before that",
                False: "a clock knows an actor's events up to its number for *this* actor, and none of one that is not in it",
            }[right]
            return (
                f"Event {number} of the {actor} is {'' if right else 'not '}known to {clock}; you say otherwise: {why}"
            )
    return ""
