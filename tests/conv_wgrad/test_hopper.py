"""The warp-specialised kernel for Hopper: on the model of the GPU, in the compiler, and on the GPU itself."""

import importlib
import itertools
import os
import pathlib
import subprocess
import sys

import pytest
import torch

from benchmarks import conv_wgrad as benchmark
from kernels import runtime
from kernels.conv_wgrad import conv2d_wgrad, cost, hopper, operator
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.hopper import Schedule, Tile, Window
from kernels.conv_wgrad.portable import compiled_for

if hopper.unfit(geometry((1, 1, 1, 8), 8, 1, 1), torch.bfloat16):
    pytest.skip("Gluon's im2col copies need Triton 3.8", allow_module_level=True)

from kernels import gluon_model
from kernels.lab import compile_report
from tests.conv_wgrad import cases, on_model
from tests.conv_wgrad.faults import FAULTS
from tests.conv_wgrad.on_model import GEOMETRIES, SWEEP, THREE, TWO

interpreted = pytest.mark.skipif(not runtime.interpreted, reason="the model and the compiler's report are for the CPU")
hopper_only = pytest.mark.skipif(
    runtime.interpreted or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)


ON_THE_MODEL = """
import torch
from kernels import gluon_model, runtime
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.operator import wgrad_by
from kernels.conv_wgrad.reference import conv2d_wgrad_reference

x, g = torch.randn(2, 5, 6, 24).half(), geometry((2, 5, 6, 24), 40, 3, 3)
dy = torch.randn(*g.output_shape).half()
for backend in ("hopper", "blackwell"):
    dw = torch.full(g.weight_shape, float("nan"))
    with gluon_model.executing() as results:
        wgrad_by(backend, x, dy, g, dw, split_k=1)
    right = conv2d_wgrad_reference(x.double(), dy.double(), 3, 3)
    print(runtime.interpreted, results[0].ok, torch.allclose(dw.double(), right, atol=1e-4))
"""


def test_the_model_runs_on_the_cpu_where_kernels_are_compiled():
    environment = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, "-c", ON_THE_MODEL]
    child = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120)
    assert child.stdout.splitlines() == 2 * ["False True True"], child.stderr


@pytest.mark.share(3)
@interpreted
@pytest.mark.parametrize("groups", [TWO, THREE], ids=["2 groups", "3 groups"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries_on_the_model(name, groups):
    with on_model.tiles(**groups):
        on_model.check(hopper, *GEOMETRIES[name])


@pytest.mark.share(3)
@interpreted
@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("name", ["asymmetric padding", "1x1"])
def test_layouts_on_the_model(name, layout):
    with on_model.tiles():
        on_model.check(hopper, *GEOMETRIES[name], layout=layout, dtype=torch.float16)


@interpreted
@pytest.mark.parametrize("split_k", [1, 2, 3, 1000])
def test_split_k_on_the_model(split_k):
    with on_model.tiles():
        on_model.check(hopper, *GEOMETRIES["asymmetric padding"], split_k=split_k)


@pytest.mark.share(2)
@interpreted
@pytest.mark.parametrize("splits, processors", [(1, 1), (1, 5), (2, 4), (7, 3), (13, 132)])
def test_programs_with_several_items_on_the_model(splits, processors):
    """18 tiles of 13 blocks: several splits a program, the last of them shorter."""
    with on_model.tiles(), on_model.on_processors(processors):
        on_model.check(hopper, (2, 9, 11, 24), 72, 3, 3, dict(padding=1), split_k=splits)


@interpreted
def test_the_tables_own_tiles_on_the_model():
    on_model.check(hopper, (2, 16, 16, 192), 130, 3, 1, dict(padding=1))


@pytest.mark.thorough
@interpreted
@pytest.mark.parametrize("groups", [TWO, THREE], ids=["2 groups", "3 groups"])
def test_every_schedule_gives_the_same_bits_and_no_finding(groups):
    """Rings that turn several times, a program with several items."""
    x, dy, g = cases.problem((2, 9, 8, 24), 72, 3, 3, padding=(0, 2, 1, 3), dtype=torch.bfloat16)
    with on_model.tiles(**groups), on_model.on_processors(7):
        found = [on_model.gradient(hopper, x, dy, g, split_k=3, **schedule) for schedule in SWEEP]
    assert all(result.ok for _, result in found), "\n".join(str(result) for _, result in found)
    assert all(torch.equal(dw, found[0][0]) for dw, _ in found)


@interpreted
def test_accumulates_and_casts_once_on_the_model():
    x, dy, g = cases.problem((2, 7, 5, 16), 24, 3, 3, dtype=torch.float16)
    with on_model.tiles():
        want, _ = on_model.gradient(hopper, x, dy, g)
        out = torch.ones(g.weight_shape, dtype=torch.float16)
        on_model.gradient(hopper, x, dy, g, out=out, accumulate=True, split_k=3)
    assert torch.allclose(out.float(), (want + 1).half().float(), rtol=1e-3)


# Faults planted in the source.


@pytest.mark.share(2)
@interpreted
@pytest.mark.parametrize("name", FAULTS)
def test_the_model_finds_planted_faults(monkeypatch, name):
    fault, finding = FAULTS[name]
    on_model.plant(monkeypatch, hopper, "wgrad_hopper_kernel", *fault)
    on_model.assert_found(hopper, finding)


@pytest.mark.thorough
@interpreted
def test_the_assembler_mends_a_missing_wait_and_serialises_all_products(tmp_path, monkeypatch):
    """The one planted fault that a GPU does not show: a wait for *all* products stands behind each of them instead."""
    source = pathlib.Path(hopper.__file__).read_text()
    wait = "acc = warpgroup_mma_wait(0, deps=(acc,))"
    assert source.count(wait) == 1
    (tmp_path / "unwaited.py").write_text(source.replace(wait, "pass"))
    monkeypatch.syspath_prepend(tmp_path)
    waits_for_all = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    _, right = report("3 groups")
    monkeypatch.setattr(hopper, "wgrad_hopper_kernel", importlib.import_module("unwaited").wgrad_hopper_kernel)
    _, serial = report("3 groups")
    assert right.sass.count(waits_for_all) == 3 and right.count("HGMMA") == serial.count("HGMMA") == 12
    assert serial.sass.count(waits_for_all) == 12


# What the compiler makes of it.

LONG, SHORT, PAIR = (128, 128, 32, 3, 6), (128, 128, 64, 3, 3), (128, 128, 64, 2, 4)
COMPILED = {  # input and output channels, filter, dtype of what is stored; BLOCK_M, BLOCK_N, BLOCK_K, GROUPS, STAGES
    "3 groups": (384, 384, 3, torch.float32, LONG),
    "3 groups, one split": (384, 384, 3, torch.bfloat16, LONG),
    "3 groups, 1x1": (384, 384, 1, torch.float32, LONG),
    "short rows": (512, 512, 3, torch.float32, SHORT),
    "2 groups": (256, 256, 1, torch.float32, PAIR),
    "2 groups, odd channels": (101, 130, 3, torch.float32, PAIR),
    "2 groups, channels in fours": (100, 132, 3, torch.float32, PAIR),
    "narrow": (64, 64, 3, torch.float32, (64, 64, 32, 3, 6)),
    "turned": (384, 384, 3, torch.float32, (128, 64, 64, 3, 5)),
    "turned, 1x1": (384, 384, 1, torch.bfloat16, (128, 64, 64, 2, 6)),
}


def report(name):
    Ci, Co, R, dtype, tile = COMPILED[name]
    size = 16 if name == "short rows" else 32
    x, dy, g = cases.problem((2, size, size, Ci), Co, R, R, padding=R // 2, dtype=torch.bfloat16)
    options = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUPS", "STAGES"), tile, strict=True))
    known, matrix = on_model.in_units(g)
    known["TURNED"] = "turned" in name
    return options, compile_report(
        hopper.wgrad_hopper_kernel,
        *hopper.descriptors(hopper.aligned(x), hopper.aligned(dy), g, options), dtype,
        Schedule(*[7] * 6), Window(*[7] * 9), matrix,
        arch=90, **compiled_for(Tile, options | known), num_warps=4, maxnreg=hopper.REGISTERS[options["GROUPS"]],
    )  # fmt: skip


@pytest.mark.thorough
@interpreted
@pytest.mark.parametrize(
    "name", ["3 groups", *(pytest.param(name, marks=pytest.mark.slow) for name in COMPILED if name != "3 groups")]
)
def test_compiles_without_a_spill(name):
    """A block of pixels is a copy for each 64 channels of dy and of a chunk, and a product for each 64 output channels and 16
    pixels of a group."""
    options, compiled = report(name)
    BLOCK_M, BLOCK_N, BLOCK_K, GROUPS = (options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUPS"))
    assert compiled.spill_bytes == 0 and compiled.shared_bytes <= 227 * 1024, str(compiled)
    assert compiled.count("HGMMA") == GROUPS * (BLOCK_M // 64) * (BLOCK_K // 16)
    chunks, rows = GROUPS * -(-BLOCK_N // 64), BLOCK_M // 64
    pointwise = "1x1" in name or name == "2 groups"
    copies = compiled.count("UTMALDG.4D.IM2COL"), compiled.count("UTMALDG.2D")
    assert copies == ((0, rows + chunks) if pointwise else (chunks, rows))
    registers = {2: 240, 3: 160}[GROUPS]
    assert f"setmaxnreg.inc.sync.aligned.u32 \t{registers};" in compiled.ptx
    assert "setmaxnreg.dec.sync.aligned.u32 \t32;" in compiled.ptx and compiled.count("USETMAXREG") > 0


# Which geometries, and which splits.

REFUSED = {
    "float32": (dict(), torch.float32, "torch.float32 has no 16-bit"),
    "groups": (dict(groups=2), torch.bfloat16, "not 2 groups"),
    "stride": (dict(stride=9), torch.bfloat16, "steps over 8 pixels"),
    "padding": (dict(padding=129), torch.bfloat16, "more than 8 bits"),
    "span": (dict(dilation=(1, 130), padding=(1, 1, 120, 140)), torch.bfloat16, "the filter spans (3, 261) pixels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_tma_cannot_bring_is_refused_with_a_reason(name):
    convolution, dtype, reason = REFUSED[name]
    g = geometry((2, 20, 20, 64), 64, 3, 3, **{"padding": 1} | convolution)
    assert reason in hopper.unfit(g, dtype)


@pytest.mark.parametrize("shape", [(0, 4, 4, 8), (1, 4, 4, 0), (1, 2, 2, 8)])
def test_nothing_to_sum_is_left_to_others(shape):
    assert hopper.unfit(geometry(shape, 8, 3, 3), torch.bfloat16) == "there is nothing to sum"


@pytest.mark.parametrize("images, fits", [(2047, True), (2048, False)])
def test_pixels_are_counted_in_32_bits(images, fits):
    reason = hopper.unfit(geometry((images, 1024, 1024, 8), 8, 3, 3, padding=1), torch.bfloat16)
    assert reason is None if fits else "2147483648 pixels are more than 32 bits can count" in reason


@interpreted
def test_a_cpu_is_no_hopper_and_auto_says_so():
    x, dy, _ = cases.problem((1, 5, 5, 64), 64, 3, 3, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="backend is 'hopper', needs another here: the GPU is not a Hopper"):
        conv2d_wgrad(x, dy, 3, 3, backend="hopper")
    assert "not hopper: the GPU is not a Hopper" in conv2d_wgrad.explain(x, dy, 3, 3).splitlines()


def test_copies_are_announced(monkeypatch):
    """5 channels of 2 bytes are no 16; 8 are. A window of an image is read where it is."""
    monkeypatch.setattr(hopper, "is_cuda_architecture", lambda *given: True)
    said = lambda x, dy: [  # noqa: E731
        line for line in conv2d_wgrad.explain(x, dy, 3, 3, backend="hopper").splitlines() if "copies" in line
    ]
    why = "not adjacent channels and pixels a multiple of 16 bytes apart"
    x, dy, _ = cases.problem((2, 6, 6, 5), 8, 3, 3, dtype=torch.bfloat16)
    assert said(x, dy) == [f"copies input: strides (180, 30, 5, 1), {why}"]
    x, dy, _ = cases.problem((2, 6, 6, 8), 12, 3, 3, dtype=torch.bfloat16)
    assert said(x[:, 1:5], dy[:, :2]) == [f"copies grad_output: strides (192, 48, 12, 1), {why}"]
    assert said(x[:, 1:5], dy[:, :2, :, :8].contiguous()) == []


@interpreted
@pytest.mark.parametrize("tiles, blocks", [(1, 1), (1, 7), (3, 5), (5, 4), (4, 13)])
def test_splits_cover_every_block_once(tiles, blocks):
    """The kernels' own arithmetic, for every number of splits, dealt to three programs."""
    for asked in range(1, blocks + 2):
        cut = cost.Cut({}, tiles, blocks).into(asked)
        seen = torch.zeros(cut.splits, tiles, blocks, dtype=torch.int32)
        schedule = Schedule(cut.items, min(cut.items, 3), tiles, 1, blocks, cut.per)
        assert gluon_model.run(on_model.cover, 3, seen, schedule).ok
        assert torch.all(seen.sum(0) == 1) and torch.all(seen.sum(2) > 0), cut


@pytest.mark.parametrize("tiles, blocks", [(27, 8192), (3, 8192), (12, 3136), (48, 784), (24, 1568)])
def test_no_program_has_much_more_than_its_share(monkeypatch, tiles, blocks):
    """Of 132 programs by a table without costs."""
    monkeypatch.setattr(hopper, "multiprocessors", lambda device: 132)
    x, dy = (torch.empty(1, 1, blocks * 16, C, dtype=torch.bfloat16, device="meta") for C in (32, 64 * tiles))
    problem = operator.problem_of(x, dy, geometry(x.shape, 64 * tiles, 1, 1))._replace(device=torch.device("cpu"))
    with on_model.tiles(GROUPS=2):
        cut = hopper.cut_of("hopper", problem)
    assert (cut.tiles, cut.blocks) == (tiles, blocks)
    waves = -(-cut.items // 132)
    assert tiles * blocks / (132 * waves * cut.per) > 0.9


# On the GPU.


LARGE = {  # for a GPU's own tiles: more channels than one has, and no multiple of 8
    "last tiles": ((4, 15, 13, 130), 331, 3, 2, dict(padding=(0, 2, 1, 1), dilation=(2, 1))),
    "last tiles, odd": ((8, 18, 19, 331), 331, 3, 2, dict(padding=(2, 0, 1, 0), stride=(1, 2))),
    "last tiles, 1x1": ((4, 15, 13, 259), 203, 1, 1, {}),
}


@hopper_only
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [*GEOMETRIES, *LARGE])
def test_geometries_on_the_gpu(name, dtype):
    shape, Co, R, S, convolution = (GEOMETRIES | LARGE)[name]
    for split_k, layout in itertools.product((None, 1, 3), cases.LAYOUTS):
        x, dy, g = cases.problem(shape, Co, R, S, dtype=dtype, layout=layout, **convolution)
        got = conv2d_wgrad(
            x.cuda(), dy.cuda(), R, S, **convolution, backend="hopper", split_k=split_k, out_dtype=torch.float32
        )
        want = conv2d_wgrad(x.cuda(), dy.cuda(), R, S, **convolution, backend="triton", out_dtype=torch.float32)
        assert cases.relative_error(got, want) < 1e-5


@hopper_only
@pytest.mark.gpu
@pytest.mark.parametrize("case", benchmark.CASES[:7], ids=benchmark.describe)
def test_the_same_bits_twenty_times(case):
    x, dy, g = benchmark.problem(case)
    first, *others = (benchmark.ours(x, dy, g) for _ in range(20))
    assert all(torch.equal(first, other) for other in others)
    assert benchmark.errors_of(x, dy, g, {"ours": first})["ours"] < 3e-3
