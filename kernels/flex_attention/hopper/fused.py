"""The launch of ``fused_kernel``, which calls it takes and where it is the faster way, and dq from its sums."""

import torch
import triton
import triton.language as tl

from kernels.common import gluon as common_gluon
from kernels.common.descriptors import Descriptors
from kernels.common.operator import launch
from kernels.flex_attention import problem, stored_ds
from kernels.flex_attention.hopper import fit, fused_kernel, parts, scheduler, visits
from kernels.flex_attention.hopper.scheduler import Items, Sizes, Tables
from kernels.flex_attention.hopper.tiles import Descs, Tiling
from kernels.flex_attention.plain import Strides
from kernels.flex_attention.problem import cdiv, has_edge

if common_gluon.gluon is not None:
    from triton.experimental.gluon import language as gl

BLOCK_N = fit.GROUPS * fit.ROWS
WORKSPACE = 2**31  # bytes for the sums of dq; what has more is cut into parts


@triton.jit(do_not_specialize=["Hq", "first", "blocks"])
def dq_kernel(
    sums_ptr,
    counters_ptr,
    dq_ptr,
    strides,
    scale,
    M,
    Hq,
    first,
    blocks,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
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
    at = dq_ptr + b * strides.b + h * strides.h + offs_m.to(tl.int64)[:, None] * strides.n
    at += offs_d.to(tl.int64)[None, :] * strides.d
    tl.store(at, x, mask=(offs_m < M)[:, None] & (offs_d < D)[None, :])


def options(p):
    """Of the table: BLOCK_M, WIDTH, STAGES, OVERLAP (whether dq is a tile late), FROM and BY_DATA (see ``slower``)."""
    return problem.table_options("backward_hopper", p.key, p.device)


def reason_not(p, tma=True):
    """Why this kernel cannot take the call, as text, or ``None``; tma: whether TMA can read the gradient of o."""
    return unfit(p, tma) or slower(p)


def unfit(p, tma=True):
    """The same, whatever is faster."""
    why = fit.unfit(p, "backward_hopper", "bwd_", 128, tma and p.tma("query", "key", "value"))
    BLOCK_M = options(p)["BLOCK_M"]
    if why is None and p.sparse and (p.SPARSE_N % BLOCK_N or p.SPARSE_M % BLOCK_M):
        return f"blocks of {p.SPARSE_M} x {p.SPARSE_N} are no multiples of {BLOCK_M} x {BLOCK_N}"
    return why


def slower(p):
    """Why the kernel that leaves ds in a workspace is faster, as text, or ``None``.

    Four products, and the fifth in a kernel of its own, need no counters; but the workspace, which grows with the square of
    the length, must hold enough heads for the items of a launch to fill the GPU. From FROM keys on, if the table has a
    number, counters are the faster way whatever it holds; and where the table says BY_DATA, wherever the workspace does not
    hold all heads and the mask asks a tensor, such as documents' numbers: few of its blocks are visited, and short launches
    of items of unknown length each end in a wait. Documents of which it does hold all heads keep ds, however long they are:
    that is written for the blocks that are visited, and dq's sums for all queries.
    """
    if p.options.get("WORKSPACE", 1) == 0:
        return "kernel_options allow no WORKSPACE"
    if "WORKSPACE" in p.options and bytes_of(p) > workspace(p):
        return f"dq's sums for a key head take {bytes_of(p)} bytes, more than the WORKSPACE of kernel_options"
    heads = p.cached(stored_ds.heads)
    few = heads < p.Bkv * p.Hkv
    if 0 < options(p)["FROM"] <= p.N and (few or not p.documents):
        return None
    if few:
        if 2 * heads * cdiv(p.N, BLOCK_N) < 3 * scheduler.multiprocessors(p.device):
            return None
        if options(p)["BY_DATA"] and p.masked_by_data:
            return None
    return f"the workspace holds ds of {heads} key heads, enough for a launch"


def workspace(p):
    """Bytes for the sums of dq."""
    return p.options.get("WORKSPACE", WORKSPACE)


def at_once(p, splits=1):
    """How many pairs of batch row and key head a launch has: of which dq's sums fit, at least one; and of several splits,
    those of dk and dv with them, maybe none."""
    size = bytes_of(p)
    most = min(p.Bkv * p.Hkv, max(1, workspace(p) // max(size, 1)))
    available = workspace(p) + parts.most(workspace(p))
    return most if splits == 1 else min(most, available // max(size + splits * parts.bytes_of(p), 1))


def bytes_of(p):
    """Of dq's sums for one pair of batch row and key head."""
    BLOCK_M, WIDTH = options(p)["BLOCK_M"], options(p)["WIDTH"]
    return p.shared * p.G * p.cached(_blocks) * WIDTH * columns(p.D, BLOCK_M, WIDTH) * 4


def _blocks(p):
    """Blocks of WIDTH queries of a head in dq's sums."""
    multiple = max(p.SPARSE_M, 128)
    return cdiv(p.M, multiple) * multiple // options(p)["WIDTH"]


def _prepare(p, strides_of_do, heads, count, splits):
    """``(programs, sizes, items, compile-time arguments, descriptors' makers)`` of so many pairs, whose heads are shared
    out among ``splits`` items, each with so many of them."""
    tiles_n, units = cdiv(p.N, BLOCK_N), count * splits
    programs = min(units * tiles_n, scheduler.multiprocessors(p.device))
    bundle, serpentine = visits.bundle_order(units, tiles_n, programs, p.sparse, None if splits == 1 else heads)
    T = tiling(p, serpentine)
    items = Items(p.Hkv, tiles_n, units * tiles_n, bundle=bundle, blocks=p.cached(_blocks))
    sizes, rows = Sizes(p.M, p.N, p.G, p.shared, p.scale, p.unit), fit.described_rows(T.BLOCK_M)
    layout = gl.NVMMASharedLayout.get_default_for([64, T.WIDTH], gl.float32)
    descs = Descs(
        q=fit.described(T.BLOCK_M, T.BLOCK_D),
        do=fit.described(T.BLOCK_M),
        k=fit.described(T.ROWS, T.BLOCK_D),
        v=fit.described(T.ROWS),
        lse=rows,
        delta=rows,
        dq=Descriptors(lambda sums: common_gluon.describe(sums, [64, T.WIDTH], layout)),
    )
    return (programs,), sizes, items, dict(**p.mods(), T=T, num_warps=4, maxnreg=168), descs


def gradients_of(p, x, do, rows, dq, dk, dv, splits=1):
    """Launch the kernel and ``dq_kernel`` for all pairs of batch row and key head, as many at a time as fit WORKSPACE; the
    heads of queries of a pair are shared out among ``splits`` items."""
    most, pairs, each = p.cached(at_once, splits), p.Bkv * p.Hkv, p.shared * p.G
    blocks, T = p.cached(_blocks), p.cached(tiling, False)
    split, out = None, (dk, dv)
    if splits > 1:
        split = scheduler.Split(0, each, splits, 1, 0, p.M, 1)
        out = parts.sums(most * splits, p, x.query.device)
    new = lambda *shape, dtype: torch.empty(shape, dtype=dtype, device=x.query.device)  # noqa: E731
    sums = new(most * each * blocks * T.BLOCK_D, T.WIDTH, dtype=torch.float32)
    counters = new(most * each, blocks * T.WIDTH // T.BLOCK_M, dtype=torch.int32)
    to_dq = {"D": p.D, "BLOCK_D": T.BLOCK_D, "WIDTH": T.WIDTH, "BLOCK_M": T.BLOCK_M}
    tables, visited = Tables(x.score_tables, x.mask_tables), visits.visits_of(p, x)
    for first in range(0, pairs, most):
        count = min(most, pairs - first)
        programs, sizes, items, constants, described = p.cached(
            _prepare, do.stride(), cdiv(each, splits), count, splits
        )
        counters.zero_()
        descs = fit.descs(described, (x.query, do, x.key, x.value, *rows, None, sums))
        into = counters, *out, *fit.strides_of(out, split)
        numbers = *items._replace(first=first), split and split.given()
        kernel = fused_kernel.attention_gradients_hopper_kernel
        launch(kernel, programs, descs, *into, visited, tables, sizes, *numbers, **constants)
        numbers = p.scale, p.M, p.Hq, first * each, blocks
        launch(dq_kernel, (count * each * blocks,), sums, counters, dq, Strides(*dq.stride()), *numbers, **to_dq)
        if split is not None:
            parts.add_up(p, out, splits, dk, dv, first, count)


def columns(D, BLOCK_M, WIDTH):
    """Columns of a tile of q and k: dq's 64 rows are all of a head's columns where groups share out queries, else half."""
    return max(problem.columns(D), 64 if WIDTH < BLOCK_M else 128)


def tiling(p, serpentine):
    """The kernel's ``Tiling``."""
    BLOCK_M, WIDTH, STAGES = (options(p)[name] for name in ("BLOCK_M", "WIDTH", "STAGES"))
    return Tiling(
        D=p.D,
        DV=p.Dv,
        **fit.tiles_of_blocks(p, BLOCK_M, BLOCK_N),
        SPARSE_M=p.SPARSE_M or 1,
        EDGE_M=has_edge(p.M, p.SPARSE_M, BLOCK_M),
        BLOCK_M=BLOCK_M,
        BLOCK_D=columns(p.D, BLOCK_M, WIDTH),
        BLOCK_DV=problem.columns(p.Dv),
        ROWS=fit.ROWS,
        GROUPS=fit.GROUPS,
        STAGES=STAGES,
        WIDTH=WIDTH,
        OVERLAP=bool(options(p)["OVERLAP"]),
        SERPENTINE=serpentine,
    )
