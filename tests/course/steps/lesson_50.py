"""Wrong answers to lesson 50's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def count(n="tile * steps + i", slot="n % STAGES", loads="(n // STAGES + 1) % 2", multiplies="n // STAGES % 2"):
    return f"""def ring_step(tile, i, steps, STAGES):
    n = {n}
    return {slot}, {loads}, {multiplies}
"""


def late(running="2", slot="(i + STAGES - 2) % STAGES", pred="i > 1"):
    return f"""@gluon.jit
def two_late(c_ptr, a, b, ready, empty, row, column, M, N, steps, layout: gl.constexpr, STAGES: gl.constexpr):
    acc = gl.zeros([a.shape[1], b.shape[2]], gl.float32, layout)
    for i in range(steps):
        s = i % STAGES
        mbarrier.wait(ready.index(s), i // STAGES & 1)
        acc = warpgroup_mma(a.index(s), b.index(s), acc, is_async=True)
        acc = warpgroup_mma_wait({running}, deps=(acc,))
        mbarrier.arrive(empty.index({slot}), count=1, pred={pred})
    acc = warpgroup_mma_wait(0, deps=(acc,))
    store_tile(c_ptr, acc, row, column, M, N, layout)
"""


FITS, HELPS = "room // tile", "-(-(latency + product) // max(copy, product))"


def depth(D=f"min({FITS}, {HELPS})", step="max(copy, product, (latency + product) / D)", share="product / step"):
    return f"""def ring_of(room, tile, copy, product, latency):
    D = {D}
    step = {step}
    return D, {share}
"""


WRONG = {
    "50-depth": [
        (depth(FITS), "more than the box asks for buy nothing"),
        (depth(HELPS), "they do not fit"),
        (depth("min(room // tile, (latency + product) // max(copy, product))"), "Rounded down"),
        (depth("min(room // tile, -(-latency // max(copy, product)))"), "and the product that reads the buffer"),
        (depth("min(room // tile, -(-(latency + product) // product))"), "they set the pace"),
        (depth(step="max(product, (latency + product) / D)"), "Copies may be slower"),
        (depth(step="max(copy, product)"), "sets the pace of its own"),
        (depth(share="step"), "of it the product works a part"),
        (depth(share="1 / step"), "expected"),
    ],
    "50-count": [
        (count("i"), "You begin anew with every tile"),
        (count(loads="(i // STAGES + 1) % 2", multiplies="i // STAGES % 2"), "the parities begin anew"),
        (count(slot="i % STAGES"), "the slot begins anew"),
        (count("tile + i"), "not by one"),
        (count(loads="n // STAGES % 2", multiplies="(n // STAGES + 1) % 2"), "The parities are exchanged"),
        (count(loads="n // STAGES % 2"), "the phase *before* the multiplier's"),
        (count(multiplies="(n // STAGES + 1) % 2"), "this round's copy"),
        (count("tile * STAGES + i"), "where n counts the steps of all tiles"),
        (count(slot="(n + 1) % STAGES"), "The slot is n % 2"),
        (count(slot="n / STAGES"), "three integers"),
    ],
    "50-late": [
        (
            late(slot="(i + STAGES - 1) % STAGES", pred="i > 0"),
            "You hand a buffer back while its product may still run",
        ),
        (late(pred="i > 0"), "in the first two steps"),
        (late(pred="True"), "in the first two steps"),
        (late(pred="i > 2"), "Nobody can go on"),
        (late(slot="s"), "Nobody can go on"),
        (late(slot="s", pred="True"), "You hand a buffer back"),
        (late(slot="(i - 2) % STAGES"), "the slot is negative"),
        (late(running="1"), "at most 2 products are in flight"),
        (late(running="0"), "at most 1 product is in flight"),
    ],
}
