"""Lesson 34's turns: a softmax with a sink, the walk down a causal column, a bias that heads share."""

from itertools import product

import torch
import triton
import triton.language as tl

from kernels.check.lessons import Turn, as_given, listed


def _softmax(draw):
    z, v, do, dlse = (draw.normal(*n, dtype=torch.float64) for n in ((3, 5), (5, 4), (3, 4), (3,)))
    z[1, 2], sink = -torch.inf, torch.tensor(0.3, dtype=torch.float64)
    lse = torch.logaddexp(z.logsumexp(1), sink)
    p = (z - lse[:, None]).exp()
    return {"p": p, "p_sink": (sink - lse).exp(), "dp": do @ v.T, "o": p @ v, "do": do, "dlse": dlse}


def _walks(causal_walk, M, BM, BN):
    first, first_full, end = zip(*(causal_walk(J, M, BM, BN) for J in range(-(-M // BN))))
    first_full = [
        min(full, last) for full, last in zip(first_full, end)
    ]  # where none is whole, any behind the last will do
    return first, first_full, end


@triton.jit
def _bias_kernel(dz_ptr, bias_ptr, m0, n0, sink: tl.constexpr):
    h = tl.program_id(0)
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 32)[None, :]
    sink(tl.load(dz_ptr + h * 512 + i * 32 + j), h, m0 + i, n0 + j, bias_ptr)


def _scattered(to_query_bias, dz):
    dbias = torch.zeros(2, 64, device=dz.device)
    _bias_kernel[(4,)](dz, dbias, 24, 8, to_query_bias)
    return dbias


FULL = "triton.cdiv((J + 1) * BN - 1, BM)"
SUM = "tl.sum(dz, 1)[:, None]"
KEYS = "the values have an entry for each key, the addresses one for each query: sum over the keys, which are axis 1"
TURNS = {
    "34-sink": Turn(
        "the gradients of a softmax with a sink",
        arguments=_softmax,
        cases={"three rows, a key forbidden": {}},
        slips=(
            (" - dlse", "", "what arrives at the lse is missing: subtract dlse from Δ"),
            (" - dlse", " + dlse", "in Δ stands dlse with a minus, so that dz has it with a plus"),
            ("(o * do).sum(1)", "(p * dp).sum(1) / p.sum(1)", "the sink is a key, of the value 0, and in o already"),
            (" - dlse", " - dlse - p_sink", "the sink's value is 0, so it adds nothing to the average"),
            ("= -(p_sink", "= (p_sink", "the sink's value is 0, so its merit over the average is 0 − Δ"),
            ("(p_sink * delta).sum()", "p_sink * delta", "all rows read one sink: its gradient is their sum"),
            ("p_sink * delta", "p_sink * (delta + dlse)", "dz_sink lacks what arrives at the lse: it is part of Δ"),
            ("p_sink * delta", "delta", "dz_sink lacks the factor p_sink: dz = p (dp − Δ) holds for the sink, too"),
            ("-(p_sink", "0 * (p_sink", "the sink's logit is not without effect: it takes probability from every key"),
        ),
    ),
    "34-walk": Turn(
        "the walk down a causal column",
        arguments=as_given,
        cases=listed(
            "M BM BN", *product((96, 192, 112), (16,), (16, 32, 48)), *product((96, 192, 112), (32, 64), (16,))
        ),
        slips=(
            ("J * BN // BM", "-(-J * BN // BM)", "a tile is left out, whose last query sees a key: round down"),
            ("J * BN // BM", "0", "tiles are walked in vain, of which no query sees a key"),
            ("J * BN // BM", "J", "tiles are counted by BM queries, and J by BN keys"),
            ("triton.cdiv(M, BM)", "M // BM", "the walk goes on to the last query: round up"),
            ("triton.cdiv(M, BM)", "M // BM + 1", "where BM divides M there is no tile that holds the rest"),
            (FULL, "J * BN // BM + 1", "a whole tile is allowed only if its first query sees the *last* key"),
            (FULL, "(J + 2) * BN // BM + 1", "tiles are masked in vain whose first query sees the last key"),
            (FULL, "((J + 1) * BN - 1) / BM", "a tile's number is whole: round up"),
        ),
        run=_walks,
    ),
    "34-bias": Turn(
        "a bias by query that heads share",
        arguments=lambda draw: {"dz": draw.normal(4, 16, 32, scale=8.0).round()},
        cases={"four heads": {}},
        slips=(
            (f"m, {SUM}", "n, tl.sum(dz, 0)[None, :]", "that is the bias by key: this one has an entry a query"),
            ("h // 2", "h", ""),
            ("h // 2", "h % 2", "heads 0 and 1 share row 0 of the bias, 2 and 3 row 1"),
            ("* 64", "* 32", "a row of the bias has 64 entries, one for each query"),
            (f"m, {SUM}", "m + 0 * n, dz", ""),  # the sums are right, and as many go to memory as there are pairs
            (SUM, "tl.sum(dz, 1)", "the sum over the keys leaves a row: stand it up with [:, None], as m stands"),
            (SUM, "tl.sum(dz, 0)[None, :]", KEYS),
            (SUM, "tl.sum(dz, 0)[:, None]", KEYS),
            (SUM, "dz", KEYS),
            (SUM, "tl.sum(dz)", "the whole tile becomes one number: sum over the keys alone, axis 1"),
            ("64 + m", "64 + m[:, None]", "m is a column already: with another [:, None] there are three axes"),
        ),
        run=_scattered,
        cheap=True,
    ),
}
