"""The kernel for Blackwell, on the model of the GPU and in the compiler: on a GPU it has not run yet."""

import re

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import blackwell, conv2d_wgrad, hopper, operator
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.hopper import Matrix, Schedule, Tile, Window
from kernels.conv_wgrad.portable import compiled_for

if not runtime.interpreted:
    pytest.skip("the model and the compiler's report are for the CPU", allow_module_level=True)
if hopper.unfit(geometry((1, 1, 1, 8), 8, 1, 1), torch.bfloat16):
    pytest.skip("Gluon's im2col copies need Triton 3.8", allow_module_level=True)

from kernels.lab import compile_report
from tests.conv_wgrad import cases, on_model
from tests.conv_wgrad.on_model import GEOMETRIES, SWEEP


@pytest.mark.share(2)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries_on_the_model(name):
    with on_model.tiles(GROUPS=2):
        on_model.check(blackwell, *GEOMETRIES[name])


@pytest.mark.parametrize("split_k", [1, 3, 1000])
def test_split_k_on_the_model(split_k):
    with on_model.tiles(GROUPS=2):
        on_model.check(blackwell, *GEOMETRIES["asymmetric padding"], dtype=torch.float16, split_k=split_k)


@pytest.mark.parametrize("splits, processors", [(1, 1), (2, 4), (7, 5)])
def test_programs_with_several_items_on_the_model(splits, processors):
    """Many tiles a program: both accumulators in turn, several times."""
    with on_model.tiles(GROUPS=2), on_model.on_processors(processors):
        on_model.check(blackwell, (2, 9, 11, 24), 72, 3, 3, dict(padding=1), split_k=splits)


def test_the_tables_own_tiles_on_the_model():
    on_model.check(blackwell, (2, 16, 16, 192), 130, 3, 1, dict(padding=1))


def test_every_schedule_gives_the_same_bits_and_no_finding():
    x, dy, g = cases.problem((2, 9, 8, 24), 72, 3, 3, padding=(0, 2, 1, 3), dtype=torch.bfloat16)
    with on_model.tiles(GROUPS=2), on_model.on_processors(7):
        found = [on_model.gradient(blackwell, x, dy, g, split_k=3, **schedule) for schedule in SWEEP]
    assert all(result.ok for _, result in found), "\n".join(str(result) for _, result in found)
    assert all(torch.equal(dw, found[0][0]) for dw, _ in found)


MULTIPLY, STORE = "multiply_tiles", "store_tiles"
FAULTS = {  # function, old text, new text; kind of finding, partition, text of the report, barrier
    "an accumulator is written before it is stored": (
        (MULTIPLY, "(visits // 2 + 1) & 1)", "visits // 2 & 1)"),
        ("deadlock", MULTIPLY, "mbarrier.wait(stored.index(half), visits // 2 & 1)", "stored[0]"),
    ),
    "an accumulator is released before it is read": (
        (
            STORE,
            "mbarrier.wait(done.index(half), visits // 2 & 1)",
            "mbarrier.wait(done.index(half), (visits // 2 + 1) & 1)",
        ),
        ("wrong phase", STORE, "mbarrier.wait(done.index(half)", "done["),
    ),
    "buffers are released before they are multiplied": (
        (MULTIPLY, "tcgen05_commit(ring.free.index(stage))", "mbarrier.arrive(ring.free.index(stage))"),
        ("early overwrite", "load_blocks", "may still read it", "free[0]"),
    ),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FAULTS)
def test_the_model_finds_planted_faults(monkeypatch, name):
    fault, finding = FAULTS[name]
    on_model.plant(monkeypatch, blackwell, "wgrad_blackwell_kernel", blackwell, *fault)
    on_model.assert_found(blackwell, finding, GROUPS=2)


@pytest.mark.parametrize(
    "Ci, Co, R, dtype",
    [(384, 384, 3, torch.float32)]
    + [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [
            (384, 384, 1, torch.float32),
            (384, 256, 3, torch.bfloat16),
            (100, 130, 3, torch.float32),
            (16, 24, 3, torch.float32),
        ]
    ],
)
def test_W9_the_epilogue_is_split_and_nothing_spills(Ci, Co, R, dtype):
    """The published kernel brings 128 x 256 sums to registers at once: 255 registers a thread and 656 bytes of stack."""
    x, dy, g = cases.problem((2, 32, 32, Ci), Co, R, R, padding=R // 2, dtype=torch.bfloat16)
    options = hopper.cut_of("blackwell", operator.problem_of(x, dy, g)).options
    tile = options["BLOCK_N"]
    compiled = compile_report(
        blackwell.wgrad_blackwell_kernel,
        *hopper.descriptors(hopper.aligned(x), hopper.aligned(dy), g, options), dtype,
        Schedule(*[7] * 6), Window(*[7] * 9), Matrix(Co, Ci, R * R),
        arch=100, **compiled_for(Tile, options | {"POINTWISE": R == 1, "SLICE": min(32, tile)}), num_warps=4,
    )  # fmt: skip
    assert compiled.spill_bytes == 0 and compiled.shared_bytes <= 227 * 1024, str(compiled)
    assert compiled.count("UTCHMMA") == options["GROUPS"] * options["BLOCK_K"] // 16
    halves = 128 // options["BLOCK_M"]  # 64 rows lie in every other 16 lanes
    assert compiled.count("LDTM") == halves * options["GROUPS"] * -(-tile // 32)
    chunks, rows = options["GROUPS"] * -(-tile // 64), options["BLOCK_M"] // 64
    copies = compiled.count("UTMALDG.4D.IM2COL"), compiled.count("UTMALDG.2D")
    assert copies == ((0, rows + chunks) if R == 1 else (chunks, rows))
    assert re.search(r"setmaxnreg.dec.sync.aligned.u32 \t48;", compiled.ptx)


def test_auto_passes_over_what_has_not_run_on_a_gpu(monkeypatch):
    x, dy, g = cases.problem((1, 5, 5, 64), 64, 3, 3, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="backend is 'blackwell', needs another here: the GPU is not"):
        conv2d_wgrad(x, dy, 3, 3, backend="blackwell")
    monkeypatch.setattr(blackwell, "is_cuda_architecture", lambda *given: True)
    said = conv2d_wgrad.explain(x, dy, 3, 3)
    assert said.startswith("triton: ") and 'to be asked for: backend="blackwell"' in said
    assert conv2d_wgrad.explain(x, dy, 3, 3, backend="blackwell").startswith("blackwell: ")
