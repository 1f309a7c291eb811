"""The clinic after part 1: a dynamic convolution over folded rows, the gradient of its input, that of shared weights."""

import torch

from kernels.check.cases import Case, Output
from kernels.check.clinics.faulty_kernel import FaultyKernel, Relative
from kernels.check.tensors import Draw, Fenced

SMALL = tuple(range(1, 41))
FEW = (1, 2, 3, 4, 5)


def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """y of x [B, T, D] and weight [B, T, D, W] in float64."""
    T, W = x.shape[1], weight.shape[-1]
    padded = torch.nn.functional.pad(x.double(), (0, 0, W - 1, 0))
    return sum(weight[..., w].double() * padded[:, w : w + T] for w in range(W))


FOLDED = """\
@triton.jit
def conv_kernel(
    x_ptr, weight_ptr, y_ptr, rows, T, D, W: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr
):
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_d = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    mask = (offs_r < rows) & (offs_d < D)
    time = offs_r % T
    acc = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)
    for w in tl.static_range(W):
        back = W - 1 - w
        seen = mask & (time >= back)
        x = tl.load(x_ptr + (offs_r - back) * D + offs_d, mask=seen, other=0.0).to(tl.float32)
        k = tl.load(weight_ptr + (offs_r * D + offs_d) * W + w, mask=mask, other=0.0).to(tl.float32)
        acc += k * x
    tl.store(y_ptr + offs_r * D + offs_d, acc, mask=mask)


def dynamic_conv(x, weight, y, BLOCK_R=16, BLOCK_D=16):
    (B, T, D), W = x.shape, weight.shape[-1]
    grid = triton.cdiv(B * T, BLOCK_R), triton.cdiv(D, BLOCK_D)
    conv_kernel[grid](x, weight, y, B * T, T, D, W, BLOCK_R=BLOCK_R, BLOCK_D=BLOCK_D)
"""
SEEN = "seen = mask & (time >= back)"


def folded_case(draw: Draw, B: int, T: int, D: int, W: int) -> Case:
    """One call on packed tensors."""
    x, weight = draw.normal(B, T, D), draw.normal(B, T, D, W)
    out = Output(Fenced("y", "BTD", torch.empty(B, T, D)), convolved(x, weight))
    return Case([Fenced("x", "BTD", x), Fenced("weight", "BTDW", weight)], [out])


BACKWARD = """\
@triton.jit
def dx_kernel(
    dy_ptr, weight_ptr, dx_ptr, T, D,
    stride_gb, stride_gt, stride_gd, stride_kb, stride_kt, stride_kd, stride_kw, stride_xb, stride_xt, stride_xd,
    W: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    offs_t = (tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    offs_d = (tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    acc = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for w in tl.static_range(W):
        ahead = offs_t + (W - 1 - w)
        seen = (ahead < T) & (offs_d < D)
        dy_ptrs = dy_ptr + b * stride_gb + ahead * stride_gt + offs_d * stride_gd
        k_ptrs = weight_ptr + b * stride_kb + ahead * stride_kt + offs_d * stride_kd + w * stride_kw
        dy = tl.load(dy_ptrs, mask=seen, other=0.0).to(tl.float32)
        k = tl.load(k_ptrs, mask=seen, other=0.0).to(tl.float32)
        acc += k * dy
    dx_ptrs = dx_ptr + b * stride_xb + offs_t * stride_xt + offs_d * stride_xd
    tl.store(dx_ptrs, acc, mask=(offs_t < T) & (offs_d < D))


def dynamic_conv_dx(dy, weight, dx, BLOCK_T=16, BLOCK_D=16):
    (B, T, D), W = dy.shape, weight.shape[-1]
    grid = B, triton.cdiv(T, BLOCK_T), triton.cdiv(D, BLOCK_D)
    strides = *dy.stride(), *weight.stride(), *dx.stride()
    dx_kernel[grid](dy, weight, dx, T, D, *strides, W, BLOCK_T=BLOCK_T, BLOCK_D=BLOCK_D)
"""
K_PTRS = "k_ptrs = weight_ptr + b * stride_kb + ahead * stride_kt + offs_d * stride_kd + w * stride_kw"


def backward_case(draw: Draw, B: int, T: int, D: int, W: int, layout: str) -> Case:
    """One call with the weights laid out in memory as ``layout`` says."""
    dy, weight = draw.normal(B, T, D), draw.normal(B, T, D, W)
    dx = torch.zeros(B, T, D, dtype=torch.float64)
    for w in range(W):
        back = W - 1 - w
        dx[:, : T - back] += (weight[..., w] * dy).double()[:, back:] if back < T else 0.0
    inputs = [Fenced("dy", "BTD", dy), Fenced("weight", "BTDW", weight, order=layout)]
    return Case(inputs, [Output(Fenced("dx", "BTD", torch.empty(B, T, D)), dx)])


SHARED = """\
@triton.jit
def dweight_kernel(
    dy_ptr, x_ptr, dweight_ptr, T, D, W: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    b = tl.program_id(0).to(tl.int64)
    offs_t = (tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    offs_d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = (offs_t < T) & (offs_d < D)[None, :]
    dy = tl.load(dy_ptr + (b * T + offs_t) * D + offs_d[None, :], mask=mask, other=0.0).to(tl.float32)
    for w in tl.static_range(W):
        time = offs_t - (W - 1 - w)
        seen = mask & (time >= 0)
        x = tl.load(x_ptr + (b * T + time) * D + offs_d[None, :], mask=seen, other=0.0).to(tl.float32)
        part = tl.sum(dy * x, axis=0)
        tl.atomic_add(dweight_ptr + offs_d * W + w, part, mask=offs_d < D)


def shared_dweight(dy, x, dweight, BLOCK_T=16, BLOCK_D=16):
    (B, T, D), W = x.shape, dweight.shape[-1]
    dweight.zero_()
    grid = B, triton.cdiv(T, BLOCK_T), triton.cdiv(D, BLOCK_D)
    dweight_kernel[grid](dy, x, dweight, T, D, W, BLOCK_T=BLOCK_T, BLOCK_D=BLOCK_D)
"""
ADD = "tl.atomic_add(dweight_ptr + offs_d * W + w, part, mask=offs_d < D)"
OLD = "old = tl.load(dweight_ptr + offs_d * W + w, mask=offs_d < D, other=0.0)"
NEW = "tl.store(dweight_ptr + offs_d * W + w, old + part, mask=offs_d < D)"
ALONE = """\
@triton.jit
def dweight_kernel(dy_ptr, x_ptr, dweight_ptr, B, T, D, W: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    offs_d, w = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D), tl.program_id(1)
    total = tl.zeros((BLOCK_D,), tl.float32)
    for b in range(B):
        for start in range(0, T, BLOCK_T):
            offs_t = (start + tl.arange(0, BLOCK_T))[:, None]
            mask = (offs_t < T) & (offs_d < D)[None, :]
            time = offs_t - (W - 1 - w)
            dy = tl.load(dy_ptr + (b * T + offs_t) * D + offs_d[None, :], mask=mask, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + (b * T + time) * D + offs_d[None, :], mask=mask & (time >= 0), other=0.0)
            total += tl.sum(dy * x.to(tl.float32), axis=0)
    tl.store(dweight_ptr + offs_d * W + w, total, mask=offs_d < D)


def shared_dweight(dy, x, dweight, BLOCK_T=16, BLOCK_D=16):
    (B, T, D), W = x.shape, dweight.shape[-1]
    dweight_kernel[(triton.cdiv(D, BLOCK_D), W)](dy, x, dweight, B, T, D, W, BLOCK_T=BLOCK_T, BLOCK_D=BLOCK_D)
"""


def either(axis: int) -> str:
    """The sum with atomics where a launch has several programs along ``axis``, and a load and a store where it has one."""
    return f"""if tl.num_programs({axis}) > 1:
            {ADD}
        else:
            {OLD}
            {NEW}"""


def shared_case(draw: Draw, B: int, T: int, D: int, W: int) -> Case:
    """One call on packed tensors."""
    dy, x = draw.normal(B, T, D), draw.normal(B, T, D)
    padded = torch.nn.functional.pad(x.double(), (0, 0, W - 1, 0))
    answer = torch.stack([(dy.double() * padded[:, w : w + T]).sum((0, 1)) for w in range(W)], dim=1)
    out = Output(Fenced("dweight", "DW", torch.empty(D, W)), answer, tolerance=1e-4)
    out.tensor.erase()
    return Case([Fenced("dy", "BTD", dy), Fenced("x", "BTD", x)], [out])


FAULTY = (
    FaultyKernel(
        key="1a",
        function="dynamic_conv",
        right=FOLDED,
        fault=(SEEN, "seen = mask & (offs_r >= back)"),
        lines=("seen = mask & (offs_r >= back)",),
        cause="boundary",
        sizes={"B": FEW, "T": SMALL, "D": SMALL, "W": FEW},
        case=folded_case,
        broken=(
            Relative(
                "one with the same mistake at one tap",
                (SEEN, "seen = mask & ((time >= back) | ((w == 0) & (offs_r >= back)))"),
            ),
            Relative(
                "one with the same mistake, a step deep", (SEEN, "seen = mask & (time >= back - 1) & (offs_r >= back)")
            ),
            Relative(
                "one that protects too few steps", (SEEN, "seen = mask & ((back == 0) | (time > 0)) & (offs_r >= back)")
            ),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks", ("BLOCK_D=16):", "BLOCK_D=16):\n    BLOCK_R, BLOCK_D = 64, 4")
            ),
            Relative(
                "a right kernel that walks the taps the other way",
                ("back = W - 1 - w", "back = w", "* W + w,", "* W + (W - 1 - w),"),
            ),
            Relative(
                "a right kernel that is written otherwise",
                (SEEN, "seen = mask & (offs_r >= back) & ((offs_r - back) // T == offs_r // T)"),
            ),
        ),
        lesson="Lesson 10, step 2",
    ),
    FaultyKernel(
        key="1b",
        function="dynamic_conv_dx",
        right=BACKWARD,
        fault=(K_PTRS, K_PTRS.replace("w * stride_kw", "w")),
        lines=(K_PTRS.replace("w * stride_kw", "w"),),
        cause="stride",
        sizes={"B": FEW, "T": SMALL, "D": SMALL, "W": FEW, "layout": ("BTDW", "WBTD")},
        case=backward_case,
        broken=(
            Relative("one with the same mistake at another tensor", ("ahead * stride_gt", "ahead * D")),
            Relative("one with the same mistake at the result", ("offs_t * stride_xt", "offs_t * D")),
            Relative("one with the same mistake along another axis", ("b * stride_kb", "b * T * D * W")),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks", ("BLOCK_D=16):", "BLOCK_D=16):\n    BLOCK_T, BLOCK_D = 8, 64")
            ),
            Relative(
                "a right kernel that copies before it starts",
                ("    strides = *dy", "    weight = weight.contiguous()\n    strides = *dy"),
            ),
            Relative(
                "a right kernel that walks the taps the other way",
                ("ahead = offs_t + (W - 1 - w)", "ahead = offs_t + w", "w * stride_kw", "(W - 1 - w) * stride_kw"),
            ),
        ),
        lesson="Lesson 11, step 2",
    ),
    FaultyKernel(
        key="1c",
        function="shared_dweight",
        right=SHARED,
        fault=(ADD, f"{OLD}\n        {NEW}"),
        lines=(OLD, NEW),
        cause="race",
        sizes={"B": FEW, "T": SMALL, "D": SMALL, "W": FEW},
        case=shared_case,
        broken=(
            Relative("one with the same mistake for long sequences", (ADD, either(0))),
            Relative("one with the same mistake for several short sequences", (ADD, either(1))),
            Relative("one with the same mistake, seen in the numbers too", (ADD, NEW.replace("old + part", "part"))),
        ),
        sound=(
            Relative(
                "a right kernel with other blocks", ("BLOCK_D=16):", "BLOCK_D=16):\n    BLOCK_T, BLOCK_D = 4, 32")
            ),
            Relative("a right kernel that sums in another order", (SHARED, ALONE)),
            Relative(
                "a right kernel that is written otherwise",
                ("dweight.zero_()", "dweight.copy_(0.0 * dweight.nan_to_num())"),
            ),
        ),
        lesson="Lesson 12, step 4",
        races=True,
    ),
)
