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


def test_a_kernel_without_a_loop_says_so():
    with pytest.raises(ValueError, match="no loop"):
        loop_parts(SimpleNamespace(sass="/*0000*/ EXIT ;", kernel="k"))
