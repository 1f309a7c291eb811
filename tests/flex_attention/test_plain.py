"""The plain kernels against the equation, and each faster kernel for any GPU against them."""

import pytest
import torch

from kernels import runtime
from kernels.common.operator import clear_caches
from kernels.flex_attention import (
    AuxRequest,
    create_block_mask,
    flex_attention,
    mods,
    plain,
    plain_backward,
    plan,
    problem,
)
from tests.flex_attention import cases

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="the table is the interpreter's")
PLAIN = {"delta_kernel", "attention_forward_kernel", "attention_dq_kernel", "attention_dkdv_kernel"}
TILES = {"BLOCK_M": 16, "BLOCK_N": 16}
# way -> (what the tables say instead, the kernels that are its own, those of PLAIN that it does without, options of the call)
FASTER = {
    "decoding": ({}, {"decode_kernel", "combine_kernel"}, {"attention_forward_kernel"}, {"M": 3, "BLOCK_N": 16}),
    "narrow": (
        {"forward_narrow": TILES | {"TRIM": 2, "WIDEST": 4096, "LONGEST": 4096}},
        {"attention_narrow_kernel"},
        {"attention_forward_kernel"},
        {"M": 130, "N": 130},
    ),
}


@pytest.fixture
def launched(monkeypatch):
    names = []
    cases.replace_launch(
        monkeypatch, lambda launch: lambda k, *a, **m: (names.append(k.__name__), launch(k, *a, **m))[1]
    )
    return names


@pytest.fixture
def plain_only(monkeypatch):
    """From the call on nothing is faster."""

    def only():
        monkeypatch.setattr(plan, "FORWARD", {"plain": plain})
        monkeypatch.setattr(plan, "BACKWARD", {"recomputed": plain_backward})
        clear_caches()

    return only


@pytest.mark.share(3)
@pytest.mark.parametrize("layout", ["flat", "heads inside"])
@pytest.mark.parametrize("name", ["nothing", "causal", "document per row", "learned alibi", "dead rows"])
@pytest.mark.parametrize("shape", [(2, 2, 1, 37, 41, 20, 24), (2, 2, 2, 37, 41, 16, 16)])
def test_the_plain_kernels_against_the_reference(name, shape, layout, plain_only, launched):
    plain_only()
    cases.check(name, shape=shape, layout=layout, BLOCK_M=16, BLOCK_N=16, bwd_BLOCK_M=16, bwd_BLOCK_N=32)
    assert set(launched) == PLAIN


@pytest.mark.share(3)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("modded", [False, True])
@pytest.mark.parametrize("way", FASTER)
def test_a_faster_way_gives_what_the_plain_kernels_give(way, modded, masked, plain_only, launched, monkeypatch):
    says, own, without, options = FASTER[way]
    if way == "narrow" and not masked:
        pytest.skip("it is for masks")
    options = {"M": 64, "N": 100} | options
    M, N = options.pop("M"), options.pop("N")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(shape, generator=generator).requires_grad_()
        for shape in ((2, 4, M, 20), (2, 2, N, 20), (2, 2, N, 24))
    )
    window = mods.sliding_window(20) if way == "narrow" else lambda b, h, m, n: (n <= m + N - M) & (n % 7 != b)
    mask = create_block_mask(window, 2, None, M, N, device="cpu", BLOCK_SIZE=(64, 64)) if masked else None

    def results():
        launched.clear()
        o, aux = flex_attention(
            q, k, v, mods.alibi(4) if modded else None, mask, enable_gqa=True, return_aux=AuxRequest(True, True),
            kernel_options=options,
        )  # fmt: skip
        do, dlse = torch.linspace(-1, 1, o.numel()).view_as(o), torch.linspace(0, 1, aux.lse.numel()).view_as(aux.lse)
        return (o, aux.lse, aux.max_scores, *torch.autograd.grad((o, aux.lse), (q, k, v), (do, dlse)))

    table = problem.table_options
    with monkeypatch.context() as patch:
        patch.setattr(problem, "table_options", lambda kernel, *of: table(kernel, *of) | says.get(kernel, {}))
        clear_caches()
        fast = results()
        assert own <= set(launched) and not without & set(launched)
    plain_only()
    slow = results()
    assert set(launched) == PLAIN
    for name, got, want in zip(("o", "lse", "top", "dq", "dk", "dv"), fast, slow, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")
