"""State: however a sequence is cut, packed or streamed, the numbers are those of the whole sequence."""

import pytest
import torch

from kernels import runtime
from kernels.dynamic_conv import dynamic_conv, dynamic_conv_step
from kernels.dynamic_conv.reference import dynamic_conv_step_reference
from tests.dynamic_conv import cases
from tests.tensors import same

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, device=runtime.device).to(dtype)


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 10, 11])
@pytest.mark.parametrize("W", [1, 2, 5])
def test_chunked_prefill_equals_the_whole(cut, W):
    torch.manual_seed(0)
    x, weight, state = randn(2, 11, 6), randn(2, 11, 6, W), randn(2, 6, W - 1)
    whole, last = dynamic_conv(x, weight, initial_state=state, output_final_state=True)
    first, middle = dynamic_conv(x[:, :cut], weight[:, :cut], initial_state=state, output_final_state=True)
    second, end = dynamic_conv(x[:, cut:], weight[:, cut:], initial_state=middle, output_final_state=True)
    assert same(torch.cat([first, second], 1), whole)
    assert torch.equal(end, last)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("W", [1, 2, 3, 4, 6])
def test_streaming_equals_the_whole(W, dtype):
    torch.manual_seed(0)
    B, T, D = 2, 6, 10
    x, weight, bias, residual = randn(B, T, D, dtype=dtype), randn(B, T, D, W, dtype=dtype), randn(D), randn(B, T, D)
    tail = {"bias": bias, "activation": "silu"}
    whole, last = dynamic_conv(x, weight, residual=residual, output_final_state=True, **tail)
    state = torch.zeros(B, D, W - 1, dtype=dtype, device=runtime.device)
    for t in range(T):
        y = dynamic_conv_step(x[:, t], weight[:, t], state, residual=residual[:, t], **tail)
        assert cases.relative_error(y, whole[:, t].float()) <= cases.TOLERANCE[dtype]
    assert torch.equal(state, last)


def test_packed_equals_one_by_one():
    torch.manual_seed(0)
    cu = [0, 3, 3, 4, 12, 12]
    x, weight, state = randn(1, 12, 6), randn(1, 12, 6, 4), randn(5, 6, 3)
    y, final = dynamic_conv(
        x, weight, initial_state=state, output_final_state=True, cu_seqlens=torch.tensor(cu, device=runtime.device)
    )
    for n, (a, b) in enumerate(zip(cu[:-1], cu[1:], strict=True)):
        alone, end = dynamic_conv(x[:, a:b], weight[:, a:b], initial_state=state[n : n + 1], output_final_state=True)
        assert torch.equal(y[:, a:b], alone), n
        assert torch.equal(final[n : n + 1], end), n


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_cu_seqlens_of_either_integer_type_and_any_stride(integers):
    x, weight = randn(1, 7, 4), randn(1, 7, 4, 3)
    plain = dynamic_conv(x, weight, cu_seqlens=torch.tensor([0, 3, 7], device=runtime.device))
    strided = torch.tensor([0, 9, 3, 9, 7], dtype=integers, device=runtime.device)[::2]
    assert torch.equal(dynamic_conv(x, weight, cu_seqlens=strided), plain)


@pytest.mark.parametrize("static", [False, True])
def test_step_updates_only_its_slots_of_the_pool(static):
    torch.manual_seed(0)
    pool = randn(7, 5, 3)
    slots = torch.tensor([4, 0, 6], device=runtime.device)
    x, weight = randn(3, 5), randn(5, 4) if static else randn(3, 5, 4)
    want_y, want_pool = dynamic_conv_step_reference(x.cpu(), weight.cpu(), pool.cpu(), slots=slots.cpu())
    address = pool.data_ptr()
    y = dynamic_conv_step(x, weight, pool, slots=slots)
    torch.testing.assert_close(y.cpu(), want_y)
    assert torch.equal(pool.cpu(), want_pool) and pool.data_ptr() == address


def test_the_state_keeps_its_own_dtype():
    state = randn(1, 4, 2)
    y, final = dynamic_conv(
        randn(1, 5, 4, dtype=torch.bfloat16),
        randn(1, 5, 4, 3, dtype=torch.bfloat16),
        initial_state=state,
        output_final_state=True,
    )
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    _, final = dynamic_conv(randn(1, 5, 4, dtype=torch.float16), randn(4, 3), output_final_state=True)
    assert final.dtype == torch.float16
