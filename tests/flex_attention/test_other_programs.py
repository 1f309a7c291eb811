"""``flex_attention`` inside other people's programs: changes in place, hooks on saved tensors, autocast, transforms."""

import math
import weakref

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.flex_attention import causal_block_mask, create_block_mask, flex_attention, mods
from kernels.flex_attention.hopper.scheduler import tile_order

DEVICE = runtime.device


def tensors(M=20, D=16, **options):
    torch.manual_seed(0)
    return [torch.randn(1, 2, M, D, device=DEVICE, **options).requires_grad_() for _ in range(3)]


def test_a_captured_tensor_changed_in_place_is_noticed():
    table = torch.randn(20, device=DEVICE)
    o = flex_attention(*tensors(), lambda s, b, h, q, k: s + table[k])
    table.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_a_tensor_that_a_mask_captures_changed_in_place_is_noticed():
    ids = torch.zeros(20, dtype=torch.int64, device=DEVICE)
    mask = create_block_mask(mods.document(ids), 1, 1, 20, 20, device=DEVICE, BLOCK_SIZE=16)
    o = flex_attention(*tensors(), block_mask=mask)
    ids[5:] = 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize("name", ["kv_indices", "full_kv_num_blocks"])
def test_a_block_mask_changed_in_place_is_noticed(name):
    mask = causal_block_mask(40, BLOCK_SIZE=16)
    o = flex_attention(*tensors(40), block_mask=mask)
    getattr(mask, name).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_hooks_on_saved_tensors_see_what_is_captured_and_may_replace_it():
    """As activation offloading does: what comes back is another tensor with the same values."""
    slopes = torch.tensor([0.5, 0.25], device=DEVICE).requires_grad_()
    table, mask = torch.randn(40, device=DEVICE), causal_block_mask(40, BLOCK_SIZE=16)

    def mod(score, b, h, q_idx, kv_idx):
        return score - slopes[h] * (q_idx - kv_idx) + table[kv_idx]

    grads, packed = [], []
    for hooks in (False, True):
        leaves = [*tensors(40), slopes]
        pack = lambda t: packed.append(t.data_ptr()) or t.detach().clone()  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t) if hooks else torch.enable_grad():
            o = flex_attention(*leaves[:3], mod, mask)
        grads.append(torch.autograd.grad(o.square().sum(), leaves))
    assert {slopes.data_ptr(), table.data_ptr(), mask.kv_indices.data_ptr()} <= set(packed)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("turned", [False, True])
def test_saved_tensors_may_come_back_laid_out_in_another_way(turned):
    """As from pinned memory, which is contiguous whatever was saved."""
    table, mask = torch.randn(2, 40, device=DEVICE).requires_grad_(), causal_block_mask(40, BLOCK_SIZE=16)
    mod = lambda score, b, h, q_idx, kv_idx: score + table[h, kv_idx]  # noqa: E731
    pack = lambda t: t.detach().clone(memory_format=torch.contiguous_format)  # noqa: E731
    if turned:
        pack = lambda t: t.detach().permute(*range(t.ndim)[::-1]).contiguous().permute(*range(t.ndim)[::-1])  # noqa: E731
    for call in (flex_attention, lambda q, k, v: flex_attention(q, k, v, mod, mask)):
        grads = []
        for hooks in (False, True):
            leaves = [t.detach().transpose(2, 1).contiguous().transpose(2, 1).requires_grad_() for t in tensors(40)]
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t) if hooks else torch.enable_grad():
                o = call(*leaves)
            more = (table,) if call is not flex_attention else ()
            grads.append(torch.autograd.grad(o.square().sum(), (*leaves, *more)))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_stays_one(poison, deterministic):
    """... and the entries that it does not reach keep theirs."""
    table = torch.zeros(2, device=DEVICE, requires_grad=True)
    q, k, v = (t.detach() for t in tensors())
    options = {"DETERMINISTIC": deterministic}
    o = flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h] * 0.5, kernel_options=options)
    do = torch.ones_like(o)
    do[0, 1, 3, 2] = poison
    (gradient,) = torch.autograd.grad(o, table, do)
    assert not gradient[1].isfinite() and gradient[0].isfinite()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_torch_does(dtype):
    q, k, v = tensors()
    with torch.autocast(DEVICE.type, dtype=dtype):
        o = flex_attention(q, k, v.to(torch.bfloat16))
        explained = flex_attention.explain(q, k, v.to(torch.bfloat16))
    assert o.dtype == dtype and explained
    o.float().sum().backward()
    assert q.grad.dtype == k.grad.dtype == torch.float32


def test_scales_of_numpy_and_torch_switches():
    q, k, v = tensors()
    want = flex_attention(q, k, v, scale=0.5)
    assert torch.equal(flex_attention(q, k, v, scale=np.float32(0.5)), want)
    for wrong in ("1", True, torch.tensor(0.5)):
        with pytest.raises(ValueError, match="scale is .*, needs a number"):
            flex_attention(q, k, v, scale=wrong)


def test_explain_takes_every_argument_of_the_call():
    from torch.nn.attention.flex_attention import AuxRequest

    q, k, v = tensors()
    plain = flex_attention.explain(q, k, v)
    assert flex_attention.explain(q, k, v, None, None, None, False, True, {}) == plain
    assert flex_attention.explain(q, k, v, return_aux=AuxRequest(lse=True)) == plain
    with pytest.raises(ValueError, match="return_lse and return_aux are both given"):
        flex_attention.explain(q, k, v, return_lse=True, return_aux=AuxRequest(lse=True))


def test_a_default_device_does_not_hold_the_order_of_tiles():
    tile_order.cache_clear()
    with torch.device("meta"):
        assert tile_order(3, 8, 1, 24) == {"TILES_FIRST": False, "SERPENTINE": False}


def test_a_new_length_is_no_new_code():
    texts = set()
    for length in (20, 33, 128):
        ids = torch.zeros(length, dtype=torch.int64, device=DEVICE)
        texts.add(flex_attention.source(None, mods.document(ids)))
    assert len(texts) == 1


def test_whole_powers_of_any_exponent():
    q, k, v = tensors(40)
    one = torch.ones((), dtype=torch.int32, device=DEVICE)
    o = flex_attention(q, k, v, lambda s, b, h, i, j: s * ((one - 2 * (i % 2)) ** j))
    signs = torch.where(torch.arange(40, device=DEVICE)[:, None] % 2 == 1, -1.0, 1.0) ** torch.arange(40, device=DEVICE)
    want = torch.softmax(q @ k.mT / 4 * signs, -1) @ v
    torch.testing.assert_close(o, want, rtol=1e-4, atol=1e-5)


def test_compiled_as_tutorials_do():
    """``torch.compile(flex_attention)``: no graph break (see test_graphs), right results, no crash."""
    q, k, v = tensors()
    backend = "aot_eager" if runtime.interpreted else "inductor"
    o = torch.compile(flex_attention, backend=backend)(q, k, v, block_mask=causal_block_mask(20, BLOCK_SIZE=16))
    torch.testing.assert_close(o, flex_attention(q, k, v, block_mask=causal_block_mask(20, BLOCK_SIZE=16)))
    o.sum().backward()
    assert q.grad.isfinite().all()


def test_what_is_not_there_says_so():
    q, k, v = tensors()
    with pytest.raises(RuntimeError, match="flex_attention has no second derivative"):
        (gradient,) = torch.autograd.grad(flex_attention(q, k, v).square().sum(), q, create_graph=True)
        gradient.sum().backward()
    o = flex_attention(q, k, v)
    with pytest.raises(RuntimeError, match="cannot run with is_grads_batched=True"):
        torch.autograd.grad(o, q, torch.ones(2, *o.shape, device=DEVICE), is_grads_batched=True)
    for transform in (torch.func.vmap, torch.func.grad):
        with pytest.raises(RuntimeError, match="flex_attention cannot run under torch.func's"):
            transform(lambda q: flex_attention(q, k, v).sum())(q if transform is torch.func.grad else q[None])
    with pytest.raises(RuntimeError, match="no forward-mode derivative"), torch.autograd.forward_ad.dual_level():
        flex_attention(torch.autograd.forward_ad.make_dual(q, torch.ones_like(q)), k, v)
    with pytest.raises(RuntimeError, match="cannot be recorded by torch.jit.trace"):
        torch.jit.trace(lambda q: flex_attention(q, k, v), (q.detach(),))


def test_symbolic_trace_records_one_call():
    q, k, v = tensors()
    graph = torch.fx.symbolic_trace(lambda q, k, v: flex_attention(q, k, v) * 2)
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"][0] is flex_attention
    torch.testing.assert_close(graph(q, k, v), flex_attention(q, k, v) * 2)


def test_a_parameter_that_a_mod_captures_can_be_swapped():
    """``torch.__future__.set_swap_module_params_on_conversion`` refuses what has weak references."""

    class Biased(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(2, 40, device=DEVICE))

        def forward(self, x):
            return flex_attention(x, x, x, lambda score, b, h, q_idx, kv_idx: score + self.bias[h, q_idx - kv_idx + 16])

    layer, x = Biased(), torch.randn(1, 2, 16, 8, device=DEVICE)
    layer(x).sum().backward()
    assert not weakref.getweakrefs(layer.bias)
    replaced = torch.nn.Parameter(torch.zeros_like(layer.bias))
    layer.bias.grad = None
    torch.utils.swap_tensors(layer.bias, replaced)
    torch.testing.assert_close(layer(x), flex_attention(x, x, x))
