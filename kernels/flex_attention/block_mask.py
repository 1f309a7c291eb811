"""Block masks: torch's own structure, built analytically here where torch's builder would make the whole M x N mask.

A block of keys is *empty* for a block of queries (skipped), *full* (no mask code runs) or *partial* (``mask_mod`` runs).
A ``BlockMask`` lists for every block of queries its partial and its full blocks of keys, and the same transposed.
"""

import numbers

import torch
from torch.nn.attention.flex_attention import BlockMask

from kernels import runtime
from kernels.common.checks import check_tensor, is_whole, shown
from kernels.flex_attention import mods


def ordered_lists(blocks):
    """``(num_blocks [..., R], indices [..., R, C])`` int32 of the true entries of ``blocks``, bool [..., R, C]."""
    indices = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    # A transposed matrix's argsort has transposed strides, which torch's own kernels do not look at.
    return blocks.sum(-1, dtype=torch.int32), indices.to(torch.int32).contiguous()


def dense_blocks(num_blocks, indices, columns):
    """The inverse of ``ordered_lists``: bool [..., R, columns]; entries past ``num_blocks`` and past the end don't count."""
    listed = torch.arange(indices.shape[-1], device=indices.device) < num_blocks[..., None]
    blocks = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    blocks.scatter_(-1, torch.where(listed & (indices < columns), indices, columns).long(), True)
    return blocks[..., :columns]


def block_mask_from_dense(some, full, mask_mod, M, N, BLOCK_SIZE):
    """A ``BlockMask`` from what is known of each block.

    Args:
        some: bool [B or 1, H or 1, R, C], whether the block holds any allowed pair.
        full: the same shape, whether all of its pairs are allowed; a block that reaches past M or N is never full.
        mask_mod: what decides within blocks that hold some pairs and are not full.
        M, N: queries and keys.
        BLOCK_SIZE: ``(queries, keys)`` in a block, R = ceil(M / queries), C = ceil(N / keys).
    """
    partial = some & ~full
    return BlockMask(
        (M, N),
        *ordered_lists(partial),
        *ordered_lists(full),
        *ordered_lists(partial.mT),
        *ordered_lists(full.mT),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=mask_mod,
    )


def _edges(M, N, BLOCK_SIZE, device, offset=0):
    """Positions of the first and last query of each block of queries [R, 1], of the first and last key of each block of keys
    [1, C], and whether the block lies inside M x N; offset: the first query's."""
    BLOCK_M, BLOCK_N = BLOCK_SIZE
    q0 = torch.arange(0, M, BLOCK_M, device=device)[:, None]
    k0 = torch.arange(0, N, BLOCK_N, device=device)[None, :]
    inside = (q0 + BLOCK_M <= M) & (k0 + BLOCK_N <= N)
    q1, k1 = (q0 + BLOCK_M - 1).clamp_max(M - 1), (k0 + BLOCK_N - 1).clamp_max(N - 1)
    return q0 + offset, q1 + offset, k0, k1, inside


def _from(offset, mask_mod):
    """``mask_mod`` for queries of which the first stands at position ``offset``."""
    if not is_whole(offset):
        raise ValueError(f"offset is {shown(offset)}, needs a whole number, the position of the first query")
    return mask_mod if isinstance(offset, int) and offset == 0 else mods.with_offset(mask_mod, offset)


def _sizes(M, N, BLOCK_SIZE):
    """``(M, N, (queries, keys))`` as whole numbers, N as M if not given.

    Raises:
        ValueError: one of them is none, or too small.
    """
    N = M if N is None else N
    for name, size in (("M", M), ("N", N)):
        if not is_whole(size) or size < 0:
            raise ValueError(f"{name} is {shown(size)}, needs a whole number of tokens, at least 0")
    pair = tuple(BLOCK_SIZE) if isinstance(BLOCK_SIZE, tuple | list) else (BLOCK_SIZE, BLOCK_SIZE)
    if len(pair) != 2 or not all(is_whole(size) and size > 0 for size in pair):
        raise ValueError(f"BLOCK_SIZE is {shown(BLOCK_SIZE)}, needs a whole number of at least 1, or (queries, keys)")
    return M, N, tuple([size if isinstance(size, int | torch.SymInt) else int(size) for size in pair])


def causal_block_mask(
    M: int,
    N: int | None = None,
    *,
    offset: int = 0,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    device: torch.device | str | None = None,
) -> BlockMask:
    """The block mask of ``mods.causal`` for M queries and N keys (M if not given), in O(blocks) memory.

    Query m stands at position offset + m, and sees the keys n <= offset + m.

    Args:
        M, N: queries and keys.
        offset: the position of the first query among the keys, as ``mods.with_offset``: N - M where the queries are the last
            of the keys, as behind a cache (aligned at the bottom right), below zero where there are fewer keys.
        BLOCK_SIZE: tokens in a block, one int or ``(queries, keys)``.
        device: where the lists lie; the kernels' device if not given.

    Raises:
        ValueError: M, N, offset or BLOCK_SIZE is not as above.
    """
    M, N, BLOCK_SIZE = _sizes(M, N, BLOCK_SIZE)
    mask_mod = _from(offset, mods.causal)
    q0, q1, k0, k1, inside = _edges(M, N, BLOCK_SIZE, device or runtime.device, offset)
    return block_mask_from_dense((k0 <= q1)[None, None], ((k1 <= q0) & inside)[None, None], mask_mod, M, N, BLOCK_SIZE)


def sliding_window_block_mask(
    window: int,
    M: int,
    N: int | None = None,
    *,
    offset: int = 0,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    device: torch.device | str | None = None,
) -> BlockMask:
    """The block mask of ``mods.sliding_window(window)``, in O(blocks) memory; arguments as ``causal_block_mask``."""
    M, N, BLOCK_SIZE = _sizes(M, N, BLOCK_SIZE)
    if isinstance(window, bool) or not isinstance(window, numbers.Real | torch.SymInt):
        raise ValueError(f"window is {shown(window)}, needs a number of keys")
    mask_mod = _from(offset, mods.sliding_window(window))
    q0, q1, k0, k1, inside = _edges(M, N, BLOCK_SIZE, device or runtime.device, offset)
    some = (k0 <= q1) & (k1 >= q0 - window)
    full = (k1 <= q0) & (k0 >= q1 - window) & inside
    return block_mask_from_dense(some[None, None], full[None, None], mask_mod, M, N, BLOCK_SIZE)


def _range_of_blocks(rows, BLOCK):
    """The smallest and the largest id in each block of BLOCK tokens: two of [B, blocks] from ``rows`` [B, T]."""
    B, T = rows.shape
    blocks = -(-T // BLOCK)
    beyond = rows[:, -1:].expand(B, blocks * BLOCK - T)
    tiles = torch.cat([rows, beyond], 1).view(B, blocks, BLOCK)
    return tiles.amin(-1), tiles.amax(-1)


def document_block_mask(
    ids: torch.Tensor, *, causal: bool = True, BLOCK_SIZE: int | tuple[int, int] = 128
) -> BlockMask:
    """The block mask of packed documents, ``mods.document``, in O(T + blocks) memory.

    Args:
        ids: which document each token belongs to, int [T] or [B, T], in any order: tokens with equal ids see each other.
            Padding is a document of its own, of id -1, say.
        causal: whether tokens see only what came before them in their document.
        BLOCK_SIZE: as ``causal_block_mask``.
    """
    rows = isinstance(ids, torch.Tensor) and ids.ndim == 2
    integers = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
    check_tensor("ids", ids, (None, None) if rows else (None,), "[T] or [B, T]", dtypes=integers, like=("ids", ids))
    T, _, BLOCK_SIZE = _sizes(ids.shape[-1], None, BLOCK_SIZE)
    q0, q1, k0, k1, inside = _edges(T, T, BLOCK_SIZE, ids.device)
    rows = ids if ids.ndim == 2 else ids[None]
    (q_least, q_most), (k_least, k_most) = (_range_of_blocks(rows, size) for size in BLOCK_SIZE)
    q_least, q_most = q_least[:, :, None], q_most[:, :, None]  # [B, R, 1]
    k_least, k_most = k_least[:, None, :], k_most[:, None, :]  # [B, 1, C]
    some = (k_least <= q_most) & (k_most >= q_least)  # ids that fall may leave a block without a pair: it is partial then
    full = (q_least == q_most) & (k_least == k_most) & (q_least == k_least) & inside
    if causal:
        some, full = some & (k0 <= q1), full & (k1 <= q0)
    mask_mod = mods.document(ids, mods.causal if causal else None)
    return block_mask_from_dense(some[:, None], full[:, None], mask_mod, T, T, BLOCK_SIZE)
