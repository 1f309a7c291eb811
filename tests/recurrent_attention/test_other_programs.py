"""``recurrent_attention`` inside other people's programs: transforms, tracers, hooks, checkpoints, autocast."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from kernels import runtime
from kernels.recurrent_attention import recurrent_attention, recurrent_attention_step
from tests.common import other_programs as programs

MODES = pytest.mark.parametrize("mode", ["recurrent", "chunk"])


def leaves():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 20, 2, 16, device=runtime.device) for _ in range(3))
    g = -torch.rand(1, 20, 2, device=runtime.device)
    return [t.requires_grad_() for t in (q, k, v, g)]


def attention(mode):
    return lambda q, k, v, g: recurrent_attention(q, k, v, g=g, mode=mode)[0]


@MODES
def test_transforms_are_refused_by_name(mode):
    programs.refuses_transforms(attention(mode), leaves(), "recurrent_attention")


@MODES
def test_batched_gradients_and_second_derivatives_say_what_to_do(mode):
    programs.says_that_gradients_come_one_by_one(attention(mode), leaves(), "recurrent_attention")
    programs.refuses_second_derivatives(attention(mode), leaves(), "recurrent_attention")


@MODES
def test_tracers_record_one_call(mode):
    def function(q, k, v, g):
        return recurrent_attention(q, k, v, g=g, mode=mode)[0]

    programs.is_recorded(function, leaves(), recurrent_attention)


@MODES
def test_negative_views_are_what_they_say(mode):
    programs.takes_negative_views(attention(mode), leaves())


def test_packed_sequences_of_fake_tensors():
    function = lambda q, k, v, g, cu: recurrent_attention(q, k, v, g=g, cu_seqlens=cu)[0]  # noqa: E731
    programs.fake_sequences_are_packed(function, leaves())


@MODES
def test_hooks_on_saved_tensors_and_changes_in_place(mode):
    programs.lets_saved_tensors_be_replaced(attention(mode), leaves())
    programs.notices_changes_in_place(attention(mode), leaves())


@MODES
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(mode, use_reentrant):
    programs.can_be_checkpointed(attention(mode), leaves(), use_reentrant)


@MODES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_queries_keys_and_values(mode, dtype):
    q, k, v, g = leaves()
    with torch.autocast(runtime.device.type, dtype=dtype):
        o, _ = recurrent_attention(q, k, v.to(torch.bfloat16), g=g, mode=mode)
    assert o.dtype == dtype
    o.float().sum().backward()
    assert q.grad.dtype == k.grad.dtype == g.grad.dtype == torch.float32
    want, _ = recurrent_attention(q, k, v, g=g, mode=mode)
    torch.testing.assert_close(o.float(), want, rtol=0.05, atol=0.05)


@torch.no_grad()
def test_a_step_under_autocast_takes_what_the_sequence_takes():
    q, k, v, g = (t[:, 0] for t in leaves())
    state = torch.zeros(1, 2, 16, 16, device=runtime.device)
    with torch.autocast(runtime.device.type, dtype=torch.bfloat16):
        o = recurrent_attention_step(q, k.bfloat16(), v, state, g=g)
    assert o.dtype == torch.bfloat16 and state.dtype == torch.float32 and state.any()


@MODES
def test_a_default_device_holds_nothing_of_a_call(mode):
    inputs = leaves()
    want = programs.gradients(attention(mode), inputs)
    with torch.device("meta"):
        got = programs.gradients(attention(mode), inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_a_scale_that_changes_costs_a_graph_each_as_torchs_own_attention_does():
    """A number that goes into an operator is part of the graph; one that multiplies a tensor is an input from its second
    value on."""
    q, k, v, _ = (t.detach() for t in leaves())

    def graphs(function):
        torch.compiler.reset()
        made = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(function, backend=made, fullgraph=True)
        for scale in (0.1, 0.2, 0.3, 0.4):
            torch.testing.assert_close(compiled(scale), function(scale))
        return made.frame_count

    sdpa = torch.nn.functional.scaled_dot_product_attention
    assert graphs(lambda scale: recurrent_attention(q, k, v, scale=scale)[0]) == graphs(
        lambda scale: sdpa(q, k, v, scale=scale)
    )
    assert graphs(lambda scale: recurrent_attention(q * scale, k, v, scale=1)[0]) == 2


@pytest.mark.parametrize("gate", ["g", "gk"])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_a_length_that_only_the_data_say_is_compiled_and_may_be_0(gate):
    def of_chosen(x, chosen):
        q = x[torch.nonzero(chosen).flatten()][None]
        gates = {gate: -q.abs() if gate == "gk" else -q.abs().sum(-1)}
        return recurrent_attention(q, q, q, **gates, mode="chunk", output_final_state=True)

    torch._dynamo.reset()
    compiled = torch.compile(of_chosen, fullgraph=True, backend="aot_eager")
    x, even = torch.randn(40, 2, 16, device=runtime.device), torch.arange(40, device=runtime.device) % 2 == 0
    for chosen in (even, even & ~even):
        for got, want in zip(compiled(x, chosen), of_chosen(x, chosen), strict=True):
            assert torch.equal(got, want)
