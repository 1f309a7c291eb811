"""torch's counter of floating-point operations knows every operator, and its profiler their names."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from kernels import runtime
from kernels.conv_wgrad import Conv2d, conv2d, conv2d_bias_grad, conv2d_wgrad
from kernels.dynamic_conv import dynamic_conv, dynamic_conv_step
from kernels.flex_attention import create_block_mask, flex_attention
from kernels.recurrent_attention import recurrent_attention, recurrent_attention_step
from kernels.recurrent_attention.chunk.launches import tokens_in_chunk


def new(*shape, grad=True):
    return torch.randn(*shape, device=runtime.device, requires_grad=grad)


def counted(call, backward=True):
    """Operations of the forward and of the backward pass."""
    with FlopCounterMode(display=False) as forward:
        out = call()
    out = out[0] if isinstance(out, tuple) else out
    if not backward:
        return forward.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    return forward.get_total_flops(), counter.get_total_flops()


@pytest.mark.parametrize("static", [True, False])
def test_a_dynamic_convolution(static):
    B, T, D, W = 2, 5, 4, 3
    weight, all_of = new(*(() if static else (B, T)), D, W), B * T * D * W
    assert counted(lambda: dynamic_conv(new(B, T, D), weight)) == (2 * all_of, 3 * all_of)
    assert counted(lambda: dynamic_conv(new(B, T, D), weight, activation="silu")) == (2 * all_of, 5 * all_of)
    assert counted(lambda: dynamic_conv(new(B, T, D, grad=False), weight))[1] == all_of
    with torch.no_grad():
        assert counted(lambda: dynamic_conv(new(B, T, D), weight), False) == 2 * all_of
        step = lambda: dynamic_conv_step(new(B, D), new(B, D, W), new(B, D, W - 1))
        assert counted(step, False) == 2 * B * D * W


def test_recurrent_attention():
    B, T, H, K, V = 2, 5, 3, 16, 8
    q, k, v = new(B, T, H, K), new(B, T, H, K), new(B, T, H, V)
    assert counted(lambda: recurrent_attention(q, k, v, mode="recurrent")) == (
        B * T * H * 5 * K * V,
        B * T * H * 12 * K * V,
    )
    C = tokens_in_chunk(q)
    assert counted(lambda: recurrent_attention(q, k, v, mode="chunk")) == (
        B * T * H * (4 * K * V + 2 * C * (K + V)),
        B * T * H * (10 * K * V + 2 * C * (3 * K + 2 * V)),
    )
    with torch.no_grad():
        step = lambda: recurrent_attention_step(new(B, H, K), new(B, H, K), new(B, H, V), new(B, H, K, V))
        assert counted(step, False) == 5 * B * H * K * V


def test_flex_attention():
    B, H, M, N, D, Dv = 1, 2, 40, 64, 16, 32
    q, k, v = new(B, H, M, D), new(B, 1, N, D), new(B, 1, N, Dv)
    pairs = 2 * B * H * M * N
    dense = lambda: flex_attention(q, k, v, enable_gqa=True)
    assert counted(dense) == (pairs * (D + Dv), pairs * (3 * D + 2 * Dv))
    first_half = create_block_mask(lambda b, h, m, n: n < 40, B, None, M, N, device=q.device, BLOCK_SIZE=16)
    sparse = lambda: flex_attention(q, k, v, block_mask=first_half, enable_gqa=True)
    assert counted(sparse) == (pairs * (D + Dv) * 3 // 4, pairs * (3 * D + 2 * Dv) * 3 // 4)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        flex_attention(*(torch.empty(t.shape, device=t.device) for t in (q, k, v)), enable_gqa=True)
    assert counter.get_total_flops() == pairs * (D + Dv)


def test_convolutions():
    x, w, products = new(2, 6, 6, 4), new(8, 3, 3, 4), 2 * (2 * 4 * 4) * 8 * (3 * 3 * 4)
    assert counted(lambda: conv2d(x, w)) == (products, 2 * products)
    assert counted(lambda: Conv2d(4, 8, 3, device=runtime.device)(x.permute(0, 3, 1, 2))) == (products, 2 * products)
    dy, out = new(2, 4, 4, 8), new(8, 3, 3, 4, grad=False)
    with torch.no_grad():
        assert counted(lambda: conv2d_wgrad(x, dy, 3, 3), False) == products
        assert counted(lambda: conv2d_wgrad(x, dy, 3, 3, out=out), False) == products


CALLS = {
    "dynamic_conv": lambda: dynamic_conv(new(1, 4, 2), new(2, 3)),
    "dynamic_conv_step": lambda: dynamic_conv_step(new(1, 2), new(2, 3), new(1, 2, 2)),
    "recurrent_attention": lambda: recurrent_attention(new(1, 4, 1, 4), new(1, 4, 1, 4), new(1, 4, 1, 4)),
    "recurrent_attention_step": lambda: recurrent_attention_step(*(new(1, 1, 4) for _ in range(3)), new(1, 1, 4, 4)),
    "flex_attention": lambda: flex_attention(new(1, 1, 4, 16), new(1, 1, 4, 16), new(1, 1, 4, 16)),
    "conv2d": lambda: conv2d(new(1, 4, 4, 2), new(2, 3, 3, 2)),
    "conv2d_wgrad": lambda: conv2d_wgrad(new(1, 4, 4, 2), new(1, 2, 2, 2), 3, 3),
    "conv2d_bias_grad": lambda: conv2d_bias_grad(new(1, 2, 2, 2)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_profiler_names_it_without_a_gradient(name, mode):
    with mode():
        CALLS[name]()  # the second call goes a shorter way
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            CALLS[name]()
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts[f"kernels_from_math::{name}"] == 1


def test_the_profiler_names_both_passes():
    x, w = new(1, 4, 2), new(2, 3)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        dynamic_conv(x, w).sum().backward()
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["kernels_from_math::dynamic_conv"] == counts["kernels_from_math::dynamic_conv_backward"] == 1
