"""The warp-specialised kernels' own source on the model: right numbers, no race under any schedule, planted faults found."""

import pytest
import torch
import triton

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.common.operator import clear_caches
from kernels.flex_attention import BlockMask, causal_block_mask, flex_attention
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import backward_kernel, forward_kernel, fused, scheduler, tiles
from kernels.flex_attention.hopper import forward as hopper
from tests.flex_attention import cases

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)


from kernels import gluon_model
from tests.flex_attention.hopper_faults import FAULTS
from tests.gluon_model.cases import found, planted

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")

RAGGED = (1, 4, 2, 200, 300, 64, 64)  # B, Hq, Hkv, M, N, D, Dv
KERNELS = ["attention_forward_hopper_kernel", "attention_dkdv_hopper_kernel"]
SCHEDULES = [("round-robin", 0), ("greedy", 0), ("eager", 0), ("random", 0), ("random", 1), ("random", 2)]


@pytest.fixture
def table(hopper_table, monkeypatch):
    """The forward kernel, and the one that leaves ds in a workspace, take every call; yields {kernel: other options}."""
    monkeypatch.setattr(fused, "reason_not", lambda *_: "the other one is tried here")
    return hopper_table


def check(name="nothing", schedule="round-robin", seed=0, launches=1, **options):
    """A case of the zoo, forward and backward, against float64; the model ran both kernels and found nothing."""
    clear_caches()  # a table that a test has changed since
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        o, grads = cases.check(name, **{"shape": RAGGED, "dtype": torch.bfloat16, "BLOCK_SIZE": 128} | options)
    assert [result.kernel for result in results] == KERNELS[:1] + KERNELS[1:] * launches
    assert all(result.ok for result in results), "\n\n".join(map(str, results))
    return (o.detach(), *grads), results


def stores(result):
    return any(operation.what == "TMA store" for machine in result.machines for operation in machine.operations)


# Numbers.


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "name",
    ["nothing", "causal", "sliding window", "prefix", "natten", "heads differ", "nothing allowed", "no mask, no score"]
    + ["causal as a score mod", "alibi", "softcap", "squared", "mixed", "elementary", "dead rows"],
)
def test_the_zoo(table, name):
    _, results = check(name, shape=RAGGED)
    assert stores(results[1]) == (name != "nothing allowed")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["nothing", "alibi"])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float16, (1, 2, 1, 256, 256, 64, 64)),
        (torch.float16, (1, 1, 1, 130, 70, 16, 128)),
        (torch.float16, (2, 2, 1, 200, 300, 80, 48)),
        (torch.bfloat16, (2, 2, 1, 200, 300, 80, 48)),
        (torch.bfloat16, (1, 3, 1, 129, 257, 128, 128)),
    ],
)
def test_sizes(table, name, dtype, shape):
    check(name, shape=shape, dtype=dtype, schedule="random")


def test_strides(table):
    check("causal", layout="heads inside")


def test_keys_that_serve_the_whole_batch(table):
    check("causal", shape=(2, 2, 1, 200, 300, 64, 64), kv_batch=1)


def test_a_negative_scale(table):
    check(scale=-0.2)


def test_captured_tensors_that_learn_take_dq_from_its_own_kernel(table):
    _, results = check("learned alibi", shape=(1, 2, 1, 200, 300, 64, 64))
    assert not stores(results[1])


def test_a_workspace_of_one_head_is_filled_head_by_head(table):
    whole, _ = check("causal")
    B, Hq, Hkv, *_ = RAGGED
    table["backward_dq_from_ds"] = {"WORKSPACE": 384 * 256 * 2 * Hq // Hkv}
    parts, results = check("causal", launches=B * Hkv)
    assert all(map(stores, results[1:])) and all(map(torch.equal, parts, whole))


def test_rows_and_columns_without_any_block(table):
    def corner(b, h, q_idx, kv_idx):
        return (q_idx >= 128) & (kv_idx < 100) | (q_idx >= 256) & (kv_idx >= 300)

    (o, dq, dk, dv), _ = check(mask_mod=corner, shape=(1, 2, 2, 400, 400, 64, 64))
    assert not o[:, :, :128].any() and not dq[:, :, :128].any()
    assert not dk[:, :, 128:256].any() and not dv[:, :, 128:256].any() and dk[:, :, 300:].any()


def test_what_a_mod_captures_is_read_inside_its_bounds(table):
    per_query, per_key = torch.randn(200), torch.randn(300)
    check(score_mod=lambda score, b, h, q_idx, kv_idx: score + per_query[q_idx] * per_key[kv_idx])


def test_a_derivative_that_is_infinite_where_the_mask_forbids(table):
    """The reference has no number there: 0 times infinity."""
    q, k, v = (torch.randn(1, 2, 256, 64).bfloat16().requires_grad_() for _ in range(3))
    with gluon_model.executing() as results:
        o = flex_attention(
            q, k, v, lambda score, b, h, q_idx, kv_idx: score / (q_idx - kv_idx + 1), causal_block_mask(256)
        )
        grads = torch.autograd.grad(o, (q, k, v), torch.randn_like(o))
    assert [result.kernel for result in results] == KERNELS and all(result.ok for result in results)
    assert all(x.isfinite().all() and x.any() for x in (o, *grads))


@pytest.mark.parametrize(("sizes", "missing"), [((256, 256), 50), ((128, 384), 50), ((256, 256), 128)])
def test_partial_blocks_without_a_mask_mod(table, sizes, missing):
    """A block mask made of lists alone: all blocks are partial, and nothing is masked in them. Of the last block rows are
    missing, or whole tiles."""
    counts = torch.tensor([2, 0, 1], dtype=torch.int32)[None, None]
    indices = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 0, 2]], dtype=torch.int32)[None, None]
    M, N = (3 * size - missing for size in sizes)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=sizes, seq_lengths=(M, N))
    check(block_mask=mask, shape=(1, 2, 1, M, N, 64, 64), schedule="random")


@pytest.mark.parametrize("name", ["causal", "softcap"])
def test_other_tiles_and_rings(table, name):
    table["forward_hopper"] = {"BLOCK_N": 64, "STAGES": 3, "KEPT": 2}
    table["backward_dkdv_hopper"] = {"BLOCK_M": 32, "STAGES": 2}
    check(name, shape=(1, 2, 1, 250, 700, 64, 64), schedule="random")


# Schedules, programs, orders.


def call(shape):
    """``(problem, inputs)`` under a causal mask."""
    clear_caches()
    B, Hq, Hkv, M, N, D, Dv = shape
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(size, generator=generator).bfloat16() for size in ((B, Hq, M, D), (B, Hkv, N, D), (B, Hkv, N, Dv))
    ]
    return cases.resolved(*tensors, None, causal_block_mask(M, N), None, True)


def forward_alone(schedule="round-robin", seed=0, shape=RAGGED):
    """``(what the forward kernel leaves, as bits; what the model found)``."""
    p, x = call(shape)
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        o, lse, _ = cases.outputs(p)
        hopper.USUAL.forward(p, x, o, lse, None)
    return [x.view(torch.uint8) for x in (o, lse)], results[0]


def backward_alone(schedule="round-robin", seed=0, shape=RAGGED):
    """The same of the backward kernel, for rows whose lse and delta are zero."""
    p, x = call(shape)
    q, k, v = x.query, x.key, x.value
    rows, columns = (triton.cdiv(length, 128) * 128 for length in (p.N, p.M))
    zeros, ds = torch.zeros(p.B * p.Hq, columns), torch.empty(p.B * p.Hq, rows, columns, dtype=q.dtype)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        hopper_backward.launch_dkdv(p, x, q, [zeros, zeros], (dk, dv), ds, (0, p.B * p.Hkv))
    return [x.view(torch.uint8) for x in (dk, dv, ds)], results[0]


ALONE = {forward_kernel: forward_alone, backward_kernel: backward_alone}
ITEMS = {forward_kernel: 8, backward_kernel: 6}  # of RAGGED


@pytest.mark.parametrize("module", ALONE)
def test_every_schedule_leaves_the_same_bits(table, module):
    first, result = ALONE[module]()
    assert result.grid == (3,)
    for schedule, seed in SCHEDULES:
        again, result = ALONE[module](schedule, seed)
        assert result.ok, result
        assert all(map(torch.equal, first, again)), (schedule, seed)


@pytest.mark.share(4)
@pytest.mark.parametrize("module", ALONE)
@pytest.mark.parametrize("names", scheduler.ORDERS)
def test_every_order_and_number_of_programs_leaves_the_same_bits(table, monkeypatch, module, names):
    first, _ = ALONE[module]()
    monkeypatch.setattr(
        scheduler, "tile_order", lambda *_: dict(zip(("TILES_FIRST", "SERPENTINE"), names, strict=True))
    )
    for programs in (1, 2, 3, 5, 100):
        monkeypatch.setattr(scheduler, "multiprocessors", lambda device, n=programs: n)
        again, result = ALONE[module]("random")
        assert result.grid == (min(programs, ITEMS[module]),)
        assert result.ok, result
        assert all(map(torch.equal, first, again)), programs


# Planted faults.


@pytest.fixture
def small_rings(table, monkeypatch):
    """One program for all items, rings of two: everything is used again."""
    table["forward_hopper"], table["backward_dkdv_hopper"] = {"STAGES": 2, "KEPT": 1}, {"STAGES": 2}
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 1)
    return table["forward_hopper"]


PLANTED = (1, 2, 1, 384, 384, 64, 64)  # 6 items forward, of up to 3 tiles, and 3 backward, of up to 12


@pytest.mark.parametrize("module", ALONE)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_without_a_fault_nothing_is_found(small_rings, module, schedule, seed):
    _, result = ALONE[module](schedule, seed, PLANTED)
    assert result.ok, result


@pytest.mark.share(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_under_every_schedule(small_rings, monkeypatch, fault):
    (module, *edits), wanted = FAULTS[fault]
    copy, name = planted(module, *edits), KERNELS[module is backward_kernel]
    if module is tiles:
        module, name = backward_kernel, edits[0]
    monkeypatch.setattr(module, name, copy[name])
    small_rings["KEPT"] = 1 + ("kept queries" in fault)
    for schedule, seed in SCHEDULES[:4]:
        _, result = ALONE[module](schedule, seed, PLANTED)
        files = copy["__file__"], tiles.__file__  # where a product is read
        assert any(found(result, *wanted, file=file) for file in files), f"{schedule}, seed {seed}:\n{result}"
