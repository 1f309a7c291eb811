"""What lesson 26's reader writes: a chunk's backward pass, and the slope of a function in a direction."""

import torch

from kernels.check.lessons import LessonKernel, Turn


def _backward(draw, B=1, T=16, H=1, K=16, V=16, C=16, strong=0.0, dtype=torch.float32):
    g = -draw.normal(B, T, H).abs()
    if strong:
        g[:, 5::8] = strong
    q, k, v, do = (draw.normal(B, T, H, size, dtype=dtype) for size in (K, K, V, V))
    S, dS = draw.normal(B, H, -(-T // C), K, V), draw.normal(B, H, K, V)
    return {"q": q, "k": k, "v": v, "g": g, "S": S, "do": do, "dS": dS, "C": C}


PAIRS = "dA = c * decay * product(do, tl.trans(v), dtype)"
BEHIND = "out * product(v, tl.trans(dS)"
ON = "        dS = tl.exp(Gamma_C) * dS + c * product(tl.trans(into * q), do, dtype)\n"
READ = "        through_S = c * into * product(do, tl.trans(S), dtype)\n"
OTHERS = """\
        through_dS = out * product(v, tl.trans(dS), dtype)
        dq = through_S + product(dA, k, dtype)
        dk = through_dS + product(tl.trans(dA), q, dtype)
        dv = out * product(k, dS, dtype) + c * product(tl.trans(decay * scores), do, dtype)
"""
ALL = READ + OTHERS + ON
EXCHANGED = ALL.replace("into *", "OUT *").replace("out *", "into *").replace("OUT *", "out *")
KERNELS = {
    "26-backward": LessonKernel(
        arguments=_backward,
        cases={
            "one chunk": {},
            "several chunks": {"T": 48},
            "two texts, two heads": {"B": 2, "T": 32, "H": 2},
            "ragged T, K and V": {"T": 37, "K": 20, "V": 24},
            "gates of -20": {"T": 32, "strong": -20.0},
            "gates of -1e9": {"T": 32, "strong": -1e9},
            "bfloat16": {"T": 32, "dtype": torch.bfloat16},
        },
        slips=[
            (PAIRS, PAIRS.replace("c * decay", "decay"), "dA has the scale c: the scores stand in o with it"),
            (PAIRS, PAIRS.replace("decay * ", ""), "dA has the pair's decay, which is 0 above the diagonal"),
            (PAIRS, PAIRS.replace("do, tl.trans(v)", "v, tl.trans(do)"), "row t of dA has do_t, column s has v_s"),
            ("c * into * product(do", "c * product(do", "what q_t read of the entering state had decayed by e^Gamma_t"),
            (
                READ + OTHERS,
                (READ + OTHERS).replace("c * into", "into", 1).replace("dq = ", "dq = c * "),
                "through_S has the scale c itself: the gates' gradient is made from it, too",
            ),
            (
                ALL,
                EXCHANGED,
                "into and out have changed places: a query reads S with e^Gamma_t, a key is in it with e^(Gamma_C - Gamma_s)",
            ),
            (PAIRS, PAIRS.replace("product(", "scores * product("), "dA is the gradient of q_t . k_s, without that product"),
            (BEHIND, "c * " + BEHIND, "dS has the scale c already, from where a later token read: none is due in through_dS"),
            (BEHIND, BEHIND[6:], "k_s is in the leaving state with e^(Gamma_C - Gamma_s)"),
            ("dq = through_S + product", "dq = product", "q_t read the entering state, too: dq is the sum of both terms"),
            ("product(tl.trans(dA), q", "product(dA, q", "dk_s is a sum down column s: dA is transposed"),
            ("product(tl.trans(decay * scores)", "product(decay * scores", "dv_s is a sum down column s: A is transposed"),
            ("tl.trans(decay * scores)", "tl.trans(scores)", "A has the pair's decay, which is 0 above the diagonal"),
            ("tl.trans(decay * scores)", "tl.trans(dA)", "v_s stands in o with c A_ts: dA is the gradient of a score"),
            ("c * product(tl.trans(decay", "product(tl.trans(decay", "v_s is read with c A: the scale c is missing in dv"),
            (OTHERS + ON, ON + OTHERS, "dk and dv need the dS that came back, before it is overwritten"),
            ("tl.exp(Gamma_C) * dS + c", "dS + c", "the entering state is in the leaving one with e^Gamma_C"),
            ("c * product(tl.trans(into", "product(tl.trans(into", "q_t reads S with c e^Gamma_t: c is missing in dS"),
            ("tl.trans(into * q)", "tl.trans(q)", "q_t reads S with c e^Gamma_t: e^Gamma_t is missing in dS"),
            (ON, "", "dS stays as it came: what goes on decays through the chunk, and c e^Gamma_t q_t do_t is added"),
        ],
    )
}


def _arguments(draw, n=5, curved=False, h=0.01):
    x, d = (draw.normal(n, dtype=torch.float64) for _ in range(2))
    return {"f": (lambda x: (x**3).sum()) if curved else (lambda x: (2 * x).sum() + 1), "x": x, "d": d, "h": h}


BOTH = "(f(x + h * d) - f(x - h * d)) / (2 * h)"
TURNS = {
    "26-slope": Turn(
        "the slope of a function in a direction",
        arguments=_arguments,
        cases={"a straight line": {}, "a curve": {"curved": True}, "a large step": {"curved": True, "h": 0.5}},
        slips=(
            (BOTH, "(f(x + h * d) - f(x - h * d)) / h", "the two points are 2h apart"),
            (BOTH, "(f(x + h * d) - f(x - h * d)) / 2 * h", "/ 2 * h multiplies by h: put 2 * h into brackets"),
            (BOTH, "f(x + h * d) - f(x - h * d)", "the difference is divided by 2h"),
            (BOTH, "(f(x + h * d) - f(x)) / h", "to one side the error is of size h: take both"),
            (BOTH, "(f(x + h) - f(x - h)) / (2 * h)", "go along d, not along (1, 1, ...)"),
            (
                BOTH,
                "(f(x + h * d / d.norm()) - f(x - h * d / d.norm())) / (2 * h)",
                "go along d as it is: with a d of length 1 it is the slope of something else",
            ),
            (BOTH, "(f(x - h * d) - f(x + h * d)) / (2 * h)", "the sign is turned"),
        ),
    )
}
