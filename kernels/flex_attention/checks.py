"""What does not fit raises a ``ValueError`` that names the argument, what it got and what it needs."""

import torch
from torch.nn.attention.flex_attention import AuxRequest

from kernels.common.checks import check_tensor, same_device, shown
from kernels.flex_attention.block_mask import BlockMask

#: The lists of a block mask, as attributes of torch's ``BlockMask``.
LISTS = tuple(f"{full}{side}_{part}" for side in ("kv", "q") for full in ("", "full_") for part in ("num_blocks", "indices"))
ALL = 2**30  #: The block of torch's mask that leaves nothing out: as many tokens as there may be.


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


def check_shapes(query, key, value, enable_gqa):
    """Raise ``ValueError`` unless the three fit each other."""
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


def check_captured(name, mod, sizes):
    """Raise ``ValueError`` where an argument of a mod goes past a captured dimension; sizes: how far each goes."""
    for argument, least in mod.bounds.items():
        if least < sizes[argument]:
            raise ValueError(
                f"{name} indexes a captured dimension of size {least} with {argument}, needs {sizes[argument]}: "
                f"{argument} goes up to {sizes[argument] - 1}"
            )


def check_block_mask(block_mask, B, Hq, M, N, device):
    """Raise ``ValueError`` unless it fits the call."""
    if getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise ValueError(
            "block_mask was sliced and lost its mask_mod, needs one for the part that is left: "
            "set block_mask.mask_mod, with the positions shifted by where the part begins"
        )
    lists = {name: getattr(block_mask, name) for name in LISTS}
    check_lists(block_mask.BLOCK_SIZE, block_mask.seq_lengths, lists, B, Hq, M, N, device)


def check_lists(BLOCK_SIZE, seq_lengths, lists, B, Hq, M, N, device):
    """Raise ``ValueError`` unless a block mask's lists, by their names, fit the call."""
    if tuple(seq_lengths) != (M, N) and min(BLOCK_SIZE) < ALL:
        raise ValueError(
            f"block_mask was made for {seq_lengths[0]} queries and {seq_lengths[1]} keys, needs "
            f"{M} and {N}: make another for these"
        )
    rows = -(-M // BLOCK_SIZE[0])
    for name, tensor in lists.items():
        if tensor is None or name.removeprefix("full_").startswith("q"):  # lists of queries that do not fit are made again
            continue
        legend = "[B or 1, Hq or 1, blocks of queries, ...]"
        if (
            tensor.ndim != 3 + name.endswith("indices")
            or tensor.shape[0] not in (1, B)
            or tensor.shape[1] not in (1, Hq)
        ):
            raise ValueError(
                f"block_mask.{name} has shape {list(tensor.shape)}, needs {legend} with B = {B}, Hq = {Hq}"
            )
        if tensor.shape[2] < rows:
            raise ValueError(f"block_mask.{name} has {tensor.shape[2]} blocks of queries, needs {rows} for {M} queries")
        if not same_device(tensor.device, device):
            raise ValueError(f"block_mask is on {tensor.device}, needs {device}, the device of query")


def check_blocks(name, num_blocks, indices, most):
    """Whether one of a block mask's lists names blocks from ``most`` on, which are not there. Reads its values.

    Raises:
        ValueError: it counts more than it lists, or fewer than none, or names a block below 0.
    """
    width = indices.shape[-1]
    for count in num_blocks[(num_blocks < 0) | (num_blocks > width)][:1].tolist():
        raise ValueError(
            f"block_mask.{name}_num_blocks counts {count} blocks, needs 0 to {width}, as many as {name}_indices lists"
        )
    listed = indices[torch.arange(width, device=indices.device) < num_blocks[..., None]]
    for block in listed[listed < 0][:1].tolist():
        raise ValueError(f"block_mask.{name}_indices lists block {block}, needs at least 0")
    return bool((listed >= most).any())
