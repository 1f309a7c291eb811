"""``compile_report`` reads what the compiler makes of a kernel, on a machine without a GPU.

Register counts differ between Triton versions, so these tests hold on to structure.
"""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl
from triton.language import exp as renamed_exp

from kernels.lab import CompileError, _child, compile_report
from kernels.lab.compile_report import CompileReport, _instructions
from kernels.lab.loops import PTX, SASS, Code

SCALE = tl.constexpr(1.5)


@triton.jit
def scaled(v):
    return renamed_exp(v) * SCALE


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        tile_a = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        tile_b = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        acc += tl.dot(tile_a, tile_b)
    tl.store(c + m * N + n, scaled(acc), mask=(m < M) & (n < N))


COPY = """
@triton.jit
def copy(src, dst, n, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + i * stride, tl.load(src + i * stride, mask=i < n, other=0.0), mask=i < n)
"""


@pytest.fixture(scope="module")
def copy(cell):
    return cell(COPY)["copy"]


@pytest.fixture(scope="module")
def matmuls():
    tiles = {"BM": 64, "BN": 64, "BK": 32}
    return compile_report(matmul, "*bf16", torch.bfloat16, torch.zeros(4), 512, 512, 256, arch=(80, 90, 100), **tiles)


def test_each_architecture_has_its_matrix_instruction(matmuls):
    expected = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}
    assert list(matmuls) == [80, 90, 100]
    for arch, mnemonic in expected.items():
        products = matmuls[arch].instructions["matrix products"]
        assert list(products) == [mnemonic] and products[mnemonic] > 0
        assert matmuls[arch].count(mnemonic) == products[mnemonic]
        assert matmuls[arch].arch == arch and matmuls[arch].kernel == "matmul"


def test_the_code_is_disassembled_once_and_only_where_it_is_asked_for(copy, monkeypatch):
    run_text, jobs = _child.run_text, []
    monkeypatch.setattr(_child, "run_text", lambda job, *args, **more: jobs.append(job) or run_text(job, *args, **more))
    report = compile_report(copy, torch.float32, torch.float32, "i32", "i32", BLOCK=128)
    assert report.registers > 0 and report.spill_bytes == 0 and report.ptx and jobs == ["compile"]
    assert report.count("LDG") > 0 and report.instructions["global loads"] and report.sass
    assert jobs == ["compile", "disassemble"]


def test_what_cannot_be_disassembled_is_said(copy):
    report = compile_report(copy, torch.float32, torch.float32, "i32", "i32", BLOCK=128)
    with pytest.raises(CompileError, match="^copy cannot be disassembled: "):
        dataclasses.replace(report, cubin=b"no binary").sass  # noqa: B018


def test_registers_can_be_limited_as_in_a_launch(matmuls):
    tiles = {"BM": 64, "BN": 64, "BK": 32}
    few = compile_report(matmul, "*bf16", torch.bfloat16, torch.zeros(4), 512, 512, 256, arch=90, maxnreg=64, **tiles)
    assert ".maxnreg 64" in few.ptx and few.registers <= 64
    assert ".maxnreg" not in matmuls[90].ptx


def test_resources(matmuls):
    for report in matmuls.values():
        assert isinstance(report, CompileReport)
        assert 16 < report.registers <= 255 and report.spill_bytes == 0 and report.threads == 128
        # Two tiles of 64 × 32 bf16 a stage are 8 KiB, and there are at least two stages of them.
        assert report.shared_bytes >= 16384
        assert report.instructions["async copies and TMA"]["LDGSTS"] > 0
        assert report.instructions["special functions"]["MUFU.EX2"] > 0  # the helper's exponential
        assert report.instructions["local memory (spills)"] == {}
        assert f".target sm_{report.arch}" in report.ptx and "tt.dot" in report.asm["ttir"]


def test_table(matmuls):
    lines = str(matmuls).splitlines()
    assert lines[0].split() == ["matmul", "sm_80", "sm_90", "sm_100"]
    assert lines[1].startswith("registers a thread  ") and len(lines[1].split()) == 6
    assert any(
        line.startswith("matrix products: HGMMA ") and line.split()[-3] == line.split()[-1] == "0" for line in lines
    )
    assert len({len(line) for line in lines}) == 1
    assert str(matmuls[90]).splitlines()[0].split() == ["matmul", "sm_90"]


@pytest.fixture(scope="module")
def widths(copy):
    """Load and store widths of the copy for several sets of arguments."""
    x = torch.zeros(1024)
    cases = {
        "aligned": (x, x, 1024, 1),
        "types only": ("*fp32", torch.float32, 1024, 1),
        "shifted": (x[1:], x[1:], 1024, 1),
        "ragged": (x, x, 1023, 1),
        "any stride": (x, x, 1024, "i32"),
        "halves": (torch.float16, torch.float16, 1024, 2),
    }
    reports = {name: compile_report(copy, *args, arch=80, BLOCK=1024) for name, args in cases.items()}
    return {name: (r.instructions["global loads"], r.instructions["global stores"]) for name, r in reports.items()}


def test_arguments_are_specialised_as_in_a_launch(widths):
    # 1024 floats over 128 threads: 8 each, two loads of 16 bytes where alignment and length allow, else eight of 4.
    assert widths["aligned"] == widths["types only"] == ({"LDG 128 bits": 2}, {"STG 128 bits": 2})
    assert widths["shifted"] == widths["ragged"] == widths["any stride"] == ({"LDG 32 bits": 8}, {"STG 32 bits": 8})
    assert widths["halves"] == ({"LDG 16 bits": 8}, {"STG 16 bits": 8})


DISASSEMBLY = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   HFMA2 R5, -RZ, RZ, 0, 0 ;
        /*0020*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E.U16 R4, desc[UR4][R2.64+0x2] ;
        /*0040*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0050*/             @UPT0 UTMALDG.2D.MULTICAST [UR8], [UR4], URZ ;
        /*0060*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0070*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0080*/                   HFMA2.BF16_V2 R5, R4, R6, R7 ;
        /*0090*/                   MUFU.EX2 R4, R4 ;
        /*00a0*/                   @P1 STG.E.64 desc[UR4][R2.64], R4 ;
.L_x_0:
        /*00b0*/                   BRA `(.L_x_0) ;
"""


def test_instructions_are_read_by_group_width_and_function():
    counts = {group: names for group, names in _instructions(DISASSEMBLY).items() if names}
    assert counts == {
        "matrix products": {"HGMMA": 1},
        "async copies and TMA": {"UTMALDG": 1},
        "global loads": {"LDG 128 bits": 1, "LDG 16 bits": 1, "LDG 32 bits": 1},
        "global stores": {"STG 64 bits": 1},
        "multiply-adds": {"HFMA2": 1},  # the first HFMA2 only moves a constant
        "special functions": {"MUFU.EX2": 1},
    }


@triton.jit
def attention(q, k, v, o, N, M: tl.constexpr, LATE: tl.constexpr):
    """Products, exponentials, products; with LATE, the exponentials of what the last step multiplied."""
    i, d = tl.arange(0, M)[:, None], tl.arange(0, 64)[None, :]
    rows, acc, z = tl.load(q + i * 64 + d), tl.zeros((M, 64), tl.float32), tl.zeros((M, 64), tl.float32)
    for first in range(0, N, 64):
        keys, values = tl.load(k + (first + d) * 64 + d.T), tl.load(v + (first + d.T) * 64 + d)
        if not LATE:
            z = tl.dot(rows, keys)
        acc = tl.dot(tl.exp2(z).to(tl.bfloat16), values, acc)
        if LATE:
            z = tl.dot(rows, keys)
    tl.store(o + i * 64 + d, acc)


@triton.jit
def two_loops(x, o, N, SECOND: tl.constexpr):
    i, total = tl.arange(0, 128), tl.zeros((128,), tl.float32)
    for first in range(0, N, 128):
        total += tl.exp2(tl.load(x + first + i))
    for first in range(0, N, 128):
        if SECOND:
            tl.store(o + first + i, tl.exp2(total))
            total = tl.load(x + first + i)
        else:
            total *= tl.exp2(tl.load(x + first + i))
    tl.store(o + i, total)


def test_what_comes_first_in_the_loop_of_a_kernel():
    bf16 = torch.bfloat16
    now, late = (
        compile_report(attention, bf16, bf16, bf16, "*fp32", "i32", M=64, LATE=late) for late in (False, True)
    )
    for wait, exponential, product in (("WARPGROUP.DEPBAR", "MUFU.EX2", "HGMMA"), ("wgmma.wait", "ex2", "wgmma.mma")):
        assert now.before(wait, exponential) and now.before(product, exponential)
        assert not now.before(exponential, wait) and not now.before(exponential, product)
        assert late.before(exponential, product) and not late.before(product, exponential)
    assert now.before("WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2")


def test_of_two_loops_each_has_to_agree():
    alike, unlike = (compile_report(two_loops, "*fp32", "*fp32", "i32", SECOND=second) for second in (False, True))
    assert alike.before("LDG", "MUFU.EX2") and alike.before("ld.global", "ex2")
    assert not unlike.before("LDG", "MUFU.EX2") and not unlike.before("MUFU.EX2", "LDG")


def test_what_no_loop_holds_is_said(matmuls):
    with pytest.raises(ValueError, match="first is 'HGMMA', second 'MUFU.EX2': no loop of matmul holds both"):
        matmuls[90].before("HGMMA", "MUFU.EX2")  # the helper's exponential comes after the loop
    with pytest.raises(ValueError, match="first is 'wgmma', second 'MUFU.EX2': both must be of sass"):
        matmuls[90].before("wgmma", "MUFU.EX2")


OUTLINED = """
        /*0000*/                   MOV R1, R2 ;
.L_x_1:
        /*0010*/                   SYNCS.PHASECHK P0, [UR4], R2 ;
        /*0020*/              @!P0 BRA `(.L_x_9) ;
.L_x_2:
        /*0030*/               @P1 BRA `(.L_x_3) ;
        /*0040*/                   HGMMA.64x64x16.F32 R24, gdesc[UR4], R24 ;
.L_x_3:
        /*0050*/                   MUFU.EX2 R24, R24 ;
        /*0060*/               @P2 BRA `(.L_x_1) ;
        /*0070*/                   HGMMA.64x64x16.F32 R24, gdesc[UR4], R24 ;
        /*0080*/                   EXIT ;
.L_x_9:
        /*0090*/                   SYNCS.PHASECHK P0, [UR4], R2 ;
        /*00a0*/              @!P0 BRA `(.L_x_9) ;
        /*00b0*/                   BRA `(.L_x_2) ;
"""


def test_what_may_be_skipped_is_not_first_and_a_block_behind_the_code_belongs_to_its_loop():
    assert Code(OUTLINED, SASS).loops() == {1: {*range(1, 7), 9, 10, 11}, 9: {9, 10}}
    assert Code(OUTLINED, SASS).before("SYNCS", "HGMMA") and Code(OUTLINED, SASS).before("SYNCS", "MUFU")
    assert not Code(OUTLINED, SASS).before("HGMMA", "MUFU")  # that may be skipped
    assert Code(OUTLINED.replace("@P1 BRA", "@P1 NOP"), SASS).before("HGMMA", "MUFU")


NESTED = """
.L_x_1:
        /*0000*/                   MUFU.EX2 R24, R24 ;
.L_x_2:
        /*0010*/               @P0 BRA `(.L_x_3) ;
        /*0020*/                   HGMMA.64x64x16.F32 R24, gdesc[UR4], R24 ;
        /*0030*/                   MUFU.EX2 R24, R24 ;
        /*0040*/                   BRA `(.L_x_2) ;
.L_x_3:
        /*0050*/                   MUFU.EX2 R24, R24 ;
        /*0060*/               @P1 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
"""


def test_the_innermost_loop_counts_and_nothing_behind_it():
    assert Code(NESTED, SASS).loops() == {0: {*range(7)}, 1: {*range(1, 5)}}
    assert Code(NESTED, SASS).before("HGMMA", "MUFU") and not Code(NESTED, SASS).before("MUFU", "HGMMA")


TABLE = """
JTI0_0:
	.branchtargets
		$L__BB0_1,
		$L__BB0_2;
	mov.b32 	%r1, 0;
$L__BB0_1:                              // %loop
	ex2.approx.ftz.f32 	%r2, %r2;
	brx.idx 	%r1, JTI0_0;
	trap;
$L__BB0_2:
	@%p1 bra 	$L__BB0_1;
	ret;
"""


def test_a_jump_by_number_has_the_targets_of_its_table():
    assert Code(TABLE, PTX).next == [{1}, {2}, {1, 4}, set(), {1, 5}, set()]
    assert Code(TABLE, PTX).loops() == {1: {1, 2, 4}}


def test_spills_are_seen():
    tiles = {"BM": 64, "BN": 64, "BK": 32, "num_warps": 1}
    report = compile_report(matmul, "*bf16", "*bf16", "*fp32", "i32", "i32", "i32", arch=80, **tiles)
    assert report.registers == 255 and report.spill_bytes > 0
    assert report.instructions["local memory (spills)"]["STL"] > 0


def test_options_reach_the_compiler(copy):
    report = compile_report(copy, "*fp32", "*fp32", "i32", 1, arch=80, num_warps=8, BLOCK=1024)
    assert report.threads == 256


def test_a_kernel_that_does_not_compile_raises_with_the_compilers_message(cell):
    kernel = cell(
        """
        @triton.jit
        def kernel(x, N: tl.constexpr):
            i = tl.arange(0, N)
            tl.store(x + i, nowhere)
        """
    )["kernel"]

    with pytest.raises(
        CompileError, match=r"(?s)kernel does not compile: for sm_90: .*arange's range must be a power of 2"
    ):
        compile_report(kernel, "*fp32", N=48)
    with pytest.raises(CompileError, match=r"(?s)tl.store\(x \+ i, nowhere\).*nowhere is not defined"):
        compile_report(kernel, "*fp32", N=64)


def test_a_compiler_that_dies_is_an_exception_here(cell):
    kernel = cell(
        """
        @triton.constexpr_function
        def abort():
            __import__("os").abort()

        @triton.jit
        def kernel(x):
            tl.store(x, abort())
        """
    )["kernel"]
    with pytest.raises(CompileError, match=r"(?s)kernel does not compile: .*status -6:.*compiling for sm_90"):
        compile_report(kernel, "*fp32")


def test_bad_arguments(copy):
    with pytest.raises(ValueError, match="compile_report needs a @triton.jit function"):
        compile_report(len, 1)
    with pytest.raises(ValueError, match="kernel is wrapped by Autotuner: compile_report needs kernel.fn"):
        compile_report(triton.autotune([triton.Config({"BLOCK": 16})], key=[])(copy), "*fp32", "*fp32", 4, 1)
    with pytest.raises(ValueError, match="arch is empty"):
        compile_report(copy, "*fp32", "*fp32", 4, 1, BLOCK=16, arch=())
    with pytest.raises(ValueError, match=r"args do not fit copy\(.*missing a required argument: 'BLOCK'"):
        compile_report(copy, "*fp32", "*fp32", 4, 1)
    with pytest.raises(ValueError, match="args do not fit copy"):
        compile_report(copy, object(), "*fp32", 4, 1, BLOCK=16)
    with pytest.raises(ValueError, match="arch is 'sm_90': it must be a compute capability times ten"):
        compile_report(copy, "*fp32", "*fp32", 4, 1, BLOCK=16, arch="sm_90")
