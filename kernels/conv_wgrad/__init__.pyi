"""What type checkers see of this package: a result's type by its arguments, and what the functions carry."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .convolution import Conv2d as Conv2d
from .convolution import conv2d as conv2d
from .operator import conv2d_bias_grad as conv2d_bias_grad

class _Conv2dWgrad(Protocol):
    def __call__(
        self,
        input: Tensor,
        grad_output: Tensor,
        R: int,
        S: int,
        stride: int | Sequence[int] = ...,
        padding: int | Sequence[int] | str = ...,
        dilation: int | Sequence[int] = ...,
        groups: int = ...,
        *,
        backend: str = ...,
        split_k: int | None = ...,
        out: Tensor | None = ...,
        accumulate: bool = ...,
        out_dtype: torch.dtype | None = ...,
    ) -> Tensor: ...
    def explain(
        self,
        input: Tensor,
        grad_output: Tensor,
        R: int,
        S: int,
        stride: int | Sequence[int] = ...,
        padding: int | Sequence[int] | str = ...,
        dilation: int | Sequence[int] = ...,
        groups: int = ...,
        *,
        backend: str = ...,
        split_k: int | None = ...,
        out: Tensor | None = ...,
        accumulate: bool = ...,
        out_dtype: torch.dtype | None = ...,
    ) -> str: ...

conv2d_wgrad: _Conv2dWgrad
