"""Lesson 25: a square of scores by its middle, and a level of scores with a gate for each channel."""

import math

import torch

from kernels.check.lessons import LessonKernel, Turn


def _arguments(draw, B=1, T=16, H=1, K=16, C=16, strong=0.0, every=8, dtype=torch.float32):
    g = -draw.normal(B, T, H, K).abs()
    if strong:
        g[:, every // 2 :: every] = strong
    return {"q": draw.normal(B, T, H, K, dtype=dtype), "k": draw.normal(B, T, H, K, dtype=dtype), "g": g, "C": C}


def _halves(draw, strong=""):
    q, k, g = (draw.normal(8, 3, dtype=torch.float32 if strong else torch.float64) for _ in range(3))
    if strong:  # one gate alone is beyond float32, where the point is off by one token
        g = torch.zeros(8, 3)
        g[:4 if strong == "first half" else 8][-4:] = -120.0
    return {"q": q, "k": k, "Gamma": (-g.abs()).cumsum(0)}


OWN_HALF = "(half[:, None] == half[None, :])"
CROSSED = f"{OWN_HALF} & (behind[:, None] == (t[None, :] <= t[:, None]))"
SQUARE = "behind[:, None] & (half[:, None] == half[None, :] + 1)"
BOUNDED = "tl.maximum(load_rows(g_ptr, rows, mask_t, K, BLOCK_K), LOWEST)"
MIRRORED = "(half[:, None] % 2 == 0) & (half[:, None] + 1 == half[None, :])"
SUMS = 'tl.dot(crossed.to(tl.float32), g, input_precision="tf32x3")'
RUNNING = (  # Gamma less its row at the middle, taken by a product with ones that keeps all digits
    "tl.where(behind[:, None], 1.0, -1.0) * (tl.cumsum(g, 0) - tl.dot((((half | 1) * (1 << level) - 1)[:, None] == t)"
    '.to(tl.float32), tl.cumsum(g, 0), input_precision="ieee"))'
)
KERNELS = {
    "25-level": LessonKernel(
        arguments=_arguments,
        cases={
            "one chunk": {},
            "several chunks": {"T": 48},
            "two texts, two heads": {"B": 2, "T": 32, "H": 2},
            "a longer chunk": {"T": 64, "C": 32},
            "ragged T and K": {"T": 37, "K": 20},
            "all gates -20": {"T": 32, "strong": -20.0, "every": 1},
            "gates of -1e9": {"T": 32, "strong": -1e9},
            "every second gate -1e9": {"T": 64, "C": 64, "strong": -1e9, "every": 2},
            "gates of -inf": {"T": 32, "strong": -math.inf},
            "bfloat16": {"T": 32, "dtype": torch.bfloat16},
        },
        slips=[
            (CROSSED, "t[None, :] <= t[:, None]", "all gates up to t are passed, in place of those to the middle"),
            (CROSSED, CROSSED.partition(" & ")[2], "gates of other halves are passed: u has to be of t's own half"),
            (
                CROSSED,
                CROSSED.replace(OWN_HALF, "(half[:, None] // 2 == half[None, :] // 2)"),
                "gates of other halves are passed: u has to be of t's own half",
            ),
            (
                CROSSED,
                f"{OWN_HALF} & (t[None, :] <= t[:, None])",
                "u <= t are the gates that a query passes: a key passes u > t",
            ),
            (
                CROSSED,
                f"{OWN_HALF} & tl.where(behind[:, None], t[None, :] < t[:, None], t[None, :] > t[:, None])",
                "a query passes its own gate before it reads: u <= t",
            ),
            (CROSSED, CROSSED.replace("<=", "<"), "a query passes its own gate before it reads: u <= t"),
            (CROSSED, CROSSED.replace("] == (t", "] != (t"), "a query passes the gates u <= t, a key u > t"),
            (
                CROSSED,
                CROSSED.replace("(behind", "((~behind[:, None] & (t[None, :] == t[:, None])) | (behind") + ")",
                "a key has passed its own gate when it is written: u > t",
            ),
            ("crossed.to", "tl.trans(crossed).to", "row t of crossed is a token, column u a gate: yours is transposed"),
            (SUMS, RUNNING, "beside gates of -104 a running sum has lost the weak ones' digits: add up the gates between"),
            (f"tl.exp({SUMS})", SUMS, "the sum of the gates is the decay's logarithm: e^ is missing"),
            (" * decay).to", ").to", "nothing decays: the rows are q and k themselves"),
            ("tl.where(behind[:, None], q, k)", "tl.where(behind[:, None], k, q)", "behind a middle are queries"),
            (SQUARE, SQUARE.partition(" & ")[2], "half 2 reads half 1, too, which is another level's square"),
            (SQUARE, "half[:, None] != half[None, :]", "pairs of other blocks are added: they are other levels'"),
            *(
                (SQUARE, f"behind[:, None] & {wide}", "pairs of other blocks are added: they are other levels'")
                for wide in ("(half[:, None] > half[None, :])", "~behind[None, :]")
            ),
            (SQUARE, "t[:, None] > t[None, :]", "each level adds all earlier pairs: it has its own squares alone"),
            (SQUARE, MIRRORED, "the square is transposed: row t is behind the middle, column s before it"),
            ("A += tl.where", "A = tl.where", "each level overwrites the one before: add its squares to A"),
            ("range(LEVELS)", "range(LEVELS - 1)", "the largest square is missing, the late half's with the early one"),
            ("range(LEVELS)", "range(1, LEVELS)", "the smallest squares are missing, neighbours' with each other"),
            (BOUNDED, BOUNDED[11:-9], "a gate of -inf times a zero is not a number"),
        ],
    )
}

PRODUCT = "(q[n:] * (Gamma[n:] - ref).exp()) @ (k[:n] * (ref - Gamma[:n]).exp()).T"
POINT = "a factor's exponent is above 0: the reference point must lie between any late and any early token"
TURNS = {
    "25-middle": Turn(
        "a square of scores as one product, with its reference point",
        arguments=_halves,
        cases={
            "mild gates": {},
            "gates of -120 in the first half": {"strong": "first half"},
            "gates of -120 in the second half": {"strong": "second half"},
        },
        slips=(
            *(("ref = Gamma[n - 1]", f"ref = {point}", POINT) for point in ("Gamma[0]", "Gamma[-1]", "0 * Gamma[0]")),
            *(("n - 1", point, POINT) for point in ("n - 2", "n + 1")),
            (PRODUCT, "q[n:] @ k[:n].T", "nothing decays: what the early half wrote is faded by the gates between"),
            (" * (ref - Gamma[:n]).exp()", "", "what s wrote fades by the gates behind s, up to the reference point, too"),
            ("(ref - Gamma[:n])", "(Gamma[:n] - ref)", "a key's exponent is Gamma_rho - Gamma_s, which is at most 0"),
            ("(Gamma[n:] - ref)", "(ref - Gamma[n:])", "a query's exponent is Gamma_t - Gamma_rho, which is at most 0"),
            (PRODUCT, f"({PRODUCT}).T", "rows are late tokens, which read, and columns early ones: yours is transposed"),
            (
                PRODUCT,
                PRODUCT.replace("q[n:]", "k[n:]").replace("k[:n]", "q[:n]"),
                "queries and keys have changed places: the late half's are the queries",
            ),
        ),
    )
}
