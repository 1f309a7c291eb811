"""Tokens behind the last packed sequence and rows without a state are padding: zero, and nothing else is touched."""

import pytest
import torch

from kernels import runtime
from kernels.common import checks, sequences
from kernels.dynamic_conv import DynamicShortConvolution, dynamic_conv, dynamic_conv_step
from kernels.dynamic_conv.causal_conv1d import causal_conv1d_update
from kernels.dynamic_conv.reference import dynamic_conv_reference, dynamic_conv_step_reference
from kernels.lab import compile_report
from kernels.recurrent_attention import recurrent_attention, recurrent_attention_step
from kernels.recurrent_attention.reference import recurrent_attention_reference, recurrent_attention_step_reference

T = 23
ENDS = {"padding": (0, 5, 5, 18), "only padding": (0, 0), "no sequence": (0,), "none": (0, 9, T)}


def new(*shape):
    return torch.randn(*shape, device=runtime.device)


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=runtime.device)


@pytest.fixture
def unseen(monkeypatch):
    """Values are as unknown as a GPU's are."""
    for module in (checks, sequences):
        monkeypatch.setattr(module, "values_checked", lambda tensor: False)
    monkeypatch.setattr(sequences, "_cover", lambda cu_seqlens, T: False)


def compare(ours, reference, given, cu, first=0, **rest):
    """Outputs and gradients against the reference of the tokens in sequences, padding's against zero. What padding holds, in
    tensors and in the output's gradient, is NaN, and so is fresh memory."""
    inside = slice(first, cu[-1])
    tokens = lambda t: t.ndim > 1 and t.shape[:2] == (1, T)
    poisoned = {}
    for name, t in given.items():
        poisoned[name] = t.clone()
        if tokens(t):
            poisoned[name].fill_(float("nan"))[:, inside] = t[:, inside]
        poisoned[name].requires_grad_()
    out, state = ours(**poisoned, cu_seqlens=ints(*cu), output_final_state=True, **rest)
    assert (out[:, :first] == 0).all() and (out[:, cu[-1] :] == 0).all()
    dout, dstate = torch.full_like(out, float("nan")), torch.randn_like(state)
    dout[:, inside] = torch.randn_like(out[:, inside])
    grads = torch.autograd.grad([out, state], list(poisoned.values()), [dout, dstate], allow_unused=True)

    alone = {name: (t[:, inside] if tokens(t) else t).double().requires_grad_() for name, t in given.items()}
    shifted = ints(*(end - first for end in cu))
    want, last = reference(**alone, cu_seqlens=shifted, output_final_state=True, **rest)
    torch.testing.assert_close(out[:, inside].double(), want, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(state.double(), last, rtol=2e-4, atol=2e-4)
    pairs = [(want, dout[:, inside].double()), (last, dstate.double())]
    pairs = [pair for pair in pairs if pair[0].requires_grad]  # without a sequence none is
    wants = [None] * len(given)
    if pairs:
        outs, douts = zip(*pairs, strict=True)
        wants = torch.autograd.grad(outs, list(alone.values()), douts, allow_unused=True)
    for name, got, right in zip(given, grads, wants, strict=True):
        assert got is not None and got.isfinite().all(), name
        right = torch.zeros_like(alone[name]) if right is None else right
        if tokens(given[name]):
            assert (got[:, :first] == 0).all() and (got[:, cu[-1] :] == 0).all(), name
            got = got[:, inside]
        torch.testing.assert_close(
            got.double(), right, rtol=2e-3, atol=2e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


def conv(cu, static, W=4, D=6):
    N = len(cu) - 1
    weight = new(D, W) if static else new(1, T, D, W)
    return {
        "x": new(1, T, D),
        "weight": weight,
        "bias": new(D),
        "residual": new(1, T, D),
        "initial_state": new(N, D, W - 1),
    }


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("static", [True, False])
def test_a_dynamic_convolution(name, static, unseen):
    cu = ENDS[name]
    compare(dynamic_conv, dynamic_conv_reference, conv(cu, static), cu, activation="silu")


@pytest.mark.parametrize("static", [True, False])
def test_a_dynamic_convolution_whose_first_sequence_begins_later(static, unseen):
    """Where values are seen, that is refused."""
    compare(dynamic_conv, dynamic_conv_reference, conv((3, 9, 18), static, W=3), (3, 9, 18), first=3)


def attention(cu, gates, K=8, V=4, H=2):
    shapes = {"g": (1, T, H), "g_gamma": (H,), "gk": (1, T, H, K), "gv": (1, T, H, V)}
    given = {
        "q": new(1, T, H, K),
        "k": new(1, T, 1, K),
        "v": new(1, T, 1, V),
        "initial_state": new(len(cu) - 1, H, K, V),
    }
    return given | {gate: -new(*shapes[gate]).abs() / 4 for gate in gates}


GATES = {
    "recurrent": ("g", "g_gamma", "gk", "gv"),
    "chunk": ("g", "g_gamma", "gk"),
    "chunk, one gate": ("g", "g_gamma"),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(("mode", "reverse"), [(mode, mode == "chunk") for mode in GATES])
def test_recurrent_attention(name, mode, reverse, unseen):
    cu, given = ENDS[name], attention(ENDS[name], GATES[mode])
    ours = lambda **rest: recurrent_attention(**rest, mode=mode.split(",")[0])
    compare(ours, recurrent_attention_reference, given, cu, reverse=reverse)


@pytest.mark.parametrize("mode", GATES)
def test_recurrent_attention_whose_first_sequence_begins_later(mode, unseen):
    ours = lambda **rest: recurrent_attention(**rest, mode=mode.split(",")[0])
    compare(ours, recurrent_attention_reference, attention((3, 9, 18), GATES[mode]), (3, 9, 18), first=3)


def test_without_gates_and_of_a_state_in_tiles(unseen):
    compare(
        lambda **rest: recurrent_attention(**rest, mode="chunk"),
        recurrent_attention_reference,
        attention((0, 5, 18), (), K=256, V=16),
        (0, 5, 18),
    )


def test_the_values_that_are_seen():
    x, q = new(1, T, 4), new(1, T, 1, 4)
    calls = (lambda **rest: dynamic_conv(x, new(4, 3), **rest), lambda **rest: recurrent_attention(q, q, q, **rest))
    for run in calls:
        call = lambda cu, run=run: run(cu_seqlens=cu)
        call(ints(0, 5, T - 1)), call(ints(0, 5, T)), call(ints(0))
        if runtime.interpreted:
            for wrong in ((0, T + 1), (1, T), (0, 5, 4)):
                with pytest.raises(ValueError, match=rf"cu_seqlens is .* end at no more than T = {T}"):
                    call(ints(*wrong))


def in_a_pool(*shape):
    """A pool of 5 states with three of NaN before it."""
    memory = torch.full((8, *shape), float("nan"), device=runtime.device)
    memory[3:] = torch.randn_like(memory[3:])
    return memory, memory[3:]


SLOTS = [ints(3, -1, 0, dtype=dtype) for dtype in (torch.int32, torch.int64)] + [ints(-1, -2, -1)]


@pytest.mark.parametrize("slots", SLOTS, ids=str)
@pytest.mark.parametrize("static", [True, False])
def test_a_step_of_the_convolution(slots, static):
    memory, state = in_a_pool(4, 2)
    before = memory.clone()
    x, weight = new(3, 4), new(*(() if static else (3,)), 4, 3)
    rest = {"bias": new(4), "residual": new(3, 4), "activation": "silu", "slots": slots}
    want, after = dynamic_conv_step_reference(x, weight, state.clone(), **rest)
    for t in (x, rest["residual"]):
        t[slots < 0] = float("nan")
    y = dynamic_conv_step(x, weight, state, **rest)
    assert (y[slots < 0] == 0).all() and torch.equal(memory[:3].isnan(), before[:3].isnan())
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(state, after)


@pytest.mark.parametrize("slots", SLOTS, ids=str)
def test_a_step_of_the_layer(slots):
    layer = DynamicShortConvolution(4, 3).to(runtime.device)
    _, cache = in_a_pool(4, 3)
    x, before = new(3, 4), cache.clone()
    y = layer.step(x, cache, slots=slots)
    assert (y[slots < 0] == 0).all() and y[slots >= 0].any(1).all()
    changed = (cache != before).any(2).any(1).nonzero()[:, 0].tolist()
    assert changed == sorted(slots[slots >= 0].tolist())


@pytest.mark.parametrize("slots", SLOTS, ids=str)
def test_an_update_of_causal_conv1d(slots):
    memory, state = in_a_pool(4, 2)
    x, weight = new(3, 4), new(4, 3)
    want, after = dynamic_conv_step_reference(x, weight, state.clone(), slots=slots)
    torch.testing.assert_close(causal_conv1d_update(x, state, weight, conv_state_indices=slots), want)
    torch.testing.assert_close(state, after)
    assert memory[:3].isnan().all()


@pytest.mark.parametrize("slots", SLOTS, ids=str)
def test_a_step_of_recurrent_attention(slots):
    memory, state = in_a_pool(2, 4, 8)
    q, k, v, g, gk = new(3, 2, 4), new(3, 1, 4), new(3, 1, 8), -new(3, 2).abs(), -new(3, 2, 4).abs()
    want, after = recurrent_attention_step_reference(q, k, v, state.clone(), g=g, gk=gk, slots=slots)
    for t in (q, k, v, g, gk):
        t[slots < 0] = float("nan")
    o = recurrent_attention_step(q, k, v, state, g=g, gk=gk, slots=slots)
    assert (o[slots < 0] == 0).all() and memory[:3].isnan().all()
    torch.testing.assert_close(o, want)
    torch.testing.assert_close(state, after)


@pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests compile the kernel")
def test_clearing_compiles(monkeypatch):
    seen = []
    record = lambda kernel, grid, *args, outputs=(), **meta: seen.append((kernel, args, meta))  # noqa: E731
    monkeypatch.setattr(sequences, "launch", record)
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    sequences.clear_outside(ints(0, 5), T, *(torch.zeros(1, T, 4, dtype=dtype) for dtype in dtypes), None)
    ((kernel, args, meta),) = seen
    report = compile_report(kernel, *args, arch=90, **meta)
    assert report.spill_bytes == 0 and report.count("STG") >= 6
