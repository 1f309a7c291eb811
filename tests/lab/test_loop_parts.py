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
    assert parts[:3] == (7, 2, 1 + 4 + 2 + 1)
    assert parts.counts["FFMA"] == 1 and parts.counts["MOV"] == 0
    assert parts.work_ns() == pytest.approx(8 / 1.98 + 2 * 20)
    assert parts.work_ns(4) == pytest.approx(32 / 1.98 + 2 * 20)


def test_a_kernel_without_a_loop_says_so():
    with pytest.raises(ValueError, match="no loop"):
        loop_parts(SimpleNamespace(sass="/*0000*/ EXIT ;", kernel="k"))
