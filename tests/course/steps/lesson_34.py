"""Wrong answers to lesson 34's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def sink(delta="(o * do).sum(1) - dlse", db="-(p_sink * delta).sum()"):
    return f"""def sink_backward(p, p_sink, dp, o, do, dlse):
    delta = {delta}
    return p * (dp - delta[:, None]), {db}
"""


def walk(first="J * BN // BM", full="-(-((J + 1) * BN - 1) // BM)", end="-(-M // BM)"):
    return f"""def causal_walk(J, M, BM, BN):
    return {first}, {full}, {end}
"""


def bias(at="h // 2 * 64 + m", value="tl.sum(dz, 1)[:, None]"):
    return f"""@triton.jit
def to_query_bias(dz, h, m, n, sink_ptr):
    tl.atomic_add(sink_ptr + {at}, {value})
"""


WRONG = {
    "34-sink": [
        (sink("(o * do).sum(1)"), "lacks what arrives at the lse"),
        (sink("(o * do).sum(1) + dlse"), "with a minus"),
        (sink("(o * do).sum(1) * 2 - dlse"), "Your dz["),
        (sink("(p * dp).sum(1) / p.sum(1) - dlse"), "The sink is a key as well"),
        (sink("(o * do).sum(1) - dlse - p_sink"), "it adds nothing to the average"),
        (sink(db="(p_sink * delta).sum()"), "the wrong sign"),
        (sink(db="-p_sink * delta"), "a number for each row"),
        (sink(db="-(p_sink * (o * do).sum(1)).sum()"), "it is part of Δ"),
        (sink(db="-delta.sum()"), "lacks the factor p_sink"),
        (sink(db="0.0"), "takes probability from every key"),
    ],
    "34-walk": [
        (walk(first="-(-J * BN // BM)"), "Round down"),
        (walk(first="0"), "walked in vain"),
        (walk(first="J"), "walked in vain"),
        (walk(end="M // BM"), "goes on to the last query"),
        (walk(end="M // BM + 1"), "there are only"),
        (walk(full="J * BN // BM + 1"), "must not see key"),
        (walk(full="(J + 2) * BN // BM + 1"), "masked in vain"),
        (walk(full="((J + 1) * BN - 1) / BM"), "three integers"),
    ],
    "34-bias": [
        (bias("h // 2 * 64 + n", "tl.sum(dz, 0)[None, :]"), "That is the bias by key"),
        (bias("h * 64 + m"), "outside sink"),
        (bias("h % 2 * 64 + m"), "share row 0"),
        (bias("h // 2 * 64 + m + 0 * n", "dz"), "additions of a tile go to memory"),
        (bias("h // 2 * 32 + m"), "Your dbias["),
        (bias(value="tl.sum(dz, 1)"), "a row of them: stand them up with [:, None]"),
        (bias(value="tl.sum(dz, 0)[None, :]"), "sum over the keys, which are axis 1"),
        (bias(value="tl.sum(dz, 0)[:, None]"), "sum over the keys, which are axis 1"),
        (bias(value="dz"), "sum over the keys, which are axis 1"),
        (bias(value="tl.sum(dz)"), "The whole tile is summed into one number"),
        (bias("h // 2 * 64 + m[:, None]"), "m is a column already"),
    ],
}
