"""Partial sums that the launch adds itself, stream-K's fix-up: on the model, compiled, and who waits for whom."""

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.hopper import kernel as hopper
from kernels.conv_wgrad.hopper import tma
from kernels.conv_wgrad.hopper.tma import MOST_FIXED_UP, FixUp, Schedule, Tile, Window
from kernels.conv_wgrad.hopper.tma import fix_ups as works_of

if tma.unfit(geometry((1, 1, 1, 8), 8, 1, 1), torch.bfloat16):
    pytest.skip("Gluon's im2col copies need Triton 3.8", allow_module_level=True)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels import gluon_model
from kernels.conv_wgrad.hopper.kernel import rank_of, remaining, segment_of, share_of
from kernels.conv_wgrad.portable import compiled_for
from kernels.conv_wgrad.reference import conv2d_wgrad_reference
from kernels.lab import compile_report
from tests.conv_wgrad import cases, on_model
from tests.tensors import relative_error

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="the model and the compiler's report are for the CPU")

LAYER = (2, 9, 11, 24), 72, 3, 3, dict(padding=1)  # 18 tiles of 13 blocks in two groups
WORKS = {  # tiles that are cut, splits, blocks in a share, programs, rounds before
    "splits": (18, 2, 7, 36, 0),
    "a split and what is left of it": (18, 1, 8, 132, 0),
    "two splits and what is left of them": (18, 2, 5, 132, 0),
    "end to end": (18, 0, 20, 12, 0),
    "in the last round": (2, 1, 8, 16, 1),
    "end to end, in the last round": (12, 0, 27, 6, 1),
}


def work_of(name, blocks=13):
    tiles, splits, per, programs, rounds = WORKS[name]
    return FixUp(tiles, blocks, splits, per, programs, rounds)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", WORKS)
def test_every_way_to_share_out_on_the_model(name):
    """With NaN in the result, and in the workspace, beforehand."""
    shape, Co, R, S, convolution = LAYER
    x, dy, g = cases.problem(shape, Co, R, S, dtype=torch.bfloat16, **convolution)
    work = work_of(name)
    assert 1 < work.slots <= MOST_FIXED_UP and work.cut <= work.programs
    dw, result = on_model.launched(x, dy, g, work)
    assert result.ok, str(result)
    assert relative_error(dw, conv2d_wgrad_reference(x.double(), dy.double(), R, S, **convolution)) < 1e-6


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [on_model.TWO, on_model.THREE], ids=["2 groups", "3 groups"])
@pytest.mark.parametrize("name", ["1x1", "ragged tiles", "odd channels", "dilation", "stride 2"])
def test_geometries_on_the_model(name, options):
    shape, Co, R, S, convolution = on_model.GEOMETRIES[name]
    x, dy, g = cases.problem(shape, Co, R, S, dtype=torch.float16, **convolution)
    tiles, blocks, _ = tma.tiled(g, on_model.SMALL | options)
    work = FixUp(tiles, blocks, 1, max(1, 3 * blocks // 4), 10**6)
    dw, result = on_model.launched(x, dy, g, work, options=options)
    assert work.slots > 1 and result.ok, str(result)
    assert relative_error(dw, conv2d_wgrad_reference(x.double(), dy.double(), R, S, **convolution)) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["two splits and what is left of them", "end to end, in the last round"])
def test_every_schedule_gives_the_same_bits_and_no_finding(name):
    shape, Co, R, S, convolution = LAYER
    x, dy, g = cases.problem(shape, Co, R, S, dtype=torch.bfloat16, **convolution)
    found = [on_model.launched(x, dy, g, work_of(name), **schedule) for schedule in on_model.SWEEP]
    assert all(result.ok for _, result in found), "\n".join(str(result) for _, result in found)
    assert all(torch.equal(dw, found[0][0]) for dw, _ in found)


RELEASE = 'gl.atomic_add(counter, 1, sem="release")'
STORE = "gl.store(at + within_chunk(values), values)"
BETWEEN = "\n        gl.barrier()\n        "
WAIT = 'while gl.atomic_add(counter, 0, sem="acquire") != others:\n                pass'
FAULTS = {  # function, old text, new text; kind of finding, text
    "released before it is stored": ("leave_chunk", f"{STORE}{BETWEEN}{RELEASE}", f"{RELEASE}{BETWEEN}{STORE}", "race"),
    "released by nobody": ("leave_chunk", RELEASE, "pass", "deadlock"),
    "not released": ("leave_chunk", '"release"', '"relaxed"', "race"),
    "not acquired": ("add_chunks", '"acquire"', '"relaxed"', "race"),
    "not waited for": ("add_chunks", WAIT, "pass", "race"),
    "one is left twice": ("add_chunks", "other * step", "0 * step", None),
    "nobody adds": ("rank_of", "others, slot - gl", "slot, slot - gl", "race"),
}


def test_a_fault_that_shows_in_some_orders_of_programs_is_found_in_them(monkeypatch):
    """A program that waits for one of the others is right where all of them came first."""
    on_model.plant(monkeypatch, hopper, "wgrad_hopper_kernel", hopper, "add_chunks", "!= others", "< 1")
    shape, Co, R, S, convolution = LAYER
    x, dy, g = cases.problem(shape, Co, R, S, dtype=torch.bfloat16, **convolution)
    work = work_of("two splits and what is left of them")
    assert on_model.launched(x, dy, g, work, schedule="greedy")[1].ok
    _, result = on_model.launched(x, dy, g, work, schedule="random")
    assert any(finding.kind == "race" for finding in result.findings), str(result)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(monkeypatch, name):
    """Under every schedule; one that nothing orders wrongly leaves another sum."""
    function, old, new, kind = FAULTS[name]
    on_model.plant(monkeypatch, hopper, "wgrad_hopper_kernel", hopper, function, old, new)
    shape, Co, R, S, convolution = LAYER
    x, dy, g = cases.problem(shape, Co, R, S, dtype=torch.bfloat16, **convolution)
    want = conv2d_wgrad_reference(x.double(), dy.double(), R, S, **convolution)
    for schedule in on_model.SWEEP:
        dw, result = on_model.launched(x, dy, g, work_of("two splits and what is left of them"), **schedule)
        if kind is None:
            assert result.ok and not relative_error(dw, want) < 1e-3
        else:
            assert any(finding.kind == kind for finding in result.findings), f"{schedule}: {result}"


# Who waits for whom.


@gluon.jit
def roles(found, work):
    """(item, program, tile, first block, blocks, cut tile, rank, others) of every segment, in its program's order."""
    for item in range(gl.program_id(0), work.items, work.programs):
        position, end, length, first = share_of(item, work)
        order = 0
        while position < end:
            tile, block, n, cut = segment_of(item, position, end, length, first, work)
            rank, others = rank_of(item, cut, block, work)
            at = found + (item * 64 + order) * 8
            gl.store(at, item)
            gl.store(at + 1, gl.program_id(0))
            gl.store(at + 2, tile)
            gl.store(at + 3, block)
            gl.store(at + 4, n)
            gl.store(at + 5, cut)
            gl.store(at + 6, rank)
            gl.store(at + 7, others)
            order += 1
            position, end = remaining(position, end, n, work)


def segments(work):
    """``{tile: [(item, program, order in its share, first block, blocks, rank, others)]}`` by the kernel's own arithmetic."""
    found = torch.full((work.items, 64, 8), -1, dtype=torch.int32)
    schedule = work.schedule(1, None)
    assert gluon_model.run(roles, schedule.programs, found, schedule).ok
    by_tile = {}
    for share in found.tolist():
        for order, (item, program, tile, block, n, cut, rank, others) in enumerate(share):
            if item >= 0:
                assert cut == tile - work.full or item < work.full
                by_tile.setdefault(tile, []).append((item, program, order, block, n, rank, others))
    return by_tile


@pytest.mark.parametrize(
    "tiles, blocks, programs", [(5, 13, 7), (3, 16, 8), (17, 9, 6), (12, 5, 5), (2, 30, 7), (4, 7, 9)]
)
def test_a_share_waits_for_earlier_ones_of_earlier_programs_that_leave_their_sums_before_they_wait(
    tiles, blocks, programs
):
    """Whichever programs the GPU begins first in order, the earliest of those that are not over can go on."""
    works = works_of(tiles, blocks, programs) + [w for n in (2, 3) for w in works_of(tiles, blocks, programs, n)]
    assert works
    for work in works:
        by_tile = segments(work)
        assert sorted(by_tile) == list(range(work.full + work.tiles)) and work.full + work.tiles == tiles
        for parts in by_tile.values():
            covered = sorted(block + i for _, _, _, block, n, *_ in parts for i in range(n))
            assert covered == list(range(blocks)), work
            others = parts[0][-1]
            assert all(part[-1] == others for part in parts) and sorted(part[5] for part in parts) == list(
                range(others + 1)
            )
            assert others <= work.others
            last = max(parts, key=lambda part: part[5])
            assert all(part[0] < last[0] and part[1] < last[1] for part in parts if part is not last), work
    assert any(parts for work in works for parts in segments(work).values() if len(parts) > 1)


def test_a_share_ends_another_share_s_tile_last():
    """Where a share meets several tiles, what it leaves to others comes first, and what it waits for comes last."""
    by_tile = segments(FixUp(18, 13, 0, 20, 12))
    shares = {}
    for parts in by_tile.values():
        for item, _, order, _, _, rank, others in parts:
            shares.setdefault(item, []).append((order, rank < others, others > 0 and rank == others))
    for parts in shares.values():
        leaves = [order for order, leaving, _ in parts if leaving]
        waits = [order for order, _, waiting in parts if waiting]
        assert all(a < b for a in leaves for b in waits)


@pytest.mark.parametrize("tiles, blocks", [(96, 98), (48, 98), (192, 98), (450, 256), (140, 50)])
def test_what_is_considered_fills_the_gpu(tiles, blocks):
    works = works_of(tiles, blocks, 132)
    assert works and all(1 < work.slots <= MOST_FIXED_UP and work.cut <= 132 for work in works)
    longest = min(work.rounds * blocks + work.per for work in works)
    assert longest < 1.06 * tiles * blocks / 132 + 1


def test_tiles_that_fill_whole_rounds_are_not_cut():
    assert all(work.rounds < 2 for work in works_of(264, 50, 132)) and works_of(132, 50, 132) == []


# What the compiler makes of it.


def report(options, Ci, Co, R, dtype=torch.bfloat16):
    x, dy, g = cases.problem((2, 32, 32, Ci), Co, R, R, padding=R // 2, dtype=torch.bfloat16)
    known, matrix = on_model.in_units(g)
    fix_up = torch.zeros(16), torch.zeros(16, dtype=torch.int32)
    return compile_report(
        hopper.wgrad_hopper_kernel,
        *tma.descriptors(x, dy, g, options), dtype, fix_up,
        Schedule(*[7] * 11), Window(*[7] * 12), matrix,
        arch=90, **compiled_for(Tile, options | known), num_warps=4, maxnreg=hopper.REGISTERS[options["GROUPS"]],
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("R", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_compiles_without_a_spill(R):
    """Of the tile that is most often chosen: partial sums go by in pairs, past the first-level cache, and a group's last
    store is behind a fence of the whole GPU."""
    options = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUPS": 3, "STAGES": 5}
    compiled = report(options, 512, 512, R)
    assert compiled.spill_bytes == 0 and compiled.shared_bytes <= 227 * 1024, str(compiled)
    assert compiled.count("LDG.E.64.STRONG.GPU") == 3 * 128 * 64 // 128 // 2 == compiled.count("STG.E.64")
    assert compiled.count("LDG.E.STRONG.GPU") == compiled.count("CCTL.IVALL") == compiled.count("MEMBAR.ALL.GPU") == 3
