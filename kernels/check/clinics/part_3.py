"""The clinic after part 3: an online softmax that seldom rescales, gradients of keys that a group shares, a window."""

import torch

from kernels.check.cases import Case, Output
from kernels.check.clinics.faulty_kernel import FaultyKernel, Relative
from kernels.check.tensors import Draw, Fenced

D = 16
FEW = (1, 2, 3, 4, 5)

SELDOM = """\
@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, M, N, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)[None, :]
    q = tl.load(q_ptr + m[:, None] * D + offs_d, mask=(m < M)[:, None], other=0.0)
    top, l = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    for start in range(0, N, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + n[:, None] * D + offs_d, mask=(n < N)[:, None], other=0.0)
        v = tl.load(v_ptr + n[:, None] * D + offs_d, mask=(n < N)[:, None], other=0.0)
        z = tl.where((n < N)[None, :], scale * tl.dot(q, tl.trans(k), input_precision="ieee"), float("-inf"))
        new_top = tl.maximum(top, tl.max(z, axis=1))
        if tl.max((new_top > top).to(tl.int32), axis=0) > 0:
            alpha = tl.exp(top - new_top)
            l, acc = l * alpha, acc * alpha[:, None]
        top = new_top
        p = tl.exp(z - top[:, None])
        l += tl.sum(p, axis=1)
        acc = tl.dot(p, v, acc, input_precision="ieee")
    tl.store(o_ptr + m[:, None] * D + offs_d, acc / l[:, None], mask=(m < M)[:, None])


def attention(q, k, v, o, BLOCK_M=16, BLOCK_N=16):
    (M, D), N = q.shape, k.shape[0]
    grid = (triton.cdiv(M, BLOCK_M),)
    attention_kernel[grid](q, k, v, o, M, N, D**-0.5, D=D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N)
"""
RISEN = "if tl.max((new_top > top).to(tl.int32), axis=0) > 0:"
POSITIVE = RISEN.replace("(new_top > top)", "((new_top > top) & (new_top > 0.0))")
HIGHER = "if tl.max(new_top, axis=0) > tl.max(top, axis=0):"
NEW_TOP = "new_top = tl.maximum(top, tl.max(z, axis=1))"
HIGHEST = f"{NEW_TOP.replace('new_top', 'highest')}\n        new_top = tl.where(highest > top + 5.0, highest, top)"


def attended(z: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """o of logits z [M, N] in float64 and values v [N, D]."""
    return z.softmax(-1) @ v.double()


def seldom_case(draw: Draw, M: int, N: int) -> Case:
    """One call on queries that want large and small numbers in turn, and keys that count down."""
    q, k, v = torch.zeros(M, D), torch.zeros(N, D), draw.normal(N, D)
    q[:, 0], k[:, 0] = 1 - 2 * (torch.arange(M) % 2), torch.arange(N, 0, -1)
    out = Output(Fenced("o", "MD", torch.empty(M, D)), attended(D**-0.5 * q.double() @ k.double().T, v))
    return Case([Fenced("q", "MD", q), Fenced("k", "ND", k), Fenced("v", "ND", v)], [out])


SHARED = """\
@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, slopes_ptr, dk_ptr, dv_ptr, H, G, T, scale,
    D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    kv = head % H
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)[None, :]
    at_n, mask_n = (head * T + n)[:, None] * D + offs_d, (n < T)[:, None]
    k, v = tl.load(k_ptr + at_n, mask=mask_n, other=0.0), tl.load(v_ptr + at_n, mask=mask_n, other=0.0)
    dk, dv = tl.zeros((BLOCK_N, D), tl.float32), tl.zeros((BLOCK_N, D), tl.float32)
    for start in range(0, G * T, BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        mask_r = rows < G * T
        slope = tl.load(slopes_ptr + kv * G + rows // T, mask=mask_r, other=0.0)
        m = rows % T
        at = head * G * T + rows
        q = tl.load(q_ptr + at[:, None] * D + offs_d, mask=mask_r[:, None], other=0.0)
        do = tl.load(do_ptr + at[:, None] * D + offs_d, mask=mask_r[:, None], other=0.0)
        lse, delta = tl.load(lse_ptr + at, mask=mask_r, other=0.0), tl.load(delta_ptr + at, mask=mask_r, other=0.0)
        z = scale * tl.dot(k, tl.trans(q), input_precision="ieee") + slope[None, :] * (n[:, None] - m[None, :])
        sees = mask_r[None, :] & (n[:, None] <= m[None, :])
        p = tl.exp(tl.where(sees, z - lse[None, :], float("-inf")))
        ds = p * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta[None, :])
        dv = tl.dot(p, do, dv, input_precision="ieee")
        dk = tl.dot(ds, q, dk, input_precision="ieee")
    tl.store(dk_ptr + at_n, scale * dk, mask=mask_n)
    tl.store(dv_ptr + at_n, dv, mask=mask_n)


def shared_dkdv(q, k, v, do, lse, delta, slopes, dk, dv, BLOCK_R=16, BLOCK_N=16):
    (B, H, T, D), G = k.shape, q.shape[1] // k.shape[1]
    grid, sizes = (triton.cdiv(T, BLOCK_N), B * H), (H, G, T, D**-0.5)
    dkdv_kernel[grid](q, k, v, do, lse, delta, slopes, dk, dv, *sizes, D=D, BLOCK_R=BLOCK_R, BLOCK_N=BLOCK_N)
"""
SLOPE = "slope = tl.load(slopes_ptr + kv * G + rows // T, mask=mask_r, other=0.0)"
INNERMOST = SLOPE.replace("rows // T", "rows % G")
QUERY = "m = rows % T"
START = "for start in range(0, G * T, BLOCK_R):"
ROWS = "rows = start + tl.arange(0, BLOCK_R)"
EXISTS = "mask_r = rows < G * T"


def shared_case(draw: Draw, B: int, H: int, G: int, T: int) -> Case:
    """One call on packed tensors, with ALiBi's slopes."""
    q, do = draw.normal(B, H * G, T, D), draw.normal(B, H * G, T, D)
    k, v, dlse = draw.normal(B, H, T, D), draw.normal(B, H, T, D), draw.normal(B, H * G, T)
    slopes, t = 2.0 ** (-8 * torch.arange(1, H * G + 1) / (H * G)), torch.arange(T)
    K, V = (x.double().repeat_interleave(G, 1) for x in (k, v))
    z = D**-0.5 * q.double() @ K.mT + slopes.double()[:, None, None] * (t - t[:, None])
    z = z.masked_fill(t > t[:, None], -torch.inf)
    lse, delta = z.logsumexp(-1).float(), ((z.softmax(-1) @ V) * do).sum(-1).float() - dlse
    p = (z - lse[..., None].double()).exp()  # of the rounded numbers that the kernel gets
    ds = p * (do.double() @ V.mT - delta[..., None].double())
    dk, dv = (x.unflatten(1, (H, G)).sum(2) for x in (D**-0.5 * ds.mT @ q.double(), p.mT @ do.double()))
    inputs = [Fenced(name, "BQTD", x) for name, x in (("q", q), ("do", do))]
    inputs[1:1] = [Fenced(name, "BHTD", x) for name, x in (("k", k), ("v", v))]
    inputs += [Fenced("lse", "BQT", lse), Fenced("delta", "BQT", delta), Fenced("slopes", "Q", slopes)]
    outs = (Fenced(name, "BHTD", torch.empty(B, H, T, D)) for name in ("dk", "dv"))
    return Case(inputs, [Output(out, x, tolerance=5e-4) for out, x in zip(outs, (dk, dv))])  # dp - delta cancels


WINDOW = """\
@triton.jit
def window_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, T, W, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    begin = tl.program_id(0) * BLOCK_M
    end = tl.minimum(begin + BLOCK_M, T)
    m = begin + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)[None, :]
    q = tl.load(q_ptr + m[:, None] * D + offs_d, mask=(m < T)[:, None], other=0.0)
    top, l = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    first = tl.maximum(begin - W, 0) // BLOCK_N * BLOCK_N
    for start in range(first, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + n[:, None] * D + offs_d, mask=(n < T)[:, None], other=0.0)
        v = tl.load(v_ptr + n[:, None] * D + offs_d, mask=(n < T)[:, None], other=0.0)
        back = m[:, None] - n[None, :]
        z = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
        z = tl.where((back >= 0) & (back <= W), z, float("-inf"))
        new_top = tl.maximum(top, tl.max(z, axis=1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        alpha = tl.exp(top - shift)
        p = tl.exp(z - shift[:, None])
        l = l * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p, v, acc * alpha[:, None], input_precision="ieee")
        top = new_top
    tl.store(o_ptr + m[:, None] * D + offs_d, acc / l[:, None], mask=(m < T)[:, None])


def window_attention(q, k, v, o, W, BLOCK_M=16, BLOCK_N=16):
    T, D = q.shape
    grid = (triton.cdiv(T, BLOCK_M),)
    window_kernel[grid](q, k, v, o, T, W, D**-0.5, D=D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N)
"""
SHIFT = '        shift = tl.where(new_top == float("-inf"), 0.0, new_top)\n'
ALPHA, P = "alpha = tl.exp(top - shift)", "p = tl.exp(z - shift[:, None])"
ALPHA_OF_TOP, P_OF_TOP = ALPHA.replace("shift", "new_top"), P.replace("shift", "new_top")
UNGUARDED = (SHIFT, "", ALPHA, ALPHA_OF_TOP, P, P_OF_TOP)
NO_KEY = 'tl.full((BLOCK_M,), float("-inf"), tl.float32)'
RESULT = "acc / l[:, None], mask"


def window_case(draw: Draw, T: int, W: int) -> Case:
    """One call on packed tensors."""
    q, k, v = (draw.normal(T, D) for _ in range(3))
    back = torch.arange(T)[:, None] - torch.arange(T)
    z = (D**-0.5 * q.double() @ k.double().T).masked_fill((back < 0) | (back > W), -torch.inf)
    inputs = [Fenced(name, "TD", x) for name, x in (("q", q), ("k", k), ("v", v))]
    return Case(inputs, [Output(Fenced("o", "TD", torch.empty(T, D)), attended(z, v))], {"W": W})


FAULTY = (
    FaultyKernel(
        key="3a",
        function="attention",
        right=SELDOM,
        fault=(RISEN, HIGHER),
        lines=(HIGHER,),
        cause="rescale",
        sizes={"M": tuple(range(1, 33)), "N": tuple(range(1, 65))},
        case=seldom_case,
        broken=(
            Relative(
                "one with the same mistake, made less often",
                (RISEN, "if tl.sum((new_top > top).to(tl.int32), axis=0) > BLOCK_M // 4:"),
            ),
            Relative("one with the same mistake for other values", (RISEN, POSITIVE)),
            Relative(
                "one with the same mistake in part of what is summed",
                ("l, acc = l * alpha, acc * alpha[:, None]", "acc = acc * alpha[:, None]"),
            ),
            Relative(
                "one with the same mistake at the end of the walk",
                (RISEN, "if (tl.max((new_top > top).to(tl.int32), axis=0) > 0) & (start + BLOCK_N < N):"),
            ),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks", ("BLOCK_N=16):", "BLOCK_N=16):\n    BLOCK_M, BLOCK_N = 32, 64")
            ),
            Relative("a right kernel that always rescales", (RISEN, "if start >= 0:")),
            Relative("a right kernel that rescales more seldom still", (NEW_TOP, HIGHEST)),
            Relative(
                "a right kernel that walks the other way",
                ("n = start + tl", "n = (N - 1) // BLOCK_N * BLOCK_N - start + tl"),
            ),
        ),
        lesson="Lesson 30, step 2",
    ),
    FaultyKernel(
        key="3b",
        function="shared_dkdv",
        right=SHARED,
        fault=(SLOPE, INNERMOST),
        lines=(INNERMOST,),
        cause="index",
        sizes={"B": FEW, "H": FEW, "G": FEW, "T": tuple(range(1, 25))},
        case=shared_case,
        broken=(
            Relative("one with the same mistake in the other number", (QUERY, "m = rows // G")),
            Relative("one with the same mistake in the heads of keys", ("kv = head % H", "kv = head // H")),
            Relative("one with the same mistake in both numbers", (SLOPE, INNERMOST, QUERY, "m = rows // G")),
            Relative(
                "one with the same mistake where a block holds two heads",
                (SLOPE, SLOPE.replace("rows // T", "(rows * 0 + start) // T")),
            ),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks", ("BLOCK_N=16):", "BLOCK_N=16):\n    BLOCK_R, BLOCK_N = 64, 32")
            ),
            Relative(
                "a right kernel that packs in another order",
                (
                    ROWS,
                    "packed = start + tl.arange(0, BLOCK_R)\n        rows = packed % G * T + packed // G",
                    EXISTS,
                    "mask_r = packed < G * T",
                ),
            ),
            Relative(
                "a right kernel that takes one head after the other",
                (
                    START,
                    "for step in range(G * tl.cdiv(T, BLOCK_R)):",
                    ROWS,
                    "own = step // G * BLOCK_R + tl.arange(0, BLOCK_R)\n        rows = step % G * T + own",
                    EXISTS,
                    "mask_r = own < T",
                ),
            ),
        ),
        lesson="Lesson 33, step 7",
    ),
    FaultyKernel(
        key="3c",
        function="window_attention",
        right=WINDOW,
        fault=UNGUARDED,
        lines=(ALPHA_OF_TOP, P_OF_TOP),
        cause="empty",
        sizes={"T": tuple(range(1, 65)), "W": tuple(range(65))},
        case=window_case,
        broken=(
            Relative("one with the same mistake in the new terms alone", (P, P_OF_TOP)),
            Relative("one with the same mistake in the old sums alone", (ALPHA, ALPHA_OF_TOP)),
            Relative(
                "one that guards some of its rows",
                (SHIFT, SHIFT.replace("new_top == ", "tl.max(new_top, axis=0) == ")),
            ),
            Relative(
                "one with the same mistake, covered up",
                (*UNGUARDED, RESULT, "tl.where(acc == acc, acc / l[:, None], 0.0), mask"),
            ),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks", ("BLOCK_N=16):", "BLOCK_N=16):\n    BLOCK_M, BLOCK_N = 64, 32")
            ),
            Relative(
                "a right kernel with another start", (*UNGUARDED, NO_KEY, NO_KEY.replace('float("-inf")', "-1e30"))
            ),
            Relative(
                "a right kernel that walks the other way, and needs no guard",
                (*UNGUARDED, "n = start + tl", "n = (end - 1) // BLOCK_N * BLOCK_N + first - start + tl"),
            ),
            Relative("a right kernel that visits every block", ("tl.maximum(begin - W, 0) // BLOCK_N * BLOCK_N", "0")),
        ),
        lesson="Lesson 30, step 4",
    ),
)
