"""No kernel touches memory outside its tensors, and no two programs write the same element, whatever the options."""

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import conv2d_bias_grad, conv2d_wgrad, operator
from kernels.lab import trace
from tests.conv_wgrad import cases
from tests.tensors import told_of_more

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="addresses are seen in the interpreter")

CASES = {
    "3x3": dict(padding=1),
    "one pixel, one channel": dict(shape=(1, 1, 1, 1), Co=1, R=1, S=1),
    "asymmetric padding, stride": dict(padding=(0, 3, 2, 1), stride=(2, 3)),
    "dilated": dict(dilation=2, padding=2),
    "padding wider than the image": dict(shape=(2, 2, 2, 4), padding=5),
    "two groups": dict(groups=2, padding=1),
    "depthwise": dict(groups=4, padding=(1, 0)),
    "float16": dict(dtype=torch.float16, shape=(2, 6, 7, 24)),
}


def run(shape=(2, 6, 7, 4), Co=12, R=3, S=3, dtype=torch.float32, split_k=3, **convolution):
    x, dy, g = cases.problem(shape, Co, R, S, dtype=dtype, **convolution)
    x, dy = x.clone(), dy.clone()  # inside a larger buffer an access past the end would still be inside
    with cases.configuration(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, BLOCK=64), trace.recording() as t:
        conv2d_wgrad(x, dy, R, S, **convolution, split_k=split_k)
        conv2d_wgrad(x, dy, R, S, **convolution, out=torch.zeros(g.weight_shape), accumulate=True)
        conv2d_bias_grad(dy)
    return t


@pytest.mark.parametrize("case", CASES)
def test_every_active_address_lies_inside_its_tensor(case):
    t = run(**CASES[case])
    assert len(t.launches) >= 4
    assert t.outside() == []
    assert not any(t.races(launch=n) for n in range(len(t.launches)))


def test_the_trace_would_show_an_access_outside(monkeypatch):
    """The same test on a kernel that is told of one pixel more than there is."""
    told_of_more(monkeypatch, operator, M=1)
    assert run(shape=(1, 5, 7, 4), R=1, S=1).outside()
