"""Each proven fault of the published kernels that can be observed, as a test that bears its name."""

import pytest
import torch

from kernels import runtime
from kernels.dynamic_conv import dynamic_conv, dynamic_conv_step, operator
from kernels.dynamic_conv.reference import dynamic_conv_reference
from tests.dynamic_conv import cases


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, device=runtime.device).to(dtype)


@pytest.mark.parametrize("W", [3, 5, 6, 7])
def test_C1_width_need_not_be_a_power_of_two(W):
    cases.check(W=W)


def test_C2_sums_are_fp32():
    """fp16 300 * 300 overflows; the exact sum of the two products is 0."""
    x = torch.tensor([[[300.0], [300.0]]], dtype=torch.float16, device=runtime.device)
    weight = torch.tensor([300.0, -300.0], dtype=torch.float16, device=runtime.device).expand(1, 2, 1, 2)
    assert dynamic_conv(x, weight)[0, 1, 0] == 0


def test_C3_mixed_dtypes_keep_the_weight_gradient_exact():
    cases.check(dtype=torch.bfloat16, weight_dtype=torch.float32)
    cases.check(dtype=torch.float32, weight_dtype=torch.bfloat16)
    x, weight = randn(1, 5, 4).requires_grad_(), randn(1, 5, 4, 2, dtype=torch.bfloat16).requires_grad_()
    dynamic_conv(x, weight).sum().backward()
    assert (x.grad.dtype, weight.grad.dtype) == (torch.float32, torch.bfloat16)


def test_C4_offsets_are_64_bit():
    """Batch rows 2^30 elements apart: row 2 lies beyond the reach of a 32-bit offset."""
    far = 2**30
    storage = torch.empty(0, dtype=torch.float16, device=runtime.device).set_(
        torch.UntypedStorage(2 * (2 * far + 64), device=runtime.device)
    )
    weight = storage.as_strided((3, 2, 4, 2), (far, 8, 2, 1))
    for b in range(3):
        weight[b] = b + 1
    x = torch.ones(3, 2, 4, dtype=torch.float16, device=runtime.device, requires_grad=True)
    y = dynamic_conv(x, weight)
    assert torch.equal(y[:, 1, 0], torch.tensor([2.0, 4.0, 6.0], dtype=y.dtype, device=y.device))
    y.sum().backward()
    assert torch.equal(x.grad[:, 1, 0], torch.tensor([1.0, 2.0, 3.0], dtype=y.dtype, device=y.device))


def test_C5_a_weight_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"weight has shape \[2, 4, 4, 4\], needs .* \[2, 4, 8, any\]"):
        dynamic_conv(randn(2, 4, 8), randn(2, 4, 4, 4))


def test_C6_a_second_derivative_is_refused_clearly():
    x, weight = randn(1, 3, 4).requires_grad_(), randn(1, 3, 4, 2).requires_grad_()
    (dx,) = torch.autograd.grad(dynamic_conv(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dx.sum().backward()


@pytest.mark.parametrize("needed", [("x",), ("weight",), ("x", "weight")])
def test_C7_only_the_gradients_that_are_needed_are_computed(needed, monkeypatch):
    inputs = {"x": randn(1, 5, 4), "weight": randn(1, 5, 4, 3)}
    for name in needed:
        inputs[name].requires_grad_()
    y, asked, launch = dynamic_conv(**inputs), [], operator.launch
    monkeypatch.setattr(operator, "launch", lambda *a, **meta: (asked.append(a), launch(*a, **meta)))
    y.sum().backward()
    ((*_, grads),) = asked
    assert (grads.x is not None, grads.k is not None) == ("x" in needed, "weight" in needed)
    assert all((t.grad is not None) == (name in needed) for name, t in inputs.items())


def test_U1_the_backward_pass_does_not_leak_across_packed_sequences():
    cases.check(D=4, W=4, cu_seqlens=[0, 3, 7])


def test_U2_an_empty_sequence_keeps_the_others_in_place():
    cases.check(D=4, W=4, cu_seqlens=[0, 3, 3, 7], state=True, final=True)


def test_U3_a_short_prefill_shifts_the_old_state():
    """State [a b c d] and inputs e f leave [c d e f], not [a b e f]."""
    state = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], device=runtime.device)
    x = torch.tensor([[[5.0], [6.0]]], device=runtime.device)
    _, final = dynamic_conv(x, randn(1, 2, 1, 5), initial_state=state, output_final_state=True)
    assert final.flatten().tolist() == [3.0, 4.0, 5.0, 6.0]


def test_U4_packed_final_states_are_one_per_sequence():
    torch.manual_seed(0)
    x, weight = randn(1, 7, 3), randn(1, 7, 3, 3)
    cu_seqlens = torch.tensor([0, 3, 7], device=runtime.device)
    _, final = dynamic_conv(x, weight, cu_seqlens=cu_seqlens, output_final_state=True)
    assert torch.equal(final, torch.stack([x[0, 1:3].T, x[0, 5:7].T]))


def test_U4_inputs_are_never_modified():
    inputs = {"x": randn(1, 7, 4), "weight": randn(1, 7, 4, 3), "bias": randn(4), "residual": randn(1, 7, 4),
              "initial_state": randn(2, 4, 2)}  # fmt: skip
    before = {name: t.clone() for name, t in inputs.items()}
    dynamic_conv(**inputs, activation="silu", cu_seqlens=torch.tensor([0, 3, 7], device=runtime.device))
    assert all(torch.equal(t, before[name]) for name, t in inputs.items())


def test_U4_the_step_refuses_a_state_that_is_not_contiguous():
    state = randn(2, 3, 4).transpose(1, 2)
    with pytest.raises(ValueError, match="state has strides .* needs to be contiguous"):
        dynamic_conv_step(randn(2, 4), randn(2, 4, 4), state)


def test_U4_the_step_sums_in_fp32():
    state = torch.full((1, 1, 1), 300.0, dtype=torch.float16, device=runtime.device)
    x = torch.full((1, 1), 300.0, dtype=torch.float16, device=runtime.device)
    weight = torch.tensor([[300.0, -300.0]], dtype=torch.float16, device=runtime.device)
    assert dynamic_conv_step(x, weight, state) == 0


def test_the_reference_agrees_with_the_table():
    """The rows above lean on the reference where they compare: it keeps packed sequences apart by construction."""
    x, weight = torch.randn(1, 7, 2), torch.randn(1, 7, 2, 4)
    packed = dynamic_conv_reference(x, weight, cu_seqlens=torch.tensor([0, 3, 7]))
    alone = dynamic_conv_reference(x[:, 3:], weight[:, 3:])
    assert torch.equal(packed[:, 3:], alone)
