"""What does not fit raises a ``ValueError`` that names the argument, what it got and what it needs."""

from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import AuxRequest

from kernels.common.checks import check_tensor, same_device, shown
from kernels.flex_attention import block_mask as masks
from kernels.flex_attention.block_mask import BlockMask

#: The lists of a block mask, as attributes of torch's ``BlockMask``.
_PAIRS = [f"{full}{side}" for side in ("kv", "q") for full in ("", "full_")]
LISTS = tuple(f"{pair}_{part}" for pair in _PAIRS for part in ("num_blocks", "indices"))
ALL = 2**30  #: The block of torch's mask that leaves nothing out: as many tokens as there may be.
SLICED = "_sliced_mask_mod_error"  #: torch's name of what it puts in a sliced mask's place.


class Lists(NamedTuple):
    """Blocks of keys of each block of queries, or the other way round, int32; a batch or head of one serves all.

    num_blocks [rows] and indices [rows, width]; rows of batch row b and head h begin at ``b stride_b + h stride_h``.
    """

    num_blocks: torch.Tensor
    indices: torch.Tensor
    stride_b: int
    stride_h: int
    width: int


def check_returns(return_lse, return_aux):
    """Raise ``ValueError`` unless at most one of the two asks for something."""
    if return_lse and return_aux is not None:
        raise ValueError("return_lse and return_aux are both given, need one: return_aux=AuxRequest(lse=True)")
    if return_aux is not None and not isinstance(return_aux, AuxRequest):
        raise ValueError(f"return_aux is {shown(return_aux)}, needs an AuxRequest")


def check_mods(score_mod, block_mask):
    """Raise ``ValueError`` unless the one is a function and the other a mask, where there is one."""
    if isinstance(score_mod, BlockMask):
        raise ValueError("score_mod is a BlockMask, needs a function or None: write block_mask= before the mask")
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        make = "create_block_mask(mask_mod, B, H, M, N)"
        if getattr(block_mask, "__name__", "").isidentifier():
            make = make.replace("mask_mod", block_mask.__name__)
        raise ValueError(f"block_mask is {shown(block_mask)}, needs a BlockMask or None: {make} makes one")
    for name, mod in (("score_mod", score_mod), ("block_mask.mask_mod", block_mask and block_mask.mask_mod)):
        if mod is not None and not callable(mod):
            raise ValueError(f"{name} is {shown(mod)}, needs a function or None")
    if block_mask is not None and getattr(block_mask.mask_mod, "__name__", "") == SLICED:
        raise ValueError(
            "block_mask was sliced and lost its mask_mod, needs one for the part that is left: "
            "set block_mask.mask_mod, with the positions shifted by where the part begins"
        )


def check_tensors(query, key, value, enable_gqa, BLOCK_SIZE=None, seq_lengths=None, lists=None):
    """Raise ``ValueError`` unless the tensors of a call fit each other; lists: a block mask's, by their names."""
    check_tensor("query", query, (None, None, None, None), "[B, Hq, M, D]")
    B, Hq, M, D = query.shape
    same = {"dtypes": (query.dtype,), "like": ("query", query)}
    check_tensor("key", key, (None, None, None, D), "[B or 1, Hkv, N, D]", **same)
    Bkv, Hkv, N, _ = key.shape
    check_tensor("value", value, (Bkv, Hkv, N, None), "[B or 1, Hkv, N, Dv]", **same)
    if Bkv not in (1, B):
        raise ValueError(f"key has a batch of {Bkv}, needs 1 or {B}, the batch of query")
    if D == 0:
        raise ValueError("query has a head dimension of 0, needs at least 1")
    if Hq != Hkv and not enable_gqa:
        raise ValueError(f"key has {Hkv} heads, needs {Hq}, those of query; with enable_gqa=True a divisor of {Hq}")
    if (Hkv == 0) != (Hq == 0) or (Hkv and Hq % Hkv):
        raise ValueError(f"key has {Hkv} heads, needs a divisor of {Hq}, the heads of query")
    if lists is None:
        return
    if tuple(seq_lengths) != (M, N) and min(BLOCK_SIZE) < ALL:
        raise ValueError(
            f"block_mask was made for {seq_lengths[0]} queries and {seq_lengths[1]} keys, needs "
            f"{M} and {N}: make another for these"
        )
    rows = -(-M // BLOCK_SIZE[0])
    for name, tensor in lists.items():
        if name.startswith(("q_", "full_q_")):  # lists of queries that do not fit are made again
            continue
        if (
            tensor.ndim != 3 + name.endswith("indices")
            or tensor.shape[0] not in (1, B)
            or tensor.shape[1] not in (1, Hq)
        ):
            legend = "[B or 1, Hq or 1, blocks of queries, ...]"
            raise ValueError(
                f"block_mask.{name} has shape {list(tensor.shape)}, needs {legend} with B = {B}, Hq = {Hq}"
            )
        if tensor.shape[2] < rows:
            raise ValueError(f"block_mask.{name} has {tensor.shape[2]} blocks of queries, needs {rows} for {M} queries")
        if tensor.device != query.device and not same_device(tensor.device, query.device):
            raise ValueError(f"block_mask is on {tensor.device}, needs {query.device}, the device of query")


def check_captured(name, mod, sizes):
    """Raise ``ValueError`` where an argument of a mod goes past a captured dimension; sizes: how far each goes."""
    for argument, least in mod.bounds.items():
        if least < sizes[argument]:
            raise ValueError(
                f"{name} indexes a captured dimension of size {least} with {argument}, needs {sizes[argument]}: "
                f"{argument} goes up to {sizes[argument] - 1}"
            )


def listed(num_blocks, indices, name=None, rows=0, most=0, seen=False):
    """A pair of a block mask's lists as kernels read it, ``Lists``; of ``name`` its first ``rows`` are needed.

    Such a list may name blocks from ``most`` on, behind the last one, as torch's ``_adjust`` leaves some where it cuts rows
    of lists short. A kernel would read them: where they are ``seen``, or where rows were cut and no values may be read, it
    gets other lists.

    Raises:
        ValueError: the list is seen, and counts more than it lists, or fewer than none, or names a block below 0.
    """
    if name is not None and (seen or indices.stride(2) != indices.shape[3]):
        counts, blocks, width = num_blocks[..., :rows], indices[..., :rows, :], indices.shape[-1]
        behind = not seen
        if seen:
            for count in counts[(counts < 0) | (counts > width)][:1].tolist():
                raise ValueError(
                    f"block_mask.{name}_num_blocks counts {count} blocks, needs 0 to {width}, as many as {name}_indices lists"
                )
            visited = blocks[torch.arange(width, device=blocks.device) < counts[..., None]]
            for block in visited[visited < 0][:1].tolist():
                raise ValueError(f"block_mask.{name}_indices lists block {block}, needs at least 0")
            behind = bool((visited >= most).any())
        if behind:
            num_blocks, indices = masks.ordered_lists(masks.dense_blocks(counts, blocks, most))
    num_blocks, indices = num_blocks.to(torch.int32).contiguous(), indices.to(torch.int32).contiguous()
    B, H, rows = num_blocks.shape
    return Lists(num_blocks, indices, H * rows if B > 1 else 0, rows if H > 1 else 0, indices.shape[-1])
