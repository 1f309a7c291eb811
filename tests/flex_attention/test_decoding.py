"""Few queries, many keys: the split keys and packed heads give what the plain pass gives."""

import pytest
import torch

from kernels import runtime
from kernels.common.operator import clear_caches
from kernels.flex_attention import AuxRequest, create_block_mask, decoding, flex_attention, mods, problem
from tests.flex_attention import cases


@pytest.fixture
def splits_taken(monkeypatch):
    taken = []
    original = decoding.forward

    def decode(p, *tensors):
        taken.append(decoding.choose(p)[:2])
        original(p, *tensors)

    # Problems small enough for a test, which a GPU's table would not split.
    table = problem.table_options
    monkeypatch.setattr(problem, "table_options", lambda *of: table(*of) | {"PROGRAMS": 8, "LEAST_TILES": 1})
    monkeypatch.setattr(decoding, "forward", decode)
    return taken


@pytest.mark.parametrize(
    "name", ["nothing", "alibi", "causal", "jagged", "learned alibi", "nothing allowed", "dead rows"]
)
@pytest.mark.parametrize("shape", [(2, 2, 1, 1, 141, 20, 24), (1, 2, 2, 3, 64, 16, 16)])
def test_against_the_reference(name, shape, splits_taken):
    cases.check(name, shape=shape, BLOCK_N=16)
    ((splits, pack),) = splits_taken
    assert splits > 1 and pack == shape[1] // shape[2]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_more_splits_than_are_loaded_at_once(rounds, monkeypatch, splits_taken):
    """The last round of splits is not whole, and some see no key."""
    monkeypatch.setattr(decoding, "AT_ONCE", 4)
    table = problem.table_options
    monkeypatch.setattr(problem, "table_options", lambda *of: table(*of) | {"PROGRAMS": 2 * (4 * rounds - 1)})
    N = 16 * (4 * rounds - 1)
    mod = lambda b, h, m, n: n >= N // (2 * rounds)  # noqa: E731
    later = create_block_mask(mod, 1, None, 1, N, device=runtime.device, BLOCK_SIZE=(16, 16))
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, n, 16, generator=generator).to(runtime.device) for h, n in ((4, 1), (2, N), (2, N)))
    (o, aux), (plain, plain_aux) = both(monkeypatch, q, k, v, None, later)
    assert splits_taken == [(4 * rounds - 1, 2)]
    torch.testing.assert_close(o, plain)
    torch.testing.assert_close((aux.lse, aux.max_scores), (plain_aux.lse, plain_aux.max_scores))


def both(monkeypatch, q, k, v, score_mod=None, mask=None, **options):
    arguments = {"enable_gqa": True, "return_aux": AuxRequest(True, True), "kernel_options": {"BLOCK_N": 16}}
    split = flex_attention(q, k, v, score_mod, mask, **arguments)
    monkeypatch.setattr(decoding, "choose", lambda problem: (0, 1, "not here"))
    clear_caches()
    return split, flex_attention(q, k, v, score_mod, mask, **arguments)


@pytest.mark.parametrize(
    "M, N, Hq, Hkv", [(1, 300, 4, 1), (5, 100, 6, 3), (16, 47, 4, 1), (1, 1, 8, 2), (64, 65, 1, 1)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_plain_pass(M, N, Hq, Hkv, masked, monkeypatch, splits_taken):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, h, n, 16, generator=generator).to(runtime.device) for h, n in ((Hq, M), (Hkv, N), (Hkv, N))
    )
    mask = None
    if masked:
        mod = lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx + N - M) & (kv_idx % 7 != b)  # noqa: E731
        mask = create_block_mask(mod, 2, None, M, N, device=runtime.device, BLOCK_SIZE=(64, 16))
    (o, aux), (plain, plain_aux) = both(monkeypatch, q, k, v, mods.alibi(Hq), mask)
    assert len(splits_taken) == 1
    torch.testing.assert_close(o, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(aux.lse, plain_aux.lse, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(aux.max_scores, plain_aux.max_scores, rtol=1e-5, atol=1e-6)


def test_heads_with_masks_of_their_own_are_not_packed(splits_taken):
    mask = create_block_mask(
        lambda b, h, q_idx, kv_idx: kv_idx % 2 == h % 2, 1, 4, 2, 100, device=runtime.device, BLOCK_SIZE=16
    )
    cases.check(shape=(1, 4, 1, 2, 100, 16, 16), block_mask=mask, BLOCK_N=16)
    ((splits, pack),) = splits_taken
    assert pack == 1 and splits > 1


def test_low_precision():
    cases.check("alibi", shape=(1, 2, 1, 1, 141, 32, 32), dtype=torch.bfloat16, BLOCK_N=16)
    cases.check("alibi", shape=(1, 2, 1, 1, 141, 32, 32), dtype=torch.float16, BLOCK_N=16)


def test_explain_says_why():
    q, k = (torch.zeros(1, 4, n, 16, device=runtime.device) for n in (1, 300))
    text = flex_attention.explain(q, k[:, :1], k[:, :1], enable_gqa=True)
    assert text.startswith("decoding: 4 heads x 1 queries fit one tile; 1 tiles, keys in")
    assert "300 queries do not fit one tile" in flex_attention.explain(k, k, k)
