"""Masks that leave a query few keys side by side: the plain kernel with small tiles, lists asked for early and trimmed."""

import pytest
import torch

from kernels import runtime
from kernels.common.operator import clear_caches
from kernels.flex_attention import create_block_mask, flex_attention, mods, narrow, operator, problem
from kernels.flex_attention.hopper import fit
from kernels.flex_attention.hopper.forward import USUAL
from kernels.flex_attention.mods.extent import ONE_END
from kernels.flex_attention.plan import FORWARD, choose
from tests.flex_attention import cases

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="the table is the interpreter's")
HEADS = torch.tensor([9, 33], device=runtime.device)
IDS = torch.arange(400, device=runtime.device) // 90


def says(monkeypatch, TRIM=1, **more):
    """From here on the tables say so: tiles of 16 x 16 in both."""
    table = problem.table_options
    tiles = {"BLOCK_M": 16, "BLOCK_N": 16}
    of_narrow = tiles | {"TRIM": TRIM, "WIDEST": 4096, "LONGEST": 4096} | more
    changed = {"forward": tiles, "forward_narrow": of_narrow}
    monkeypatch.setattr(problem, "table_options", lambda kernel, *of: table(kernel, *of) | changed.get(kernel, {}))
    clear_caches()


def by_head(b, h, q_idx, kv_idx):
    return ((q_idx - kv_idx).abs() <= 40) & (q_idx - kv_idx <= HEADS[h] + 8 * b)


def shifted(b, h, q_idx, kv_idx):
    """Keys ahead alone."""
    return (kv_idx <= q_idx + 50) & (kv_idx > q_idx + 13)


def from_row_70(b, h, q_idx, kv_idx):
    """The queries before see nothing."""
    return (q_idx - kv_idx <= 30) & (kv_idx <= q_idx) & (q_idx >= 70)


def backwards(mask):
    """The lists' blocks the other way round: no list need be sorted."""
    for full in ("", "full_"):
        counts, blocks = getattr(mask, f"{full}kv_num_blocks"), getattr(mask, f"{full}kv_indices")
        at = torch.arange(blocks.shape[-1], device=blocks.device)
        turned = blocks.gather(-1, (counts[..., None] - 1 - at).clamp(0).long())
        setattr(mask, f"{full}kv_indices", torch.where(at < counts[..., None], turned, blocks))


def coarser(mask):
    """Blocks for more than the mask lets through; some are full that the mask would cut: the lists decide."""
    mask.mask_mod = mods.sliding_window(17)


CASES = [
    pytest.param(mods.causal, 0, None, id="causal"),
    pytest.param(mods.sliding_window(20), 0, None, id="window"),
    pytest.param(lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() <= 16, 0, None, id="both sides"),
    pytest.param(mods.document(IDS, mods.sliding_window(37)), 0, None, id="documents"),
    pytest.param(by_head, 2, None, id="by batch and head"),
    pytest.param(shifted, 0, None, id="keys ahead"),
    pytest.param(from_row_70, 0, None, id="rows without keys"),
    pytest.param(mods.sliding_window(90), 0, backwards, id="lists not sorted"),
    pytest.param(mods.sliding_window(60), 0, coarser, id="blocks coarser than the mask"),
]


@pytest.mark.share(4)
@pytest.mark.parametrize(("M", "N", "BLOCK_SIZE"), [(130, 130, 32), pytest.param(150, 207, 64, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("mask", "heads", "change"), CASES)
def test_trimmed_lists_give_the_same_bits(monkeypatch, mask, heads, change, M, N, BLOCK_SIZE):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 16, device=runtime.device) for h, n in ((2, M), (1, N), (1, N)))
    rows = (2, heads) if heads else (None, None)
    block_mask = create_block_mask(mask, *rows, M, N, device=runtime.device, BLOCK_SIZE=BLOCK_SIZE)
    if change:
        change(block_mask)
    call = lambda: flex_attention(q, k, v, None, block_mask, enable_gqa=True, return_lse=True)  # noqa: E731
    tiles, visited = {"BLOCK_M": 16, "BLOCK_N": 16}, []
    want = flex_attention(q, k, v, None, block_mask, enable_gqa=True, return_lse=True, kernel_options=tiles)
    launch = operator.launch

    def with_nan(kernel, grid, *args, **meta):
        for t in args[3:5]:
            t.fill_(float("nan"))
        visited.append((kernel.__name__, meta))
        launch(kernel, grid, *args, **meta)

    monkeypatch.setattr(operator, "launch", with_nan)
    for TRIM in (1, 2):
        with monkeypatch.context() as patch:
            says(patch, TRIM)
            assert all(map(torch.equal, call(), want))
        name, meta = visited[-1]
        assert name == "attention_narrow_kernel" and meta["EXACT"] <= (TRIM == 2)


def test_tiles_out_of_reach_are_not_read(monkeypatch):
    """Keys and values that no query of a tile reaches may be what they like, and full blocks are left whole."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 192, 16, device=runtime.device) for _ in range(3))
    block_mask = create_block_mask(mods.sliding_window(16), None, None, 192, 192, device=runtime.device, BLOCK_SIZE=64)
    says(monkeypatch, TRIM=1)
    want = flex_attention(q, k, v, None, block_mask)
    k[:, :, 32:48], v[:, :, 32:48] = float("nan"), float("nan")  # rows 32 to 63 see some; the block's 64 more rows list it
    got = flex_attention(q, k, v, None, block_mask)
    rows = torch.arange(192)
    seen = (rows >= 32) & (rows < 64)
    assert torch.equal(got[:, :, ~seen], want[:, :, ~seen]) and got[:, :, seen].isnan().all()


def test_gradients_are_those_of_the_other_tiles(monkeypatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 150, 16, device=runtime.device, requires_grad=True) for _ in range(3))
    block_mask = create_block_mask(mods.sliding_window(20), None, None, 150, 150, device=runtime.device, BLOCK_SIZE=32)
    gradients = lambda: torch.autograd.grad(flex_attention(q, k, v, None, block_mask).square().sum(), (q, k, v))  # noqa: E731
    want = gradients()
    says(monkeypatch, TRIM=2)
    for got, one in zip(gradients(), want, strict=True):
        torch.testing.assert_close(got, one, atol=1e-5, rtol=1e-5)


def moving(off):
    def mask(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx + off) & (kv_idx > q_idx + off - 20)

    return mask


def test_numbers_that_change_keep_the_plan(monkeypatch):
    """The window moves from call to call as a cache grows: one plan, and each call's own ends."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 16, device=runtime.device) for n in (128, 192, 192))
    says(monkeypatch, TRIM=2)
    problems, reached = set(), set()
    resolved = operator._resolved

    def seen(*arguments):
        plan, x, places = resolved(*arguments)
        problems.add(plan.problem), reached.add(x.extent)
        return plan, x, places

    monkeypatch.setattr(operator, "_resolved", seen)
    for off in (1, 2, 33, 64):
        block_mask = create_block_mask(moving(off), None, None, 128, 192, device=runtime.device, BLOCK_SIZE=64)
        o = flex_attention(q, k, v, None, block_mask)
        want = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, moving(off)(0, 0, torch.arange(128)[:, None], torch.arange(192)[None]).to(q.device)
        )
        torch.testing.assert_close(o, want, atol=1e-5, rtol=1e-5)
    assert reached == {(19 - off, off) for off in (1, 2, 33, 64)}
    assert len(problems) == 2  # the first call's mod has its numbers as constants


def test_a_window_that_widens_changes_the_plan(monkeypatch):
    """The mod stays the same, with other numbers, but not the choice."""
    says(monkeypatch, WIDEST=128, LONGEST=0)
    q = torch.zeros(1, 1, 256, 16, device=runtime.device)
    found = []
    for window in (30, 31, 32, 200, 33):
        mask = create_block_mask(mods.sliding_window(window), None, None, 256, 256, device=runtime.device)
        found.append(narrow.reason_not(cases.resolved(q, q, q, block_mask=mask)[0]) is None)
    assert found == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("mask", "D", "options", "expected"),
    [
        (mods.sliding_window(60), 64, {}, True),
        (mods.sliding_window(60), 32, {}, True),
        (mods.sliding_window(60), 96, {}, False),  # of wider heads the Hopper kernel was faster
        (mods.sliding_window(60), 64, {"num_warps": 8}, False),  # the caller's own
        (mods.sliding_window(2000), 64, {}, False),
        (mods.causal, 64, {}, False),
        (mods.prefix_causal(9), 64, {}, False),
        (None, 64, {}, False),
    ],
)
def test_the_choice(monkeypatch, mask, D, options, expected):
    """Where the Hopper kernel could take the call, too."""
    says(monkeypatch, WIDEST=1152, LONGEST=0)
    monkeypatch.setattr(fit, "unfit", lambda *_: None)
    q = torch.zeros(1, 1, 4096, D, device=runtime.device)
    if mask is not None:
        mask = create_block_mask(mask, None, None, 4096, 4096, device=runtime.device)
    p, _ = cases.resolved(q, q, q, block_mask=mask, options=options)
    assert USUAL.reason_not(p) is None
    assert (choose(FORWARD, p)[0] == "narrow") == expected
    said = flex_attention.explain(q, q, q, block_mask=mask, kernel_options=options)
    assert ("TRIM" in said) == ("attention_narrow_kernel), because the mask leaves a query few keys" in said) == expected


def test_short_calls_with_an_end(monkeypatch):
    """LONGEST: up to this length any mask with an end."""
    says(monkeypatch, WIDEST=0, LONGEST=512)
    found = []
    for mod, length in ((mods.causal, 512), (mods.causal, 640), (mods.prefix_causal(3), 512)):
        q = torch.zeros(1, 1, length, 64, device=runtime.device)
        mask = create_block_mask(mod, None, None, length, length, device=runtime.device)
        p = cases.resolved(q, q, q, block_mask=mask)[0]
        found.append((p.extent.keys, narrow.reason_not(p) is None))
    assert found == [(ONE_END, True), (ONE_END, False), (0, False)]


def test_the_tables_of_gpus():
    """Where the Hopper kernel runs narrow masks go to the plain one; other GPUs keep their table."""
    from kernels.common.configs import of_gpu

    ask = lambda *gpus: of_gpu(gpus, "flex_attention", "forward_narrow", "d64 16-bit plain")  # noqa: E731
    assert ask("NVIDIA H200", "sm_90")["WIDEST"] == ask("NVIDIA H100", "sm_90")["WIDEST"] == 1152
    assert ask("NVIDIA A100", "sm_80")["WIDEST"] == 0
