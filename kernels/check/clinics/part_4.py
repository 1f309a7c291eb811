"""The clinic after part 4: a convolution as a product, a gradient image by image, a gradient by programs that stay."""

import torch

from kernels.check.cases import Case, Output
from kernels.check.clinics.faulty_kernel import FaultyKernel, Relative
from kernels.check.tensors import Draw, Fenced

SMALL = tuple(range(1, 41))
FEW = (1, 2, 3, 4, 5)
BLOCKS = (1, 2, 4, 8, 16, 32)
PROGRAMS = (1, 2, 3, 4, 6, 8)

FORWARD = """\
@triton.jit
def conv_kernel(
    x_ptr, weight_ptr, y_ptr, M, P, Q, H, W, C, R, S, O, J,
    BLOCK_M: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_J: tl.constexpr,
):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)[None, :]
    n, p, q = offs_m // (P * Q), offs_m // Q % P, offs_m % Q
    acc = tl.zeros((BLOCK_M, BLOCK_O), tl.float32)
    for start in range(0, J, BLOCK_J):
        offs_j = start + tl.arange(0, BLOCK_J)
        c, r, s = offs_j // (R * S), offs_j // S % R, offs_j % S
        x_ptrs = x_ptr + ((n * C + c[None, :]) * H + p + r[None, :]) * W + q + s[None, :]
        x = tl.load(x_ptrs, mask=(offs_m < M) & (offs_j < J)[None, :], other=0.0)
        weight_ptrs = weight_ptr + offs_o * J + offs_j[:, None]
        weight = tl.load(weight_ptrs, mask=(offs_j < J)[:, None] & (offs_o < O), other=0.0)
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    y_ptrs = y_ptr + ((n * O + offs_o) * P + p) * Q + q
    tl.store(y_ptrs, acc, mask=(offs_m < M) & (offs_o < O))


def conv2d(x, weight, y, BLOCK_M=16, BLOCK_O=16, BLOCK_J=16):
    (N, C, H, W), (O, _, R, S) = x.shape, weight.shape
    P, Q = H - R + 1, W - S + 1
    grid = triton.cdiv(N * P * Q, BLOCK_M), triton.cdiv(O, BLOCK_O)
    sizes = N * P * Q, P, Q, H, W, C, R, S, O, C * R * S
    conv_kernel[grid](x, weight, y, *sizes, BLOCK_M=BLOCK_M, BLOCK_O=BLOCK_O, BLOCK_J=BLOCK_J)
"""
TAPS = "c, r, s = offs_j // (R * S), offs_j // S % R, offs_j % S"
PIXELS = "n, p, q = offs_m // (P * Q), offs_m // Q % P, offs_m % Q"


def forward_case(draw: Draw, N: int, P: int, Q: int, C: int, R: int, S: int, O: int) -> Case:
    """One call on packed tensors, channels first as torch has them."""
    x, weight = draw.normal(N, C, P + R - 1, Q + S - 1), draw.normal(O, C, R, S)
    out = Fenced("y", "NOPQ", torch.empty(N, O, P, Q))
    answer = torch.conv2d(x.double(), weight.double())
    return Case([Fenced("x", "NCHW", x), Fenced("weight", "OCRS", weight)], [Output(out, answer, tolerance=1e-4)])


DEPTHWISE = """\
@triton.jit
def depthwise_kernel(
    dy_ptr, x_ptr, partial_ptr, N, P, Q, H, W, S, C, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr
):
    image, tap = tl.program_id(0).to(tl.int64), tl.program_id(1)
    r, s = tap // S, tap % S
    offs_c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    first = image * P * Q
    last = first + P * Q
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in range(first, last, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)[:, None]
        n, p, q = offs_m // (P * Q), offs_m // Q % P, offs_m % Q
        mask = (offs_m < last) & (offs_c < C)
        dy = tl.load(dy_ptr + offs_m * C + offs_c, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + ((n * H + p + r) * W + q + s) * C + offs_c, mask=mask, other=0.0).to(tl.float32)
        total += dy * x
    partial_ptrs = partial_ptr + (image * tl.num_programs(1) + tap) * C + offs_c
    tl.store(partial_ptrs, tl.sum(total, axis=0)[None, :], mask=offs_c < C)


def depthwise_dweight(dy, x, dweight, BLOCK_M=16, BLOCK_C=16):
    (N, P, Q, C), (R, S, _), (H, W) = dy.shape, dweight.shape, x.shape[1:3]
    partial = torch.empty(N, R, S, C, device=x.device)
    grid = N, R * S, triton.cdiv(C, BLOCK_C)
    depthwise_kernel[grid](dy, x, partial, N, P, Q, H, W, S, C, BLOCK_M=BLOCK_M, BLOCK_C=BLOCK_C)
    dweight.copy_(partial.sum(dim=0))
"""
MASK = "mask = (offs_m < last) & (offs_c < C)"
WALK = "for start in range(first, last, BLOCK_M):"
LOAD_X = "x = tl.load(x_ptr + ((n * H + p + r) * W + q + s) * C + offs_c, mask=mask, other=0.0).to(tl.float32)"


def depthwise_case(draw: Draw, N: int, P: int, Q: int, R: int, S: int, C: int, BLOCK_M: int) -> Case:
    """One call on packed tensors, channels last."""
    dy, x = draw.normal(N, P, Q, C), draw.normal(N, P + R - 1, Q + S - 1, C)
    answer = torch.empty(R, S, C, dtype=torch.float64)
    for r in range(R):
        for s in range(S):
            answer[r, s] = (dy.double() * x[:, r : r + P, s : s + Q].double()).sum((0, 1, 2))
    out = Output(Fenced("dweight", "RSC", torch.empty(R, S, C)), answer, tolerance=1e-4)
    return Case([Fenced("dy", "NPQC", dy), Fenced("x", "NHWC", x)], [out], {"BLOCK_M": BLOCK_M})


STAYING = """\
@triton.jit
def dweight_kernel(
    dy_ptr, x_ptr, dweight_ptr, M, P, Q, H, W, S, C, O, J, tiles_o, tiles,
    BLOCK_M: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_J: tl.constexpr,
):
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        offs_o = tile % tiles_o * BLOCK_O + tl.arange(0, BLOCK_O)
        offs_j = tile // tiles_o * BLOCK_J + tl.arange(0, BLOCK_J)[None, :]
        r, s, c = offs_j // (S * C), offs_j // C % S, offs_j % C
        acc = tl.zeros((BLOCK_O, BLOCK_J), tl.float32)
        for start in range(0, M, BLOCK_M):
            offs_m = start + tl.arange(0, BLOCK_M)[:, None]
            n, p, q = offs_m // (P * Q), offs_m // Q % P, offs_m % Q
            x_ptrs = x_ptr + ((n * H + p + r) * W + q + s) * C + c
            x = tl.load(x_ptrs, mask=(offs_m < M) & (offs_j < J), other=0.0)
            dy_ptrs = dy_ptr + offs_m * O + offs_o[None, :]
            dy = tl.load(dy_ptrs, mask=(offs_m < M) & (offs_o < O)[None, :], other=0.0)
            acc = tl.dot(tl.trans(dy), x, acc, input_precision="ieee")
        dweight_ptrs = dweight_ptr + offs_o[:, None] * J + offs_j
        tl.store(dweight_ptrs, acc, mask=(offs_o < O)[:, None] & (offs_j < J))


def conv_dweight(dy, x, dweight, programs=8, BLOCK_M=16, BLOCK_O=16, BLOCK_J=16):
    (N, P, Q, O), (_, R, S, C), (H, W) = dy.shape, dweight.shape, x.shape[1:3]
    tiles_o, tiles_j = triton.cdiv(O, BLOCK_O), triton.cdiv(R * S * C, BLOCK_J)
    sizes = N * P * Q, P, Q, H, W, S, C, O, R * S * C, tiles_o, tiles_o * tiles_j
    dweight_kernel[(programs,)](dy, x, dweight, *sizes, BLOCK_M=BLOCK_M, BLOCK_O=BLOCK_O, BLOCK_J=BLOCK_J)
"""
TILES = "    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):\n"
STEPS = "        for start in range(0, M, BLOCK_M):\n"
ACC = "acc = tl.zeros((BLOCK_O, BLOCK_J), tl.float32)"
STORE = "tl.store(dweight_ptrs, acc, mask=(offs_o < O)[:, None] & (offs_j < J))"
OFFS_M = "offs_m = start + tl.arange(0, BLOCK_M)[:, None]"
DOT = 'acc = tl.dot(tl.trans(dy), x, acc, input_precision="ieee")'
BEFORE = f"    {ACC}\n{TILES}"  # ahead of all tiles


def staying_case(draw: Draw, N: int, P: int, Q: int, R: int, S: int, C: int, O: int, programs: int) -> Case:
    """One call on packed tensors, channels last."""
    dy, x = draw.normal(N, P, Q, O), draw.normal(N, P + R - 1, Q + S - 1, C)
    answer = torch.empty(O, R, S, C, dtype=torch.float64)
    for r in range(R):
        for s in range(S):
            answer[:, r, s] = torch.einsum("npqo,npqc->oc", dy.double(), x[:, r : r + P, s : s + Q].double())
    out = Output(Fenced("dweight", "ORSC", torch.empty(O, R, S, C)), answer, tolerance=1e-4)
    return Case([Fenced("dy", "NPQO", dy), Fenced("x", "NHWC", x)], [out], {"programs": programs})


FAULTY = (
    FaultyKernel(
        key="4a",
        function="conv2d",
        right=FORWARD,
        fault=(TAPS, TAPS.replace("S % R", "S % S")),
        lines=(TAPS.replace("S % R", "S % S"),),
        cause="index",
        sizes={"N": FEW, "P": SMALL, "Q": SMALL, "C": SMALL, "R": FEW, "S": FEW, "O": SMALL},
        case=forward_case,
        broken=(
            Relative("one with the same mistake at the last tap", (TAPS, TAPS.replace("offs_j % S", "offs_j % R"))),
            Relative("one with the same mistake at the channels", (TAPS, TAPS.replace("(R * S)", "(S * S)"))),
            Relative("one with the same mistake at the pixels", (PIXELS, PIXELS.replace("Q % P", "Q % Q"))),
            Relative("one with the same mistake at the images", (PIXELS, PIXELS.replace("(P * Q)", "(P * P)"))),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks", ("BLOCK_J=16):", "BLOCK_J=16):\n    BLOCK_M, BLOCK_J = 64, 32")
            ),
            Relative(
                "a right kernel that is written otherwise",
                (
                    TAPS,
                    "c, r = offs_j // (R * S), offs_j % (R * S) // S\n        s = offs_j - (c * R + r) * S",
                ),
            ),
            Relative(
                "a right kernel that numbers the pixels in another order",
                (PIXELS, "n, q, p = offs_m // (P * Q), offs_m // P % Q, offs_m % P"),
            ),
            Relative(
                "a right kernel that walks the other way",
                ("range(0, J, BLOCK_J)", "range(J - J % BLOCK_J, -1, -BLOCK_J)"),
            ),
        ),
        lesson="Lesson 40, step 2",
    ),
    FaultyKernel(
        key="4b",
        function="depthwise_dweight",
        right=DEPTHWISE,
        fault=(MASK, MASK.replace("last", "N * P * Q")),
        lines=(MASK.replace("last", "N * P * Q"),),
        cause="boundary",
        sizes={"N": FEW, "P": SMALL, "Q": SMALL, "R": FEW, "S": FEW, "C": SMALL, "BLOCK_M": BLOCKS},
        case=depthwise_case,
        broken=(
            Relative(
                "one with the same mistake at an image's other end",
                (WALK, "for start in range(first // BLOCK_M * BLOCK_M, last, BLOCK_M):"),
            ),
            Relative(
                "one with the same mistake, a pixel deep",
                (MASK, MASK.replace("offs_m < last", "offs_m < tl.minimum(last + 1, N * P * Q)")),
            ),
            Relative(
                "one with the same mistake, and where blocks are whole",
                (WALK, "for start in range(first, last + 1, BLOCK_M):", MASK, MASK.replace("last", "N * P * Q")),
            ),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks",
                ("BLOCK_C=16):", "BLOCK_C=16):\n    BLOCK_M, BLOCK_C = 4 * BLOCK_M, 4"),
            ),
            Relative(
                "a right kernel that loads more than it sums",
                (LOAD_X, LOAD_X.replace("mask=mask", "mask=(offs_m < N * P * Q) & (offs_c < C)")),
            ),
            Relative(
                "a right kernel that is written otherwise",
                (MASK, "mask = (n == image) & (offs_c < C)"),
            ),
            Relative(
                "a right kernel that walks from whole block to whole block",
                (
                    WALK,
                    "for start in range(first // BLOCK_M * BLOCK_M, last, BLOCK_M):",
                    MASK,
                    MASK.replace("(offs_m < last)", "(first <= offs_m) & (offs_m < last)"),
                ),
            ),
        ),
        lesson="Lesson 42, step 1",
    ),
    FaultyKernel(
        key="4c",
        function="conv_dweight",
        right=STAYING,
        fault=(f"        {ACC}\n", "", TILES, BEFORE),
        lines=(ACC,),
        cause="carry",
        sizes={"N": FEW, "P": SMALL, "Q": SMALL, "R": FEW, "S": FEW, "C": SMALL, "O": SMALL, "programs": PROGRAMS},
        case=staying_case,
        broken=(
            Relative(
                "one with the same mistake for some of the tiles",
                (f"        {ACC}\n", "        acc = tl.where(tile % tiles_o == 0, 0.0, acc)\n", TILES, BEFORE),
            ),
            Relative(
                "one with the same mistake in where it stands among the pixels",
                (
                    TILES,
                    f"    offs_m = tl.arange(0, BLOCK_M)[:, None]\n{TILES}",
                    f"            {OFFS_M}\n",
                    "",
                    DOT,
                    f"{DOT}\n            offs_m += BLOCK_M",
                ),
            ),
            Relative(
                "one with the opposite mistake, inside a tile",
                (STEPS, f"{STEPS}            {ACC}\n"),
            ),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks", ("BLOCK_J=16):", "BLOCK_J=16):\n    BLOCK_M, BLOCK_J = 64, 32")
            ),
            Relative("a right kernel with a program for each tile", ("[(programs,)]", "[(sizes[-1],)]")),
            Relative(
                "a right kernel whose programs take tiles that are neighbours",
                (
                    TILES,
                    "    per = tl.cdiv(tiles, tl.num_programs(0))\n"
                    "    own = tl.program_id(0) * per\n"
                    "    for tile in range(own, tl.minimum(own + per, tiles)):\n",
                ),
            ),
            Relative(
                "a right kernel that is written otherwise",
                (f"        {ACC}\n", "", TILES, BEFORE, STORE, f"{STORE}\n        {ACC}"),
            ),
        ),
        lesson="Lesson 42, step 3",
    ),
)
