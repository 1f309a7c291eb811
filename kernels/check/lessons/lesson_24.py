"""Lesson 24: a chunk, its triangle and its state."""

import torch

from kernels.check.lessons import LessonKernel


def _arguments(draw, B=1, T=16, H=1, K=16, V=16, strong=0.0, ones=False, dtype=torch.float32):
    g = -draw.normal(B, T, H).abs() / 4  # mild enough that even the whole chunk's decay shows
    if strong:
        g[:, 3::8] = strong
    q, k = (draw.normal(B, T, H, K, dtype=dtype) for _ in range(2))
    v, S = draw.normal(B, T, H, V, dtype=dtype), draw.normal(B, H, K, V)
    if ones:  # added to a state of which 16 bits don't hold the sum
        q, k, v, g, S = torch.ones_like(q), torch.ones_like(k), torch.ones_like(v), 0 * g, torch.full_like(S, 4096.0)
    return {"q": q, "k": k, "v": v, "g": g, "S": S}


MASK = 'tl.where(t[:, None] >= t[None, :], Gamma[:, None] - Gamma[None, :], float("-inf"))'
READ = 'tl.exp(Gamma)[:, None] * tl.dot(q, S.to(q.dtype), input_precision="ieee")'
TO_END = "(v * tl.exp(Gamma_C - Gamma)[:, None])"
LEAVING = "tl.exp(Gamma_C) * S + tl.dot"
DOT = 'tl.dot(q, tl.trans(k), input_precision="ieee")'
O = f'        o = {READ}\n        o += tl.dot(A, v, input_precision="ieee")\n'
LEAVE = f'        v = {TO_END}.to(v.dtype)\n        S = {LEAVING}(tl.trans(k), v, input_precision="ieee")\n'
LEAVE_FIRST = LEAVE.replace("        v = ", "        w = ").replace("(tl.trans(k), v", "(tl.trans(k), w")
KERNELS = {
    "24-chunk": LessonKernel(
        arguments=_arguments,
        cases={
            "one chunk": {},
            "several chunks": {"T": 48},
            "two texts, two heads, two bands": {"B": 2, "T": 32, "H": 2, "V": 32},
            "ragged T, K and V": {"T": 37, "K": 20, "V": 24},
            "T below a chunk": {"T": 5},
            "gates of -1e9": {"T": 32, "strong": -1e9},
            "bfloat16": {"T": 32, "dtype": torch.bfloat16},
            "many tokens in bfloat16": {"T": 320, "ones": True, "dtype": torch.bfloat16},
        },
        slips=[
            (MASK, "Gamma[:, None] - Gamma[None, :]", "no mask: tokens read what later ones write"),
            (MASK, MASK.replace('float("-inf")', "0.0"), "0 is put above the diagonal, and e^0 is 1: put -inf there"),
            (MASK, MASK.replace(">=", ">"), "a token reads what it has written itself, too: s <= t"),
            (MASK, MASK.replace(">=", "<="), "rows are the tokens t that read, columns the s that wrote, and s <= t"),
            (
                f"tl.exp({MASK})",
                "tl.exp(Gamma)[:, None] * tl.exp(-Gamma)[None, :] * (t[:, None] >= t[None, :])",
                "e^-Gamma_s overflows where gates are strong: exponentiate the difference, which is at most 0",
            ),
            (
                f"tl.exp({MASK})",
                "tl.exp(Gamma[:, None] - Gamma[None, :]) * (t[:, None] >= t[None, :])",
                "above the diagonal the exponential overflows, and infinity times 0 is NaN: put -inf there before it",
            ),
            (
                f"(decay * {DOT})",
                "tl.where(t[:, None] >= t[None, :], "
                + DOT.replace("(q, tl.trans(k)", "(q * tl.exp(Gamma)[:, None], tl.trans(k * tl.exp(-Gamma)[:, None])")
                + ", 0.0)",
                "e^-Gamma_s overflows where gates are strong: exponentiate the difference, which is at most 0",
            ),
            (
                f"tl.exp({MASK})",
                f"tl.exp({MASK.replace('Gamma[:, None] - Gamma[None, :]', 'Gamma[None, :] - Gamma[:, None]')})",
                "Gamma_s - Gamma_t is above 0 and grows: a pair's decay is e^(Gamma_t - Gamma_s)",
            ),
            ("(decay * tl.dot", "(c * decay * tl.dot", "the scale c comes in where o is stored: leave it out here"),
            (READ, READ.replace("[:, None]", "[None, :]"), "e^Gamma_t is a factor of row t: tl.exp(Gamma)[:, None]"),
            (
                f"tl.exp({MASK})",
                "tl.where(t[:, None] >= t[None, :], 1.0, 0.0)",
                "the scores don't decay: row t, column s has e^(Gamma_t - Gamma_s)",
            ),
            ("(decay * tl.dot", "(tl.dot", "the scores don't decay: row t, column s has e^(Gamma_t - Gamma_s)"),
            (READ, READ.replace("(Gamma)[:, None]", "(Gamma_C)"), "token t reads the entering state with its own e^Gamma_t"),
            (READ, READ.partition(" * ")[2], "what the entering state says decays up to token t: e^Gamma_t, a factor a row"),
            (O + LEAVE, LEAVE_FIRST + O, "S is overwritten before o has read it: o reads the state that entered"),
            ("o += tl.dot(A", "o = tl.dot(A", "the part through the state is overwritten: o is the sum of both"),
            (
                LEAVE,
                "        k = (k * tl.exp(Gamma_C - Gamma)[:, None]).to(k.dtype)\n" + LEAVE,
                "the decay to the chunk's end is there twice: it stands on k or on v",
            ),
            (TO_END, "v", "what s wrote decays until the chunk's end: e^(Gamma_C - Gamma_s)"),
            (TO_END, TO_END.replace("Gamma_C - ", ""), "what s wrote passes the gates behind s, not those before"),
            (
                LEAVING,
                "tl.exp(Gamma_C) * S.to(q.dtype).to(tl.float32) + tl.dot",
                "the state is kept in 16 bits, which lose what a chunk adds: keep it in float32",
            ),
            (LEAVING, "S + tl.dot", "the state that entered decays, too, through the whole chunk: e^Gamma_C"),
            (LEAVING, "tl.dot", "the state that entered is lost: it leaves, too, with e^Gamma_C"),
            ("range(tl.cdiv(T, C))", "range(1)", "the loop ends after its first chunk"),
            ("range(tl.cdiv(T, C))", "range(T // C)", "the last chunk, which is not full, is left out"),
            ("tl.maximum(g, LOWEST)", "g", "beside a gate of -1e9 the running sum has no digits left for the others"),
        ],
    )
}
