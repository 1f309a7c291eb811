"""Each proven fault of the published kernels that can be observed, as a test that bears its name."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import runtime
from kernels.lab import trace
from kernels.recurrent_attention import recurrent_attention, recurrent_attention_step
from tests.recurrent_attention import cases

MODES = ["recurrent", "chunk"]
BOTH = pytest.mark.parametrize("mode", MODES)
GATES = [("recurrent", "g"), ("recurrent", "gk"), ("recurrent", "gv"), ("chunk", "g"), ("chunk", "gk")]
EVERY = {"recurrent": cases.GATES, "chunk": ("g", "g_gamma", "gk")}


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, device=runtime.device).to(dtype)


@BOTH
@pytest.mark.skipif(not runtime.interpreted, reason="addresses are seen in the interpreter")
def test_R1_without_gates_nothing_is_written_past_the_end(mode):
    """No state is asked for, so none is stored: every write lies in a tensor, and none is a state's size."""
    leaves, _ = cases.problem(2, 5, 2, 2, 8, 4)
    with trace.recording() as t:
        o, final = recurrent_attention(**leaves, mode=mode)
        o.sum().backward()
    assert final is None and len(t.launches) >= 2
    assert t.outside() == []


@pytest.mark.parametrize(("mode", "gate"), GATES)
def test_R2_gate_gradients_of_unequal_packed_sequences(mode, gate):
    cases.check(1, None, 2, 2, 6, 5, mode=mode, gates=[gate], cu_seqlens=[0, 4, 9])


@pytest.mark.parametrize(("mode", "gate"), GATES)
def test_R3_each_final_states_gradient_reaches_its_own_sequence(mode, gate):
    """Only sequence 0's final state is used: no gradient may reach sequence 1, and dg has g's shape."""
    leaves, packing = cases.problem(1, None, 2, 2, 6, 5, gates=[gate], cu_seqlens=[0, 4, 9], initial=True)
    _, final = recurrent_attention(**leaves, **packing, output_final_state=True, mode=mode)
    grads = dict(zip(leaves, torch.autograd.grad(final[0].sum(), leaves.values()), strict=True))
    assert grads[gate].shape == leaves[gate].shape
    assert all(grads[name][:, 4:].count_nonzero() == 0 for name in ("q", "k", "v", gate))
    assert all(grads[name][:, :4].count_nonzero() > 0 for name in ("k", "v", gate))
    assert grads["initial_state"][1].count_nonzero() == 0 and grads["initial_state"][0].count_nonzero() > 0
    cases.compare(leaves, mode=mode, final=True, **packing)


@BOTH
@pytest.mark.parametrize("cu_seqlens", [[0, 4, 4, 9], [0, 0, 16], [0, 16, 16]], ids=str)
def test_R4_an_empty_sequence_keeps_the_others_in_place(cu_seqlens, mode):
    cases.check(1, None, 1, 1, 6, 5, mode=mode, gates=["g"], cu_seqlens=cu_seqlens, initial=True, final=True)


@BOTH
def test_R5_g_gamma_has_a_gradient_and_one_value_a_head(mode):
    leaves, _ = cases.problem(3, 7, 2, 2, 6, 5, gates=["g", "g_gamma"], initial=True)
    pairs = cases.compare(leaves, mode=mode, final=True)
    dg, dgamma = pairs["dg"][0], pairs["dg_gamma"][0]
    assert dgamma.shape == (2,) and dgamma.count_nonzero() == 2
    torch.testing.assert_close(dgamma, dg.sum((0, 1)))
    with pytest.raises(ValueError, match=r"g_gamma has shape \[3, 2\], needs \[H\] = \[2\]"):
        recurrent_attention(leaves["q"], leaves["k"], leaves["v"], g_gamma=randn(3, 2), mode=mode)


@BOTH
def test_R6_a_strong_gates_gradient_does_not_cancel(mode):
    """g = -20: off by a factor of 129 as published. And g = -inf has gradient exactly 0; test_strong_decay has the rest."""
    leaves, _ = cases.problem(1, 24, 1, 1, 8, 8, gates=["g"])
    with torch.no_grad():
        leaves["g"].fill_(-20.0)
    got, exact = cases.measure(leaves, mode=mode)["dg"]
    assert cases.relative_error(got, exact) <= 1e-4
    with torch.no_grad():
        leaves["g"].fill_(-math.inf)
    assert cases.measure(leaves, mode=mode)["dg"][0].count_nonzero() == 0


@BOTH
@pytest.mark.parametrize(("K", "V"), [(20, 48), (48, 20), (60, 100), (256, 320), (512, 60)])
def test_R7_any_size_of_keys_and_values(K, V, mode):
    cases.check(1, 3, 1, 1, K, V, mode=mode, gates=["gk"] if K < 100 else ["g"], initial=True, final=True)


@BOTH
def test_R8_the_default_scale_is_the_same_with_gradients(mode):
    leaves, _ = cases.problem(1, 7, 1, 1, 9, 4)
    values = {name: leaf.detach() for name, leaf in leaves.items()}
    without, _ = recurrent_attention(**values, mode=mode)
    default, _ = recurrent_attention(**leaves, mode=mode)
    explicit, _ = recurrent_attention(**leaves, scale=1 / 3, mode=mode)
    assert torch.equal(without, default) and torch.equal(default, explicit)
    do = randn(*default.shape)
    grads = [torch.autograd.grad(o, leaves.values(), do) for o in (default, explicit)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    cases.compare(leaves, mode=mode)


@BOTH
def test_R9_every_argument_is_passed_by_name_and_has_a_gradient(mode):
    leaves, _ = cases.problem(1, 7, 2, 2, 5, 4, gates=EVERY[mode], initial=True)
    shuffled = dict(sorted(leaves.items(), reverse=True))
    o, final = recurrent_attention(**shuffled, output_final_state=True, mode=mode)
    (o.sum() + final.sum()).backward()
    assert all(leaf.grad.count_nonzero() > 0 for leaf in leaves.values())


@BOTH
def test_R10_g_has_one_value_a_token_and_head(mode):
    q = randn(1, 5, 2, 4)
    with pytest.raises(ValueError, match=r"g has shape \[1, 5, 2, 4\], needs \[B, T, H\] = \[1, 5, 2\]"):
        recurrent_attention(q, q, q, g=randn(1, 5, 2, 4), mode=mode)


@BOTH
def test_R11_partial_sums_are_fp32(mode):
    """float16 differs from float32 by one rounding of each result, though each is summed over several tiles."""
    leaves, _ = cases.problem(1, 20, 1, 1, 40, 64, dtype=torch.float16, gates=["g"])
    tiles = {"chunk_states": {"BLOCK_K": 16}, "chunk_gradients": {"BLOCK_K": 16, "BLOCK_V": 16}, "backward": {"BV": 16}}
    do = randn(1, 20, 1, 64, dtype=torch.float16)
    results = []
    for dtype in (torch.float16, torch.float32):
        inputs = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in leaves.items()}
        with cases.configured(**tiles):
            o, _ = recurrent_attention(**inputs, mode=mode)
            results.append((o, *torch.autograd.grad(o, inputs.values(), do.to(dtype))))
    for half, single in zip(*results, strict=True):
        if runtime.interpreted:
            assert torch.equal(half, single.half())
        else:
            assert cases.relative_error(half, single) <= cases.TOLERANCE[torch.float16]


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rest", [torch.float32, torch.bfloat16])
def test_R12_gradients_have_their_tensors_dtypes(rest, dtype, mode):
    """The operator's own results, before autograd would convert them."""
    made = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **kwargs or {})
            if function.name().endswith("_backward"):
                made.append(out)
            return out

    leaves, _ = cases.problem(1, 6, 2, 1, 5, 4, dtype=dtype, gate_dtype=rest, gates=EVERY[mode], initial=True)
    leaves["initial_state"] = leaves["initial_state"].detach().to(rest).requires_grad_()
    with Noted():
        cases.compare(leaves, mode=mode, final=True)
    (grads,) = [out for out in made if isinstance(out, list)]
    assert [grad.dtype for grad in grads] == [leaf.dtype for leaf in leaves.values()]


@BOTH
def test_R13_grouped_heads_are_shared_by_consecutive_query_heads(mode):
    leaves, _ = cases.problem(1, 6, 6, 2, 5, 4, gates=["g"], initial=True)
    cases.compare(leaves, mode=mode, final=True)
    q, k, v = (leaves[name].detach() for name in "qkv")
    o, _ = recurrent_attention(q, k, v, mode=mode)
    assert o.shape == (1, 6, 6, 4)
    repeated, _ = recurrent_attention(q, *(x.repeat_interleave(3, 2) for x in (k, v)), mode=mode)
    assert torch.equal(o, repeated)
    for heads in (4, 0, 12):
        with pytest.raises(ValueError, match=rf"k has {heads} heads, needs a number that divides q's 6"):
            recurrent_attention(q, randn(1, 6, heads, 5), randn(1, 6, heads, 4), mode=mode)


def launches(mode, B, T, H=2, packed=False):
    gates = EVERY[mode]
    cu_seqlens = [0, T // 2, T // 2, T] if packed else None
    with cases.recorded(run=False) as seen:
        leaves, packing = cases.problem(B, T, H, H, 4, 4, gates=gates, initial=True, cu_seqlens=cu_seqlens)
        o, final = recurrent_attention(**leaves, output_final_state=True, mode=mode, **packing)
        (o.sum() + final.sum()).backward()
    return seen


@BOTH
@pytest.mark.parametrize("packed", [False, True])
def test_R14_no_length_is_compiled_into_a_kernel(mode, packed):
    """Everything a kernel is compiled for goes in by name: it is the same for any T, B and packing of the same kind."""
    few, many = launches(mode, 2, 37, packed=packed), launches(mode, 3, 41, packed=packed)
    assert len(few) == len(many) >= 4
    for (kernel, _, _, meta), (other, _, _, other_meta) in zip(few, many, strict=True):
        assert kernel is other and meta == other_meta
    assert {name for *_, meta in few for name in meta}.isdisjoint({"T", "B", "N", "L", "H"})


@BOTH
def test_R14_more_heads_than_a_grids_second_axis_holds(mode):
    """70 000 heads times sequences: only the first axis of a grid may hold more than 65 535 programs."""
    grids = [grid for _, grid, _, _ in launches(mode, 35_000, 3)]
    assert all(size <= 65_535 for grid in grids for size in grid[1:])
    assert sum(grid[0] >= 70_000 for grid in grids) >= 3
    with cases.recorded(run=False) as seen:
        x = torch.zeros(35_000, 2, 4, device=runtime.device)
        recurrent_attention_step(x, x, x, torch.zeros(35_000, 2, 4, 4, device=runtime.device))
    ((_, grid, _, _),) = seen
    assert grid[0] >= 70_000 and math.prod(grid[1:]) == 1


@pytest.mark.gpu
@BOTH
def test_R14_seventy_thousand_heads_times_sequences(mode):
    cases.check(35_000, 3, 2, 2, 4, 4, mode=mode, gates=["g", "gk"], initial=True, final=True)


@BOTH
def test_R15_a_gate_or_state_of_ones_is_one(mode):
    """1 stands for nothing: a gate of 1 multiplies the state by e, an initial state of 1 counts."""
    one = torch.ones(1, 1, 1, device=runtime.device)
    x = one[..., None]
    o, final = recurrent_attention(x, x, x, g=one, initial_state=x, output_final_state=True, mode=mode)
    torch.testing.assert_close(o.item(), math.e + 1)
    torch.testing.assert_close(final.item(), math.e + 1)
