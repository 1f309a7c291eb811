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


LARGER = "{a: max(mine.get(a, 0), other.get(a, 0)) for a in {*mine, *other}}"


def clocks(learns=LARGER, before="clock.get(actor, 0) >= number"):
    return f"""def learns(mine, other):
    return {learns}


def before(actor, number, clock):
    return {before}
"""


WRONG = {
    "50-count": [
        (count("i"), "You begin anew with every tile"),
        (count(loads="(i // STAGES + 1) % 2", multiplies="i // STAGES % 2"), "the parities begin anew"),
        (count(slot="i % STAGES"), "the slot begins anew"),
        (count("tile + i"), "not by one"),
        (count(loads="n // STAGES % 2", multiplies="(n // STAGES + 1) % 2"), "The parities are exchanged"),
        (count(loads="n // STAGES % 2"), "the phase *before* the multiplier's"),
        (count(multiplies="(n // STAGES + 1) % 2"), "this round's copy"),
        (count("tile * STAGES + i"), "expected"),
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
    "50-clocks": [
        (clocks("{**mine, **other}"), "It has forgotten events of the multiplier"),
        (clocks("{**other, **mine}"), "nothing that is new"),
        (clocks("{a: max(n, other.get(a, 0)) for a, n in mine.items()}"), "Who is in one clock only"),
        (clocks("{a: mine.get(a, 0) + other.get(a, 0) for a in {*mine, *other}}"), "comes to know"),
        (clocks("mine.update(other)"), "must be a clock"),
        (clocks(before="clock.get(actor, 0) == number"), "it knows all before that"),
        (clocks(before="clock.get(actor, 0) > number"), "it knows all before that"),
        (clocks(before="actor in clock"), "for *this* actor"),
        (clocks(before="max(clock.values()) >= number"), "for *this* actor"),
    ],
}
