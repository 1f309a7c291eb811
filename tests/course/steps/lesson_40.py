"""Wrong answers to lesson 40's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def same(missing, top="missing // 2", bottom="missing - missing // 2"):
    return f"""def same_padding(H, R, stride, dilation):
    P = -(-H // stride)
    missing = {missing}
    return {top}, {bottom}
"""


def order(r="offs_j // S % R", s="offs_j % S", c="offs_j // (R * S)", h="h0 + r * dil_h", at="w * stride_w"):
    return f"""@triton.jit
def torch_tile(offs_j, h0, w0, R, S, dil_h, dil_w, stride_h, stride_w, stride_c):
    r, s, c = {r}, {s}, {c}
    h, w = {h}, w0 + s * dil_w
    return h, w, h * stride_h + {at} + c * stride_c
"""


def walk(h="(a - top) % stride + i * stride", r="a + k * stride", p="(h + top - r) // stride"):
    return f"""def dense(i, k, a, stride, top):
    h = {h}
    r = {r}
    return h, r, {p}
"""


SPAN = "(P - 1) * stride + dilation * (R - 1) + 1 - H"

WRONG = {
    "40-same": [
        (same("max((P - 1) * stride + R - H, 0)"), "dilation spreads its taps"),
        (same("dilation * (R - 1)"), "in all are enough"),
        (same("max(dilation * (R - 1) - 1, 0)"), "output rows, not"),
        (same(SPAN), "padding cannot be negative"),
        (same(f"max({SPAN}, 0)", "missing - missing // 2", "missing // 2"), "an odd one below"),
        (same(f"max({SPAN}, 0)", "missing", "0"), "half of it belongs above"),
        (same(f"max({SPAN}, 0)", "missing / 2", "missing / 2"), "divide with `//`"),
    ],
    "40-torch": [
        (order("offs_j // R % S", "offs_j % R"), "You exchange r and s"),
        (order("offs_j // R % R"), "it is S by which r is divided off"),
        (order("offs_j // S"), "take it modulo R"),
        (order(c="offs_j // S"), "divide by both"),
        (order(h="h0 + r"), "Tap r lies r · dil_h rows below"),
        (order(h="h0 + r * dil_w"), "h is h0 + r · dil_h"),
        (order(h="h0 - r * dil_h"), "h is h0 + r · dil_h"),
        (order(at="w"), "each of h, w and c has to be multiplied with its stride"),
    ],
    "40-class": [
        (walk(h="a - top + i * stride"), "which does not exist"),
        (walk(h="a + i * stride"), "is of class"),
        (walk(h="(a + top) % stride + i * stride"), "is of class"),
        (walk(h="(a - top) % stride + (i + 1) * stride"), "of the right class"),
        (walk(r="k * stride"), "meet the taps"),
        (walk(p="i - k"), "meet in output row"),
        (walk(p="(h + top) // stride - r"), "meet in output row"),
        (walk(p="(h + top - r) / stride"), "divide with `//`"),
    ],
}
