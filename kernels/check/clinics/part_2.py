"""The clinic after part 2: a state that grows, sums of gates in blocks, a gradient that walks backwards in time."""

import torch

from kernels.check.cases import Case, Output
from kernels.check.clinics.faulty_kernel import FaultyKernel, Relative
from kernels.check.tensors import Draw, Fenced

SMALL = tuple(range(1, 33))
FEW = (1, 2, 3, 4, 5)
BLOCKS = (1, 2, 4, 8, 16, 32)

LINEAR = """\
@triton.jit
def linear_kernel(q_ptr, k_ptr, v_ptr, o_ptr, T, K, V, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_k, mask_v = offs_k < K, offs_v < V
    S = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    for t in range(T):
        row = b * T + t
        q = tl.load(q_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + row * V + offs_v, mask=mask_v, other=0.0).to(tl.float32)
        S = S + k[:, None] * v[None, :]
        o = tl.sum(q[:, None] * S, axis=0)
        tl.store(o_ptr + row * V + offs_v, o, mask=mask_v)


def linear_attention(q, k, v, o, BLOCK_V=16):
    (B, T, K), V = q.shape, v.shape[-1]
    grid = B, triton.cdiv(V, BLOCK_V)
    linear_kernel[grid](q, k, v, o, T, K, V, BLOCK_K=triton.next_power_of_2(K), BLOCK_V=BLOCK_V)
"""
ZEROS = "S = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)"
WRITE = "S = S + k[:, None] * v[None, :]"
READ = "o = tl.sum(q[:, None] * S, axis=0)"
HALF_WRITE = "S = (S + k[:, None] * v[None, :]).to(tl.float16)"


def linear_case(draw: Draw, B: int, T: int, K: int, V: int) -> Case:
    """One call on float16 ones, with a first value that is large; o is float32."""
    q, k, v = torch.ones(B, T, K).half(), torch.ones(B, T, K).half(), torch.ones(B, T, V).half()
    v[:, 0] = 2048
    answer = K * v.double().cumsum(1)
    inputs = [Fenced("q", "BTK", q), Fenced("k", "BTK", k), Fenced("v", "BTV", v)]
    return Case(inputs, [Output(Fenced("o", "BTV", torch.empty(B, T, V)), answer)])


PREFIX = """\
@triton.jit
def prefix_kernel(g_ptr, c_ptr, T, stride_gb, stride_gt, stride_cb, stride_ct, BLOCK_T: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    carried = 0.0
    for start in range(0, T, BLOCK_T):
        offs_t = start + tl.arange(0, BLOCK_T)
        mask_t = offs_t < T
        g = tl.load(g_ptr + b * stride_gb + offs_t * stride_gt, mask=mask_t, other=0.0).to(tl.float32)
        c = carried + tl.cumsum(g, axis=0)
        tl.store(c_ptr + b * stride_cb + offs_t * stride_ct, c, mask=mask_t)
        carried = carried + tl.sum(g, axis=0)


def gate_sums(g, c, BLOCK_T=16):
    B, T = g.shape
    prefix_kernel[(B,)](g, c, T, *g.stride(), *c.stride(), BLOCK_T=BLOCK_T)
"""
CARRY = "carried = carried + tl.sum(g, axis=0)"
STORED = "tl.store(c_ptr + b * stride_cb + offs_t * stride_ct, c, mask=mask_t)"
LAST = "last = start + BLOCK_T - 1"
READ_BACK = "carried = tl.load(c_ptr + b * stride_cb + last * stride_ct, mask=last < T, other=0.0)"
BY_MEMORY = f"{LAST}\n        {READ_BACK}"
BLOCK = "offs_t = start + tl.arange(0, BLOCK_T)"
FIRST = "carried = tl.load(c_ptr + b * stride_cb + (start - 1) * stride_ct, mask=start > 0, other=0.0)"


def prefix_case(draw: Draw, B: int, T: int, BLOCK_T: int) -> Case:
    """One call on gates."""
    g = -draw.normal(B, T).abs()
    fence = {"B": 2, "T": 64}
    out = Output(Fenced("c", "BT", torch.empty(B, T), fence=fence), g.double().cumsum(1))
    return Case([Fenced("g", "BT", g, fence=fence)], [out], {"BLOCK_T": BLOCK_T})


BACKWARD = """\
@triton.jit
def dv_kernel(q_ptr, k_ptr, g_ptr, do_ptr, dv_ptr, T, K, V, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_k, mask_v = offs_k < K, offs_v < V
    dS = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    for step in range(T):
        row = b * T + (T - 1 - step)
        q = tl.load(q_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        do = tl.load(do_ptr + row * V + offs_v, mask=mask_v, other=0.0).to(tl.float32)
        dS = dS + q[:, None] * do[None, :]
        tl.store(dv_ptr + row * V + offs_v, tl.sum(k[:, None] * dS, axis=0), mask=mask_v)
        g = tl.load(g_ptr + row).to(tl.float32)
        dS = dS * tl.exp(g)


def gated_dv(q, k, g, do, dv, BLOCK_V=16):
    (B, T, K), V = q.shape, do.shape[-1]
    grid = B, triton.cdiv(V, BLOCK_V)
    dv_kernel[grid](q, k, g, do, dv, T, K, V, BLOCK_K=triton.next_power_of_2(K), BLOCK_V=BLOCK_V)
"""
GATE = "g = tl.load(g_ptr + row).to(tl.float32)"
EARLIER = "g = tl.load(g_ptr + tl.maximum(row - 1, b * T)).to(tl.float32)"
LATER = "g = tl.load(g_ptr + tl.minimum(row + 1, b * T + T - 1)).to(tl.float32)"
ADDED = "dS = dS + q[:, None] * do[None, :]"
OWN = f"        dS = (dS + q[:, None] * do[None, :]) * tl.exp({GATE[4:]})"
DECAY = "\n        dS = dS * tl.exp(g)\n"


def backward_case(draw: Draw, B: int, T: int, K: int, V: int) -> Case:
    """One call on packed tensors."""
    q, k, g, do = draw.normal(B, T, K), draw.normal(B, T, K), -draw.normal(B, T).abs(), draw.normal(B, T, V)
    dS, dv = torch.zeros(B, K, V, dtype=torch.float64), torch.zeros(B, T, V, dtype=torch.float64)
    for t in reversed(range(T)):
        dS = dS + q[:, t, :, None].double() * do[:, t, None, :].double()
        dv[:, t] = (k[:, t, :, None].double() * dS).sum(1)
        dS = dS * g[:, t].double().exp()[:, None, None]
    inputs = [Fenced("q", "BTK", q), Fenced("k", "BTK", k), Fenced("g", "BT", g), Fenced("do", "BTV", do)]
    return Case(inputs, [Output(Fenced("dv", "BTV", torch.empty(B, T, V)), dv)])


FAULTY = (
    FaultyKernel(
        key="2a",
        function="linear_attention",
        right=LINEAR,
        fault=(ZEROS, ZEROS.replace("float32", "float16"), WRITE, HALF_WRITE),
        lines=(HALF_WRITE, ZEROS.replace("float32", "float16")),
        cause="precision",
        sizes={"B": FEW, "T": SMALL, "K": FEW, "V": FEW},
        case=linear_case,
        broken=(
            Relative(
                "one with the same mistake in what is written",
                (WRITE, "S = S + (k[:, None] * v[None, :]).to(tl.float16)"),
            ),
            Relative(
                "one with the same mistake in what is read", (READ, "o = tl.sum(q[:, None] * S.to(tl.float16), axis=0)")
            ),
            Relative(
                "one with the same mistake at the end", (READ, "o = tl.sum(q[:, None] * S, axis=0).to(tl.float16)")
            ),
        ),
        sound=(
            Relative("a right kernel with other blocks", ("BLOCK_V=16):", "BLOCK_V=16):\n    BLOCK_V = 4")),
            Relative(
                "a right kernel with wider blocks",
                ("BLOCK_K=triton.next_power_of_2(K)", "BLOCK_K=4 * triton.next_power_of_2(K)"),
            ),
            Relative(
                "a right kernel that is written otherwise",
                (READ, "o = tl.sum(S * q[:, None].to(tl.float16).to(tl.float32), axis=0)"),
            ),
        ),
        lesson="Lesson 20, step 3",
    ),
    FaultyKernel(
        key="2b",
        function="gate_sums",
        right=PREFIX,
        fault=(CARRY, BY_MEMORY),
        lines=(STORED, READ_BACK),
        cause="race",
        sizes={"B": FEW, "T": SMALL, "BLOCK_T": BLOCKS},
        case=prefix_case,
        broken=(
            Relative(
                "one with the same mistake at a block's start", (BLOCK, f"{FIRST}\n        {BLOCK}", f"        {CARRY}\n", "")
            ),
            Relative(
                "one with the same mistake, several blocks later",
                (CARRY, f"{CARRY}\n        if start >= 2 * BLOCK_T:\n            {LAST}\n            {READ_BACK}"),
            ),
            Relative(
                "one with a barrier where it does not help",
                (STORED, f"tl.debug_barrier()\n        {STORED}", CARRY, BY_MEMORY),
            ),
        ),
        sound=(
            Relative("a right kernel with longer blocks", ("BLOCK_T=BLOCK_T)", "BLOCK_T=4 * BLOCK_T)")),
            Relative("a right kernel with blocks of one", ("BLOCK_T=BLOCK_T)", "BLOCK_T=1)")),
            Relative("a right kernel with a barrier", (CARRY, f"tl.debug_barrier()\n        {BY_MEMORY}")),
            Relative(
                "a right kernel that is written otherwise",
                (CARRY, "carried = tl.sum(tl.where(offs_t == start + BLOCK_T - 1, c, 0.0), axis=0)"),
            ),
        ),
        lesson="Lesson 24, step 2",
    ),
    FaultyKernel(
        key="2c",
        function="gated_dv",
        right=BACKWARD,
        fault=(GATE, EARLIER),
        lines=(EARLIER,),
        cause="time",
        sizes={"B": FEW, "T": SMALL, "K": FEW, "V": FEW},
        case=backward_case,
        broken=(
            Relative("one with the same mistake in the other direction", (GATE, LATER)),
            Relative(
                "one with the same mistake by the order of two lines",
                (
                    GATE,
                    "",
                    DECAY,
                    "\n",
                    f"        {ADDED}",
                    f"        {GATE}\n        dS = dS * tl.exp(g)\n        {ADDED}",
                ),
            ),
            Relative(
                "one with the same mistake, in which a step decays itself",
                (
                    f"        {ADDED}",
                    OWN,
                    GATE,
                    "g = 0.0",
                ),
            ),
        ),
        sound=(
            Relative("a right kernel with other blocks", ("BLOCK_V=16):", "BLOCK_V=16):\n    BLOCK_V = 4")),
            Relative(
                "a right kernel that is written otherwise",
                ("dS = dS * tl.exp(g)", "dS = dS * tl.exp2(g * 1.4426950408889634)"),
            ),
            Relative(
                "a right kernel with wider blocks",
                ("BLOCK_K=triton.next_power_of_2(K)", "BLOCK_K=4 * triton.next_power_of_2(K)"),
            ),
        ),
        lesson="Lesson 22, step 1",
    ),
)
