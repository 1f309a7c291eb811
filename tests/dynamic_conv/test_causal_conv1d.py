"""causal_conv1d's functions over ours: its layout, its sequence indices, its states, against torch's convolution."""

import pytest
import torch
import torch.nn.functional as F

from kernels import runtime
from kernels.dynamic_conv.causal_conv1d import causal_conv1d_fn, causal_conv1d_update, causal_conv1d_varlen_states

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


def ways(kept, B=3):
    """``(x [B, D, T], weight, bias, states)``, of ``kept`` inputs of 8 sequences."""
    generator = torch.Generator().manual_seed(kept)
    randn = lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)  # noqa: E731
    x, weight, bias, pool = randn(B, 5, 6).mT, randn(6, 4), randn(6), randn(8, kept, 6).mT
    return x, weight, bias, pool


@pytest.mark.parametrize("kept", [3, 4, 5, 9])
def test_states_longer_than_the_filter(kept):
    x, weight, bias, pool = ways(kept)
    state = pool[:3].clone()
    long = torch.cat([state, x], -1)
    want = F.conv1d(long[..., -8:], weight[:, None], bias, groups=6)
    got = causal_conv1d_update(x[..., :3], state, weight, bias)
    one_by_one = [causal_conv1d_update(x[..., t], state, weight, bias) for t in (3, 4)]
    torch.testing.assert_close(torch.cat([got, torch.stack(one_by_one, -1)], -1), want)
    assert torch.equal(state, long[..., -kept:])


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kept", [3, 4, 6])
@pytest.mark.parametrize("slots", [[5, -1, 0], [-1, 2, -1], [-1, -1, -1], [1, 0, 7]])
def test_negative_indices_are_padding(slots, kept, at_once):
    """As servers pad a batch to the size that a graph was captured for: no state changes, y is 0."""
    x, weight, bias, pool = ways(kept)
    x = x if at_once else x[..., 0]
    index = torch.tensor(slots, dtype=torch.int32, device=DEVICE)
    want = pool.clone()
    got = causal_conv1d_update(x, pool, weight, bias, "silu", conv_state_indices=index)
    for b, slot in enumerate(slots):
        if slot < 0:
            assert not got[b].any()
        else:
            alone = causal_conv1d_update(x[b : b + 1], want[slot : slot + 1], weight, bias, "silu")
            torch.testing.assert_close(got[b], alone[0])
    assert torch.equal(pool, want)


@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize("kept", [3, 4, 6])
@pytest.mark.parametrize("at_once", [False, True])
def test_of_a_pool_without_states_all_is_padding(at_once, kept, circular):
    x, weight, bias, pool = ways(kept)
    x = x if at_once else x[..., 0]
    index = torch.full((3,), -1, device=DEVICE)
    seen = torch.arange(3, device=DEVICE) if circular else None
    got = causal_conv1d_update(x, pool[:0], weight, bias, "silu", cache_seqlens=seen, conv_state_indices=index)
    assert torch.equal(got, torch.zeros_like(x)) and got.dtype == x.dtype


@pytest.mark.parametrize("in_pool", [False, True])
@pytest.mark.parametrize("kept", [3, 5, 8])
def test_circular_states(kept, in_pool):
    x, weight, bias, pool = ways(kept)
    seen = torch.tensor([0, 17, 6], dtype=torch.int32, device=DEVICE)
    slots = [6, 1, 3] if in_pool else [0, 1, 2]
    index = torch.tensor(slots, device=DEVICE) if in_pool else None
    state = pool if in_pool else pool[:3]
    before = torch.stack([state[s][:, [(n - 3 + i) % kept for i in range(3)]] for s, n in zip(slots, seen, strict=True)])
    want = F.conv1d(torch.cat([before, x], -1), weight[:, None], bias, groups=6)
    options = {"cache_seqlens": seen, "conv_state_indices": index}
    got = causal_conv1d_update(x[..., :4], state, weight, bias, **options)
    last = causal_conv1d_update(x[..., 4], state, weight, bias, **options | {"cache_seqlens": seen + 4})
    torch.testing.assert_close(torch.cat([got, last[..., None]], -1), want)
    for b, (slot, n) in enumerate(zip(slots, seen.tolist(), strict=True)):
        for t in range(max(0, 5 - kept), 5):
            assert torch.equal(state[slot][:, (n + t) % kept], x[b, :, t])


def test_states_of_sequences_end_to_end():
    x = ways(9)[0].mT.reshape(15, 6)
    got = causal_conv1d_varlen_states(x, torch.tensor([0, 2, 2, 15], dtype=torch.int32, device=DEVICE), 4)
    assert torch.equal(got[0], F.pad(x[:2].T, (2, 0))) and not got[1].any()
    assert torch.equal(got[2], x[-4:].T)


def test_behind_the_last_sequence_there_may_be_padding():
    """A server's batch is as long as its graph was captured for; causal_conv1d reads no token behind the last sequence."""
    x = ways(9)[0].mT.reshape(15, 6)
    cu_seqlens = torch.tensor([0, 2, 7], device=DEVICE)
    assert torch.equal(causal_conv1d_varlen_states(x, cu_seqlens, 4), causal_conv1d_varlen_states(x[:7], cu_seqlens, 4))


X, K, S = torch.zeros(2, 8, 5), torch.zeros(8, 4), torch.zeros(2, 8, 4)
INDEX = torch.zeros(2, 5, dtype=torch.int32)
WRONG = [
    (lambda: causal_conv1d_fn(X[0], K), r"x has shape .* needs \[B, D, T\]"),
    (lambda: causal_conv1d_fn(X, K, activation="relu"), "activation is 'relu'"),
    (lambda: causal_conv1d_fn(X, K, seq_idx=INDEX[:, :4]), r"seq_idx has shape \[2, 4\]"),
    (lambda: causal_conv1d_fn(X, K, seq_idx=INDEX.float()), "seq_idx has dtype float32"),
    (lambda: causal_conv1d_fn(X, K, seq_idx=INDEX, return_final_states=True), "seq_idx is given with a state"),
    (lambda: causal_conv1d_update(X[..., 0], S, K, cache_seqlens=INDEX), r"cache_seqlens has shape \[2, 5\]"),
    (lambda: causal_conv1d_update(X[..., 0], S, K, cache_seqlens=INDEX[:, 0] * 0.5), "cache_seqlens has dtype"),
    (lambda: causal_conv1d_update(X[..., 0], torch.zeros(2, 8, 2), K), r"conv_state has .*needs at least W-1 = 3 inputs"),
    (lambda: causal_conv1d_update(X[..., 0], S, K, conv_state_indices=INDEX[:, 0]), "conv_state_indices holds a state twice"),
    (lambda: causal_conv1d_update(X[..., 0], S, K, conv_state_indices=INDEX[:, 0] + 2), "conv_state_indices holds values"),
    (lambda: causal_conv1d_update(X[..., 0], S[:0], K, conv_state_indices=INDEX[:, 0]), "needs only negative ones: the pool"),
    (lambda: causal_conv1d_update(X[..., 0], S, K[:, :0]), "at least one tap"),
    (lambda: causal_conv1d_varlen_states(X[0].T, torch.tensor([0, 6]), 3), "cu_seqlens is .* end at no more than T = 5"),
    (lambda: causal_conv1d_varlen_states(X[0].T, torch.tensor([0, 4, 3]), 3), "cu_seqlens is .* never fall"),
    (lambda: causal_conv1d_varlen_states(X[0].T, torch.tensor([1, 4]), 3), "cu_seqlens is .* start at 0"),
    (lambda: causal_conv1d_varlen_states(X[0].T, torch.tensor([0, 5]), -1), "state_len is -1"),
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
