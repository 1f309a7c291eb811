"""``kernel_options``: of any type that is a number, and torch's own."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as theirs

from kernels import runtime
from kernels.flex_attention import flex_attention, options


def qkv():
    torch.manual_seed(0)
    return [torch.randn(1, 3, 160, 16, device=runtime.device, requires_grad=True) for _ in range(3)]


def test_options_may_be_numpys():
    inputs = qkv()
    o, same = (
        flex_attention(*inputs, kernel_options={"BLOCK_M": kind(16), "bwd_num_warps": kind(2), "WORKSPACE": kind(0)})
        for kind in (np.int64, int)  # the first is checked, what is equal to it known
    )
    assert torch.equal(o, same)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), inputs) for x in (o, same)), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="num_warps.* is True, needs a power of two"):
        flex_attention(*inputs, kernel_options={"num_warps": True})


def test_torchs_options_are_ignored_with_one_warning(monkeypatch):
    monkeypatch.setattr(options, "_ignored", set())
    inputs = qkv()
    want = flex_attention(*inputs)
    given = {"PRESCALE_QK": True, "bwd_BLOCK_M1": 32, "BACKEND": "TRITON", "fwd_num_warps": 4}
    with pytest.warns(UserWarning) as warned:
        got = flex_attention(*inputs, kernel_options=given)
    assert torch.equal(got, want)
    assert [str(w.message).split("'")[1] for w in warned] == ["PRESCALE_QK", "bwd_BLOCK_M1", "BACKEND"]
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(*inputs, kernel_options=given)


def test_every_option_of_torchs_is_known():
    names = set(theirs.FlexKernelOptions.__annotations__)
    assert names and names <= {*options.OURS, *options.THEIRS}


def test_options_may_say_that_they_are_for_the_forward_pass():
    inputs = qkv()
    a, b = (flex_attention.explain(*inputs, kernel_options={name: 16}) for name in ("BLOCK_N", "fwd_BLOCK_N"))
    assert a == b and "BLOCK_N 16" in a
