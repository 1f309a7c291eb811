"""What type checkers see of this package: a result's type by its arguments, and what the functions carry."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, overload

from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput as AuxOutput
from torch.nn.attention.flex_attention import AuxRequest as AuxRequest
from torch.nn.attention.flex_attention import BlockMask as BlockMask
from torch.nn.attention.flex_attention import create_block_mask as create_block_mask
from torch.nn.attention.flex_attention import create_mask as create_mask
from torch.nn.attention.flex_attention import noop_mask as noop_mask

from . import mods as mods
from .block_mask import causal_block_mask as causal_block_mask
from .block_mask import document_block_mask as document_block_mask
from .block_mask import sliding_window_block_mask as sliding_window_block_mask
from .mods import and_masks as and_masks
from .mods import or_masks as or_masks
from .mods.errors import ModError as ModError

class _FlexAttention(Protocol):
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Callable[..., Tensor] | None = ...,
        block_mask: BlockMask | None = ...,
        scale: float | None = ...,
        enable_gqa: bool = ...,
        return_lse: Literal[False] = ...,
        kernel_options: dict[str, Any] | None = ...,
        *,
        return_aux: None = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Callable[..., Tensor] | None = ...,
        block_mask: BlockMask | None = ...,
        scale: float | None = ...,
        enable_gqa: bool = ...,
        *,
        return_lse: Literal[True],
        kernel_options: dict[str, Any] | None = ...,
        return_aux: None = ...,
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Callable[..., Tensor] | None = ...,
        block_mask: BlockMask | None = ...,
        scale: float | None = ...,
        enable_gqa: bool = ...,
        return_lse: Literal[False] = ...,
        kernel_options: dict[str, Any] | None = ...,
        *,
        return_aux: AuxRequest,
    ) -> tuple[Tensor, AuxOutput]: ...
    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Callable[..., Tensor] | None = ...,
        block_mask: BlockMask | None = ...,
        scale: float | None = ...,
        enable_gqa: bool = ...,
        return_lse: bool = ...,
        kernel_options: dict[str, Any] | None = ...,
        *,
        return_aux: AuxRequest | None = ...,
    ) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]: ...
    def explain(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Callable[..., Tensor] | None = ...,
        block_mask: BlockMask | None = ...,
        scale: float | None = ...,
        enable_gqa: bool = ...,
        return_lse: bool = ...,
        kernel_options: dict[str, Any] | None = ...,
        *,
        return_aux: AuxRequest | None = ...,
    ) -> str: ...
    def source(self, score_mod: Callable[..., Tensor] | None = ..., mask_mod: Callable[..., Tensor] | None = ...) -> str: ...

flex_attention: _FlexAttention
