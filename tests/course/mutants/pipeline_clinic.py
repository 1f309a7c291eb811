"""Bugs of exercise 09: plausible repairs that are none."""

import torch

from kernels.check.exercises.pipeline_clinic import product, relay
from kernels.check.framework import Draw
from tests.course.mutants import Mutant, Target

LUCKY = 40  # how often a test is run again until its numbers are right


def lucky(launch):
    """A naive test: one round of the ring, in some order of events; numbers alone count, findings do not."""

    def passes(kernel) -> bool:
        from kernels import gluon_model

        for seed in range(LUCKY):
            grid, args, out, expected, _ = launch(Draw(1, False))
            gluon_model.run(kernel, grid, *args, schedule="random", seed=seed)
            if torch.allclose(out.double(), expected, atol=1e-3):
                return True
        return False

    return passes


FENCE = "        fence_async_shared()\n"
RELEASE_X = "        mbarrier.arrive(x_empty.index(s), count=1)\n"
ANNOUNCE_Y = "        mbarrier.arrive(y_ready.index(s), count=1)\n"
WAIT_X = "        mbarrier.wait(x_ready.index(s), parity)\n"
WAIT_Y = "        mbarrier.wait(y_empty.index(s), parity ^ 1)\n"
READ_X = "        x = x_tiles.index(s).load(layout)\n"
PARITY = "parity = i // STAGES & 1"

ENUMERATE = Mutant(
    "enumerate",
    "the steps are counted by Python",
    ("for i in range(steps):", "for i, _ in enumerate(range(steps)):"),
    "compiles",
    "a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else",
)

RELAY = Target(
    "09_pipeline_clinic",
    "mended_relay",
    ("worker-kernel", "relay-kernel"),
    lucky(lambda draw: relay(draw, 3, 2)),
    (
        Mutant(
            "wait removed",
            "the worker fills y without asking whether it is free",
            (WAIT_Y, ""),
            "three rounds",
            "early overwrite",
        ),
        Mutant(
            "index without phase, filling",
            "the worker waits for parity 1 of y_empty in every round",
            ("parity ^ 1", "1"),
            "three rounds",
            "early overwrite",
        ),
        Mutant(
            "index without phase, reading",
            "the worker waits for parity 0 of x_ready in every round",
            (WAIT_X, WAIT_X.replace("parity", "0")),
            "three rounds",
            "early overwrite at x_ready[0]",
        ),
        Mutant(
            "parity turned a step late",
            "a round is taken to have one step more than there are buffers",
            (PARITY, "parity = i // (STAGES + 1) & 1"),
            "three rounds",
            "early overwrite",
        ),
        Mutant(
            "released before it is read",
            "x_empty is signalled above the load",
            (READ_X + RELEASE_X, RELEASE_X + READ_X),
            "three rounds",
            "early overwrite at x_empty[0]",
        ),
        Mutant(
            "never released",
            "nothing arrives on x_empty",
            (RELEASE_X, ""),
            "three rounds",
            "nobody does what this wait asks for",
        ),
        Mutant(
            "released twice",
            "two arrivals where init asked for one",
            (RELEASE_X, RELEASE_X.replace("count=1", "count=2")),
            "first round",
            "init asks for as many arrivals as come in a phase",
        ),
        Mutant(
            "announced before it is written",
            "y_ready is signalled above the store",
            (WAIT_Y, WAIT_Y + ANNOUNCE_Y, FENCE + ANNOUNCE_Y, FENCE),
            "first round",
            "a buffer is free when its last reader is done",
        ),
        Mutant(
            "no fence",
            "what the threads stored goes to the copy engine as it is",
            (FENCE, ""),
            "first round",
            "missing fence",
        ),
        Mutant(
            "fence after the arrival",
            "the storer may have gone on by then",
            (FENCE + ANNOUNCE_Y, ANNOUNCE_Y + FENCE),
            "first round",
            "missing fence",
        ),
        Mutant(
            "one barrier for all buffers",
            "the worker waits for x_ready[0] whatever the slot",
            ("x_ready.index(s), parity", "x_ready.index(0), parity"),
            "first round",
            "early read",
        ),
        ENUMERATE,
        Mutant(
            "waits twice",
            "what was waited for is waited for again",
            (WAIT_X, 2 * WAIT_X, WAIT_Y, 2 * WAIT_Y),
            "cheap",
            "1 of 3 points: ",
        ),
    ),
)

WAIT_EMPTY = "            mbarrier.wait(empty.index(s), (i // STAGES & 1) ^ 1)\n"
WAIT_READY = "            mbarrier.wait(ready.index(s), i // STAGES & 1)\n"
WAIT_PRODUCT = "            acc = warpgroup_mma_wait(0, deps=(acc,))\n"
RELEASE = "            mbarrier.arrive(empty.index(s), count=1)\n"
LOADER, MULTIPLIER = "tile-loader-kernel", "tile-multiplier-kernel"
TILES_LOOP = "    for tile in range(gl.program_id(0), count, gl.num_programs(0)):\n"
COUNT = "    i = 0\n" + TILES_LOOP

TILES = Target(
    "09_pipeline_clinic",
    "mended_tiles",
    (MULTIPLIER, LOADER),
    lucky(lambda draw: product(draw, 3, 32, 32, 32)),
    (
        Mutant(
            "the multiplier starts again",
            "its count is 0 at the beginning of each tile, the loader's is not",
            (COUNT, TILES_LOOP + "        i = 0\n"),
            "several tiles",
            "Lesson 50",
        ),
        Mutant(
            "the loader starts again",
            "its count is 0 at the beginning of each tile, the multiplier's is not",
            (COUNT, TILES_LOOP + "        i = 0\n"),
            "several tiles",
            "Lesson 51, step 1",
            LOADER,
        ),
        Mutant(
            "counted once too often",
            "the loader counts the tile as a step",
            ("            i += 1\n", "            i += 1\n        i += 1\n"),
            "several tiles",
            "Lesson 51, step 1",
            LOADER,
        ),
        Mutant(
            "phase from the slot",
            "the parity is the slot's, not the round's",
            ("i // STAGES & 1", "s & 1"),
            "one tile",
            "wrong phase at ready[1]",
        ),
        Mutant(
            "phase from the step in the tile",
            "slots go on from tile to tile, phases do not",
            (WAIT_READY, WAIT_READY.replace("i //", "_step //")),
            "several tiles",
            "Lesson 50",
        ),
        Mutant(
            "bytes of one operand",
            "ask's expect, rewritten, forgets b",
            (
                "            ask(a_desc, b_desc, step * a.shape[2], row, column, ready.index(s), a.index(s), b.index(s))\n",
                "            mbarrier.expect(ready.index(s), a_desc.nbytes_per_cta)\n"
                "            tma.async_load(a_desc, [row, step * a.shape[2]], ready.index(s), a.index(s))\n"
                "            tma.async_load(b_desc, [step * a.shape[2], column], ready.index(s), b.index(s))\n",
            ),
            "one tile",
            "expect announces exactly what the copies of this phase bring",
            LOADER,
        ),
        Mutant(
            "wait removed",
            "the loader does not ask whether a buffer is free",
            (WAIT_EMPTY, ""),
            "more steps than buffers",
            "early overwrite",
            LOADER,
        ),
        Mutant(
            "released too early",
            "the arrival stands between the product's start and the wait for it",
            (WAIT_PRODUCT + RELEASE, RELEASE + WAIT_PRODUCT),
            "more steps than buffers",
            "a buffer is free when its last reader is done",
        ),
        Mutant(
            "never released",
            "the multiplier does not arrive",
            (RELEASE, ""),
            "more steps than buffers",
            "deadlock at empty[0]",
        ),
        Mutant(
            "product not waited for",
            "the sums are stored while the product runs",
            (WAIT_PRODUCT, ""),
            "one tile",
            "the sums are in the accumulator once warpgroup_mma_wait has returned",
        ),
        Mutant(
            "sums carried on",
            "the accumulator is zeroed once, before the first tile",
            (
                COUNT + "        acc = gl.zeros([a.shape[1], b.shape[2]], gl.float32, layout)\n",
                "    i = 0\n    acc = gl.zeros([a.shape[1], b.shape[2]], gl.float32, layout)\n" + TILES_LOOP,
            ),
            "several tiles",
            "numbers are wrong",
        ),
        Mutant(
            "enumerate",
            "the steps are counted by Python",
            ("for _step in range(steps):", "for _, _step in enumerate(range(steps)):"),
            "compiles",
            "a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else",
        ),
        Mutant(
            "waits twice",
            "what was waited for is waited for again",
            (WAIT_READY, 2 * WAIT_READY),
            "cheap",
            "1 of 3 points: ",
        ),
    ),
)

HALF_WAIT = "        mbarrier.wait(ready.index(s), i // STAGES & 1)\n"
HALF_PRODUCT = "        acc = warpgroup_mma_wait(1, deps=(acc,))\n"
HALF_RELEASE = "mbarrier.arrive(empty.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)"
BARRIERS = "barriers-kernel"

HALVES = Target(
    "09_pipeline_clinic",
    "mended_halves",
    ("half-multiplier-kernel", BARRIERS),
    lucky(lambda draw: product(draw, 3, 32, 32, 32)),
    (
        Mutant(
            "init count one",
            "both multipliers arrive on a barrier that takes one arrival",
            ("count=2", "count=1"),
            "first round",
            "init asks for as many arrivals as come in a phase",
            BARRIERS,
        ),
        Mutant(
            "init count three",
            "the loader is counted as a reader",
            ("count=2", "count=3"),
            "three rounds",
            "deadlock",
            BARRIERS,
        ),
        Mutant(
            "one of two arrives",
            "the first multiplier releases for both, and two arrivals are asked for",
            ("pred=i > 0", "pred=(i > 0) & (half == 0)"),
            "three rounds",
            "deadlock",
        ),
        Mutant(
            "one arrives twice",
            "the first multiplier makes up for the second",
            ("count=1, pred=i > 0", "count=2, pred=(i > 0) & (half == 0)"),
            "three rounds",
            "early overwrite",
        ),
        Mutant(
            "each arrives twice",
            "two arrivals, by each",
            ("count=1, pred", "count=2, pred"),
            "first round",
            "init asks for as many arrivals as come in a phase",
        ),
        Mutant(
            "released a step too early",
            "the buffer whose product was started a line above",
            (HALF_RELEASE, "mbarrier.arrive(empty.index(s), count=1)"),
            "three rounds",
            "early overwrite",
        ),
        Mutant(
            "two may be running",
            "the wait lets the product before this one run on",
            (HALF_PRODUCT, HALF_PRODUCT.replace("(1,", "(2,")),
            "three rounds",
            "early overwrite",
        ),
        Mutant(
            "last product not waited for",
            "the sums are stored while it runs",
            ("acc = warpgroup_mma_wait(0, deps=(acc,))", "acc = warpgroup_mma_wait(1, deps=(acc,))"),
            "first round",
            "missing wait",
        ),
        Mutant(
            "index without phase",
            "parity 0 of ready in every round",
            ("i // STAGES & 1)", "0)"),
            "three rounds",
            "wrong phase at ready[0]",
        ),
        Mutant(
            "one of two waits",
            "the second multiplier trusts the first to have waited",
            (HALF_WAIT, HALF_WAIT.replace("& 1)", "& 1, pred=half == 0)")),
            "first round",
            "Lesson 50, step 2",
        ),
        Mutant(
            "one barrier for all buffers",
            "every release goes to empty[0]",
            ("empty.index((i + STAGES - 1) % STAGES)", "empty.index(0)"),
            "three rounds",
            "Lesson 51, step 1",
        ),
        ENUMERATE,
        Mutant(
            "waits twice",
            "what was waited for is waited for again",
            (HALF_WAIT, 2 * HALF_WAIT),
            "cheap",
            "1 of 3 points: ",
        ),
    ),
)

TARGETS = (RELAY, TILES, HALVES)
