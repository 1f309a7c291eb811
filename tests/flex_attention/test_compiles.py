"""What the interpreter cannot show: every kernel compiles for real GPUs, whatever the mod, without a spill."""

import functools
import re

import pytest
import torch
import triton

from kernels import runtime
from kernels.common import configs
from kernels.common import gluon as common_gluon
from kernels.flex_attention import create_block_mask, flex_attention, plan, problem
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import fit, scheduler
from kernels.flex_attention.mods import bind
from kernels.flex_attention.plan import HOPPER
from kernels.lab import compile_report
from tests.flex_attention import cases

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests compile every kernel")

# Shared memory of one program, in bytes: 99 KiB on the smallest GPUs with bfloat16, 227 KiB on Hopper.
SHARED = {"any GPU": 99 * 1024, "NVIDIA H200": 227 * 1024}

# The tuned tiles fill the register file to the last; older compilers are a few registers less frugal.
SPILL = 0 if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9) else 64


def launches(
    monkeypatch, name, *, gpu="any GPU", D=64, dtype=torch.bfloat16, M=256, N=256, HKV=2, warp_specialised=False, **options
):  # fmt: skip
    """Every kernel launched by a forward and backward pass, with its arguments, for the configurations of ``gpu``."""
    seen = []
    record = lambda kernel, grid, *args, **meta: seen.append((kernel, args, meta))  # noqa: E731

    def for_gpu(kernel, key, device):
        table = configs._table("flex_attention")
        known = table["any GPU"][kernel] | table.get(gpu, {}).get(kernel, {})
        return dict(known.get(key, known["default"]))

    cases.replace_launch(monkeypatch, lambda launch: record)
    if warp_specialised:
        monkeypatch.setattr(fit, "unfit", lambda *_: None)
        monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(problem, "table_options", for_gpu)
    monkeypatch.setattr(plan, "check_captured", lambda *_: None)  # the zoo's tables are made for small problems
    case, learned = cases.zoo(name)
    q, k, v = (torch.zeros(2, h, n, D, dtype=dtype, requires_grad=True) for h, n in ((2, M), (HKV, N), (HKV, N)))
    mask = None
    if "mask_mod" in case:  # its lists decide nothing at compile time
        mask = create_block_mask(lambda b, h, m, n: m >= n, 2, 2 if "mask_heads" in case else None, M, N, device="cpu")
        mask.mask_mod = case["mask_mod"]
    o, lse = flex_attention(
        q, k, v, case.get("score_mod"), mask, enable_gqa=True, return_lse=True, kernel_options=options
    )
    torch.autograd.grad((o, lse), (q, k, v, *learned), (torch.zeros_like(o), torch.zeros_like(lse)))
    return seen


def check(monkeypatch, arch, name, gpu="any GPU", **options):
    seen = launches(monkeypatch, name, gpu=gpu, **options)
    assert len({kernel.__name__ for kernel, *_ in seen}) >= 4
    reports = []
    for kernel, args, meta in {
        (kernel, meta.get("PASS")): (kernel, args, meta) for kernel, args, meta in seen
    }.values():
        report = compile_report(kernel, *args, arch=arch, **meta)
        assert report.spill_bytes <= SPILL, f"{kernel.__name__} {meta}: {report}"
        assert report.shared_bytes <= SHARED[gpu], f"{kernel.__name__} {meta}: {report.shared_bytes} bytes shared"
        reports.append(report)
    return reports


@pytest.mark.thorough
@pytest.mark.skipif(common_gluon.gluon is None, reason="Hopper's kernels need Triton 3.8")
def test_powers_of_constants_compile_in_gluon(monkeypatch):
    """Numbers fill tiles in a way that asks for no layout."""
    seen = launches(monkeypatch, "mixed", gpu="NVIDIA H200", D=128, warp_specialised=True)
    kernel, args, meta = next(one for one in seen if "forward_hopper" in one[0].__name__)
    assert compile_report(kernel, *args, arch=90, **meta).count("HGMMA")


@pytest.mark.thorough
def test_compiles_for_hopper_on_matrix_units(monkeypatch):
    reports = check(monkeypatch, 90, "causal", gpu="NVIDIA H200", D=128)
    assert all(report.count("HGMMA") and report.count("UTMALDG") for report in reports if "attention" in report.kernel)


THOROUGH, SLOW = pytest.mark.thorough, pytest.mark.slow


@pytest.mark.skipif(common_gluon.gluon is None, reason="Gluon's copy engine needs Triton 3.8")
@pytest.mark.parametrize(
    ("ds", "name", "D", "N", "splits", "forward", "backward", "inside"),
    [
        pytest.param(*case, marks=marks)
        for marks, *case in [
            (THOROUGH, "added", "causal", 64, 256, 1, 0, 56, 0),
            (THOROUGH, "kept", "causal", 128, 4096, 1, 32, 88, 18),
            (THOROUGH, "kept", "nothing", 128, 256, 1, 0, 56, 0),
            (SLOW, "kept", "nothing", 128, 4096, 1, 0, 72, 7),
            (SLOW, "kept", "causal", 128, 256, 1, 24, 224, 36),
            (SLOW, "kept", "causal", 128, 256, 2, 24, 200, 36),
            (SLOW, "kept", "document causal", 128, 4096, 1, 64, 128, 34),
            (SLOW, "kept", "softcap", 128, 256, 1, 0, 0, 0),
            (SLOW, "kept", "alibi", 128, 256, 1, 32, 48, 0),
            (SLOW, "kept", "causal", 64, 256, 1, 0, 8, 0),
            (SLOW, "kept", "document causal", 64, 256, 1, 0, 0, 0),
            (SLOW, "added", "nothing", 64, 256, 1, 0, 0, 0),
            (SLOW, "added", "causal", 64, 256, 2, 0, 56, 0),
            (SLOW, "added", "document causal", 64, 256, 1, 0, 136, 10),
            (SLOW, "added", "natten", 64, 256, 1, 0, 72, 0),
            (SLOW, "added", "sliding window", 64, 256, 1, 0, 56, 0),
            (SLOW, "added", "softcap", 64, 256, 1, 0, 136, 30),
        ]
    ],
)
def test_warp_specialised_kernels_compile(monkeypatch, ds, name, D, N, splits, forward, backward, inside):
    """Two groups multiply with 240 registers a thread, the copying warp has 24. So many bytes are spilled by each pass; most
    loops spill nothing, and else a loop of the backward pass has so many loads and stores of spilled registers: tiles this
    large were faster than tiles that spill nothing."""
    cut = lambda p, most: hopper_backward.Cut(ds == "added", p.Bkv * p.Hkv, p.G, p.M, splits)  # noqa: E731
    monkeypatch.setattr(hopper_backward, "cut", cut)
    seen = launches(monkeypatch, name, D=D, N=N, warp_specialised=True)
    most = {"attention_forward_hopper_kernel": forward, "attention_gradients_hopper_kernel": backward}
    kernels = {kernel.__name__: (kernel, args, meta) for kernel, args, meta in seen if "hopper" in kernel.__name__}
    assert kernels.keys() == most.keys()
    for kernel, args, meta in kernels.values():
        report = compile_report(kernel, *args, arch=90, **meta)
        assert report.count("HGMMA") and report.count("UTMALDG")
        assert re.search(r"setmaxnreg.inc.sync.aligned.u32\s+240;", report.ptx)
        assert re.search(r"setmaxnreg.dec.sync.aligned.u32\s+24;", report.ptx)
        assert report.spill_bytes <= most[report.kernel] and report.shared_bytes <= SHARED["NVIDIA H200"], report
        if "gradients" in report.kernel:
            products = [loop for loop in loops_of(report.sass) if "HGMMA" in loop]
            assert meta["T"].DS == ds and len(products) == 2
            assert max(len(re.findall(r"\b(?:LDL|STL)", loop)) for loop in products) <= inside
        elif name == "nothing":
            # With OVERLAP the exponentials stand before the wait for values' product; else ptxas has moved it above them.
            loops = re.findall(
                r"WARPGROUP.DEPBAR.LE gsb0, 0x1 ;(.*?)WARPGROUP.DEPBAR.LE gsb0, 0x0 ;", report.sass, re.S
            )
            between = [loop.count("MUFU.EX2") for loop in loops]
            assert meta["T"].OVERLAP == (D == 64)
            assert between and (min(between) >= 64 if meta["T"].OVERLAP else max(between) < 8), between


def loops_of(sass):
    """The loops of a kernel that hold no other: the instructions of each, as text."""
    lines, labels, loops = sass.splitlines(), {}, []
    for i, line in enumerate(lines):
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = i
        elif (back := re.search(r"BRA.*?(\.L_x_\d+)", line)) and back[1] in labels:
            loops.append((labels[back[1]], i))
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    return ["\n".join(lines[a : b + 1]) for a, b in inner]


@pytest.mark.thorough
@pytest.mark.skipif(not common_gluon.has_inline_asm(), reason="warps that arrive one by one need Triton 3.9")
@pytest.mark.parametrize(
    ("way", "name", "N", "D", "most"),
    [
        ("hopper_tall", "nothing", 2048, 64, 0),
        pytest.param("hopper_tall", "nothing", 2000, 64, 88, marks=pytest.mark.slow),
        pytest.param("hopper_tall", "nothing", 2048, 32, 0, marks=pytest.mark.slow),
        ("hopper_small", "causal", 1024, 64, 160),
        pytest.param("hopper_small", "causal", 1000, 64, 168, marks=pytest.mark.slow),
        pytest.param("hopper_small", "causal", 1024, 32, 56, marks=pytest.mark.slow),
    ],
)
def test_other_tilings_of_the_forward_pass_compile(monkeypatch, way, name, N, D, most):
    """Three groups spill nothing where all tiles are whole, and else nothing in the loop; small programs have few registers,
    and read some of an item's numbers again in each tile. One BAR.SYNC is left in a loop."""
    forward = HOPPER[way]
    monkeypatch.setattr("kernels.flex_attention.plan.FORWARD", {way: forward})
    monkeypatch.setattr(forward, "slower", lambda p: None)
    seen = launches(monkeypatch, name, D=D, M=N, N=N, warp_specialised=True)
    ((kernel, args, meta),) = [launch for launch in seen if launch[0].__name__ == "attention_forward_hopper_kernel"]
    report, T = compile_report(kernel, *args, arch=90, **meta), meta["T"]
    assert (T.GROUPS, T.BLOCK_N) == ((3, 128) if way == "hopper_tall" else (2, 64))
    assert report.spill_bytes <= most, report
    programs = 65536 // (meta["maxnreg"] * 32 * 4 * (T.GROUPS + 1))
    assert programs == (1 if way == "hopper_tall" else 2)
    assert programs * (report.shared_bytes + 1024) <= 228 * 1024, report
    assert re.search(rf"setmaxnreg.inc.sync.aligned.u32\s+{T.REGISTERS};", report.ptx)
    products = [loop for loop in loops_of(report.sass) if "HGMMA" in loop]
    assert len(products) == T.GROUPS * (1 if name == "nothing" else 2)
    scores = T.BLOCK_D // 16
    for loop in products:
        assert loop.count("HGMMA") == scores + T.BLOCK_N // 16
        assert loop.count("BAR.SYNC") == 1
        assert len(re.findall(r"\b(?:LDL|STL)", loop)) <= (0 if way == "hopper_tall" else 24)


@pytest.mark.slow
@pytest.mark.skipif(common_gluon.gluon is None, reason="Gluon's copy engine needs Triton 3.8")
@pytest.mark.parametrize(("name", "most"), [("nothing", 0), ("causal", 80), ("softcap", 16)])
def test_warp_specialised_kernels_of_wide_heads_compile(monkeypatch, name, most):
    """All of a multiprocessor's memory is used, and what is spilled is spilled outside the loops."""
    seen = launches(monkeypatch, name, D=256, warp_specialised=True)
    kernels = {kernel.__name__: (kernel, args, meta) for kernel, args, meta in seen if "hopper" in kernel.__name__}
    assert kernels.keys() == {"attention_forward_hopper_kernel", "attention_dkdv_wide_hopper_kernel"}
    for kernel, args, meta in kernels.values():
        report = compile_report(kernel, *args, arch=90, **meta)
        assert report.spill_bytes <= most and report.shared_bytes <= SHARED["NVIDIA H200"], report


def with_numbers(offset, scale, tensor):
    """A case whose numbers, and whose table's stride, are arguments of the kernels: another has been compiled before."""
    bias = tensor(2, 100, 100)

    def make(offset, scale):
        def mod(score, b, h, q_idx, kv_idx):
            return score * scale + bias[h, q_idx - 1, kv_idx % offset] + (q_idx + offset) % 5

        return mod

    for differentiate in (False, True):
        bind.bind(make(offset + 3, scale + 1), "score_mod", runtime.device, differentiate)
    mod = make(offset, scale)
    assert bind.bind(mod, "score_mod", runtime.device, True).numbers
    return {"score_mod": mod}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "offset", [1, 7, pytest.param(16, marks=pytest.mark.slow)]
)  # a constant, any, a multiple of 16
def test_numbers_are_arguments_on_a_gpu(monkeypatch, offset):
    monkeypatch.setitem(cases.ZOO, "numbers", functools.partial(with_numbers, offset, 0.5))
    seen = {kernel.__name__: (kernel, args, meta) for kernel, args, meta in launches(monkeypatch, "numbers")}
    for kernel, args, meta in seen.values():
        compile_report(kernel, *args, arch=90, **meta)


@pytest.mark.thorough
@pytest.mark.skipif(common_gluon.gluon is None, reason="Gluon's copy engine needs Triton 3.8")
def test_numbers_are_arguments_of_warp_specialised_kernels(monkeypatch):
    monkeypatch.setitem(cases.ZOO, "numbers", functools.partial(with_numbers, 1, 0.5))
    seen = launches(monkeypatch, "numbers", D=64, warp_specialised=True)
    kernels = {kernel.__name__: (kernel, args, meta) for kernel, args, meta in seen if "hopper" in kernel.__name__}
    assert len(kernels) == 2
    for kernel, args, meta in kernels.values():
        compile_report(kernel, *args, arch=90, **meta)


def with_a_loop(tensor):
    return {
        "mask_mod": lambda b, h, m, n: torch.gcd(m + 1, n + 1) == 1,
        "score_mod": lambda s, b, h, m, n: s + torch.lcm(m, n),
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    "warp_specialised",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(common_gluon.gluon is None, reason="Gluon's copy engine needs Triton 3.8")
        ),
    ],
)
def test_loops_of_a_mod_compile(monkeypatch, warp_specialised):
    """Euclid's algorithm; two integers of each pair live through it, so that registers are spilled."""
    monkeypatch.setitem(cases.ZOO, "loop", with_a_loop)
    seen = launches(monkeypatch, "loop", gpu="NVIDIA H200", warp_specialised=warp_specialised)
    kernels = {kernel.__name__: (kernel, args, meta) for kernel, args, meta in seen if "attention" in kernel.__name__}
    assert all("hopper" in name for name in kernels) is warp_specialised and len(kernels) >= 2
    for kernel, args, meta in kernels.values():
        compile_report(kernel, *args, arch=90, **meta)


@pytest.mark.slow
def test_decoding_compiles_for_hopper(monkeypatch):
    check(monkeypatch, 90, "alibi", gpu="NVIDIA H200", D=128, M=1, HKV=1)


@pytest.mark.thorough
def test_absolute_values_of_indices_stay_instructions(monkeypatch):
    """``device.whole_abs`` says what becomes of them otherwise."""
    for report in check(monkeypatch, 90, "natten"):
        assert report.kernel not in ("attention_forward_kernel", "attention_dq_kernel") or "abs.s32" in report.ptx
        maxima = re.findall(r"VIMNMX3\S* \w+, (\w+), (\w+), (\w+)", report.sass.replace(".reuse", ""))
        assert all(len(set(operands)) == 3 for operands in maxima)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.ZOO)
def test_all_of_the_zoo_compiles_for_hopper(monkeypatch, name):
    check(monkeypatch, 90, name, gpu="NVIDIA H200")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nothing", "causal", "alibi", "softcap", "document causal"])
@pytest.mark.parametrize("D", [64, 128])
def test_no_spill_with_the_tuned_tiles(monkeypatch, name, D):
    check(monkeypatch, 90, name, gpu="NVIDIA H200", D=D)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.ZOO)
@pytest.mark.parametrize("arch", [80, 100])
def test_all_of_the_zoo_compiles_for_ampere_and_blackwell(monkeypatch, name, arch):
    check(monkeypatch, arch, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nothing", "relative bias", "softcap"])
@pytest.mark.parametrize("D", [16, 128, 256, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_class_of_sizes_compiles(monkeypatch, name, D, dtype):
    check(monkeypatch, 80, name, D=D, dtype=dtype)
