"""Flex attention: attention with any Python function of score and position, derived, differentiated, compiled."""

from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,
    create_mask,
    noop_mask,
)

from kernels.flex_attention import mods
from kernels.flex_attention.block_mask import causal_block_mask, document_block_mask, sliding_window_block_mask
from kernels.flex_attention.mods import and_masks, or_masks
from kernels.flex_attention.mods.errors import ModError
from kernels.flex_attention.operator import flex_attention

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "ModError",
    "and_masks",
    "causal_block_mask",
    "create_block_mask",
    "create_mask",
    "document_block_mask",
    "flex_attention",
    "mods",
    "noop_mask",
    "or_masks",
    "sliding_window_block_mask",
]
