"""Each fault of the original that can be observed, as a test that bears its name."""

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import AuxRequest, causal_block_mask, create_block_mask, flex_attention, mods
from kernels.flex_attention.reference import flex_attention_reference
from tests.flex_attention import cases

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, device=runtime.device).to(dtype).requires_grad_(grad)


@pytest.mark.parametrize("name", ["plus", "one over", "log of"])
def test_F1_padded_queries_do_not_reach_the_gradients_of_keys(name):
    """In the original all 41 rows of dK are NaN."""
    mod = {
        "plus": lambda score, b, h, q_idx, kv_idx: score + 100,
        "one over": lambda score, b, h, q_idx, kv_idx: 1 / (score + torch.where(score < 0, -0.5, 0.5)) + 1 / score * 0,
        "log of": lambda score, b, h, q_idx, kv_idx: torch.log(score.abs()),
    }[name]
    cases.check(score_mod=mod, shape=(1, 1, 1, 37, 41, 16, 16), tolerance=2e-5)


@pytest.mark.parametrize("M, N", [(37, 41), (41, 37), (1, 3), (128, 128), (129, 127)])
def test_F2_captured_tensors_are_read_inside_their_bounds(M, N):
    """The table stands in the middle of NaN, in which a read outside would show."""
    torch.manual_seed(0)  # a single row's largest score may be a sum that cancels: not the numbers that chance brings here
    bias = cases.place(torch.randn(1, 1, M, N))[0]
    rows, columns = cases.place(torch.randn(1, 1, 1, M))[0, 0, 0], cases.place(torch.randn(1, 1, 1, N))[0, 0, 0]

    def mod(score, b, h, q_idx, kv_idx):
        return score + bias[h, q_idx, kv_idx] + rows[q_idx] + columns[kv_idx]

    cases.check(score_mod=mod, shape=(1, 1, 1, M, N, 16, 16))
    cases.check(score_mod=mod, mask_mod=mods.causal, shape=(1, 1, 1, M, N, 16, 16))


def test_F3_F12_a_first_tile_that_is_all_masked_leaves_no_trace():
    """Rows whose first visited keys are all masked; with rows that see nothing at all between them."""

    def late(b, h, q_idx, kv_idx):
        return (kv_idx >= 30) & (q_idx % 3 != 0)

    cases.check(mask_mod=late, shape=(1, 1, 1, 37, 41, 16, 16), BLOCK_N=16, bwd_BLOCK_N=16, BLOCK_SIZE=64)


def test_F5_kernel_options_are_not_changed():
    options = {"BLOCK_M": 16, "bwd_BLOCK_N": 32}
    q = randn(1, 1, 20, 16)
    flex_attention(q, q, q, kernel_options=options)
    assert options == {"BLOCK_M": 16, "bwd_BLOCK_N": 32}


def test_F6_F16_captured_tensors_get_gradients():
    for name in ("same tensor twice", "temperature", "without the score"):
        cases.check(name)


@pytest.mark.parametrize("D, DV", [(20, 24), (1, 1), (3, 65), (65, 3), (16, 40)])
def test_F7_head_dimensions_need_not_be_powers_of_two(D, DV):
    cases.check("softcap", shape=(1, 1, 1, 20, 30, D, DV))


def test_F8_offsets_are_64_bit():
    """Batch rows 2^30 elements apart, and head rows of 2^24 elements: past the reach of 32-bit offsets."""
    far = 2**30
    storage = torch.empty(0, dtype=torch.float16, device=runtime.device).set_(
        torch.UntypedStorage(2 * (2 * far + 2**22), device=runtime.device)
    )
    kv = storage.as_strided((3, 1, 4, 16), (far, 64, 16, 1))
    for b in range(3):
        kv[b] = b + 1
    q = storage.as_strided((3, 1, 17, 16), (2**20, 2**20, far // 8, 1), 512)
    q.zero_()
    o = flex_attention(q, kv, kv)
    assert torch.equal(o[:, 0, -1, 0].float().cpu(), torch.tensor([1.0, 2.0, 3.0]))


def test_F9_lists_have_strides_of_their_own():
    """Expanded and cut lists, full ones of another width than the partial ones."""
    mask = causal_block_mask(64, BLOCK_SIZE=16)
    for name in ("kv_num_blocks", "full_kv_num_blocks", "kv_indices", "full_kv_indices"):
        tensor = getattr(mask, name)
        setattr(mask, name, tensor.expand(2, 2, *tensor.shape[2:]))
    mask.kv_indices = mask.kv_indices[..., :1]
    cases.check(shape=(2, 2, 1, 64, 64, 16, 16), block_mask=mask)


def test_F10_a_mask_of_another_batch_is_refused():
    mask = create_block_mask(mods.causal, 2, None, 16, 16, device=runtime.device)
    with pytest.raises(ValueError, match=r"block_mask.kv_num_blocks has shape \[2, 1, 1\].* with B = 4"):
        flex_attention(*(randn(4, 1, 16, 16) for _ in range(3)), block_mask=mask)


@pytest.mark.parametrize("scale", [1.0, 0.25, -0.5, 0.0])
def test_F11_the_mod_sees_natural_scores(scale):
    """Also for mods that are not linear, and scales at or below zero; in the original's log2 units 1, 2 gave 3.44."""
    mod = lambda score, b, h, q_idx, kv_idx: score * score + 1  # noqa: E731
    shape = (1, 1, 1, 5, 6, 16, 16)
    q, k, v = randn(1, 1, 5, 16), randn(1, 1, 6, 16), randn(1, 1, 6, 16)
    for m in (mod, None):
        want = flex_attention_reference(q.double(), k.double(), v.double(), m, scale=scale)
        assert cases.relative_error(flex_attention(q, k, v, m, scale=scale), want) < 1e-5
        if scale:
            cases.check(score_mod=m, scale=scale, shape=shape)


def test_F13_delta_is_summed_in_float32():
    """256 products of 16-bit numbers whose sum is small: summed in bfloat16 nothing of it would be left."""
    cases.check(dtype=torch.bfloat16, shape=(1, 1, 1, 17, 19, 16, 256))
    cases.check(dtype=torch.float16, shape=(1, 1, 1, 17, 19, 16, 256))


def test_F14_broadcast_keys_and_the_largest_logits():
    cases.check("alibi", shape=(3, 2, 1, 9, 11, 16, 16), kv_batch=1)
    q, k = randn(2, 2, 9, 16), randn(2, 2, 11, 16)
    _, aux = flex_attention(q, k, k, return_aux=AuxRequest(max_scores=True))
    assert aux.lse is None
    torch.testing.assert_close(aux.max_scores, (q @ k.mT / 4).amax(-1))


@pytest.mark.parametrize("B, H, M, N", [(1, 1, 0, 5), (1, 1, 5, 0), (0, 2, 4, 4), (2, 0, 4, 4), (1, 1, 0, 0)])
def test_F14_sizes_of_zero(B, H, M, N):
    q, k, v = randn(B, H, M, 16, grad=True), randn(B, H, N, 16, grad=True), randn(B, H, N, 24, grad=True)
    slopes = torch.ones(max(H, 1), device=runtime.device, requires_grad=True)
    mask = causal_block_mask(M, N, BLOCK_SIZE=16) if M and N else None
    o, lse = flex_attention(q, k, v, mods.learned_alibi(slopes), mask, return_lse=True)
    assert o.shape == (B, H, M, 24) and torch.equal(o, torch.zeros_like(o))
    assert torch.equal(lse, torch.full_like(lse, -float("inf")))
    (o.sum() + 0 * lse.nan_to_num(0, 0, 0).sum()).backward()
    assert all(torch.equal(t.grad, torch.zeros_like(t)) for t in (q, k, v, slopes))


@pytest.mark.parametrize("which", ["q", "k", "v", "do"])
def test_F15_expanded_inputs_get_dense_gradients(which):
    shapes = {"q": (2, 2, 9, 16), "k": (2, 2, 11, 16), "v": (2, 2, 11, 16), "do": (2, 2, 9, 16)}
    tensors = {name: randn(*shape) for name, shape in shapes.items()}
    tensors[which] = tensors[which][:1, :, :1].expand(shapes[which])
    leaves = [tensors[name].detach().requires_grad_() for name in "qkv"]
    dense = [t.detach().contiguous().requires_grad_() for t in leaves]
    ours = torch.autograd.grad(flex_attention(*leaves, mods.alibi(2)), leaves, tensors["do"])
    want = torch.autograd.grad(flex_attention(*dense, mods.alibi(2)), dense, tensors["do"].contiguous())
    assert all(torch.equal(a, b) for a, b in zip(ours, want, strict=True))
