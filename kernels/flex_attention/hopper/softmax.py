"""The online softmax of one tile of scores in registers, as ``forward_kernel`` takes it beside its products."""

from kernels.common import gluon as common_gluon
from kernels.flex_attention.mods.device import COMPILED
from kernels.flex_attention.plain import logits

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    @gluon.jit
    def masked_logits(
        s, n0, all_allowed, N, scale, b, h, m, offs_n, score_tables, mask_tables,
        SCORE_MOD: gl.constexpr, MASK_MOD: gl.constexpr, EDGE_N: gl.constexpr,
    ):  # fmt: skip
        """``plain.logits`` of a tile; ``all_allowed``: whether it is full, or ``None`` if known from MASK_MOD."""
        n = gl.expand_dims(n0 + offs_n, 0)
        inside = None
        if EDGE_N:
            inside = n < N
            n = gl.minimum(n, N - 1)
        if MASK_MOD is not None and all_allowed is not None:
            x = logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD, None)
            return gl.where(MASK_MOD(b, h, m, n, mask_tables) | all_allowed, x, float("-inf"))
        else:
            return logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD, MASK_MOD)

    @gluon.jit
    def known_here(x):
        """x, none of whose elements is below -1, before what follows.

        ptxas moves a wait for a product above all arithmetic that does not need it, and with it the softmax behind the
        product that it should run beside. It does not move it above a store: this one, of a row's sum, never happens.
        """
        if COMPILED:
            return gl.inline_asm_elementwise(
                """{
                .reg .pred below;
                .reg .b32 nowhere;
                mov.b32 nowhere, 0;
                setp.lt.f32 below, $1, 0fBF800000;
                @below st.volatile.shared.f32 [nowhere], $1;
                mov.b32 $0, $1;
                }""", "=f,f", [x], gl.float32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            return x

    @gluon.jit
    def row_sums(p, LEAN: gl.constexpr):
        """Of p's columns; with LEAN of those that one thread holds, the four threads of a row side by side: [rows, 4]."""
        if LEAN:
            return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)
        else:
            return gl.sum(p, 1)

    @gluon.jit
    def scaled_sums(l, alpha, LEAN: gl.constexpr):
        """What ``row_sums`` gave, a factor a row."""
        if LEAN:
            layout: gl.constexpr = l.type.layout
            return l * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, layout)), 1)
        else:
            return l * alpha

    @gluon.jit
    def softmax_step(x, l, top, unit, SAFE: gl.constexpr, LEAN: gl.constexpr):
        """``(p, alpha, l, top)`` after a tile of logits x. SAFE: no row can be without a key so far."""
        new_top = gl.maximum(top, gl.max(x, 1) * unit)
        shift = new_top if SAFE else gl.where(new_top == float("-inf"), 0.0, new_top)
        p = gl.exp2(x * unit - gl.expand_dims(shift, 1))
        alpha = gl.exp2(top - shift)
        return p, alpha, scaled_sums(l, alpha, LEAN) + row_sums(p, LEAN), new_top
