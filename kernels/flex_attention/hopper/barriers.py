"""How a group of warps arrives at a barrier in shared memory: once, or each of its four warps by itself."""

from kernels.common import gluon as common_gluon
from kernels.flex_attention.mods.device import COMPILED

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier

    # One arrival of a warp: by the barrier's address, since around an operation on the barrier itself the compiler has all
    # four warps of a group wait for each other.
    ARRIVES = gl.constexpr(
        """{
        .reg .pred one;
        elect.sync _|one, 0xffffffff;
        @one mbarrier.arrive.shared::cta.b64 _, [$0];
        }"""
    )

    @gluon.jit
    def address(bars, LEAN: gl.constexpr):
        """Where barriers lie in shared memory, 8 bytes each, for ``release``."""
        if LEAN and COMPILED:
            return gl.inline_asm("mov.b32 $0, $1;", "=r,r", [bars], gl.int32, is_pure=False)
        else:
            return 0

    @gluon.jit
    def release(bars, at, index, LEAN: gl.constexpr):
        """A group's arrival at a barrier of ``bars``: one, or with LEAN one of each of its four warps, at the address."""
        if LEAN and COMPILED:
            gl.inline_asm(ARRIVES, "r", [at + 8 * index], is_pure=False)
        elif LEAN:
            mbarrier.arrive(bars.index(index), count=4)
        else:
            mbarrier.arrive(bars.index(index))
