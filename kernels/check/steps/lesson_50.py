"""Lesson 50's "Your turn" cells: a ring no deeper than it helps, one count for all tiles, a release two steps late.

None of them imports ``kernels.gluon_model``, which older releases of Triton cannot load: the answer brings its own run.
"""

import itertools

from kernels.check.steps import described, step
from kernels.check.steps.helpers import said_by_model


@step("50-depth", "a ring no deeper than it helps")
def depth(ring_of):
    """Rings that shared memory bounds, that the box bounds, on the dot and rounded up; copies or products the slower."""
    for room, tile, copy, product, latency in (
        (500, 32, 5, 2, 17),
        (100, 10, 2, 3, 7),
        (100, 10, 2, 3, 6),
        (100, 48, 2, 3, 7),
        (227, 32, 5, 2, 19),
        (100, 10, 4, 3, 9),
        (60, 20, 1, 4, 40),
    ):
        got = ring_of(room, tile, copy, product, latency)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            return f"It must return two numbers, D and share, and returns {described(got)}: {got!r}"
        fits, helps = room // tile, -(-(latency + product) // max(copy, product))
        D = min(fits, helps)
        share = product / max(copy, product, (latency + product) / D)
        case = f"For room {room}, tile {tile}, copy {copy}, product {product} and latency {latency}"
        if got[0] != D:
            why = {
                fits: "So many fit, and more than the box asks for buy nothing",
                helps: "So many the box asks for, and they do not fit",
                (latency + product) // max(copy, product): "Rounded down, the ring is a little too short: round up",
                -(-latency // max(copy, product)): "Around the ring lie a latency and the product that reads the buffer",
                min(fits, -(-(latency + product) // product)): "Where copies are the slower ones, they set the pace",
            }.get(got[0], "As many as the box asks for, if they fit")
            return f"{case}, D is {got[0]}, expected {D}. {why}"
        if not abs(float(got[1]) - share) < 1e-6:
            why = {
                product / max(product, (latency + product) / D): "Copies may be slower than products, too",
                product / max(copy, product): "A ring that is too short sets the pace of its own, (L + t_m) / D",
                max(copy, product, (latency + product) / D): "That is how long a step takes; of it the product works a part",
            }.get(got[1], "It is the time of a product over the time of a step")
            return f"{case}, share is {float(got[1]):.3g}, expected {share:.3g}. {why}"
    return ""


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
        place = next(i for i, (a, b) in enumerate(zip(got, right)) if a != b)
        part = next(j for j in range(3) if got[place][j] != right[place][j])
        otherwise = (
            f"The slot is n % {D}, where n counts the steps of all tiles",
            f"The loader waits for the phase before round n // {D}, where n counts the steps of all tiles",
            f"The multiplier waits for round n // {D}, where n counts the steps of all tiles",
        )[part]
        why = next((why for answer, why in known if got == answer), otherwise)
        tile, i = places[place]
        return (
            f"With {D} buffers and {steps} steps a tile, step {i} of tile {tile} is the ring's step {tile * steps + i} and "
            f"gets {got[place]}, expected {right[place]}. {why}"
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
        if said := said_by_model(result, right, CAUSES, f"{STAGES} buffers"):
            return said
    result, _ = run(K=320, STAGES=5, schedule="greedy")
    last = int(result.state(0).splitlines()[0].split()[-1])
    most = max(result.state(n).count("matrix product of") for n in range(last + 1))
    if most < 3:
        return (
            f"Nothing is wrong, but at most {most} product{'s are' if most != 1 else ' is'} in flight, and three are meant "
            "to be when the newest has just started: let two of them run on"
        )
    return ""
