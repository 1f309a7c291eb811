"""Bugs of exercise 09: plausible repairs that are none."""

import torch

from kernels.check.exercises.pipeline_clinic import product, relay
from kernels.check.framework import Draw
from tests.course.mutants import Target, planted

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


ENUMERATE = r"""
enumerate: the steps are counted by Python
- for i in range(steps):
+ for i, _ in enumerate(range(steps)):
compiles: a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else
"""

RELAY = Target(
    "09_pipeline_clinic",
    "mended_relay",
    ("worker-kernel", "relay-kernel"),
    lucky(lambda draw: relay(draw, 3, 2)),
    planted(
        r"""
wait removed: the worker fills y without asking whether it is free
-         mbarrier.wait(y_empty.index(s), parity ^ 1)
three rounds: early overwrite

index without phase, filling: the worker waits for parity 1 of y_empty in every round
- parity ^ 1
+ 1
three rounds: early overwrite

index without phase, reading: the worker waits for parity 0 of x_ready in every round
-         mbarrier.wait(x_ready.index(s), parity)
+         mbarrier.wait(x_ready.index(s), 0)
three rounds: early overwrite at x_ready[0]

parity turned a step late: a round is taken to have one step more than there are buffers
- parity = i // STAGES & 1
+ parity = i // (STAGES + 1) & 1
three rounds: early overwrite

released before it is read: x_empty is signalled above the load
-         x = x_tiles.index(s).load(layout)
-         mbarrier.arrive(x_empty.index(s), count=1)
+         mbarrier.arrive(x_empty.index(s), count=1)
+         x = x_tiles.index(s).load(layout)
three rounds: early overwrite at x_empty[0]

never released: nothing arrives on x_empty
-         mbarrier.arrive(x_empty.index(s), count=1)
three rounds: nobody does what this wait asks for

released twice: two arrivals where init asked for one
-         mbarrier.arrive(x_empty.index(s), count=1)
+         mbarrier.arrive(x_empty.index(s), count=2)
first round: init asks for as many arrivals as come in a phase

announced before it is written: y_ready is signalled above the store
-         mbarrier.wait(y_empty.index(s), parity ^ 1)
+         mbarrier.wait(y_empty.index(s), parity ^ 1)
+         mbarrier.arrive(y_ready.index(s), count=1)
-         fence_async_shared()
-         mbarrier.arrive(y_ready.index(s), count=1)
+         fence_async_shared()
first round: a buffer is free when its last reader is done

no fence: what the threads stored goes to the copy engine as it is
-         fence_async_shared()
first round: missing fence

fence after the arrival: the storer may have gone on by then
-         fence_async_shared()
-         mbarrier.arrive(y_ready.index(s), count=1)
+         mbarrier.arrive(y_ready.index(s), count=1)
+         fence_async_shared()
first round: missing fence

one barrier for all buffers: the worker waits for x_ready[0] whatever the slot
- x_ready.index(s), parity
+ x_ready.index(0), parity
first round: early read
""",
        ENUMERATE,
        r"""
waits twice: what was waited for is waited for again
-         mbarrier.wait(x_ready.index(s), parity)
+         mbarrier.wait(x_ready.index(s), parity)
+         mbarrier.wait(x_ready.index(s), parity)
-         mbarrier.wait(y_empty.index(s), parity ^ 1)
+         mbarrier.wait(y_empty.index(s), parity ^ 1)
+         mbarrier.wait(y_empty.index(s), parity ^ 1)
cheap: 1 of 3 points:
""",
    ),
)

TILES = Target(
    "09_pipeline_clinic",
    "mended_tiles",
    ("tile-multiplier-kernel", "tile-loader-kernel"),
    lucky(lambda draw: product(draw, 3, 32, 32, 32)),
    planted(
        r"""
the multiplier starts again: its count is 0 at the beginning of each tile, the loader's is not
-     i = 0
-     for tile in range(gl.program_id(0), count, gl.num_programs(0)):
+     for tile in range(gl.program_id(0), count, gl.num_programs(0)):
+         i = 0
several tiles: Lesson 50

the loader starts again: its count is 0 at the beginning of each tile, the multiplier's is not
@ tile-loader-kernel
-     i = 0
-     for tile in range(gl.program_id(0), count, gl.num_programs(0)):
+     for tile in range(gl.program_id(0), count, gl.num_programs(0)):
+         i = 0
several tiles: Lesson 51, step 1

counted once too often: the loader counts the tile as a step
@ tile-loader-kernel
-             i += 1
+             i += 1
+         i += 1
several tiles: Lesson 51, step 1

phase from the slot: the parity is the slot's, not the round's
- i // STAGES & 1
+ s & 1
one tile: wrong phase at ready[1]

phase from the step in the tile: slots go on from tile to tile, phases do not
-             mbarrier.wait(ready.index(s), i // STAGES & 1)
+             mbarrier.wait(ready.index(s), _step // STAGES & 1)
several tiles: Lesson 50

bytes of one operand: ask's expect, rewritten, forgets b
@ tile-loader-kernel
-             ask(a_desc, b_desc, step * a.shape[2], row, column, ready.index(s), a.index(s), b.index(s))
+             mbarrier.expect(ready.index(s), a_desc.nbytes_per_cta)
+             tma.async_load(a_desc, [row, step * a.shape[2]], ready.index(s), a.index(s))
+             tma.async_load(b_desc, [step * a.shape[2], column], ready.index(s), b.index(s))
one tile: expect announces exactly what the copies of this phase bring

wait removed: the loader does not ask whether a buffer is free
@ tile-loader-kernel
-             mbarrier.wait(empty.index(s), (i // STAGES & 1) ^ 1)
more steps than buffers: early overwrite

released too early: the arrival stands between the product's start and the wait for it
-             acc = warpgroup_mma_wait(0, deps=(acc,))
-             mbarrier.arrive(empty.index(s), count=1)
+             mbarrier.arrive(empty.index(s), count=1)
+             acc = warpgroup_mma_wait(0, deps=(acc,))
more steps than buffers: a buffer is free when its last reader is done

never released: the multiplier does not arrive
-             mbarrier.arrive(empty.index(s), count=1)
more steps than buffers: deadlock at empty[0]

product not waited for: the sums are stored while the product runs
-             acc = warpgroup_mma_wait(0, deps=(acc,))
one tile: the sums are in the accumulator once warpgroup_mma_wait has returned

sums carried on: the accumulator is zeroed once, before the first tile
-     i = 0
-     for tile in range(gl.program_id(0), count, gl.num_programs(0)):
-         acc = gl.zeros([a.shape[1], b.shape[2]], gl.float32, layout)
+     i = 0
+     acc = gl.zeros([a.shape[1], b.shape[2]], gl.float32, layout)
+     for tile in range(gl.program_id(0), count, gl.num_programs(0)):
several tiles: numbers are wrong

enumerate: the steps are counted by Python
- for _step in range(steps):
+ for _, _step in enumerate(range(steps)):
compiles: a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else

waits twice: what was waited for is waited for again
-             mbarrier.wait(ready.index(s), i // STAGES & 1)
+             mbarrier.wait(ready.index(s), i // STAGES & 1)
+             mbarrier.wait(ready.index(s), i // STAGES & 1)
cheap: 1 of 3 points:
"""
    ),
)

HALVES = Target(
    "09_pipeline_clinic",
    "mended_halves",
    ("half-multiplier-kernel", "barriers-kernel"),
    lucky(lambda draw: product(draw, 3, 32, 32, 32)),
    planted(
        r"""
init count one: both multipliers arrive on a barrier that takes one arrival
@ barriers-kernel
- count=2
+ count=1
first round: init asks for as many arrivals as come in a phase

init count three: the loader is counted as a reader
@ barriers-kernel
- count=2
+ count=3
three rounds: deadlock

one of two arrives: the first multiplier releases for both, and two arrivals are asked for
- pred=i > 0
+ pred=(i > 0) & (half == 0)
three rounds: deadlock

one arrives twice: the first multiplier makes up for the second
- count=1, pred=i > 0
+ count=2, pred=(i > 0) & (half == 0)
three rounds: early overwrite

each arrives twice: two arrivals, by each
- count=1, pred
+ count=2, pred
first round: init asks for as many arrivals as come in a phase

released a step too early: the buffer whose product was started a line above
- mbarrier.arrive(empty.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
+ mbarrier.arrive(empty.index(s), count=1)
three rounds: early overwrite

two may be running: the wait lets the product before this one run on
-         acc = warpgroup_mma_wait(1, deps=(acc,))
+         acc = warpgroup_mma_wait(2, deps=(acc,))
three rounds: early overwrite

last product not waited for: the sums are stored while it runs
- acc = warpgroup_mma_wait(0, deps=(acc,))
+ acc = warpgroup_mma_wait(1, deps=(acc,))
first round: missing wait

index without phase: parity 0 of ready in every round
- i // STAGES & 1)
+ 0)
three rounds: wrong phase at ready[0]

one of two waits: the second multiplier trusts the first to have waited
-         mbarrier.wait(ready.index(s), i // STAGES & 1)
+         mbarrier.wait(ready.index(s), i // STAGES & 1, pred=half == 0)
first round: Lesson 50, step 2

one barrier for all buffers: every release goes to empty[0]
- empty.index((i + STAGES - 1) % STAGES)
+ empty.index(0)
three rounds: Lesson 51, step 1
""",
        ENUMERATE,
        r"""
one does both: the first multiplier multiplies both halves, one after the other
- acc = gl.zeros([HALF, b.shape[2]], gl.float32, layout)
+ acc = gl.zeros([HALF, b.shape[2]], gl.float32, layout)
+     other = gl.zeros([HALF, b.shape[2]], gl.float32, layout)
-         acc = warpgroup_mma(rows, b.index(s), acc, is_async=True)
-         acc = warpgroup_mma_wait(1, deps=(acc,))
-         mbarrier.arrive(empty.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
+         if half == 0:
+             acc = warpgroup_mma(rows, b.index(s), acc, is_async=True)
+             acc = warpgroup_mma_wait(0, deps=(acc,))
+             other = warpgroup_mma(a.index(s).slice(HALF, HALF), b.index(s), other, is_async=True)
+             other = warpgroup_mma_wait(0, deps=(other,))
+         mbarrier.arrive(empty.index(s), count=1)
-     store_tile(c_ptr, acc, row + half * HALF, 0, M, N, layout)
+     if half == 0:
+         store_tile(c_ptr, acc, row, 0, M, N, layout)
+         store_tile(c_ptr, other, row + HALF, 0, M, N, layout)
cheap: each has a half of its own

waits twice: what was waited for is waited for again
-         mbarrier.wait(ready.index(s), i // STAGES & 1)
+         mbarrier.wait(ready.index(s), i // STAGES & 1)
+         mbarrier.wait(ready.index(s), i // STAGES & 1)
cheap: 1 of 3 points:
""",
    ),
)

TARGETS = (RELAY, TILES, HALVES)
