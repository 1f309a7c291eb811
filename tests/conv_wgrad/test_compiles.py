"""What the interpreter cannot show: every kernel compiles for real GPUs, whatever the geometry, on their matrix units."""

import re

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import conv2d_bias_grad, conv2d_wgrad, cost, operator, portable
from kernels.conv_wgrad.problem import equivalents
from kernels.lab import _triton_private, compile_report
from tests.conv_wgrad import cases

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests compile every kernel")

CASES = {
    "16-bit": dict(Ci=64, Co=128),
    "16-bit narrow": dict(Ci=64, Co=64),
    "16-bit wide": dict(Ci=64, Co=256),
    "16-bit pointwise": dict(Ci=64, Co=128, R=1),
    "16-bit pointwise wide": dict(Ci=64, Co=256, R=1),
    "a multiple of 8 channels": dict(Ci=24, Co=136),
    "odd channels": dict(Ci=3, Co=7),
    "pairs of channels": dict(Ci=42, Co=136),
    "grouped": dict(Ci=64, Co=64, groups=8),
    "depthwise": dict(Ci=64, Co=64, groups=64),
    "depthwise, 5 taps": dict(Ci=64, Co=64, groups=64, R=5),
    "tf32": dict(Ci=64, Co=128, dtype=torch.float32, precision="tf32"),
    "ieee": dict(Ci=64, Co=128, dtype=torch.float32, precision="ieee"),
}

# Tiles whose times on an H200 were measured: by the kind of layer that they are for, and as the kernel is launched.
MEASURED = [
    (kind, cost.options_of(tile))
    for kind, tiles in cost.costs_of({"COSTS": "NVIDIA H200"})["tiles"].items()
    if "hopper" not in kind
    for tile in tiles
]
WITH = {"product rows": "16-bit pointwise wide", "product im2col": "16-bit wide", "depthwise": "depthwise"}
WITH |= {f"product scalar {how}": "odd channels" for how in ("rows", "im2col")}
WITH |= {f"product unaligned {how}": "pairs of channels" for how in ("rows", "im2col")}
COMMON = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "STAGES": 3, "num_warps": 4}


def report(monkeypatch, arch, case, tile=None, kernel=None, tma=False, spills=0):
    """What becomes of one kernel (``None``: the weight gradient's) of those that the gradients launch by any GPU's table, or
    with the options ``tile``."""
    options = {"groups": 1, "dtype": torch.float16, "precision": "ieee", "R": 3} | CASES[case]

    def says(package, name, *rest):
        found = cases.table_of("any GPU")(package, name, *rest)
        if tile and name in ("product", "depthwise"):
            found = tile | {"HELD": 132}
        return found | {name: value for name, value in {"TMA": tma, "PIXELS": 0}.items() if name in found}

    cases.planned_for(monkeypatch, says)
    torch.backends.cudnn.conv.fp32_precision = options["precision"]
    x, dy = (torch.zeros(2, 9, 9, options[channels], dtype=options["dtype"]) for channels in ("Ci", "Co"))
    with cases.launches() as seen:
        conv2d_wgrad(x, dy, options["R"], options["R"], 1, options["R"] // 2, 1, options["groups"], split_k=2)
        conv2d_bias_grad(dy)
    launched = {launch[0].__name__: launch for launch in seen}
    main = "depthwise_kernel" if "depthwise" in case else "wgrad_kernel"
    assert launched.keys() == {main, "bias_kernel", "sum_kernel"}
    function, _, args, meta = launched[kernel or main]
    compiled = compile_report(function, *args, arch=arch, **meta)
    # Triton gives a thread 128 registers on sm_100; a scalar or two of what follows the loop wait in memory there
    assert compiled.spill_bytes <= max(spills, 16 if arch == 100 else 0), str(compiled)
    assert compiled.shared_bytes <= {80: 163, 90: 227, 100: 227}[arch] * 1024
    if function.__name__ == "wgrad_kernel" and case != "ieee":
        assert compiled.count("HMMA") + compiled.count("HGMMA") + compiled.count("UTC") > 0, str(compiled)
    return compiled


@pytest.mark.parametrize("tma", [False, True])
def test_the_h200s_products_are_of_warp_groups_and_its_copies_whole_blocks_or_vectors(monkeypatch, tma):
    """Operands come from shared memory, where asynchronous copies have put them, of 16 bytes a thread or, by the tensor
    memory accelerator, of blocks of dy; nothing is loaded otherwise."""
    compiled = report(monkeypatch, 90, "16-bit", COMMON | {"TMA": tma}, tma=tma)
    assert compiled.count("HGMMA") > 0 and compiled.count("HMMA") == 0
    assert (compiled.count("UTMALDG") > 0) == tma
    copies = [opcode for opcode in re.findall(r"LDGSTS[.\w]*", compiled.sass)]
    assert copies and all(opcode.endswith(".128") for opcode in copies) and compiled.count("LDG.") == 0


def test_a_pointwise_convolutions_operands_are_both_copied_in_whole_blocks(monkeypatch):
    compiled = report(monkeypatch, 90, "16-bit pointwise", COMMON | {"TMA": True}, tma=True)
    assert compiled.count("HGMMA") > 0 and compiled.count("UTMALDG") > 0
    assert compiled.count("LDGSTS") == compiled.count("LDG.") == 0


def test_channels_that_are_a_multiple_of_8_are_copied_in_whole_vectors(monkeypatch):
    """24 is no multiple of 16, which is all that the compiler asks an integer for by itself."""
    compiled = report(monkeypatch, 90, "a multiple of 8 channels")
    assert compiled.count("LDGSTS") > 0 and compiled.count("LDG.") == 0


@pytest.mark.parametrize("tma", [False, True])
def test_pixels_as_groups_are_copied_in_whole_vectors(monkeypatch, tma):
    """19 channels of 2 bytes, of 8 pixels side by side."""
    monkeypatch.setattr(portable, "is_cuda_architecture", lambda *given: True)
    x, dy, g = cases.problem((2, 8, 8, 64), 19, 1, 1, dtype=torch.bfloat16)
    equivalent = equivalents(operator.problem_of(x, dy, g))[-1]
    tile = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "STAGES": 4, "TMA": tma, "num_warps": 4}
    cut = portable.cut_whole(equivalent.problem.g, tile).into(1)
    with cases.launches() as seen:
        operator.run(portable.plan_cut(equivalent.problem, cut), x, dy, torch.empty(g.weight_shape), equivalent=equivalent)
    kernel, _, args, meta = seen[0]
    compiled = compile_report(kernel, *args, arch=90, **meta)
    assert compiled.spill_bytes == 0 and compiled.count("HGMMA") > 0 and compiled.count("LDG.") == 0
    copies = re.findall(r"LDGSTS[.\w]*", compiled.sass)
    assert (not copies and compiled.count("UTMALDG") > 0) if tma else all(copy.endswith(".128") for copy in copies)


@pytest.mark.share(3)
@pytest.mark.parametrize("kernel", ["depthwise_kernel", "bias_kernel", "sum_kernel"])
def test_sums_compile_for_hopper(monkeypatch, kernel):
    report(monkeypatch, 90, "depthwise", kernel=kernel)


def test_a_depthwise_program_loads_dy_once_for_all_taps_and_x_once_for_a_row_of_them(monkeypatch):
    """Of 5 pixels, and in each of 5 rows of the 9 that 5 taps see of them: 4 bytes a thread, two channels."""
    compiled = report(monkeypatch, 90, "depthwise, 5 taps")
    assert compiled.count("LDG.") == 5 + 5 * 9
    assert compiled.count("FFMA") >= 2 * 5 * 5 * 5


def test_a_thread_with_few_channels_loads_them_at_once(monkeypatch):
    """32 channels of 16 strips are 4 neighbours for each of 128 threads: 8 bytes, and not 2."""
    tile = {"BLOCK_M": 32, "BLOCK_K": 16, "RUN": 4, "SUMS": 3, "num_warps": 4}
    compiled = report(monkeypatch, 90, "depthwise", tile)
    assert compiled.count("LDG.E.64") == compiled.count("LDG.") == 3 + 5


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_every_case_compiles_for_ampere_hopper_and_blackwell(monkeypatch, case, arch):
    report(monkeypatch, arch, case)


@pytest.mark.slow
@pytest.mark.parametrize("kind, tile", MEASURED)
def test_every_tile_that_was_measured_compiles_for_the_h200(monkeypatch, kind, tile):
    """Some of them spill: their times say so."""
    report(monkeypatch, 90, WITH[kind], tile, tma=tile.get("TMA", False), spills=1 << 20)


@pytest.mark.parametrize("groups", [1, 64])
def test_layers_of_other_sizes_share_a_compiled_kernel(groups):
    """Heights, strides and padding of 1, of a multiple of 16 and of neither: one signature, with the same constants and the
    same alignments, for Triton to compile."""
    seen = set()
    for size, step, padding, dilation in [(16, 1, 1, 1), (17, 2, 0, 1), (19, 3, 16, 2), (33, 1, 2, 16)]:
        x = torch.zeros(2, size, size, 64, dtype=torch.float16)
        g = cases.operator.geometry(x.shape, 64, 3, 3, step, padding, dilation, groups)
        with cases.launches() as launched:
            conv2d_wgrad(x, torch.zeros(g.output_shape, dtype=x.dtype), 3, 3, step, padding, dilation, groups, split_k=1)
        kernel, _, arguments, _ = launched[0]
        named = dict(zip(kernel.arg_names, (*arguments, "whichever tile"), strict=True))
        seen.add(repr([sorted(found.items()) for found in _triton_private.specialize(kernel, named)]))
    assert len(seen) == 1
