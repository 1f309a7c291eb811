"""A compiled loop is counted as it stands in the disassembly."""

from types import SimpleNamespace

import pytest

from kernels.lab import loop_parts

SASS = """
        /*0000*/                   MOV R0, RZ ;
.L_x_0:
        /*0010*/                   LDG.E R1, desc[UR6][R2.64] ;
        /*0020*/                   STS [R4], R1 ;
        /*0030*/                   LDS.128 R8, [R5] ;
        /*0040*/                   LDS.64 R6, [R5+0x10] ;
        /*0050*/                   SHFL.BFLY PT, R7, R6, 0x10, 0x1f ;
        /*0060*/                   FFMA R9, R8, R7, R9 ;
        /*0070*/               @P0 BRA `(.L_x_0) ;
        /*0080*/                   EXIT ;
"""


def test_a_pass_is_counted():
    parts = loop_parts(SimpleNamespace(sass=SASS, kernel="k"))
    assert parts[:2] == (7, 1 + 4 + 2 + 1)
    assert parts.counts["FFMA"] == 1 and parts.counts["MOV"] == 0


def test_a_pass_waits_for_rows_and_for_each_trip_that_needs_the_one_before():
    """The store waits for the load; the shuffle for LDS.64, and the multiply-add for the shuffle."""
    parts = loop_parts(SimpleNamespace(sass=SASS, kernel="k"))
    one, far = parts.pass_ns(100), parts.pass_ns(500)
    assert far - one == pytest.approx(400)
    assert one == pytest.approx(100 + 2 * 20, abs=8)
    assert parts.pass_ns(100, 4) > one  # four warps share the turns


def test_a_result_is_awaited_by_whoever_reads_it_only():
    sass = SASS.replace("FFMA R9, R8, R7, R9", "FFMA R9, R8, R10, R9")
    parts = loop_parts(SimpleNamespace(sass=sass, kernel="k"))
    assert parts.pass_ns(100) == pytest.approx(100 + 20, abs=8)  # nobody waits for the shuffle


def body(*lines):
    text = "\n".join(f"/*0010*/ {line} ;" for line in lines)
    return loop_parts(SimpleNamespace(sass=f".L_x_0:\n{text}\n/*0070*/ @P0 BRA `(.L_x_0) ;", kernel="k"))


def test_a_product_is_awaited_where_the_code_waits_for_it():
    """64 x 64 x 16 in bfloat16 are 131,072 operations, and 900 TFLOP/s are 6,818 a nanosecond on a multiprocessor."""
    product = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"
    assert body(product, "WARPGROUP.DEPBAR.LE gsb0, 0x0", *work()).pass_ns(0, 4) == pytest.approx(19.2 + 51, abs=3)
    assert body(product, *work()).pass_ns(0, 4) == pytest.approx(51, abs=3)
    single = product.replace("x16.F32.BF16", "x8.F32.TF32")  # half as many operations at half the rate
    assert body(single, "WARPGROUP.DEPBAR.LE gsb0, 0x0").pass_ns(0, 4) == pytest.approx(19.2, abs=3)


def test_a_copy_is_awaited_where_the_code_waits_for_its_group():
    copy = ["LDGSTS.E.BYPASS.128 [R24], desc[UR56][R20.64]", "LDGDEPBAR"]
    early, late = (["DEPBAR.LE SB0, 0x0", *lines] for lines in ([*copy, *work()], [*work(), *copy]))
    assert body(*early).pass_ns(406, 4) == pytest.approx(406, abs=3)  # meanwhile all else is done
    assert body(*late).pass_ns(406, 4) == pytest.approx(406 + 51, abs=3)
    ahead = ["DEPBAR.LE SB0, 0x1", *work(), *copy]  # all groups but the last: a pass older
    assert body(*ahead).pass_ns(406, 4) == pytest.approx((406 + 51) / 2, abs=26)


def test_a_spilled_number_is_as_late_as_l1():
    assert body("LDL R1, [R2]", "FADD R3, R1, R1", "FADD R2, R3, R3").pass_ns(0) == pytest.approx(20 + 4, abs=2)


def test_warps_of_one_scheduler_take_turns():
    assert body(*work()).pass_ns(0, 8) == pytest.approx(2 * body(*work()).pass_ns(0, 4))


def work():
    return ["FMUL R1, R2, R3"] * 100


def test_a_kernel_without_a_loop_says_so():
    with pytest.raises(ValueError, match="no loop"):
        loop_parts(SimpleNamespace(sass="/*0000*/ EXIT ;", kernel="k"))
