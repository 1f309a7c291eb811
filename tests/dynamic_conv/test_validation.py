"""Bad input: a ValueError that names the argument, what it got and what it needs, before anything is launched."""

import pytest
import torch

from kernels import runtime
from kernels.common import operator as launch_module
from kernels.dynamic_conv import DynamicShortConvolution, dynamic_conv, dynamic_conv_step, operator


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=runtime.device)


def layer():
    return DynamicShortConvolution(8, 4).to(runtime.device)


X, K = zeros(2, 5, 4), zeros(2, 5, 4, 3)


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=runtime.device)


CALLS = [
    (lambda: dynamic_conv([1.0], K), "x must be a tensor"),
    (lambda: dynamic_conv(zeros(5, 4), K), r"x has shape \[5, 4\], needs \[B, T, D\]"),
    (lambda: dynamic_conv(X.double(), K), "x has dtype float64, needs one of float32"),
    (lambda: dynamic_conv(X, None), "weight must be a tensor"),
    (lambda: dynamic_conv(X, K[:1]), r"weight has shape \[1, 5, 4, 3\]"),
    (lambda: dynamic_conv(X, zeros(3, 3)), r"weight has shape \[3, 3\], needs .* \[4, any\]"),
    (lambda: dynamic_conv(X, K[..., :0]), "at least one tap"),
    (lambda: dynamic_conv(X, K.long()), "weight has dtype int64"),
    (lambda: dynamic_conv(X, K.to("meta")), "weight is on meta, needs"),
    (lambda: dynamic_conv(X, K, bias=zeros(3)), r"bias has shape \[3\], needs \[D\] = \[4\]"),
    (lambda: dynamic_conv(X, K, residual=zeros(2, 5, 3)), "residual has shape"),
    (lambda: dynamic_conv(X, K, activation="relu"), "activation is 'relu', needs one of None, 'silu'"),
    (
        lambda: dynamic_conv(X, K, initial_state=zeros(2, 4, 3)),
        r"initial_state has shape \[2, 4, 3\], needs .* \[2, 4, 2\]",
    ),
    (lambda: dynamic_conv(X, K, initial_state=zeros(1, 4, 2)), "initial_state has shape"),
    (lambda: dynamic_conv(X, K, cu_seqlens=ints(0, 5)), "batch of 1"),
    (lambda: dynamic_conv(X[:1], K[:1], cu_seqlens=[0, 5]), "cu_seqlens must be a tensor"),
    (lambda: dynamic_conv(X[:1], K[:1], cu_seqlens=ints(0, 5).float()), "cu_seqlens has dtype float32"),
    (lambda: dynamic_conv(X[:1], K[:1], cu_seqlens=ints()), "at least the leading 0"),
    (lambda: dynamic_conv(X[:1], K[:1], cu_seqlens=ints(0, 6)), r"cu_seqlens is \[0, 6\], needs .* no more than T = 5"),
    (lambda: dynamic_conv(X[:1], K[:1], cu_seqlens=ints(1, 5)), "start at 0"),
    (lambda: dynamic_conv(X[:1], K[:1], cu_seqlens=ints(0, 4, 3, 5)), "never fall"),
    (lambda: dynamic_conv_step(X, K[:, 0], zeros(2, 4, 2)), r"x has shape \[2, 5, 4\], needs \[B, D\]"),
    (lambda: dynamic_conv_step(X[:, 0], K, zeros(2, 4, 2)), "weight has shape"),
    (lambda: dynamic_conv_step(X[:, 0], K[:, 0], zeros(2, 4, 3)), r"state has shape \[2, 4, 3\], needs .* \[2, 4, 2\]"),
    (lambda: dynamic_conv_step(X[:, 0], K[:, 0], zeros(3, 4, 2)), "state has shape"),
    (lambda: dynamic_conv_step(X[:, 0], K[:, 0], zeros(2, 4, 2).requires_grad_()), "state requires a gradient"),
    (lambda: dynamic_conv_step(X[:, 0], K[:, 0], torch._neg_view(zeros(2, 4, 2))), "state is a view that negates"),
    (
        lambda: dynamic_conv_step(X[:, 0], K[:, 0], zeros(9, 4, 2), slots=ints(1)),
        r"slots has shape \[1\], needs \[B\] = \[2\]",
    ),
    (
        lambda: dynamic_conv_step(X[:, 0], K[:, 0], zeros(9, 4, 2), slots=ints(1, 9)),
        "slots holds values from 1 to 9, needs 0 to 8",
    ),
    (lambda: dynamic_conv_step(X[:, 0], K[:, 0], zeros(0, 4, 2), slots=ints(0, 1)), "from 0 to 1, needs only negative ones"),
    (lambda: dynamic_conv_step(X[:, 0], K[:, 0], zeros(9, 4, 2), slots=ints(3, 3)), "a state twice"),
    (
        lambda: dynamic_conv_step(X[:, 0], K[:, 0], zeros(9, 4, 2), slots=ints(1, 2, dtype=torch.int16)),
        "slots has dtype int16",
    ),
    (lambda: dynamic_conv(X.to_sparse(), K), "x is sparse_coo, needs a dense tensor"),
    (lambda: dynamic_conv(X, torch.nested.as_nested_tensor([X[0]] * 2, layout=torch.jagged)), "weight is a nested tensor"),
    (lambda: DynamicShortConvolution(0, 4), "hidden_size is 0"),
    (lambda: DynamicShortConvolution(8.0, 4), "hidden_size is 8.0, needs a whole number"),
    (lambda: DynamicShortConvolution(8, 4, static_conv_init=1.0), "static_conv_init is 1.0, needs a tensor"),
    (lambda: layer()(zeros(2, 5, 8), mask=[[1] * 5] * 2), r"mask must be a tensor \[B, T\], got list"),
    (lambda: layer()(zeros(2, 5, 8), mask=zeros(1, 5)), r"mask has shape \[1, 5\], needs \[B, T\] = \[2, 5\]"),
    (lambda: layer()(zeros(1, 5, 8), cache=zeros(1, 8, 4), cu_seqlens=[0, 5]), "cu_seqlens must be a tensor"),
    (lambda: DynamicShortConvolution(8, 0), "kernel_size is 0"),
    (lambda: DynamicShortConvolution(8, True), "kernel_size is True"),
    (lambda: DynamicShortConvolution(8, 4, generator_reduction=16), "generator_reduction is 16"),
    (lambda: DynamicShortConvolution(8, 4, generator_reduction=True), "generator_reduction is True"),
    (lambda: DynamicShortConvolution(8, 4, activation="relu"), "activation is 'relu'"),
    (lambda: DynamicShortConvolution(8, 4).to(runtime.device)(zeros(2, 5, 7)), r"x has shape \[2, 5, 7\]"),
    (
        lambda: DynamicShortConvolution(8, 4).to(runtime.device)(zeros(2, 5, 8), generator_input=zeros(2, 4, 8)),
        "generator_input has shape",
    ),
]


@pytest.mark.parametrize("call, message", CALLS, ids=[message for _, message in CALLS])
def test_refused_before_any_launch(call, message, monkeypatch):
    monkeypatch.setenv("KERNELS_CHECK", "1")
    monkeypatch.setattr(launch_module.runtime, "interpreted", launch_module.runtime.interpreted)
    launched = []
    monkeypatch.setattr(operator, "launch", lambda *a, **k: launched.append(a))
    with pytest.raises(ValueError, match=message):
        call()
    assert not launched


def test_cpu_tensors_are_refused_where_kernels_are_compiled(as_if_compiled):
    with pytest.raises(ValueError, match="x is on cpu, needs a CUDA device.*TRITON_INTERPRET=1"):
        dynamic_conv(torch.zeros(1, 2, 3), torch.zeros(3, 2))
