"""Lesson 23's kernel: the gradient of the gates, in chunks."""

import math

import torch

from kernels.check.lessons import LessonKernel


def _arguments(draw, B=1, T=16, H=1, K=32, V=16, strong=0.0, dtype=torch.float32):
    g = -draw.normal(B, T, H).abs()
    if strong:
        g[:, 3::8] = strong
    tokens = {name: draw.normal(B, T, H, size, dtype=dtype) for name, size in (("q", K), ("k", K), ("v", V), ("do", V))}
    edges = {name: draw.normal(B, math.ceil(T / 16), H, K, V) for name in ("states", "dstates")}
    return {**tokens, "g": g, **edges}


DIFFERENCE = 'tl.exp(tl.where(earlier, Gamma[:, None] - Gamma[None, :], float("-inf")))'
PAIRS = "tl.sum(tl.where(earlier, tl.cumsum(W, 0, reverse=True), 0.0), axis=1)"
READ = 'tl.sum(q * tl.dot(do, tl.trans(S), input_precision="ieee"), axis=1)'
READ_SUM = "tl.cumsum(read, 0, reverse=True)"
LOST = "what dg held before is lost: the four parts are added"
BOTH = f"{PAIRS}  # part 1\n    read = c * tl.exp(Gamma) * {READ}\n    dg += {READ_SUM}"
KERNELS = {
    "23-gates": LessonKernel(
        arguments=_arguments,
        cases={
            "one chunk": {},
            "several chunks": {"T": 48},
            "two texts, two heads": {"B": 2, "T": 32, "H": 2},
            "ragged T, K and V": {"T": 37, "K": 20, "V": 24},
            "gates of -20": {"T": 32, "strong": -20.0},
            "gates of -1e9": {"T": 32, "strong": -1e9},
            "resets": {"T": 32, "strong": -math.inf},
            "bfloat16": {"T": 32, "dtype": torch.bfloat16},
        },
        slips=[
            (DIFFERENCE, "tl.where(earlier, 1.0, 0.0)", "the pairs don't decay: W has the factor e^(Gamma_t - Gamma_s)"),
            ("Gamma[:, None] - Gamma[None, :]", "Gamma[None, :] - Gamma[:, None]", "W decays by e^(Gamma_t - Gamma_s)"),
            ("tl.dot(q, tl.trans(k)", "tl.dot(k, tl.trans(q)", "rows of W are queries: q is the left factor"),
            ("tl.dot(do, tl.trans(v)", "tl.dot(v, tl.trans(do)", "rows of W are queries: do is the left factor"),
            (PAIRS, "0.0", "part 1 is missing, the pairs of which both tokens are in the chunk"),
            (PAIRS, "tl.sum(tl.cumsum(W, 0, reverse=True), axis=1)", "of part 1 the columns are s < u"),
            (PAIRS, PAIRS.replace(", reverse=True", ""), "of part 1 the rows are t >= u: sum from the end"),
            (PAIRS, PAIRS.replace("W, 0", "W, 1"), "of part 1 the sum over t runs down the rows, axis 0"),
            (PAIRS, PAIRS.replace("earlier", "earlier | (offs_t[None, :] == offs_t[:, None])"), "of part 1 s < u, not s = u"),
            (PAIRS, PAIRS.replace("axis=1", "axis=0"), "of part 1 row u has gate u's sums: they are added along axis 1"),
            (PAIRS, "tl.sum(tl.where(earlier, W, 0.0), axis=1)", "of part 1 row u alone is summed: all queries t >= u count"),
            (READ_SUM, "0.0", "part 2 is missing, what queries read of the state that enters the chunk"),
            ("W *= c * tl.dot", "W *= tl.dot", "W lacks c, the scale of the scores"),
            (' * tl.dot(do, tl.trans(v), input_precision="ieee")', "", "W lacks the factor do_t . v_s"),
            ("dg += tl.sum(tl.where(earlier, tl.cumsum", "dg = tl.sum(tl.where(earlier, tl.cumsum", LOST),
            ("dg += tl.cumsum", "dg = tl.cumsum", LOST),
            ("read = c * tl.exp(Gamma)", "read = tl.exp(Gamma)", "part 2 lacks c, the scale of the scores"),
            ("read = c * tl.exp(Gamma)", "read = c", "of part 2 the state has faded by e^Gamma_t when t reads it"),
            (READ, READ.replace("(S)", "(dS)"), "part 2 is what queries read of S, the state that enters; dS is part 3's"),
            (READ, READ.replace("tl.trans(S)", "S"), "part 2 is q^T S do, and do_t lies along the columns of S: tl.trans(S)"),
            ("c * tl.exp(Gamma) *", "c * tl.exp(Gamma_C - Gamma) *", "part 2 has faded from the chunk's start: e^Gamma_t"),
            (READ_SUM, "read", "of part 2 query u alone counts: all queries t >= u do"),
            (READ_SUM, "tl.cumsum(read, 0)", "of part 2 the queries are t >= u: sum from the end"),
            (BOTH, BOTH.replace(", reverse=True", ""), "of parts 1 and 2 the queries are t >= u: sum from the end"),
            ("written[None, :], 0.0), axis=1)", "written[None, :], 0.0), axis=0)", "part 3 is summed over s, along axis 1"),
            (
                DIFFERENCE,
                "tl.where(earlier, tl.exp(Gamma)[:, None] * tl.exp(-Gamma)[None, :], 0.0)",
                "e^-Gamma_s overflows beside strong gates: take the difference first, then its exponential",
            ),
            (
                "tl.maximum(tl.load(g_ptr + rows, mask=mask_t, other=0.0), LOWEST)",
                "tl.load(g_ptr + rows, mask=mask_t, other=0.0)",
                "beside a gate of -1e9 Gamma has no digits left for the others",
            ),
        ],
    )
}
