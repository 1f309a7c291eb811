"""What lesson 20's reader writes: the loop's body of the recurrence."""

import torch

from kernels.check.lessons import LessonKernel


def _arguments(draw, B=1, T=5, H=1, K=16, V=8, strength=1.0, alike=False, dtype=torch.float32):
    q, k, v = (draw.normal(B, T, H, size, dtype=dtype) for size in (K, K, V))
    if alike:  # many tokens are more than 16 bits can count, and 17/16 squared lies halfway between two numbers of 8 bits
        q, k, v = torch.ones_like(q), torch.full_like(k, 17 / 16), torch.full_like(v, 17 / 16)
    return {"q": q, "k": k, "v": v, "g": -strength * draw.normal(B, T, H).abs(), "c": 0.25}


KERNELS = {
    "20-forward": LessonKernel(
        arguments=_arguments,
        cases={
            "one block": {},
            "two texts, two heads, three blocks of columns": {"B": 2, "T": 3, "H": 2, "V": 24},
            "channels that fill no block": {"T": 3, "K": 5, "V": 11},
            "strong gates": {"strength": 20.0},
            "bfloat16": {"dtype": torch.bfloat16},
            "many tokens in bfloat16": {"T": 400, "strength": 0.0, "alike": True, "dtype": torch.bfloat16},
        },
        slips=[
            (
                "        S *= tl.exp(g)",
                "        S = S.to(tl.bfloat16).to(tl.float32) * tl.exp(g)",
                "the state is kept in 16 bits, which can't count beyond 256: keep it in float32",
            ),
            (
                "        S *= tl.exp(g)\n        S += k[:, None] * v[None, :]",
                "        S += k[:, None] * v[None, :]\n        S *= tl.exp(g)",
                "what token t writes has faded by its own gate: fade first, then write",
            ),
            (
                "        S += k[:, None] * v[None, :]\n        o = c * tl.sum(S * q[:, None], axis=0)",
                "        o = c * tl.sum(S * q[:, None], axis=0)\n        S += k[:, None] * v[None, :]",
                "token t is read before it is written: o_t contains what token t writes",
            ),
            ("        S *= tl.exp(g)\n", "", "nothing fades: multiply the state by e^g before the token writes"),
            ("S *= tl.exp(g)", "S *= g", "g is the logarithm of the decay: the state fades by e^g"),
            ("S *= tl.exp(g)", "S *= tl.exp2(g)", "the decay is e^g, not 2^g"),
            ("S *= tl.exp(g)", "S *= tl.exp(-g)", "the gate's sign: e^g, and g is 0 or less, so that the state fades"),
            ("S += k[:, None] * v[None, :]", "S = k[:, None] * v[None, :]", "each token overwrites the state: it adds to it"),
            ("S += k[:, None]", "S += q[:, None]", "the query writes: the key says on which rows, k[:, None]"),
            ("tl.sum(S * q[:, None], axis=0)", "tl.sum(S * k[:, None], axis=0)", "the key reads: the query does, q[:, None]"),
            (
                "k[:, None] * v[None, :]\n        o = c * tl.sum(S * q[:, None], axis=0)",
                "v[:, None] * k[None, :]\n        o = c * tl.sum(S * q[:, None], axis=0)",
                "rows and columns have changed places: k belongs to rows, k[:, None], and the sum is over rows, axis=0",
            ),
            ("q[:, None], axis=0)", "q[:, None], axis=1)", "o_t is a sum over rows, one number for each column: axis=0"),
            ("o = c * tl.sum", "o = tl.sum", "the scale c is missing"),
            ("g_ptr + row)", "g_ptr + row * H)", "a gate were at g_ptr + row * H: row counts heads already"),
            ("v_ptr + row * V", "v_ptr + row * K", "v had K numbers a token: token t's value begins at v_ptr + row * V"),
            (
                "S += k[:, None] * v[None, :]",
                "S += (k[:, None] * v[None, :]).to(v_ptr.dtype.element_ty).to(tl.float32)",
                "convert to tl.float32 right after the load",
            ),
            ("k_ptr + row * K + offs_k, mask=mask_k, other=0.0", "k_ptr + row * K + offs_k, mask=mask_k", ""),
            ("q_ptr + row * K + offs_k, mask=mask_k, other=0.0", "q_ptr + row * K + offs_k", ""),
            ("o_ptr + row * V + offs_v, o, mask=mask_v", "o_ptr + row * V + offs_v, o", ""),
            ("in range(T)", "in range(T // 2)", ""),
        ],
    )
}
