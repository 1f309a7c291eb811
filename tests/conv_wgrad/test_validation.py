"""Bad input: a ValueError that names the argument, what it got and what it needs, before anything is launched."""

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import Conv2d, conv2d, conv2d_bias_grad, conv2d_wgrad
from tests.conv_wgrad import cases


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=runtime.device)


X, DY, W = zeros(2, 6, 7, 4), zeros(2, 4, 5, 8), zeros(8, 3, 3, 4)

CALLS = [
    (lambda: conv2d_wgrad([1.0], DY, 3, 3), "input must be a tensor"),
    (lambda: conv2d_wgrad(X[0], DY, 3, 3), r"input has shape \[6, 7, 4\], needs \[N, H, W, Ci\]"),
    (lambda: conv2d_wgrad(X.double(), DY.double(), 3, 3), "input has dtype float64, needs one of float32"),
    (lambda: conv2d_wgrad(X, DY[0], 3, 3), r"grad_output has shape \[4, 5, 8\], needs \[N, P, Q, Co\]"),
    (lambda: conv2d_wgrad(X, DY.half(), 3, 3), "grad_output has dtype float16, needs one of float32"),
    (lambda: conv2d_wgrad(X, DY.to("meta"), 3, 3), "grad_output is on meta, needs"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, padding=1), r"grad_output has shape \[2, 4, 5, 8\], needs .* = \[2, 6, 7, 8\]"),
    (lambda: conv2d_wgrad(X, DY[:1], 3, 3), r"grad_output has shape .* needs .* = \[2, 4, 5, 8\]"),
    (lambda: conv2d_wgrad(X, DY, 7, 3), r"grad_output has shape .* needs .* = \[2, 0, 5, 8\]"),
    (lambda: conv2d_wgrad(X, DY, 0, 3), "R is 0, needs whole numbers of at least 1"),
    (lambda: conv2d_wgrad(X, DY, 3, 3.0), "S is 3.0, needs whole numbers"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, stride=0), "stride is 0, needs whole numbers of at least 1"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, stride=(1, 2, 3)), r"stride is \(1, 2, 3\), needs an int or \(h, w\)"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, padding=-1), "padding is -1, needs whole numbers of at least 0"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, padding=(1, 2, 3)), r"padding is \(1, 2, 3\), needs an int, \(h, w\), \(top"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, padding="full"), "padding is 'full', needs .valid. or .same."),
    (lambda: conv2d_wgrad(X, DY, 3, 3, dilation=(1, 0)), r"dilation is \(1, 0\), needs whole numbers of at least 1"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, groups=0), "groups is 0, needs whole numbers of at least 1"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, groups=3), "groups is 3, needs to divide the 4 channels of input"),
    (lambda: conv2d_wgrad(X, DY[..., :6], 3, 3, groups=4), "groups is 4, needs to divide the 6 channels of the output"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, backend="cudnn"), "backend is 'cudnn', needs one of 'auto', "),
    (lambda: conv2d_wgrad(X, DY, 3, 3, split_k=0), "split_k is 0, needs a whole number of at least 1"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, split_k=1.5), "split_k is 1.5"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, accumulate=True), "accumulate is True, needs out"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=W[:4]), r"out has shape \[4, 3, 3, 4\], needs .* = \[8, 3, 3, 4\]"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=W.double()), "out has dtype float64"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=W, out_dtype=torch.half), "out has dtype float32, needs one of float16"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=W.clone().requires_grad_()), "out requires a gradient"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=torch._neg_view(W.clone())), "out is a view that negates its memory"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=zeros(1, 3, 3, 4).expand(8, 3, 3, 4)), "out has strides .* no element"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=zeros(300).as_strided(W.shape, (1, 3, 1, 1))), "out has strides .* no element"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=X.view(-1)[:288].view(W.shape)), "out lies in the memory of input, needs"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out=DY.view(-1)[9:297].view(W.shape)), "out lies in the memory of grad_output"),
    (lambda: conv2d_bias_grad(DY, out=DY[0, 0, 0]), "out lies in the memory of grad_output, needs memory of its own"),
    (lambda: conv2d_wgrad(X, DY, 3, 3, out_dtype=torch.int8), "out_dtype is torch.int8, needs one of float32"),
    (lambda: conv2d_wgrad.explain(X, DY, 3, 3, padding=1), "grad_output has shape"),
    (lambda: conv2d_bias_grad(DY[0]), r"grad_output has shape \[4, 5, 8\]"),
    (lambda: conv2d_bias_grad(DY, out=zeros(7)), r"out has shape \[7\], needs \[Co\] = \[8\]"),
    (lambda: conv2d_bias_grad(DY, accumulate=True), "accumulate is True, needs out"),
    (lambda: conv2d(X, W[..., :3]), r"weight has shape \[8, 3, 3, 3\], needs .* = \[8, 3, 3, 4\]"),
    (lambda: conv2d(X, W, groups=2), r"weight has shape \[8, 3, 3, 4\], needs .* = \[8, 3, 3, 2\]"),
    (lambda: conv2d(X, W.half()), "weight has dtype float16, needs one of float32"),
    (lambda: conv2d(X, W[0]), r"weight has shape \[3, 3, 4\]"),
    (lambda: conv2d(X, W, zeros(7)), r"bias has shape \[7\], needs \[Co\] = \[8\]"),
    (lambda: conv2d(X, W, dilation=4), "weight's filter spans 9 x 9 pixels, needs to fit in the padded input of 6 x 7"),
    (lambda: Conv2d(3, 8, 3).to(runtime.device)(zeros(2, 4, 6, 6)), r"input has shape \[2, 4, 6, 6\], needs .* = \[any, 3"),
    (lambda: Conv2d(4, 8, 3).to(runtime.device)("images"), "input must be a tensor"),
]  # fmt: skip


@pytest.mark.parametrize("call, message", CALLS, ids=[message for _, message in CALLS])
def test_refused_before_any_launch(call, message):
    with cases.launches() as seen, pytest.raises(ValueError, match=message):
        call()
    assert not seen


def test_cpu_tensors_are_refused_where_kernels_are_compiled(as_if_compiled):
    with pytest.raises(ValueError, match="input is on cpu, needs a CUDA device.*TRITON_INTERPRET=1"):
        conv2d_wgrad(torch.zeros(1, 3, 3, 2), torch.zeros(1, 1, 1, 2), 3, 3)


def test_an_output_may_lie_between_what_is_read_and_beside_it():
    memory = zeros(2 * 6 * 7 * 8 + 8 * 3 * 3 * 4)
    dy, beside = memory[:320].view(2, 4, 5, 8).fill_(1), memory[320:608].view(8, 3, 3, 4)
    between = zeros(8, 3, 3, 8)
    x = between.view(-1)[:576].view(2, 6, 6, 8)[..., 4:]  # a batch's halves of channels, one of them written
    conv2d_wgrad(X, dy, 3, 3, out=beside)
    conv2d_wgrad(x, dy[:, :, :4].contiguous(), 3, 3, out=between[..., :4])


def test_options_may_be_numpys():
    three, two = np.int64(3), np.int32(2)
    theirs, ours = (
        kind(4, 8, three, two, np.int64(1), groups=two).to(runtime.device) for kind in (torch.nn.Conv2d, Conv2d)
    )
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 6, 7, device=runtime.device)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-2, atol=1e-2)
    dy = torch.ones_like(ours(x)).permute(0, 2, 3, 1)
    dw = conv2d_wgrad(x.permute(0, 2, 3, 1), dy, three, three, two, (np.int64(1), 1), groups=two)
    torch.testing.assert_close(dw, conv2d_wgrad(x.permute(0, 2, 3, 1), dy, 3, 3, 2, 1, groups=2))
    splits = [conv2d_wgrad(x.permute(0, 2, 3, 1), dy, 3, 3, 2, 1, groups=2, split_k=two) for two in (2, np.int64(2))]
    assert torch.equal(*splits)


def test_an_output_may_lie_behind_an_expanded_gradient():
    """A gradient of a sum is one number, however many elements it stands for: what lies behind it is free."""
    memory = torch.zeros(4096, device=runtime.device)
    dy, out = memory[:1].view(1, 1, 1, 1).expand(2, 8, 8, 4), memory[64:68]
    memory[0] = 1.0
    assert conv2d_bias_grad(dy, out=out) is out and out.tolist() == [128.0] * 4
    with pytest.raises(ValueError, match="out lies in the memory of grad_output"):
        conv2d_bias_grad(memory[:1].view(1, 1, 1, 1).expand(2, 8, 8, 1), out=memory[:1])
