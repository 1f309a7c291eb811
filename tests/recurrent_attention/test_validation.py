"""Bad input: a ValueError that names the argument, what it got and what it needs, before anything is launched."""

import pytest
import torch

from kernels import runtime
from kernels.recurrent_attention import recurrent_attention as ra
from kernels.recurrent_attention import recurrent_attention_step as step
from tests.recurrent_attention import cases


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=runtime.device)


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=runtime.device)


Q, K, V = zeros(2, 5, 4, 6), zeros(2, 5, 2, 6), zeros(2, 5, 2, 3)
q, k, v = (x[:, 0] for x in (Q, K, V))
one = [x[:1] for x in (Q, K, V)]
S = zeros(2, 4, 6, 3)
POOL = zeros(9, 4, 6, 3)

CALLS = [
    (lambda: ra([1.0], K, V), "q must be a tensor"),
    (lambda: ra(zeros(5, 4, 6), K, V), r"q has shape \[5, 4, 6\], needs \[B, T, H, K\]"),
    (lambda: ra(Q.double(), K, V), "q has dtype float64, needs one of float32"),
    (lambda: ra(Q, None, V), "k must be a tensor"),
    (lambda: ra(Q, K[:1], V), r"k has shape \[1, 5, 2, 6\], needs .* \[2, 5, any, 6\]"),
    (lambda: ra(Q, zeros(2, 5, 2, 7), V), r"k has shape \[2, 5, 2, 7\]"),
    (lambda: ra(Q, zeros(2, 5, 3, 6), V), "k has 3 heads, needs a number that divides q's 4"),
    (lambda: ra(Q, zeros(2, 5, 8, 6), V), "k has 8 heads, needs"),
    (lambda: ra(Q, K, zeros(2, 5, 4, 3)), r"v has shape \[2, 5, 4, 3\], needs .* \[2, 5, 2, any\]"),
    (lambda: ra(Q, K, zeros(2, 4, 2, 3)), r"v has shape \[2, 4, 2, 3\]"),
    (lambda: ra(Q, K.half(), V), "k has dtype float16, needs float32, the dtype of q"),
    (lambda: ra(Q, K, V.bfloat16()), "v has dtype bfloat16, needs float32"),
    (lambda: ra(Q, K.to("meta"), V), "k is on meta, needs"),
    (lambda: ra(Q, K, V, g=zeros(2, 5, 2)), r"g has shape \[2, 5, 2\], needs \[B, T, H\] = \[2, 5, 4\]"),
    (lambda: ra(Q, K, V, g=zeros(2, 5, 4, 6)), r"g has shape \[2, 5, 4, 6\]"),
    (lambda: ra(Q, K, V, g=zeros(2, 5, 4).long()), "g has dtype int64"),
    (lambda: ra(Q, K, V, g=-0.1), "g must be a tensor"),
    (lambda: ra(Q, K, V, g_gamma=zeros(2, 4)), r"g_gamma has shape \[2, 4\], needs \[H\] = \[4\]"),
    (lambda: ra(Q, K, V, gk=zeros(2, 5, 2, 6)), r"gk has shape \[2, 5, 2, 6\], needs \[B, T, H, K\]"),
    (lambda: ra(Q, K, V, gv=zeros(2, 5, 4, 6)), r"gv has shape \[2, 5, 4, 6\], needs \[B, T, H, V\]"),
    (lambda: ra(Q, K, V, gv=zeros(2, 5, 4, 3).to("meta")), "gv is on meta"),
    (lambda: ra(Q, K, V, gv=zeros(2, 5, 4, 3), mode="chunk"), "mode is 'chunk', needs to be 'recurrent' with gv"),
    (lambda: ra(Q, K, V, mode="fused"), "mode is 'fused', needs one of 'auto', 'recurrent', 'chunk'"),
    (lambda: ra(Q, K, V, scale="1"), "scale is '1', needs a number"),
    (lambda: ra(Q, K, V, scale=zeros(1)), "scale is a tensor"),
    (lambda: ra(Q, K, V, scale=True), "scale is True"),
    (lambda: ra(Q, K, V, initial_state=zeros(2, 2, 6, 3)), r"initial_state has shape .* needs .* \[2, 4, 6, 3\]"),
    (lambda: ra(Q, K, V, initial_state=zeros(1, 4, 6, 3)), "initial_state has shape"),
    (lambda: ra(Q, K, V, initial_state=S.double()), "initial_state has dtype float64"),
    (lambda: ra(*one, initial_state=S[:1], cu_seqlens=ints(0, 2, 5)), "initial_state has shape"),
    (lambda: ra(Q, K, V, cu_seqlens=ints(0, 5)), "batch of 1"),
    (lambda: ra(*one, cu_seqlens=[0, 5]), "cu_seqlens must be a tensor"),
    (lambda: ra(*one, cu_seqlens=ints(0, 5).float()), "cu_seqlens has dtype float32"),
    (lambda: ra(*one, cu_seqlens=ints()), "at least the leading 0"),
    (lambda: ra(*one, cu_seqlens=ints(0, 6)), r"cu_seqlens is \[0, 6\], needs .* no more than T = 5"),
    (lambda: ra(*one, cu_seqlens=ints(1, 5)), "start at 0"),
    (lambda: ra(*one, cu_seqlens=ints(0, 4, 3, 5)), "never fall"),
    (lambda: ra.explain(Q, K, V, g=zeros(1)), "g has shape"),
    (lambda: step(Q, k, v, S), r"q has shape \[2, 5, 4, 6\], needs \[B, H, K\]"),
    (lambda: step(q, K, v, S), "k has shape"),
    (lambda: step(q, zeros(2, 3, 6), v, S), "k has 3 heads"),
    (lambda: step(q, k, zeros(2, 4, 3), S), "v has shape"),
    (lambda: step(q, k, v.half(), S), "v has dtype float16"),
    (lambda: step(q, k, v, S, g=zeros(2, 2)), r"g has shape \[2, 2\], needs \[B, H\] = \[2, 4\]"),
    (lambda: step(q, k, v, S, g_gamma=zeros(2)), "g_gamma has shape"),
    (lambda: step(q, k, v, S, gk=zeros(2, 4, 3)), r"gk has shape \[2, 4, 3\], needs \[B, H, K\]"),
    (lambda: step(q, k, v, S, gv=zeros(2, 4, 6)), r"gv has shape \[2, 4, 6\], needs \[B, H, V\]"),
    (lambda: step(q, k, v, S, scale=[1]), "scale is"),
    (lambda: step(q, k, v, S[:1]), r"state has shape \[1, 4, 6, 3\], needs .* \[2, 4, 6, 3\]"),
    (lambda: step(q, k, v, S.half()), "state has dtype float16, needs one of float32"),
    (lambda: step(q, k, v, zeros(2, 4, 6, 4)[..., :3]), "state has strides .* contiguous, as it is or transposed"),
    (lambda: step(q, k, v, zeros(1, 4, 6, 3).expand(2, 4, 6, 3)), "state has strides .* contiguous"),
    (lambda: step(q, k, v, S, state_v_first=True), r"state has shape .*, needs \[B or pool, H, V, K\] = \[2, 4, 3, 6\]"),
    (lambda: ra(Q, K, V, initial_state=S, state_v_first=True), r"needs \[N, H, V, K\] = \[2, 4, 3, 6\]"),
    (lambda: step(q, k, v, S.clone().requires_grad_()), "state requires a gradient"),
    (lambda: step(q, k, v, torch._neg_view(S)), "state is a view that negates its memory"),
    (lambda: step(q, k, v, POOL, slots=ints(1)), r"slots has shape \[1\], needs \[B\] = \[2\]"),
    (lambda: step(q, k, v, POOL, slots=ints(1, 9)), "slots holds values from 1 to 9, needs 0 to 8"),
    (lambda: step(q, k, v, POOL[:0], slots=ints(0, 1)), "from 0 to 1, needs only negative ones"),
    (lambda: step(q, k, v, POOL, slots=ints(3, 3)), "a state twice"),
    (lambda: step(q, k, v, POOL, slots=ints(1, 2, dtype=torch.int16)), "slots has dtype int16"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[f"{n} {message}" for n, (_, message) in enumerate(CALLS)])
def test_refused_before_any_launch(call, message, monkeypatch):
    monkeypatch.setenv("KERNELS_CHECK", "1")
    with cases.recorded() as launched, pytest.raises(ValueError, match=message):
        call()
    assert not launched


def test_cpu_tensors_are_refused_where_kernels_are_compiled(as_if_compiled):
    x = torch.zeros(1, 2, 1, 3)
    with pytest.raises(ValueError, match="q is on cpu, needs a CUDA device.*TRITON_INTERPRET=1"):
        ra(x, x, x)


def test_a_state_that_requires_a_gradient_is_fine_without_gradients():
    state = zeros(2, 4, 6, 3).requires_grad_()
    with torch.no_grad():
        step(q, k, v, state)
