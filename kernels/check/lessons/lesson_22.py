"""What lesson 22's reader writes: a token of the loop forward that makes dq, and of the loop back that makes dk and dv."""

import torch

from kernels.check.lessons import LessonKernel


def _common(draw, B, T, H, K, V, gates, dtype):
    k, v, do = (draw.normal(B, T, H, size, dtype=dtype) for size in (K, V, V))
    given = {"k": k, "v": v, "do": do, "g": -draw.normal(B, T, H).abs()}
    if gates:
        given |= {"gk": -draw.normal(B, T, H, K).abs(), "gv": -draw.normal(B, T, H, V).abs()}
    return given


def _forward(draw, B=1, T=4, H=1, K=16, V=8, gates=False, dtype=torch.float32):
    return _common(draw, B, T, H, K, V, gates, dtype) | {"first": draw.normal(B, H, K, V), "c": 0.25}


def _back(draw, B=1, T=4, H=1, K=16, V=8, gates=False, dtype=torch.float32):
    given = _common(draw, B, T, H, K, V, gates, dtype)
    return {"q": draw.normal(B, T, H, K, dtype=dtype), **given, "dlast": draw.normal(B, H, K, V), "c": 0.25}


CASES = {
    "one block": {},
    "two texts, two heads, two blocks of columns": {"B": 2, "T": 3, "H": 2, "V": 16},
    "channels that fill no block": {"T": 3, "K": 5, "V": 11},
    "a gate for each row and each column": {"T": 3, "K": 4, "V": 8, "gates": True},
    "bfloat16": {"dtype": torch.bfloat16},
}

READ = "        S = faded(S, row, h, offs_k, offs_v, g_ptr, gamma_ptr, gk_ptr, gv_ptr, K, V)\n"
WRITE, TAKE = "        S += k[:, None] * v[None, :]\n", "        dq = c * tl.sum(S * do[None, :], axis=1)\n"
NO_SHARE = "share isn't added: each block of columns stores its sums in a place of its own"
FADE = "        dS = faded(dS, row, h, offs_k, offs_v, g_ptr, gamma_ptr, gk_ptr, gv_ptr, K, V)\n"
KERNELS = {
    "22-forward": LessonKernel(
        arguments=_forward,
        cases=CASES,
        slips=[
            (
                "        S += k[:, None] * v[None, :]\n        dq = c * tl.sum(S * do[None, :], axis=1)",
                "        dq = c * tl.sum(S * do[None, :], axis=1)\n        S += k[:, None] * v[None, :]",
                "dq_t needs the state after token t has written: that is the one that q_t read",
            ),
            (
                READ + WRITE + TAKE,
                TAKE + READ + WRITE,
                "dq_t is taken before the token fades and writes: q_t read the state after both",
            ),
            (READ + WRITE, WRITE + READ, "what token t writes has faded by its own gates: fade first, then write"),
            ("S += k[:, None] * v[None, :]", "S += k[:, None] * do[None, :]", "token t writes its value: k v^T is added"),
            ("        S = faded(", "        faded(", "nothing fades: the state is what faded gives back"),
            ("S += k[:, None] * v[None, :]", "S = k[:, None] * v[None, :]", "each token overwrites the state: it adds to it"),
            (
                "tl.sum(S * do[None, :], axis=1)",
                "tl.sum(S * v[None, :], axis=1)",
                "o_t = c S^T q_t has the gradient do: the state is multiplied with do, not with v",
            ),
            ("do[None, :], axis=1)", "do[None, :], axis=0)", "dq is a sum along a row, over the program's columns: axis=1"),
            ("dq = c * tl.sum", "dq = tl.sum", "the scale c is missing: q_t stands in o_t = c S^T q_t"),
            (
                "k[:, None] * v[None, :]\n        dq = c * tl.sum(S * do[None, :], axis=1)",
                "v[:, None] * k[None, :]\n        dq = c * tl.sum(S * do[:, None], axis=0)",
                "rows and columns have changed places: k and dq belong to rows, v and do to columns",
            ),
            ("dq_ptr + share + row * K + offs_k", "dq_ptr + row * K + offs_k", NO_SHARE),
            ("dq_ptr + share + row * K + offs_k, dq, mask=mask_k", "dq_ptr + share + row * K + offs_k, dq", ""),
            ("in range(T)", "in range(T // 2)", ""),
        ],
    ),
    "22-back": LessonKernel(
        arguments=_back,
        cases=CASES,
        slips=[
            (
                "        dS += c * q[:, None] * do[None, :]\n        dk = tl.sum(dS * v[None, :], axis=1)\n"
                "        dv = tl.sum(dS * k[:, None], axis=0)\n",
                "        dk = tl.sum(dS * v[None, :], axis=1)\n        dv = tl.sum(dS * k[:, None], axis=0)\n"
                "        dS += c * q[:, None] * do[None, :]\n",
                "dk and dv need the gradient of the state after token t: what q_t read of it has to be added before",
            ),
            (
                "        dS += c * q[:, None] * do[None, :]\n        dk = tl.sum(dS * v[None, :], axis=1)\n"
                "        dv = tl.sum(dS * k[:, None], axis=0)\n" + FADE,
                FADE + "        dS += c * q[:, None] * do[None, :]\n        dk = tl.sum(dS * v[None, :], axis=1)\n"
                "        dv = tl.sum(dS * k[:, None], axis=0)\n",
                "the order is that of the loop forward: back, token t's share is added first, and then fades by t's gate",
            ),
            ("        dS = faded(", "        faded(", "nothing fades on the way back: S_{t-1} is in S_t with the factor D_t"),
            ("dS += c * q[:, None]", "dS = c * q[:, None]", "what comes from behind is lost: the share of t is added to it"),
            ("dS += c * q[:, None]", "dS += q[:, None]", "the scale c is missing: o_t = c S^T q_t"),
            ("dS += c * q[:, None]", "dS += c * k[:, None]", "the state was read with q: c q do^T is added"),
            ("c * q[:, None] * do[None, :]", "c * q[:, None] * v[None, :]", "what comes back for o_t is do, not v"),
            ("q[:, None] * do[None, :]", "k[:, None] * v[None, :]", "k v^T went into the state: its gradient gets c q do^T"),
            ("dk = tl.sum", "dk = c * tl.sum", "c counts twice in dk: dS has it already"),
            ("dk = tl.sum(dS * v", "dk = tl.sum(dS * k", "k_t stands in k v^T, so its factor is v_t, not k_t"),
            (
                "dk = tl.sum(dS * v[None, :], axis=1)",
                "dk = tl.sum(dS * do[None, :], axis=1)",
                "k_t stands in k v^T, so its factor is v_t: do belongs to q's gradient",
            ),
            (
                "dv = tl.sum(dS * k[:, None], axis=0)",
                "dv = tl.sum(dS * q[:, None], axis=0)",
                "v_t stands in k v^T, so its factor is k_t, not q_t",
            ),
            ("dv = tl.sum(dS * k[:, None], axis=0)", "dv = tl.sum(dS * k[:, None], axis=1)", "dv is a sum over rows: axis=0"),
            (
                "        dv = tl.sum(dS * k[:, None], axis=0)\n" + FADE,
                FADE + "        dv = tl.sum(dS * k[:, None], axis=0)\n",
                "dv is taken after the fading: token t's gate acted before it wrote, so it belongs to the token before",
            ),
            ("dk_ptr + share + row * K + offs_k", "dk_ptr + row * K + offs_k", NO_SHARE),
            ("dv_ptr + row * V", "dv_ptr + share + row * V", "dv has no shares: a column of it is complete in its program"),
            ("dv_ptr + row * V + offs_v, dv, mask=mask_v", "dv_ptr + row * V + offs_v, dv", ""),
            ("T - 1 - i", "i", ""),
            ("in range(T)", "in range(T // 2)", ""),
        ],
    ),
}
