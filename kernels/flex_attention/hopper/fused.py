"""The launch of ``fused_kernel``, which calls it takes and where it is the faster way, and dq from its sums."""

import torch
import triton
import triton.language as tl

from kernels.common.launch import launch
from kernels.flex_attention import problem
from kernels.flex_attention.hopper import dealing, fit, fused_kernel, walks
from kernels.flex_attention.portable.stored_ds import heads_with_stored_ds

if fit.gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

BLOCK_N = fit.GROUPS * fit.ROWS
WORKSPACE = 2**31  # bytes for the sums of dq; what has more is cut into parts


@triton.jit(do_not_specialize=["Hq", "first", "blocks"])
def dq_kernel(
    sums_ptr, counters_ptr, dq_ptr, scale, M, Hq, first, blocks, stride_b, stride_h, stride_m, stride_d,
    D: tl.constexpr, BLOCK_D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dq of WIDTH queries: their sums [blocks, BLOCK_D, WIDTH] scaled, rounded and transposed; zero where nobody came."""
    pid = tl.program_id(0)
    block = pid % blocks
    slot = (pid // blocks).to(tl.int64)
    b, h = (first + slot) // Hq, (first + slot) % Hq
    came = tl.load(counters_ptr + slot * (blocks * WIDTH // BLOCK_M) + block * WIDTH // BLOCK_M)
    offs_d, offs_m = tl.arange(0, BLOCK_D), tl.arange(0, WIDTH)
    at = sums_ptr + (slot * blocks + block) * BLOCK_D * WIDTH
    here = (offs_m < tl.where(came > 0, WIDTH, 0))[None, :]
    x = tl.load(at + offs_d[:, None] * WIDTH + offs_m[None, :], mask=here, other=0.0)
    x = tl.trans(x * scale).to(dq_ptr.dtype.element_ty)
    offs_m += block * WIDTH
    at = dq_ptr + b * stride_b + h * stride_h + offs_m.to(tl.int64)[:, None] * stride_m
    at += offs_d.to(tl.int64)[None, :] * stride_d
    tl.store(at, x, mask=(offs_m < M)[:, None] & (offs_d < D)[None, :])


def options(p):
    """BLOCK_M, WIDTH, STAGES and FROM of the table."""
    return problem.table_options("backward_hopper", p.key, p.device)


def reason_not(p, query, key, value, do):
    """Why this kernel cannot take the call, as text, or ``None``."""
    why = fit.unfit(p, "backward_hopper", "bwd_", 128, query, key, value, do)
    BLOCK_M = options(p)["BLOCK_M"]
    if why is None and p.block_mask is not None and (p.SPARSE_N % BLOCK_N or p.SPARSE_M % BLOCK_M):
        return f"blocks of {p.SPARSE_M} x {p.SPARSE_N} are no multiples of {BLOCK_M} x {BLOCK_N}"
    return why or slower(p, key)


def slower(p, key):
    """Why the kernel that leaves ds in a workspace is faster, as text, or ``None``.

    Four products, and the fifth in a kernel of its own, need no counters; but the workspace, which grows with the square of
    the length, must hold enough heads for the items of a launch to fill the GPU. From FROM keys on, if the table has a
    number, counters are the faster way whatever it holds.
    """
    if p.options.get("WORKSPACE", 1) == 0:
        return "kernel_options allow no WORKSPACE"
    if 0 < options(p)["FROM"] <= p.N:
        return None
    heads = heads_with_stored_ds(p, key.shape[0] * p.Hkv, p.shared(key))
    if 2 * heads * triton.cdiv(p.N, BLOCK_N) < 3 * dealing.multiprocessors(p.device) and heads < key.shape[0] * p.Hkv:
        return None
    return f"the workspace holds ds of {heads} key heads, enough for a launch"


def gradients_of(p, query, key, value, do, rows, dq, dk, dv):
    """Launch the kernel and ``dq_kernel`` for all pairs of batch row and key head, as many at a time as fit WORKSPACE."""
    BLOCK_M, WIDTH = options(p)["BLOCK_M"], options(p)["WIDTH"]
    BLOCK_D = columns(p.D, BLOCK_M, WIDTH)
    pairs, each = key.shape[0] * p.Hkv, p.shared(key) * p.G
    multiple = max(p.SPARSE_M, 128)
    blocks = triton.cdiv(p.M, multiple) * multiple // WIDTH
    size = each * blocks * WIDTH * BLOCK_D * 4
    at_once = min(pairs, max(1, p.options.get("WORKSPACE", WORKSPACE) // max(size, 1)))
    sums = torch.empty(at_once * each * blocks * BLOCK_D, WIDTH, dtype=torch.float32, device=query.device)
    counters = torch.empty(at_once * each, blocks * WIDTH // BLOCK_M, dtype=torch.int32, device=query.device)
    tiles_n = triton.cdiv(p.N, BLOCK_N)
    for first in range(0, pairs, at_once):
        count = min(at_once, pairs - first)
        items = count * tiles_n
        programs = min(items, dealing.multiprocessors(p.device))
        bundle, back_and_forth = walks.dealt(count, tiles_n, programs, p.block_mask is not None)
        counters.zero_()
        launch(
            fused_kernel.attention_gradients_hopper_kernel,
            (programs,),
            *arguments(p, query, key, value, do, rows, sums, counters, dk, dv, first, items, bundle, blocks),
            outputs=(dk, dv), BACK_AND_FORTH=back_and_forth, **compile_time(p), num_warps=4, maxnreg=168,
        )  # fmt: skip
        launch(
            dq_kernel,
            (count * each * blocks,),
            sums, counters, dq, p.scale, p.M, p.Hq, first * each, blocks, *dq.stride(), outputs=(dq,),
            D=p.D, BLOCK_D=BLOCK_D, WIDTH=WIDTH, BLOCK_M=BLOCK_M,
        )  # fmt: skip


def columns(D, BLOCK_M, WIDTH):
    """Columns of a tile of q and k: dq's 64 rows are all of a head's columns where groups share out queries, else half."""
    return max(fit.columns(D), 64 if WIDTH < BLOCK_M else 128)


def arguments(p, query, key, value, do, rows, sums, counters, dk, dv, first, items, bundle, blocks):
    """What the kernel is launched with: descriptors in place of everything it reads by tiles, and of dq's sums."""
    BLOCK_M, WIDTH, ROWS = options(p)["BLOCK_M"], options(p)["WIDTH"], fit.ROWS
    BLOCK_D = columns(p.D, BLOCK_M, WIDTH)
    row_layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    dq_layout = gl.NVMMASharedLayout.get_default_for([64, WIDTH], gl.float32)
    return (
        fit.described(query, BLOCK_M, BLOCK_D), fit.described(do, BLOCK_M),
        fit.described(key, ROWS, BLOCK_D), fit.described(value, ROWS),
        *(TensorDescriptor(r, list(r.shape), list(r.stride()), [1, BLOCK_M], row_layout) for r in rows),
        TensorDescriptor(sums, list(sums.shape), list(sums.stride()), [64, WIDTH], dq_layout),
        counters, dk, dv, walks.walk_of(p), p.score_tables, p.mask_tables, p.scale, p.unit, p.M, p.N, p.Hkv, p.G,
        triton.cdiv(p.N, BLOCK_N), p.shared(key), first, items, bundle, blocks, *dk.stride(), *dv.stride(),
    )  # fmt: skip


def compile_time(p):
    """The kernel's compile-time arguments but the order of items."""
    BLOCK_M, WIDTH, STAGES = (options(p)[name] for name in ("BLOCK_M", "WIDTH", "STAGES"))
    return {
        "SCORE_MOD": p.score_mod,
        "SCORE_GRADIENT": p.score_gradient,
        "MASK_MOD": p.mask_mod,
        "D": p.D,
        "DV": p.Dv,
        "SPARSE": p.block_mask is not None,
        "TILES_M": max(1, p.SPARSE_M // BLOCK_M),
        "TILES_N": max(1, p.SPARSE_N // BLOCK_N),
        "SPARSE_M": p.SPARSE_M or 1,
        "EDGE_M": p.M % max(BLOCK_M, p.SPARSE_M) != 0,
        "BLOCK_M": BLOCK_M,
        "BLOCK_D": columns(p.D, BLOCK_M, WIDTH),
        "BLOCK_DV": fit.columns(p.Dv),
        "WIDTH": WIDTH,
        "ROWS": fit.ROWS,
        "GROUPS": fit.GROUPS,
        "STAGES": STAGES,
    }
