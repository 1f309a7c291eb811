"""What the interpreter cannot show: every kernel compiles for real GPUs, whatever the geometry, on their matrix units."""

import re

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import conv2d_bias_grad, conv2d_wgrad
from kernels.lab import compile_report
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
    "grouped": dict(Ci=64, Co=64, groups=8),
    "depthwise": dict(Ci=64, Co=64, groups=64),
    "depthwise, 7 taps": dict(Ci=64, Co=64, groups=64, R=7),
    "tf32": dict(Ci=64, Co=128, dtype=torch.float32, precision="tf32"),
    "ieee": dict(Ci=64, Co=128, dtype=torch.float32, precision="ieee"),
}

# The H200's tile of 256 rows is tuned for descriptors; dy has one unless its rows begin anywhere in memory.
UNALIGNED = ("NVIDIA H200", "16-bit wide", False)


def report(monkeypatch, arch, case, gpu="any GPU", kernel=None, tma=False):
    """What becomes of one kernel (``None``: the weight gradient's) of those that the gradients launch by this GPU's table."""
    options = {"groups": 1, "dtype": torch.float16, "precision": "ieee", "R": 3} | CASES[case]

    def of_that_gpu(*names):
        found = cases.table_of(gpu)(*names)
        return found | ({"TMA": tma} if "TMA" in found else {})

    cases.planned_for(monkeypatch, of_that_gpu)
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
    spills = 48 if (gpu, case, tma) == UNALIGNED else 16 if arch == 100 else 0
    assert compiled.spill_bytes <= spills, str(compiled)
    assert compiled.shared_bytes <= {80: 163, 90: 227, 100: 227}[arch] * 1024
    if function.__name__ == "wgrad_kernel" and case != "ieee":
        assert compiled.count("HMMA") + compiled.count("HGMMA") + compiled.count("UTC") > 0, str(compiled)
    return compiled


@pytest.mark.parametrize("tma", [False, True])
def test_the_h200s_products_are_of_warp_groups_and_its_copies_whole_blocks_or_vectors(monkeypatch, tma):
    """Operands come from shared memory, where asynchronous copies have put them, of 16 bytes a thread or, by the tensor
    memory accelerator, of blocks of dy; nothing is loaded otherwise."""
    compiled = report(monkeypatch, 90, "16-bit", "NVIDIA H200", tma=tma)
    assert compiled.count("HGMMA") > 0 and compiled.count("HMMA") == 0
    assert (compiled.count("UTMALDG") > 0) == tma
    copies = [opcode for opcode in re.findall(r"LDGSTS[.\w]*", compiled.sass)]
    assert copies and all(opcode.endswith(".128") for opcode in copies) and compiled.count("LDG.") == 0


def test_a_pointwise_convolutions_operands_are_both_copied_in_whole_blocks(monkeypatch):
    compiled = report(monkeypatch, 90, "16-bit pointwise", "NVIDIA H200", tma=True)
    assert compiled.count("HGMMA") > 0 and compiled.count("UTMALDG") > 0
    assert compiled.count("LDGSTS") == compiled.count("LDG.") == 0


def test_channels_that_are_a_multiple_of_8_are_copied_in_whole_vectors(monkeypatch):
    """24 is no multiple of 16, which is all that the compiler asks an integer for by itself."""
    compiled = report(monkeypatch, 90, "a multiple of 8 channels")
    assert compiled.count("LDGSTS") > 0 and compiled.count("LDG.") == 0


@pytest.mark.parametrize("kernel", ["depthwise_kernel", "bias_kernel", "sum_kernel"])
def test_sums_compile_for_hopper(monkeypatch, kernel):
    report(monkeypatch, 90, "depthwise", kernel=kernel)


@pytest.mark.parametrize("gpu", ["any GPU", "NVIDIA H200"])
def test_a_depthwise_program_loads_dy_once_for_all_taps_and_x_once_for_a_row_of_them(monkeypatch, gpu):
    """Of 5 pixels, and in each of 7 rows of the 11 that 7 taps see of them: 4 bytes a thread, two channels."""
    compiled = report(monkeypatch, 90, "depthwise, 7 taps", gpu)
    assert compiled.count("LDG.") == 5 + 7 * 11
    assert compiled.count("FFMA") >= 2 * 5 * 7 * 7


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_every_case_compiles_for_ampere_hopper_and_blackwell(monkeypatch, case, arch):
    report(monkeypatch, arch, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tma", [False, True])
def test_every_case_compiles_for_the_h200(monkeypatch, case, tma):
    report(monkeypatch, 90, case, "NVIDIA H200", tma=tma)
