"""``dynamic_conv`` and its layer inside other people's programs: transforms, tracers, hooks, checkpoints, copies."""

import copy
import io
import pickle

import pytest
import torch

from kernels import runtime
from kernels.dynamic_conv import DynamicShortConvolution, dynamic_conv, dynamic_conv_step
from kernels.dynamic_conv.causal_conv1d import causal_conv1d_update
from kernels.dynamic_conv.reference import dynamic_conv_reference, dynamic_conv_step_reference
from tests.common import other_programs as programs


def leaves():
    torch.manual_seed(0)
    return [torch.randn(s, device=runtime.device, requires_grad=True) for s in ((2, 7, 6), (2, 7, 6, 3))]


def conv(x, weight):
    return dynamic_conv(x, weight, activation="silu")


def test_transforms_are_refused_by_name():
    programs.refuses_transforms(conv, leaves(), "dynamic_conv")


def test_batched_gradients_and_second_derivatives_say_what_to_do():
    programs.says_that_gradients_come_one_by_one(conv, leaves(), "dynamic_conv")
    programs.refuses_second_derivatives(conv, leaves(), "dynamic_conv")


def test_tracers_record_one_call():
    programs.is_recorded(conv, leaves(), dynamic_conv)


def test_a_network_with_the_layer_is_traced_by_fx():
    network = torch.nn.Sequential(DynamicShortConvolution(6, 3), torch.nn.Linear(6, 6)).to(runtime.device)
    graph = torch.fx.symbolic_trace(network)
    for T in (7, 2):
        x = torch.randn(2, T, 6, device=runtime.device)
        torch.testing.assert_close(graph(x), network(x))


def test_a_layers_step_on_a_cache_of_other_strides_is_compiled():
    layer, cache = DynamicShortConvolution(6, 3).to(runtime.device), torch.zeros(2, 3, 6, device=runtime.device)
    compiled, other = torch.compile(layer.step, backend="aot_eager", fullgraph=True, dynamic=True), cache.clone()
    for x in torch.randn(2, 2, 6, device=runtime.device):
        torch.testing.assert_close(compiled(x, cache.mT), layer.step(x, other.mT))
    assert torch.equal(cache, other) and cache.any()


def test_packed_sequences_of_fake_tensors():
    function = lambda x, weight, cu: dynamic_conv(x, weight, cu_seqlens=cu)  # noqa: E731
    programs.fake_sequences_are_packed(function, [t[:1] for t in leaves()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("static", [True, False])
def test_autocast_casts_what_it_casts_of_torchs_convolutions(static, dtype):
    new = lambda *shape: torch.randn(shape, device=runtime.device, requires_grad=True)  # noqa: E731
    x, weight, bias, residual = new(1, 7, 6), new(*(() if static else (1, 7)), 6, 3), new(6), new(1, 7, 6)
    arguments = {"bias": bias, "residual": residual, "activation": "silu", "output_final_state": True}
    with torch.autocast(runtime.device.type, dtype=dtype):
        y, state = dynamic_conv(x, weight, **arguments)
        theirs = torch.nn.functional.conv1d(x.mT, new(6, 1, 3), bias, groups=6)
        assert y.dtype == state.dtype == theirs.dtype == dtype
    y.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in (x, weight, bias, residual))
    torch.testing.assert_close(y.float(), dynamic_conv(x, weight, **arguments)[0], rtol=0.05, atol=0.05)


@torch.no_grad()
def test_steps_under_autocast_give_what_the_sequence_gives():
    x, weight = torch.randn(2, 6, device=runtime.device), torch.randn(6, 3, device=runtime.device)
    states = [torch.zeros(2, 6, 2, device=runtime.device) for _ in range(3)]
    layer = DynamicShortConvolution(6, 3).to(runtime.device)
    cache = torch.zeros(2, 6, 3, device=runtime.device)
    with torch.autocast(runtime.device.type, dtype=torch.bfloat16):
        y = dynamic_conv_step(x, weight, states[0])
        assert torch.equal(y, dynamic_conv(x[:, None], weight, initial_state=states[1])[:, 0])
        assert torch.equal(y, causal_conv1d_update(x, states[1], weight))
        assert torch.equal(layer.step(x, cache), layer(x[:, None], state=states[2])[:, 0])
    assert y.dtype == torch.bfloat16 and all(t.dtype == torch.float32 and t.any() for t in (*states[:2], cache))


def test_swish_is_silu():
    (x, weight), bias = leaves(), torch.randn(6, device=runtime.device)
    rest = {"bias": bias, "activation": "silu"}
    other = rest | {"activation": "swish"}
    assert torch.equal(dynamic_conv(x, weight, **rest), dynamic_conv(x, weight, **other))
    assert dynamic_conv.explain(x, weight, **rest) == dynamic_conv.explain(x, weight, **other)
    assert torch.equal(dynamic_conv_reference(x, weight, **rest), dynamic_conv_reference(x, weight, **other))
    with torch.no_grad():
        state = x.new_zeros(x.shape[0], x.shape[2], weight.shape[-1] - 1)
        one, two = (dynamic_conv_step(x[:, 0], weight[:, 0], state.clone(), **each) for each in (rest, other))
    assert torch.equal(one, two)
    with pytest.raises(ValueError, match="activation is 'relu', needs one of None, 'silu', 'swish'"):
        dynamic_conv(x, weight, activation="relu")


def test_negative_views_are_what_they_say():
    programs.takes_negative_views(conv, leaves())
    x, weight = (torch.complex(t, -t).detach().conj().imag for t in leaves())
    assert x.is_neg() and weight.is_neg()
    state, other = torch.zeros(2, 2, 6, 2, device=runtime.device)
    got = dynamic_conv_step(x[:, 0], weight[:, 0], state)
    assert torch.equal(got, dynamic_conv_step(*(t.resolve_neg()[:, 0] for t in (x, weight)), other))


def test_hooks_on_saved_tensors_and_changes_in_place():
    programs.lets_saved_tensors_be_replaced(conv, leaves())
    programs.notices_changes_in_place(conv, leaves())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(use_reentrant):
    programs.can_be_checkpointed(conv, leaves(), use_reentrant)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_layer_follows_autocast(dtype):
    layer = DynamicShortConvolution(8, 3).to(runtime.device)
    x = torch.randn(1, 5, 8, device=runtime.device, requires_grad=True)
    with torch.autocast(runtime.device.type, dtype=dtype):
        y = layer(x)  # the generator's products are 16-bit, the convolution takes each tensor as it is
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32 and layer.w2.weight.grad.dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), "saved"])
def test_the_layer_is_copied_pickled_and_saved(copied):
    layer = DynamicShortConvolution(8, 3, static_conv_init=torch.randn(8, 3)).to(runtime.device)
    if copied == "saved":
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = copied(layer)
    x = torch.randn(1, 5, 8, device=runtime.device)
    assert torch.equal(other(x), layer(x))
    assert all(a is not b for a, b in zip(other.parameters(), layer.parameters(), strict=True))


def test_the_references_step_counts_its_rows_where_they_lie():
    """On a device of its own, whatever torch's default is."""
    x, weight, state = (torch.randn(s, device="meta") for s in ((2, 6), (6, 3), (2, 6, 2)))
    y, new = dynamic_conv_step_reference(x, weight, state)
    assert y.device.type == new.device.type == "meta"
    x, weight, state = (torch.randn(s, device=runtime.device) for s in ((2, 6), (6, 3), (2, 6, 2)))
    with torch.device("meta"):
        want, shifted = dynamic_conv_step_reference(x, weight, state)
        y = dynamic_conv_step(x, weight, state)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(state, shifted)


def test_a_default_device_holds_nothing_of_a_call():
    inputs = leaves()
    want = programs.gradients(conv, inputs)
    with torch.device("meta"):
        got = programs.gradients(conv, inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
