"""Gradients of keys and values on Hopper GPUs, warp-specialised: which calls ``backward_kernel`` takes, and its launches.

Heads wider than 128 go through ``wide_kernel``, in the same order of items. A ``Split`` cuts the work of a
tile of keys into several items, and that of a head into several launches.
"""

from collections import namedtuple

from kernels.common.descriptors import Descriptors
from kernels.common.operator import launch
from kernels.flex_attention import problem
from kernels.flex_attention.hopper import backward_kernel, fit, scheduler, wide_kernel
from kernels.flex_attention.hopper.rows import rows_of  # noqa: F401  what ``launch_dkdv`` takes
from kernels.flex_attention.hopper.scheduler import Items, MaskLists, Sizes, Tables
from kernels.flex_attention.hopper.tiles import Descs, Tiling
from kernels.flex_attention.problem import cdiv, columns, has_edge

#: Items' keys and values in shared memory: of two, the next item's come while this one's gradients are stored.
KEPT, KEPT_TO = 2, 2048


def reason_not(p, tma):
    """Why this kernel cannot take the call, as text, or ``None``; tma: whether TMA can read the gradient of o."""
    why = fit.unfit(p, "backward_dkdv_hopper", "bwd_", 256, tma and p.tma("query", "key", "value"))
    BLOCK_M, BLOCK_N = tiles(p)
    if why is None and p.sparse and (p.SPARSE_N % BLOCK_N or p.SPARSE_M % BLOCK_M):
        return f"blocks of {p.SPARSE_M} x {p.SPARSE_N} are no multiples of {BLOCK_M} x {BLOCK_N}"
    return why


def wide(p):
    """Whether both groups own the same keys (``wide_kernel``)."""
    return max(p.D, p.Dv) > 128


def tiles(p):
    """Queries and keys of an inner step."""
    return options(p)["BLOCK_M"], fit.ROWS if wide(p) else fit.GROUPS * fit.ROWS


def options(p):
    """BLOCK_M and STAGES of the table."""
    return problem.table_options("backward_dkdv_hopper", p.key, p.device)


#: A ``Split``, the ``transposed`` lists of its band, and how long its items are, in tiles of queries.
Part = namedtuple("Part", "split lists lengths")


def _prepare(p, units, strides_of_do, STORE, lengths):
    """``(programs, sizes, items, compile-time arguments, descriptors' makers)``; lengths: of the items of a unit."""
    BLOCK_M, BLOCK_N = tiles(p)
    tiles_n = cdiv(p.N, BLOCK_N)
    count = units * tiles_n
    programs = min(count, scheduler.multiprocessors(p.device))
    if lengths is None:
        order = scheduler.tile_order(units, tiles_n, 1, programs)
    else:
        order = scheduler.tile_order_of(lengths, units, programs)
    T = tiling(p, STORE, lengths is not None, order)
    sizes, items = Sizes(p.M, p.N, p.G, p.shared, p.scale, p.unit), Items(p.Hkv, tiles_n, count)
    rows, ds = fit.described_rows(BLOCK_M), Descriptors(lambda ds: fit.descriptor(ds, [1, fit.ROWS, BLOCK_M]))
    descs = Descs(*map(fit.described, (BLOCK_M, BLOCK_M, fit.ROWS, fit.ROWS)), rows, rows, ds)
    return (programs,), sizes, items, dict(**p.mods(), T=T, num_warps=4, maxnreg=168), descs


def launch_dkdv(p, x, do, rows, out, ds, pairs, part=None):
    """Launch the kernel for ``pairs``, ``(first, count)`` of batch row and key head, into ``out``, dk and dv; ds: their
    workspace, or ``None``. part: of a ``Split``, whose units leave sums in ``out``."""
    first, count = pairs
    split, lists, lengths = (None, x.transposed, None) if part is None else part
    units = count if split is None else count * split.head_splits * split.query_splits
    prepared = p.cached(_prepare, units, do.stride(), ds is not None, lengths)
    programs, sizes, items, constants, described = prepared
    kernel = wide_kernel.attention_dkdv_wide_hopper_kernel if wide(p) else backward_kernel.attention_dkdv_hopper_kernel
    descs = fit.descs(described, (x.query, do, x.key, x.value, *rows, ds, None))
    masks, tables = MaskLists(*lists), Tables(x.score_tables, x.mask_tables)
    numbers = sizes, items._replace(first=first), split and split.given()
    launch(kernel, programs, descs, *out, *fit.strides_of(out, split), masks, tables, *numbers, **constants)


def tiling(p, STORE, split, order):
    """The kernel's ``Tiling``, of items in this order; split: whether they are a split's."""
    BLOCK_M, BLOCK_N = tiles(p)
    return Tiling(
        D=p.D,
        DV=p.Dv,
        **fit.tiles_of_blocks(p, BLOCK_M, BLOCK_N),
        SPARSE_M=p.SPARSE_M or 1,
        EDGE_M=has_edge(p.M, p.SPARSE_M, BLOCK_M),
        BLOCK_M=BLOCK_M,
        BLOCK_D=columns(p.D),
        BLOCK_DV=columns(p.Dv),
        ROWS=fit.ROWS,
        GROUPS=1 if wide(p) else fit.GROUPS,
        STAGES=options(p)["STAGES"],
        KEPT=1 if wide(p) else kept(p, split),
        STORE=STORE,
        **order,
    )


def kept(p, split):
    """Of how many items there are keys and values in shared memory; split: whether items are a split's.

    With heads above 64 it is one where the loop keeps more than the registers hold, which needs the L1 cache that two would
    take: in a split's kernel, and under a mask from KEPT_TO keys on. Without a mask the loop spills nothing; and documents'
    items are short, so what is not yet there when they begin is waited for often.
    """
    long = p.N > KEPT_TO and p.sparse and not p.documents
    return 1 if max(p.D, p.Dv) > 64 and (split or long) else KEPT
