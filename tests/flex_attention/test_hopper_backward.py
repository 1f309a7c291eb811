"""The backward pass on Hopper GPUs on the model: right numbers, one order of sums, planted faults found."""

import gc
import weakref

import pytest
import torch

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.flex_attention import BlockMask, block_mask, flex_attention, mods, problem
from kernels.flex_attention.hopper import backward, scheduler
from kernels.flex_attention.plain_backward import Outputs
from tests.flex_attention import cases

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)

from kernels import gluon_model
from kernels.flex_attention.hopper import backward_kernel, tiles, visits, wide_kernel
from kernels.flex_attention.hopper.backward import Cut
from tests.flex_attention.hopper_faults import OF_ADDED, OF_BANDS, OF_BOTH, OF_KEPT, OF_SHARES, OF_WIDE_HEADS
from tests.flex_attention.test_hopper import BACKWARD, FORWARD, check, random_call
from tests.gluon_model.cases import found, planted

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")

WIDE = "attention_dkdv_wide_hopper_kernel"
SCHEDULES = [("round-robin", 0), ("greedy", 0), ("eager", 0), ("random", 0), ("random", 1)]


@pytest.fixture(params=["kept", "added"])
def way(hopper_table, monkeypatch, request):
    """What becomes of every call's ds."""
    monkeypatch.setattr(backward, "ADDED_FROM", 0 if request.param == "added" else 10**9)
    return request.param


def cut_so(monkeypatch, cut):
    """Every call is cut so from now on."""
    monkeypatch.setattr(backward, "cut", lambda p, most: cut._replace(queries=min(cut.queries, p.M)))


def stores(result):
    return any(
        operation.what in ("TMA store", "TMA add") for machine in result.machines for operation in machine.operations
    )


# Numbers.


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "name",
    ["nothing", "causal", "sliding window", "prefix", "natten", "heads differ", "nothing allowed", "no mask, no score"]
    + ["causal as a score mod", "alibi", "softcap", "squared", "mixed", "elementary", "dead rows"],
)
def test_the_zoo(way, name):
    _, results = check(name)
    assert stores(results[1]) == (name != "nothing allowed")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["causal", "softcap"])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float16, (1, 2, 1, 256, 256, 64, 64)),
        (torch.float16, (1, 1, 1, 130, 70, 16, 128)),
        (torch.bfloat16, (2, 2, 1, 200, 300, 80, 48)),
        (torch.bfloat16, (1, 3, 1, 129, 257, 128, 128)),
        (torch.bfloat16, (1, 2, 2, 150, 300, 32, 64)),
    ],
)
def test_sizes(way, name, dtype, shape):
    check(name, shape=shape, dtype=dtype, schedule="random")


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("causal", torch.bfloat16, (1, 2, 1, 130, 200, 256, 192)),
        ("nothing", torch.float16, (2, 1, 1, 70, 130, 136, 256)),
        ("softcap", torch.bfloat16, (1, 2, 2, 130, 130, 192, 136)),
    ],
)
def test_wide_heads(hopper_table, name, dtype, shape):
    check(name, shape=shape, dtype=dtype, schedule="random", backward=WIDE)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "options",
    [{"layout": "heads inside"}, {"shape": (2, 2, 1, 200, 300, 64, 64), "kv_batch": 1}, {"scale": -0.2}],
)
def test_strides_keys_that_serve_the_whole_batch_and_a_negative_scale(way, options):
    check("causal", **options)


@pytest.mark.parametrize(
    ("D", "changed"),
    [
        (60, lambda q, k, v, do: (q, k, v, do)),  # rows of 120 bytes
        (64, lambda q, k, v, do: (q, k[:, :1].expand_as(k), v.mT.contiguous().mT, do)),  # no step, columns apart
        (64, lambda q, k, v, do: (q[..., 1:], k[..., 1:], v, do[:1, :1, :1, :1].expand_as(do))),  # 2 bytes too late
    ],
)
def test_what_tma_cannot_read_is_copied(hopper_table, D, changed):
    """The results lie in memory as always."""
    *given, do = changed(*(torch.randn(1, 2, length, D).bfloat16() for length in (200, 140, 140, 200)))
    leaves = [t.detach().requires_grad_() for t in given]
    with gluon_model.executing() as results:
        o = flex_attention(*leaves, None, block_mask.causal_block_mask(200, 140))
        grads = torch.autograd.grad(o, leaves, do)
    assert [result.kernel for result in results] == [FORWARD, BACKWARD] and all(result.ok for result in results)
    assert "copied to rows that TMA can read" in flex_attention.explain(*given, None, block_mask.causal_block_mask(200, 140))
    exact = [t.detach().double().requires_grad_() for t in given]
    mask = torch.ones(200, 140, dtype=torch.bool).tril()
    want = torch.nn.functional.scaled_dot_product_attention(*exact, mask)
    wanted = torch.autograd.grad(want, exact, do.double())
    for got, right, like in zip((o, *grads), (want, *wanted), (given[0], *given), strict=True):
        assert (got - right).norm() / right.norm() < 1e-2
        assert got.stride() == problem.like_strided(like, got.shape).stride()


def test_captured_tensors_that_learn_take_dq_from_its_own_kernel(way):
    _, results = check("learned alibi", shape=(1, 2, 1, 200, 300, 64, 64))
    assert not stores(results[1])


def test_rows_and_columns_without_any_block(way):
    def corner(b, h, q_idx, kv_idx):
        return (q_idx >= 128) & (kv_idx < 100) | (q_idx >= 256) & (kv_idx >= 300)

    (o, dq, dk, dv), _ = check(mask_mod=corner, shape=(1, 2, 2, 400, 400, 64, 64))
    assert not o[:, :, :128].any() and not dq[:, :, :128].any()
    assert not dk[:, :, 128:256].any() and not dv[:, :, 128:256].any() and dk[:, :, 300:].any()


COUNTS = torch.tensor([2, 0, 1], dtype=torch.int32)[None, None]
INDICES = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 0, 2]], dtype=torch.int32)[None, None]


@pytest.mark.share(2)
@pytest.mark.parametrize(("sizes", "missing"), [((256, 256), 50), ((128, 384), 50), ((256, 256), 128)])
def test_partial_blocks_without_a_mask_mod(way, sizes, missing):
    """Lists alone, in any order: all blocks are partial, and nothing is masked in them. Of the last block rows are missing,
    or whole tiles."""
    M, N = (3 * size - missing for size in sizes)
    mask = BlockMask.from_kv_blocks(COUNTS, INDICES, BLOCK_SIZE=sizes, seq_lengths=(M, N))
    check(block_mask=mask, shape=(1, 2, 1, M, N, 64, 64), schedule="random")


@pytest.mark.parametrize("heads", [1, 2])
def test_a_small_workspace_is_filled_head_by_head_or_pair_by_pair(way, monkeypatch, heads):
    """The same bits but where a pair's heads are summed in several launches; in which order shows in dk and dv."""
    monkeypatch.setattr(backward, "ROUNDS", 0)  # one item a tile of keys
    shape = (1, 4, 2, 600, 100, 64, 64)
    whole, _ = check("nothing", shape=shape)
    room = 128 * 640 * (2 * heads + 1) if way == "kept" else 2 * 640 * 64 * 4  # ds, and a half; the sums
    launches, same = (4, 2) if (way, heads) == ("kept", 1) else (2, 4)
    parts, results = check("nothing", shape=shape, launches=launches, WORKSPACE=room)
    assert all(map(stores, results[1:])) and all(map(torch.equal, parts[:same], whole[:same]))


KEPT = Cut(False, 1, 3, 128, 2)  # heads that splits do not divide, a last launch of one head, bands
ADDED = Cut(True, 1, 4, 10**6, 2)
GQA = (1, 4, 1, 140, 200, 64, 64)


@pytest.mark.parametrize(
    ("cut", "launches", "options"),
    [(KEPT, 4, {"shape": GQA}), (ADDED._replace(heads=3), 1, {"shape": (1, 3, 1, 140, 200, 64, 64)})]
    + [
        pytest.param(*case, marks=pytest.mark.thorough)
        for case in [
            (Cut(False, 1, 4, 10**6, 4), 1, {}),
            (Cut(False, 1, 1, 128, 1), 8, {"name": "nothing"}),
            (Cut(False, 1, 1, 128, 1), 4, {"name": "no mask, no score", "shape": (1, 2, 2, 130, 70, 16, 128)}),
            (Cut(False, 4, 1, 10**6, 1), 1, {"name": "sliding window", "shape": (2, 2, 2, 200, 300, 64, 64)}),
            (Cut(False, 3, 1, 10**6, 1), 2, {"name": "sliding window", "shape": (2, 2, 2, 200, 300, 64, 64)}),
            (Cut(False, 1, 2, 128, 1), 8, {"shape": (2, 4, 1, 130, 300, 80, 48)}),
            (Cut(False, 1, 16, 10**6, 8), 1, {"shape": (1, 16, 1, 130, 130, 64, 64)}),
            (Cut(False, 1, 2, 10**6, 2), 2, {"shape": (2, 2, 1, 200, 300, 64, 64), "kv_batch": 1}),
            (KEPT, 4, {"layout": "heads inside"}),
            (KEPT, 4, {"scale": -0.2}),
            *((KEPT, 4, {"name": name}) for name in ("heads differ", "softcap", "dead rows", "natten", "nothing allowed")),
            (ADDED._replace(splits=4), 1, {"shape": (2, 2, 1, 200, 300, 64, 64), "kv_batch": 1}),
            *((ADDED, 1, {"name": name}) for name in ("heads differ", "softcap", "nothing allowed")),
        ]
    ],
)  # fmt: skip
def test_cuts(hopper_table, monkeypatch, cut, launches, options):
    cut_so(monkeypatch, cut)
    check(**{"name": "causal", "shape": GQA} | options, launches=launches, schedule="random")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "shape", "launches"),
    [("nothing", (1, 4, 2, 140, 130, 256, 192), 8), ("softcap", (1, 2, 1, 140, 130, 192, 136), 4)],
)
def test_wide_heads_in_bands(hopper_table, monkeypatch, name, shape, launches):
    cut_so(monkeypatch, Cut(False, 1, 1, 128, 1))
    check(name, shape=shape, launches=launches, schedule="random", backward=WIDE)


@pytest.mark.thorough
def test_bands_of_blocks_larger_than_tiles_in_any_order(hopper_table, monkeypatch):
    """The lists of a band name the band's blocks alone, in their own order."""
    cut_so(monkeypatch, Cut(False, 1, 1, 256, 1))
    mask = BlockMask.from_kv_blocks(COUNTS, INDICES, BLOCK_SIZE=(256, 128), seq_lengths=(700, 350))
    check(block_mask=mask, shape=(1, 2, 1, 700, 350, 64, 64), launches=6, schedule="random")


# Visits.


@pytest.mark.parametrize("band", [(0, 600), (128, 384)])
@pytest.mark.parametrize("heads", [1, 3])
def test_every_block_is_visited_once_backwards_with_its_rank(heads, band):
    """Blocks of keys that are visited most come first, in all batch rows and heads the same; of a band its blocks alone. Each
    pair of blocks has a place of its own, the places of a row of queries side by side."""
    generator = torch.Generator().manual_seed(0)
    some = torch.rand(2, heads, 5, 7, generator=generator) < 0.6
    full = some & (torch.rand(2, heads, 5, 7, generator=generator) < 0.5)
    full[..., -1, :] = full[..., -1] = False  # they reach past the ends
    mask = block_mask.block_mask_from_dense(some, full, lambda b, h, m, n: m >= 0, 600, 800, (128, 128))
    q, k = torch.zeros(2, heads, 600, 16), torch.zeros(2, heads, 800, 16)
    p, x = cases.resolved(q, k, k, None, mask)
    visited = visits.visited_of(p, x, *band)
    of, by_queries = visited.by_keys, visited.by_queries
    inside = range(band[0] // 128, -(-band[1] // 128))
    counts = some[:, :, inside].sum((0, 1, 2)).tolist()
    order = of.order.tolist()
    assert order == sorted(range(7), key=lambda n: -counts[n]) and of.width == 5
    places = {(b, h): [] for b in range(2) for h in range(heads)}
    for b in range(2):
        for h in range(heads):
            for place, n in enumerate(order):
                row = b * of.stride_b + h * of.stride_h + place
                blocks = [m for m in reversed(inside) if some[b, h, m, n]]
                listed = of.entries.view(-1, 5)[row][: of.num_blocks.view(-1)[row]]
                assert listed.tolist() == [2 * m + bool(full[b, h, m, n]) for m in blocks]
                before = [int(some[b, h, m, order[:place]].sum()) for m in blocks]
                assert of.ranks.view(-1, 5)[row][: len(blocks)].tolist() == before
                for m, at in zip(blocks, of.places.view(-1, 5)[row].tolist(), strict=False):
                    row_of_queries = b * by_queries.lists.stride_b + h * by_queries.lists.stride_h + m
                    within = at - int(by_queries.starts.view(-1)[row_of_queries])
                    assert 0 <= within < by_queries.lists.num_blocks.view(-1)[row_of_queries]
                    assert by_queries.lists.indices.view(-1, 7)[row_of_queries][within] == n
                    places[b, h].append(at)
    inside_band = some[:, :, inside]
    assert all(sorted(places[b, h]) == list(range(int(inside_band[b, h].sum()))) for b, h in places)
    assert visited.most == (inside_band.sum((2, 3)).max(), inside_band.sum(2).max())
    assert visits.visited_of(p, x, *band) is visited
    mask.kv_num_blocks.sub_(mask.kv_num_blocks)  # another mask now, in the same memory
    mask.q_num_blocks.zero_()
    assert visits.visited_of(p, x, *band).by_keys.num_blocks.sum() == full[:, :, inside].sum()


def test_lists_that_a_cuda_graph_reads_live_as_long_as_the_mask(monkeypatch):
    """Called again at another length, or written to, the mask gets other lists: not in memory that a replay reads."""
    mask = block_mask.causal_block_mask(512, device="cpu")

    def visited(capturing, length=512, mask=mask):
        """Where the visits' entries are, as long as they are anywhere."""
        mask.seq_lengths = (length, 512)
        q, k = torch.zeros(1, 1, length, 16), torch.zeros(1, 1, 512, 16)
        monkeypatch.setattr(visits, "is_capturing", lambda t: capturing)
        return weakref.ref(visits.visited_of(*cases.resolved(q, k, k, None, mask), 0, length).by_keys.entries)

    warm = visited(False)
    assert visited(True)() is warm()  # the graph's
    others = visited(False, 400), visited(False)
    mask.kv_indices.add_(0)
    others = (*others, visited(False))
    gc.collect()
    assert warm() is not None and [other() is None for other in others] == [True, True, False]
    assert others[2]().data_ptr() != warm().data_ptr()
    visited.__defaults__ = mask = None
    gc.collect()
    assert warm() is None


# Schedules and orders.

SMALL = (1, 3, 1, 256, 384, 64, 64)
CUTS = {"kept": Cut(False, 1, 2, 128, 2), "added": Cut(True, 1, 3, 10**6, 2)}


def alone(cut, schedule="round-robin", seed=0, shape=SMALL, mask_mod=mods.causal):
    """``(the gradients; what the model found of each launch)``, in memory that is full of NaN, which equals nothing."""
    p, x = random_call(shape, mask_mod)
    generator = torch.Generator().manual_seed(1)
    do = torch.randn(*x.query.shape[:3], shape[-1], generator=generator).bfloat16()
    outputs = Outputs(do, None, torch.zeros_like(do), torch.zeros(do.shape[:3]))
    empty = torch.empty

    def full_of_nan(*size, **of):
        x = empty(*size, **of)
        return x.fill_(float("nan") if x.is_floating_point() else 12345)

    with gluon_model.executing(schedule=schedule, seed=seed) as results, pytest.MonkeyPatch.context() as patch:
        cut_so(patch, cut)
        patch.setattr(torch, "empty", full_of_nan)
        grads = backward.gradients(p, x, outputs)
    return grads, results


@pytest.mark.share(3)
@pytest.mark.parametrize("programs", [1, 2, 5])
def test_every_schedule_and_number_of_programs_leaves_the_same_bits(way, monkeypatch, programs):
    first, _ = alone(CUTS[way])
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: programs)
    for schedule, seed in SCHEDULES:
        again, results = alone(CUTS[way], schedule, seed)
        assert all(result.ok and result.grid == (min(programs, 6),) for result in results), results
        assert all(map(torch.equal, first, again)), (schedule, seed)


@pytest.mark.share(4)
@pytest.mark.parametrize("mask_mod", [None, mods.causal])
@pytest.mark.parametrize("order", range(3))
def test_every_order_of_items_leaves_the_same_bits(way, monkeypatch, order, mask_mod):
    shape = (2, 2, 1, 128, 256, 64, 64)
    cut = CUTS[way]._replace(pairs=2, heads=2)
    first, _ = alone(cut, shape=shape, mask_mod=mask_mod)
    names = scheduler.ORDERS[order]
    monkeypatch.setattr(
        scheduler, "tile_order", lambda *_: dict(zip(("TILES_FIRST", "SERPENTINE"), names, strict=True))
    )
    monkeypatch.setattr(backward, "BUNDLE", order + 1)
    for programs in (2, 4):
        monkeypatch.setattr(scheduler, "multiprocessors", lambda device, n=programs: n)
        again, results = alone(cut, "random", programs, shape, mask_mod)
        assert all(result.ok for result in results) and all(map(torch.equal, first, again)), results


def test_wide_heads_leave_the_same_bits_under_every_schedule(hopper_table, monkeypatch):
    cut, shape = Cut(False, 1, 1, 128, 1), (1, 1, 1, 192, 192, 136, 136)
    first, results = alone(cut, shape=shape)
    assert [(result.kernel, result.grid) for result in results] == [(WIDE, (3,))] * 2
    for (schedule, seed), programs in zip(SCHEDULES, (1, 2, 1, 2, 2), strict=True):
        monkeypatch.setattr(scheduler, "multiprocessors", lambda device, n=programs: n)
        again, results = alone(cut, schedule, seed, shape)
        assert all(result.ok for result in results), results
        assert all(map(torch.equal, first, again)), (schedule, seed)


# Planted faults.


@pytest.fixture
def two_programs(hopper_table, monkeypatch):
    """Programs that wait for each other, rings of two: everything is used again."""
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 2)
    hopper_table["backward_hopper"] = {"STAGES": 2}


ONE = {"kept": Cut(False, 1, 1, 10**6, 1), "added": Cut(True, 1, 1, 10**6, 1)}
PLANTED = (1, 1, 1, 192, 640, 64, 64)  # 5 items of 3 tiles
PLANTED_WIDE = (1, 1, 1, 192, 320, 136, 136)  # 5 items of 3 tiles


def plant(monkeypatch, module, function, *edits):
    """Every module that has the function gets the copy with the fault; of a kernel's module, its kernel."""
    copy = planted(module, function, *edits)
    name = {backward_kernel: BACKWARD, wide_kernel: WIDE}.get(module, function)
    for one in (module, backward_kernel, wide_kernel, tiles, visits):
        if hasattr(one, name):
            monkeypatch.setattr(one, name, copy[name])


FAULTS = [("kept", OF_BOTH), ("kept", OF_KEPT), ("added", OF_BOTH), ("added", OF_ADDED), ("kept", OF_WIDE_HEADS)]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("way", "faults", "fault"), [(way, faults, fault) for way, faults in FAULTS for fault in faults]
)
def test_a_planted_fault_is_found_under_every_schedule(two_programs, monkeypatch, way, faults, fault):
    edits, wanted = faults[fault]
    wide = faults is OF_WIDE_HEADS
    module = () if faults is OF_BOTH else (wide_kernel if wide else backward_kernel,)
    plant(monkeypatch, *module, *edits)
    for schedule, seed in SCHEDULES[:4]:
        _, (result,) = alone(ONE[way], schedule, seed, PLANTED_WIDE if wide else PLANTED, mask_mod=None)
        assert found(result, *wanted), f"{schedule}, seed {seed}:\n{result}"


@pytest.mark.parametrize("mask_mod", [None, mods.causal])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_without_a_fault_nothing_is_found(two_programs, schedule, seed, mask_mod):
    for cut, shape in ((ONE["kept"], PLANTED), (ONE["added"], PLANTED), (ONE["kept"], PLANTED_WIDE)):
        _, (result,) = alone(cut, schedule, seed, shape, mask_mod)
        assert result.ok, result


@pytest.mark.share(5)
@pytest.mark.parametrize(("masked", "fault"), [*((True, one) for one in OF_SHARES), *((False, one) for one in OF_BANDS)])
def test_work_shared_out_in_a_wrong_way_shows(hopper_table, monkeypatch, masked, fault):
    """The last keys are visited most, and of the last head some queries not at all."""
    cut, *edits = (OF_SHARES if masked else OF_BANDS)[fault]
    shape, mask_mod = (2, 3, 1, 256, 256, 64, 64), None
    if masked:
        mask_mod = lambda b, h, m, n: (n >= m) & ((m < 128) | (h != 2))  # noqa: E731
    right, results = alone(cut, shape=shape, mask_mod=mask_mod)
    assert all(result.ok for result in results)
    plant(monkeypatch, *edits)
    wrong, results = alone(cut, shape=shape, mask_mod=mask_mod)
    assert not all(result.ok for result in results) or not all(map(torch.equal, right, wrong))
