"""What type checkers see of this package: a result's type by its arguments, and what the functions carry."""

from typing import Literal, Protocol, overload

from torch import Tensor

from .module import DynamicShortConvolution as DynamicShortConvolution
from .operator import dynamic_conv_step as dynamic_conv_step

class _DynamicConv(Protocol):
    @overload
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = ...,
        residual: Tensor | None = ...,
        activation: str | None = ...,
        initial_state: Tensor | None = ...,
        output_final_state: Literal[False] = ...,
        cu_seqlens: Tensor | None = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = ...,
        residual: Tensor | None = ...,
        activation: str | None = ...,
        initial_state: Tensor | None = ...,
        output_final_state: Literal[True],
        cu_seqlens: Tensor | None = ...,
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = ...,
        residual: Tensor | None = ...,
        activation: str | None = ...,
        initial_state: Tensor | None = ...,
        output_final_state: bool = ...,
        cu_seqlens: Tensor | None = ...,
    ) -> Tensor | tuple[Tensor, Tensor]: ...
    def explain(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = ...,
        residual: Tensor | None = ...,
        activation: str | None = ...,
        initial_state: Tensor | None = ...,
        output_final_state: bool = ...,
        cu_seqlens: Tensor | None = ...,
    ) -> str: ...

dynamic_conv: _DynamicConv
