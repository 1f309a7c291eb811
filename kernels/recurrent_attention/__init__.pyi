"""What type checkers see of this operator: a result's type by its arguments, and what the functions carry."""

from typing import Literal, Protocol, overload

from torch import Tensor

from .operator import recurrent_attention_step as recurrent_attention_step

class _RecurrentAttention(Protocol):
    @overload
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        g: Tensor | None = ...,
        g_gamma: Tensor | None = ...,
        gk: Tensor | None = ...,
        gv: Tensor | None = ...,
        scale: float | None = ...,
        initial_state: Tensor | None = ...,
        output_final_state: Literal[False] = ...,
        reverse: bool = ...,
        cu_seqlens: Tensor | None = ...,
        mode: str = ...,
        state_v_first: bool = ...,
    ) -> tuple[Tensor, None]: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        g: Tensor | None = ...,
        g_gamma: Tensor | None = ...,
        gk: Tensor | None = ...,
        gv: Tensor | None = ...,
        scale: float | None = ...,
        initial_state: Tensor | None = ...,
        output_final_state: Literal[True],
        reverse: bool = ...,
        cu_seqlens: Tensor | None = ...,
        mode: str = ...,
        state_v_first: bool = ...,
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        g: Tensor | None = ...,
        g_gamma: Tensor | None = ...,
        gk: Tensor | None = ...,
        gv: Tensor | None = ...,
        scale: float | None = ...,
        initial_state: Tensor | None = ...,
        output_final_state: bool = ...,
        reverse: bool = ...,
        cu_seqlens: Tensor | None = ...,
        mode: str = ...,
        state_v_first: bool = ...,
    ) -> tuple[Tensor, Tensor | None]: ...
    def explain(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        g: Tensor | None = ...,
        g_gamma: Tensor | None = ...,
        gk: Tensor | None = ...,
        gv: Tensor | None = ...,
        scale: float | None = ...,
        initial_state: Tensor | None = ...,
        output_final_state: bool = ...,
        reverse: bool = ...,
        cu_seqlens: Tensor | None = ...,
        mode: str = ...,
        state_v_first: bool = ...,
    ) -> str: ...

recurrent_attention: _RecurrentAttention
