"""Lesson 50's turns: a ring no deeper than it helps, and one count for all tiles. The third is in ``by_model.py``."""

from kernels.check.lessons import Turn, as_given, listed


def _ring(ring_step, steps, STAGES):
    """Of four tiles, one step after the other."""
    slot, loads, multiplies = zip(*(ring_step(tile, i, steps, STAGES) for tile in range(4) for i in range(steps)))
    return slot, loads, multiplies


HELPS = "-(-(latency + product) // max(copy, product))"
DEPTH = f"min(room // tile, {HELPS})"
STEP = "max(copy, product, (latency + product) / D)"
BOTH = "loads = (n // STAGES + 1) % 2\n    multiplies = n // STAGES % 2"
TURNS = {
    "50-depth": Turn(
        "a ring no deeper than it helps",
        arguments=as_given,
        cases=listed(
            "room tile copy product latency",
            *((500, 32, 5, 2, 17), (100, 10, 2, 3, 7), (100, 10, 2, 3, 6), (100, 48, 2, 3, 7)),
            *((227, 32, 5, 2, 19), (100, 10, 4, 3, 9), (60, 20, 1, 4, 40)),
        ),
        slips=(
            (DEPTH, "room // tile", "so many fit, and more than the box asks for buy nothing"),
            (DEPTH, HELPS, "so many the box asks for, and they do not fit"),
            ("-(latency + product)", "-latency", "around the ring lie a latency and the product that reads the buffer"),
            (HELPS, HELPS[2:-1].replace("-(", "("), "rounded down, the ring is a little too short: round up"),
            (HELPS, "(latency + product) / max(copy, product)", "a ring has a whole number of buffers: round up"),
            ("// max(copy, product)", "// product", "where copies are the slower ones, they set the pace"),
            ("max(copy, product, ", "max(product, ", "copies may be slower than products, too"),
            (STEP, "max(copy, product)", "a ring that is too short sets the pace of its own, (L + t_m) / D"),
            (f"product / {STEP}", STEP, "that is how long a step takes; of it the product works a part"),
            ("product / max", "product // max", "a share is a fraction: divide with /"),
            (f"product / {STEP}", f"1 / {STEP}", "it is the time of a product over the time of a step"),
        ),
    ),
    "50-count": Turn(
        "a ring that goes on from tile to tile",
        arguments=as_given,
        cases=listed("STAGES steps", (2, 3), (3, 4), (2, 4), (4, 5), (1, 3)),
        slips=(
            ("tile * steps + i", "i", "barriers don't begin anew with a tile: count the steps of all tiles before"),
            ("slot = n % STAGES", "slot, n = n % STAGES, i", "the slot goes on, the parities begin anew"),
            ("slot = n", "slot = i", "the parities go on, the slot begins anew"),
            ("tile * steps + i", "tile + i", "a tile moves the count on by its `steps` steps, not by one"),
            ("tile * steps + i", "tile * STAGES + i", "a tile has `steps` steps: n counts the steps of all tiles"),
            (
                BOTH,
                "loads = n // STAGES % 2\n    multiplies = (n // STAGES + 1) % 2",
                "the parities are exchanged: the loader's fresh barrier must let it pass",
            ),
            (BOTH, "loads = n // STAGES - 1\n    multiplies = n // STAGES", "a parity is one bit: the round modulo 2"),
            (BOTH, "loads = (n + 1) % 2\n    multiplies = n % 2", "a parity turns once in a round, not at each step"),
            ("(n // STAGES + 1) % 2", "n // STAGES % 2", "the loader waits for the phase *before* the multiplier's"),
            ("= n // STAGES % 2", "= (n // STAGES + 1) % 2", "the multiplier waits for this round's copy, phase r"),
            ("slot = n", "slot = (n + 1)", "the slot of the ring's step n is n modulo STAGES"),
            ("slot = n %", "slot = n /", "a slot is a whole number: n % STAGES"),
        ),
        run=_ring,
    ),
}
