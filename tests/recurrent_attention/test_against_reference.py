"""Both modes against the float64 reference: every pair of options, random shapes, extremes of size and layout."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import runtime
from kernels.recurrent_attention import recurrent_attention
from tests.recurrent_attention import cases

PAIRS = list(cases.pairwise(cases.CHOICES))
MODES = ["recurrent", "chunk"]
KINDS = [
    (mode, gates)
    for mode in MODES
    for n in range(5)
    for gates in itertools.combinations(cases.GATES, n)
    if not (mode == "chunk" and "gv" in gates)
]


@pytest.mark.share(3)
@pytest.mark.parametrize("case", PAIRS, ids=range(len(PAIRS)))
def test_every_pair_of_options(case):
    cases.run(case)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "gates"), KINDS, ids=lambda kind: kind if isinstance(kind, str) else "+".join(kind))
def test_every_product_of_options(mode, gates):
    names = ["initial", "final", "reverse", "dtype", "layout"]
    packings = [None, [0, 3, 3, 4, 6], [0, 0, 5]]
    for packing, *values in itertools.product(packings, *(cases.CHOICES[name] for name in names)):
        options = dict(zip(names, values, strict=True))
        cases.check(2, 4, 1, 1, 5, 3, mode=mode, gates=gates, cu_seqlens=packing, **options)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    B=st.integers(1, 2), T=st.integers(1, 40), Hkv=st.integers(1, 2), group=st.integers(1, 2), K=st.integers(1, 40),
    V=st.integers(1, 40), kind=st.sampled_from(KINDS), layout=st.sampled_from(cases.LAYOUTS),
    strength=st.sampled_from(cases.STRENGTHS), state=st.booleans(), reverse=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_random_shapes_and_layouts(B, T, Hkv, group, K, V, kind, layout, strength, state, reverse, seed):
    mode, gates = kind
    cases.check(
        B, T, Hkv * group, Hkv, K, V, mode=mode, gates=gates, layout=layout, strength=strength, initial=state,
        final=state, reverse=reverse, seed=seed,
    )  # fmt: skip


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=3), kind=st.sampled_from(KINDS),
    strength=st.sampled_from(cases.STRENGTHS), state=st.booleans(), reverse=st.booleans(),
)  # fmt: skip
def test_random_packings(lengths, kind, strength, state, reverse):
    mode, gates = kind
    cu_seqlens = [0, *itertools.accumulate(lengths)]
    cases.check(
        1, None, 1, 1, 6, 9, mode=mode, gates=gates, cu_seqlens=cu_seqlens, strength=strength, initial=state,
        final=state, reverse=reverse,
    )  # fmt: skip


# The shapes (B, T, H, size of a head), gate normalisers and packings that flash-linear-attention tests itself with.
FLA_SHAPES = [(1, 63, 1, 64), (2, 500, 4, 60), (2, 1024, 8, 128), (4, 2048, 8, 64)]
FLA_PACKINGS = [[0, 15], [0, 256, 500, 1000], [0, 15, 100, 300, 1200, 2000], [0, 1, 100, 300, 1200, 2048], [0, 0, 16]]


def against_fla(mode, gate, normalizer, B, T, H, D, cu_seqlens=None, dtype=torch.float32):
    """Gates as its models make them: log-sigmoids divided by the normaliser, so that 0.1 is the strongest."""
    leaves, packing = cases.problem(B, T, H, H, D, D, gates=[gate], initial=True, cu_seqlens=cu_seqlens, dtype=dtype)
    with torch.no_grad():
        leaves[gate].copy_(torch.nn.functional.logsigmoid(torch.randn(leaves[gate].shape)) / normalizer)
    cases.compare(leaves, mode=mode, final=True, **packing)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("gate", "normalizer"), [("g", 0.1), ("gk", 1), ("gk", 10)])
def test_flash_linear_attentions_shapes_made_small(mode, gate, normalizer):
    torch.manual_seed(0)
    against_fla(mode, gate, normalizer, *{0.1: (1, 63, 1, 64), 1: (1, 32, 1, 60), 10: (1, 17, 2, 128)}[normalizer])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cu_seqlens", [[0, 15], [0, 3, 11, 24, 35], [0, 0, 16]])
def test_flash_linear_attentions_packings_made_small(mode, cu_seqlens):
    torch.manual_seed(0)
    against_fla(mode, "g", 1, 1, None, 1, 24, cu_seqlens)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gate", ["g", "gk"])
@pytest.mark.parametrize("normalizer", [0.1, 1, 10])
@pytest.mark.parametrize("shape", FLA_SHAPES, ids=str)
def test_flash_linear_attentions_shapes(shape, normalizer, gate, mode, dtype):
    torch.manual_seed(0)
    against_fla(mode, gate, normalizer, *shape, dtype=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gate", ["g", "gk"])
@pytest.mark.parametrize("cu_seqlens", FLA_PACKINGS, ids=str)
def test_flash_linear_attentions_packings(cu_seqlens, gate, mode):
    torch.manual_seed(0)
    against_fla(mode, gate, 1, 1, None, 4, 64, cu_seqlens)


ZEROS = [
    (2, 0, 2, 2, 4, 3),
    (2, 0, 2, 1, 4, 3),
    (2, 3, 2, 2, 4, 0),
    (2, 3, 2, 1, 4, 0),
    (2, 3, 0, 0, 4, 3),
    (1, 1, 1, 1, 1, 1),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", ZEROS)
def test_sizes_of_zero_and_one(mode, sizes):
    cases.check(*sizes, mode=mode, gates=("g", "g_gamma", "gk"), initial=True, final=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("packed", [False, True])
def test_no_sequences_at_all(packed, mode):
    leaves, _ = cases.problem(0, 5, 2, 2, 4, 3, gates=("g", "g_gamma", "gk"), initial=True)
    cu_seqlens = None
    if packed:
        leaves = {name: x if name in ("g_gamma", "initial_state") else x[:, :0].detach() for name, x in leaves.items()}
        leaves = {name: x if name == "g_gamma" else x.new_empty(1, *x.shape[1:]) for name, x in leaves.items()}
        leaves["initial_state"] = leaves["initial_state"][:0]
        leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
        cu_seqlens = torch.tensor([0], device=runtime.device)
    o, final = recurrent_attention(**leaves, cu_seqlens=cu_seqlens, output_final_state=True, mode=mode)
    assert (tuple(o.shape), tuple(final.shape)) == ((1, 0, 2, 3) if packed else (0, 5, 2, 3), (0, 2, 4, 3))
    (o.sum() + final.sum()).backward()
    assert all(torch.equal(x.grad, torch.zeros_like(x)) for x in leaves.values())


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_sequence_hands_its_state_and_its_gradient_through(mode):
    leaves, packing = cases.problem(1, None, 2, 2, 4, 3, gates=("g",), initial=True, cu_seqlens=[0, 0, 3, 3])
    _, final = recurrent_attention(**leaves, output_final_state=True, mode=mode, **packing)
    dfinal = torch.randn_like(final)
    (dinitial,) = torch.autograd.grad(final, leaves["initial_state"], dfinal)
    for n in (0, 2):
        assert torch.equal(final[n], leaves["initial_state"][n]) and torch.equal(dinitial[n], dfinal[n])
    assert not torch.equal(final[1], leaves["initial_state"][1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["q", "v", "gk", "do"])
def test_expanded_inputs_give_the_bits_of_dense_ones(name, mode):
    """Stride 0 along all dimensions but the last, the gradient of o along all of them."""
    leaves, _ = cases.problem(1, 9, 2, 2, 8, 8, gates=("g", "gk"))
    do = torch.randn(1, 9, 2, 8, device=runtime.device)
    if name == "do":
        do = torch.tensor(1.0, device=runtime.device).expand_as(do)
    else:
        leaves[name] = leaves[name].detach()[:1, :1, :1].expand_as(leaves[name]).requires_grad_()
    dense = {
        name: x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for name, x in leaves.items()
    }
    results = []
    for inputs, gradient in ((leaves, do), (dense, do.contiguous())):
        o, _ = recurrent_attention(**inputs, mode=mode)
        results.append((o, *torch.autograd.grad(o, inputs.values(), gradient)))
    assert all(cases.same(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_gates_above_zero_let_the_memory_grow(mode):
    leaves, _ = cases.problem(1, 20, 1, 1, 6, 5, gates=("g", "gk"), initial=True)
    with torch.no_grad():
        leaves["g"].add_(0.4)
    assert (leaves["g"] > 0).any()
    cases.compare(leaves, mode=mode, final=True)


@pytest.mark.parametrize("mode", MODES)
def test_a_head_that_forgets_everything(mode):
    """g_gamma = -inf: every token sees only itself, and no gate has a gradient."""
    leaves, _ = cases.problem(1, 18, 2, 2, 6, 5, gates=("g", "g_gamma"), initial=True)
    with torch.no_grad():
        leaves["g_gamma"][1] = -math.inf
    pairs = cases.compare(leaves, mode=mode, final=True)
    assert pairs["dg"][0][:, :, 1].count_nonzero() == 0 and pairs["dg_gamma"][0][1] == 0
    assert pairs["dinitial_state"][0][:, 1].count_nonzero() == 0 and pairs["dg"][0][:, :, 0].count_nonzero() > 0


@pytest.mark.parametrize("mode", MODES)
def test_sums_are_fp32(mode):
    """float16 holds 65504; products of 300 and 300 do not fit, their sums with opposite signs do."""
    q = torch.full((1, 2, 1, 2), 300.0, dtype=torch.float16, device=runtime.device)
    k = torch.tensor([300.0, -300.0], dtype=torch.float16, device=runtime.device).expand(1, 2, 1, 2)
    o, _ = recurrent_attention(q, k, q, scale=1.0, mode=mode)
    assert torch.equal(o, torch.zeros_like(o))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_call_gives_the_same_bits(mode):
    leaves, _ = cases.problem(1, 20, 2, 1, 8, 8, gates=("g", "g_gamma", "gk"), initial=True)
    runs = []
    for _ in range(2):
        o, final = recurrent_attention(**leaves, output_final_state=True, mode=mode)
        runs.append((o, final, *torch.autograd.grad(o.square().sum() + final.sum(), leaves.values())))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_auto_takes_the_mode_that_explain_names():
    for T, gates in ((5, ()), (20, ()), (20, ("gv",))):
        leaves, _ = cases.problem(1, T, 1, 1, 4, 4, gates=gates)
        mode = recurrent_attention.explain(**leaves).split(":")[0]
        named, auto = (recurrent_attention(**leaves, mode=m)[0] for m in (mode, "auto"))
        assert mode == ("recurrent" if T == 5 or gates else "chunk") and torch.equal(auto, named)
