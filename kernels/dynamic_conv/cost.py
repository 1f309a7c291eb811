"""How long a walk along time takes, by Little's law, so that its tiles and runs suit shapes that nobody has timed.

A warp in the walk waits for memory nearly all the time, so a multiprocessor moves more bytes the more warps it holds: with n
of them the share of the copy rate is

    r(n) = RATE (1 - exp(-n / FILL))

It holds RESIDENT warps at most (registers). N warps come in N // RESIDENT full waves and one of what is left, and each makes
RUN + W - 1 steps, W - 1 of them to complete its last dx, which mostly find their words in the L2 cache. In units of the
time in which a multiprocessor at full rate serves one step of one warp:

    t = (RUN + 0.6 (W - 1)) f (N // RESIDENT  RESIDENT / r(RESIDENT) + m / r(m)),    m = N mod RESIDENT

where f is the part of a tile's lanes that lie inside the row. A walk that shares one weight among all tokens pays for a run's
beginning and end with START steps instead of 0.6 (W - 1): it loads its window, waits for its first tokens, and leaves a part
of the weight's gradient. RATE, FILL and RESIDENT are fitted to times of many shapes by
``python -m benchmarks.dynamic_conv_walks``; by ``python -m benchmarks.dynamic_conv_tiles`` RESIDENT is what the registers
allow, which a walk's ``maxnreg`` bounds. Sources: Little, Operations Research 9 (1961); Volkov, UCB/EECS-2016-143.
"""

import numpy as np

from kernels.common.math import cdiv

MODEL = ("RESIDENT", "RATE", "FILL", "START")  # of a walk: what is fitted; the rest is its tile
STEPS_PAST = 0.6  # what a step past a run's end costs of one inside it
SHORTEST = 16  # tokens in a run: shorter ones are mostly ends
SLACK = 1.02  # a wave planned to be full to the last warp becomes two where one warp is late: plan for a little more


def time_of(walk, run, programs, columns, words, W, processors):
    """Predicted time t of a launch (above); ``run`` and ``programs`` may be arrays.

    Args:
        walk: dict of ``BLOCK``, ``num_warps``, ``RESIDENT``, ``RATE``, ``FILL`` and where it has one ``START``.
        run: tokens in a run.
        programs: how many there are.
        columns: programs side by side for one run.
        words: in a row of channels.
        W: taps.
        processors: the GPU's multiprocessors.
    """
    rate = lambda n: walk["RATE"] * -np.expm1(-n / walk["FILL"])
    warps = np.asarray(programs) * walk["num_warps"] / processors
    waves, left = np.divmod(warps, walk["RESIDENT"])
    # n / r(n) tends to FILL / RATE, one warp's latency, as n tends to 0
    last = np.where(left > 0, left / rate(np.where(left > 0, left, 1.0)), 0.0)
    filled = words / (columns * walk["BLOCK"])
    steps = run + walk.get("START", STEPS_PAST * (W - 1))
    return steps * filled * (waves * walk["RESIDENT"] / rate(walk["RESIDENT"]) + last)


def fastest(walks, T, rows, packed, words, W, processors):
    """``(walk, RUN, {walk's text: predicted time})``: of the walks, each with the run that suits it best.

    Args:
        walks: candidates, as in ``time_of``, and maybe ``ROWS`` runs a program and ``AHEAD``, which divides a run; of
            equals the first.
        T: tokens along time.
        rows: batch rows that T tokens are cut in.
        packed: further sequences that share a row; each may leave one run unfilled.
        words: in a row of channels.
        W: taps.
        processors: the GPU's multiprocessors.
    """
    pieces = np.arange(1, max(1, min(T // SHORTEST, 4096)) + 1)
    best, times = None, {}
    for walk in walks:
        ahead, side = walk.get("AHEAD", 1), walk.get("ROWS", 1)
        runs = np.maximum(1, -(-T // pieces // ahead)) * ahead
        columns = max(1, -(-words // walk["BLOCK"]))
        programs = -(-(rows * -(-T // runs) + packed) // side) * columns
        t = time_of(walk, runs, SLACK * programs, columns, max(1, words), W, processors)
        at = int(np.argmin(t))
        tokens = f", {ahead} tokens ahead" if "AHEAD" in walk else ""
        times[f"{walk['num_warps']} warps{tokens}, runs of {runs[at]}"] = float(t[at])
        if best is None or t[at] < best[0]:
            best = t[at], walk, int(runs[at])
    return best[1], best[2], times


def pop_run(options, T, B, packed, words, W, processors):
    """``(RUN, {candidate: predicted time})``; of the WALKS that ``options`` may hold, the chosen one's tile replaces them.

    Args:
        options: a configuration, which loses ``RUN``, ``WARPS`` and ``WALKS``.
        T: tokens along time.
        B: batch rows.
        packed: how many sequences share the row, or ``None``.
        words: in a row of channels.
        W: taps.
        processors: the GPU's multiprocessors.
    """
    walks = options.pop("WALKS", None)
    if not walks:
        # WARPS: where runs so short would leave more for every multiprocessor, the run grows
        run, warps = options.pop("RUN"), options.pop("WARPS", 0)
        if warps:
            all_tokens = B * T * cdiv(words, options["BLOCK"]) * options["num_warps"] // options["ROWS"]
            run = max(run, cdiv(all_tokens, warps * processors))
        return run, {}
    walk, run, times = fastest(walks, T, B, packed or 0, words, W, processors)
    options |= {name: value for name, value in walk.items() if name not in MODEL}
    return run, times
