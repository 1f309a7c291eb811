"""causal_conv1d's functions over ours: its layout, its sequence indices, its states, against torch's convolution."""

import pytest
import torch
import torch.nn.functional as F

from kernels import runtime
from kernels.dynamic_conv.causal_conv1d import causal_conv1d_fn, causal_conv1d_update

DEVICE = runtime.device


def equation(x, weight, bias=None, seq_idx=None, initial_states=None, activation=None):
    """In float64, token by token: what each sees is of its own sequence."""
    x, weight, bias, initial_states = (None if t is None else t.double() for t in (x, weight, bias, initial_states))
    (B, D, _), W = x.shape, weight.shape[-1]
    before = x.new_zeros(B, D, W - 1) if initial_states is None else initial_states
    seen = torch.cat([before, x], -1).unfold(-1, W, 1)  # [B, D, T, W]
    if seq_idx is not None:
        of = F.pad(seq_idx, (W - 1, 0), value=-1).unfold(-1, W, 1)  # [B, T, W]
        seen = seen * (of == of[..., -1:])[:, None]
    y = (seen * weight[:, None]).sum(-1)
    y = y if bias is None else y + bias[:, None]
    y = y if activation is None else F.silu(y)
    return y if seq_idx is None else y.masked_fill(seq_idx[:, None] < 0, 0)


def tensors(layout, B=2, D=8, T=21, W=4, dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(B, D, T, device=DEVICE, dtype=dtype)
    if layout == "channels last":
        x = x.mT.contiguous().mT
    weight, bias = (torch.randn(*size, device=DEVICE, dtype=dtype) for size in ((D, W), (D,)))
    return [t.requires_grad_() for t in (x, weight, bias)]


SEQ_IDX = [[0] * 5 + [1] + [2] * 15, [-1] * 3 + [7] * 4 + [2] * 2 + [9] * 10 + [-1] * 2]


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sequences_inside_rows(layout, dtype):
    leaves = tensors(layout)
    seq_idx = torch.tensor(SEQ_IDX, device=DEVICE, dtype=dtype)
    got = causal_conv1d_fn(*leaves, seq_idx=seq_idx, activation="silu")
    want = equation(*leaves, seq_idx=seq_idx, activation="silu")
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
    assert not got[1, :, :3].any() and not got[1, :, -2:].any()
    dy = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, leaves, dy), torch.autograd.grad(want, leaves, dy.double()), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
def test_states_go_in_and_out_with_gradients(layout, activation):
    x, weight, bias = leaves = tensors(layout)
    initial = torch.randn(2, 8, 3, device=DEVICE).requires_grad_()
    y, last = causal_conv1d_fn(
        *leaves, initial_states=initial, return_final_states=True, activation=activation
    )
    assert y.shape == x.shape and torch.equal(last, x[..., -3:])
    want = equation(x, weight, bias, initial_states=initial, activation=activation)
    torch.testing.assert_close(y.double(), want, atol=1e-5, rtol=1e-5)
    got = torch.autograd.grad(y.square().sum() + last.sum(), [*leaves, initial])
    wanted = torch.autograd.grad(want.square().sum() + x[..., -3:].sum(), [*leaves, initial])
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    out = torch.empty(2, 3, 8, device=DEVICE).mT
    with torch.no_grad():
        _, same = causal_conv1d_fn(x, weight, None, None, None, True, out, activation)
    assert same is out and torch.equal(out, x[..., -3:])


@torch.no_grad()
@pytest.mark.parametrize("kept", [3, 4])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_tokens_one_by_one_and_several_at_once(kept, pool, layout):
    x, weight, bias = tensors(layout)
    state = torch.zeros(5 if pool else 2, 8, kept, device=DEVICE)
    state = state.mT.contiguous().mT if layout == "channels last" else state
    indices = torch.tensor([3, 1], device=DEVICE, dtype=torch.int32) if pool else None
    options = {"activation": "silu", "conv_state_indices": indices}
    outs = [causal_conv1d_update(x[..., :6], state, weight, bias, **options)]
    outs += [causal_conv1d_update(x[..., t], state, weight, bias, **options)[..., None] for t in range(6, 9)]
    outs += [causal_conv1d_update(x[..., 9:9], state, weight, bias, **options)]
    outs += [causal_conv1d_update(x[..., 9:11], state, weight, bias, **options)]
    want = equation(x, weight, bias, activation="silu")[..., :11]
    torch.testing.assert_close(torch.cat(outs, -1).double(), want, atol=1e-5, rtol=1e-5)
    assert torch.equal(state[indices.long()] if pool else state, x[..., 11 - kept : 11])
    assert not pool or not state[[0, 2, 4]].any()


X, K, S = torch.zeros(2, 8, 5), torch.zeros(8, 4), torch.zeros(2, 8, 4)
INDEX = torch.zeros(2, 5, dtype=torch.int32)
WRONG = [
    (lambda: causal_conv1d_fn(X[0], K), r"x has shape .* needs \[B, D, T\]"),
    (lambda: causal_conv1d_fn(X, K, activation="relu"), "activation is 'relu'"),
    (lambda: causal_conv1d_fn(X, K, seq_idx=INDEX[:, :4]), r"seq_idx has shape \[2, 4\]"),
    (lambda: causal_conv1d_fn(X, K, seq_idx=INDEX.float()), "seq_idx has dtype float32"),
    (lambda: causal_conv1d_fn(X, K, seq_idx=INDEX, return_final_states=True), "seq_idx is given with a state"),
    (lambda: causal_conv1d_update(X[..., 0], S, K, cache_seqlens=INDEX[:, 0]), "cache_seqlens is given"),
    (lambda: causal_conv1d_update(X[..., 0], torch.zeros(2, 8, 5), K), r"conv_state has shape \[2, 8, 5\]"),
    (lambda: causal_conv1d_update(X, S, K, torch.zeros(7)), "bias has shape"),
    (lambda: causal_conv1d_update(X[..., 0], S[:1].expand(2, 8, 4), K), "conv_state has strides"),
    (lambda: causal_conv1d_update(X[..., 0], S, K, conv_state_indices=[0, 1]), "conv_state_indices must be a tensor"),
    (lambda: causal_conv1d_update(X[..., 0], S, K, conv_state_indices=INDEX[:, 0] * 0.5), "conv_state_indices has dtype"),
    (lambda: causal_conv1d_fn(X, K, None, None, None, True, [0.0]), "final_states_out must be a tensor"),
    (lambda: causal_conv1d_fn(X, K, None, None, None, True, S), r"final_states_out has shape .* needs .* \[2, 8, 3\]"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
@pytest.mark.skipif(not runtime.interpreted, reason="CPU tensors")
def test_what_does_not_fit_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
