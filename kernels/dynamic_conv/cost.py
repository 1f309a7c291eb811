"""How long a loop along time takes, by Little's law, so that its tiles and runs suit shapes that nobody has timed.

A warp in the loop waits for memory nearly all the time, so a multiprocessor moves more bytes the more warps it holds: with n
of them the share of the copy rate is

    r(n) = RATE (1 - exp(-n / FILL))

It holds RESIDENT warps at most (registers). N warps come in N // RESIDENT full waves and one of what is left, and each makes
RUN + W - 1 steps, W - 1 of them to complete its last dx, which mostly find their words in the L2 cache. In units of the
time in which a multiprocessor at full rate serves one step of one warp:

    t = (RUN + 0.6 (W - 1)) f (N // RESIDENT  RESIDENT / r(RESIDENT) + m / r(m)),    m = N mod RESIDENT

where f is the part of a tile's lanes that lie inside the row. A loop that shares one weight among all tokens pays for a run's
beginning and end with START steps instead of 0.6 (W - 1): it loads its window, waits for its first tokens, and leaves a part
of the weight's gradient. RATE, FILL and RESIDENT are fitted to times of many shapes by
``python -m benchmarks.dynamic_conv_cost``; by ``python -m benchmarks.dynamic_conv_tiles`` RESIDENT is what the registers
allow, which a tile's ``maxnreg`` bounds. Sources: Little, Operations Research 9 (1961); Volkov, UCB/EECS-2016-143.
"""

import numpy as np

from kernels.common.math import cdiv

MODEL = ("RESIDENT", "RATE", "FILL", "START")  # of a tile: what is fitted; the rest are options of the launch
STEPS_PAST = 0.6  # what a step past a run's end costs of one inside it
SHORTEST = 16  # tokens in a run: shorter ones are mostly ends
SLACK = 1.02  # a wave planned to be full to the last warp becomes two where one warp is late: plan for a little more


def time_of(tile, run, programs, columns, words, W, processors):
    """Predicted time t of a launch (above); ``run`` and ``programs`` may be arrays.

    Args:
        tile: dict of ``BLOCK``, ``num_warps``, ``RESIDENT``, ``RATE``, ``FILL`` and where it has one ``START``.
        run: tokens in a run.
        programs: how many there are.
        columns: programs side by side for one run.
        words: in a row of channels.
        W: taps.
        processors: the GPU's multiprocessors.
    """
    rate = lambda n: tile["RATE"] * -np.expm1(-n / tile["FILL"])
    warps = np.asarray(programs) * tile["num_warps"] / processors
    waves, left = np.divmod(warps, tile["RESIDENT"])
    # n / r(n) tends to FILL / RATE, one warp's latency, as n tends to 0
    last = np.where(left > 0, left / rate(np.where(left > 0, left, 1.0)), 0.0)
    filled = words / (columns * tile["BLOCK"])
    steps = run + tile.get("START", STEPS_PAST * (W - 1))
    return steps * filled * (waves * tile["RESIDENT"] / rate(tile["RESIDENT"]) + last)


def fastest(tiles, T, rows, packed, words, W, processors):
    """``(tile, RUN, {tile's text: predicted time})``: of the tiles, each with the run that suits it best.

    Args:
        tiles: candidates, as in ``time_of``, and maybe ``ROWS`` runs a program and ``AHEAD``, which divides a run; of
            equals the first.
        T: tokens along time.
        rows: batch rows that T tokens are cut in.
        packed: further sequences that share a row; each may leave one run unfilled.
        words: in a row of channels.
        W: taps.
        processors: the GPU's multiprocessors.
    """
    splits = np.arange(1, max(1, min(T // SHORTEST, 4096)) + 1)
    best, times = None, {}
    for tile in tiles:
        ahead, side = tile.get("AHEAD", 1), tile.get("ROWS", 1)
        runs = np.maximum(1, -(-T // splits // ahead)) * ahead
        columns = max(1, -(-words // tile["BLOCK"]))
        programs = -(-(rows * -(-T // runs) + packed) // side) * columns
        t = time_of(tile, runs, SLACK * programs, columns, max(1, words), W, processors)
        at = int(np.argmin(t))
        tokens = f", {ahead} tokens ahead" if "AHEAD" in tile else ""
        times[f"{tile['num_warps']} warps{tokens}, runs of {runs[at]}"] = float(t[at])
        if best is None or t[at] < best[0]:
            best = t[at], tile, int(runs[at])
    return best[1], best[2], times


def pop_run(options, T, B, packed, words, W, processors):
    """``(RUN, {candidate: predicted time})``; of the TILES that ``options`` may hold, the chosen one replaces them.

    Args:
        options: a configuration, which loses ``RUN``, ``WARPS`` and ``TILES``.
        T: tokens along time.
        B: batch rows.
        packed: how many sequences share the row, or ``None``.
        words: in a row of channels.
        W: taps.
        processors: the GPU's multiprocessors.
    """
    tiles = options.pop("TILES", None)
    if not tiles:
        # WARPS: where runs so short would leave more for every multiprocessor, the run grows
        run, warps = options.pop("RUN"), options.pop("WARPS", 0)
        if warps:
            all_tokens = B * T * cdiv(words, options["BLOCK"]) * options["num_warps"] // options["ROWS"]
            run = max(run, cdiv(all_tokens, warps * processors))
        return run, {}
    tile, run, times = fastest(tiles, T, B, packed or 0, words, W, processors)
    options |= {name: value for name, value in tile.items() if name not in MODEL}
    return run, times
