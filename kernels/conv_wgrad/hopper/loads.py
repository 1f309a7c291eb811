"""What the kernels for Hopper and Blackwell share: which blocks are a program's, the copying warp, where sums are stored.

``tma`` says what tiles, chunks and blocks are; ``work`` how they are shared out.
"""

from typing import NamedTuple

from kernels.common.gluon import gluon


class Window(NamedTuple):
    """What the copying warp reads of a geometry; last_o, last_c: the channels that the last tiles begin at."""

    P: int
    Q: int
    S: int
    taps: int
    stride_h: int
    stride_w: int
    top: int
    left: int
    dil_h: int
    dil_w: int
    last_o: int
    last_c: int


class Matrix(NamedTuple):
    """The gradient as a matrix: output channels, and columns of ``taps`` times input channels."""

    Co: int
    Ci: int
    taps: int
    columns: int


if gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

    from kernels.conv_wgrad.hopper.fixup import fix_up_share_of, last_segment_of

    @gluon.jit
    def share_of(item, work):
        """``(position, end, length, first)``: tiles of ``length`` blocks lie end to end, each begins with its tile's block
        ``first``; the share is what lies at ``position`` ... ``end`` - 1."""
        first = gl.minimum(item, work.whole) // work.tiles * work.per
        if item < work.whole:
            length = gl.minimum(work.per, work.blocks - first)
            position = item % work.tiles * length
            end = position + length
        else:
            length = work.blocks - first
            position = (item - work.whole) * work.per
            end = gl.minimum(position + work.per, work.tiles * length)
        return position, end, length, first

    @gluon.jit
    def segment_of(position, end, length, first, per):
        """``(tile, its first block here, how many, the slot of their sum)`` of the tile at ``position``."""
        tile = position // length
        skipped = position - tile * length
        n = gl.minimum(end - position, length - skipped)
        return tile, first + skipped, n, first // per + (skipped > 0).to(gl.int32)

    @gluon.jit
    def load_blocks(
        dy_desc, x_desc, dy_s, x_s, ready, free, both, work, window, POINTWISE: gl.constexpr, GROUPS: gl.constexpr,
        STAGES: gl.constexpr, FIX_UP: gl.constexpr = False,
    ):  # fmt: skip
        """The copying warp: every block of every share, into the ring's next buffers, as soon as they are free.

        POINTWISE: x is im2col already, [pixels, channels]. FIX_UP: the work is a ``FixUp`` one. both: in a pair
        of multiprocessors that share x, the barriers of buffers that are free in both; elsewhere nobody asks.
        """
        PAIR: gl.constexpr = gl.num_ctas() == 2
        BLOCK_K: gl.constexpr = dy_desc.block_type.shape[0]
        BLOCK_M: gl.constexpr = dy_desc.block_type.shape[1]
        BLOCK_N: gl.constexpr = x_desc.block_type.shape[1]
        count = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            if FIX_UP:
                position, end, length, first = fix_up_share_of(item, work)
            else:
                position, end, length, first = share_of(item, work)
            while position < end:
                if FIX_UP:
                    tile, block, n, cut = last_segment_of(item, position, end, length, first, work)
                else:
                    tile, block, n, slot = segment_of(position, end, length, first, work.per)
                o = gl.minimum(tile % work.tiles_m * BLOCK_M, window.last_o)
                chunks = ()
                for group in gl.static_range(GROUPS):
                    chunk = tile // work.tiles_m * GROUPS + group
                    tap = chunk % window.taps
                    r = (tap // window.S * window.dil_h).to(gl.int16)
                    s = (tap % window.S * window.dil_w).to(gl.int16)
                    chunks = chunks + ((r, s, gl.minimum(chunk // window.taps * BLOCK_N, window.last_c)),)
                for m in range(block * BLOCK_K, (block + n) * BLOCK_K, BLOCK_K):
                    row = m // window.Q
                    h = row % window.P * window.stride_h - window.top
                    w = m % window.Q * window.stride_w - window.left
                    stage = count % STAGES
                    mbarrier.wait(free.index(stage), (count // STAGES + 1) & 1)
                    mbarrier.expect(ready.index(stage), dy_desc.nbytes_per_cta + GROUPS * x_desc.nbytes_per_cta)
                    tma.async_load(dy_desc, [m, o], ready.index(stage), dy_s.index(stage))
                    if PAIR:  # only the pair's first waits here, and asks for what both are given
                        mbarrier.wait(both.index(stage), (count // STAGES + 1) & 1)
                    for group in gl.static_range(GROUPS):
                        r, s, c = chunks[group]
                        buffer = x_s.index(stage * GROUPS + group)
                        if POINTWISE:
                            tma.async_load(x_desc, [m, c], ready.index(stage), buffer, multicast=PAIR)
                        else:
                            at = [row // window.P, h, w, c]
                            tma.async_load_im2col(x_desc, at, [r, s], ready.index(stage), buffer, multicast=PAIR)
                    count += 1
                if FIX_UP:
                    end -= n
                else:
                    position += n

    @gluon.jit
    def last_of(channels, BLOCK: gl.constexpr, ALIGNED: gl.constexpr):
        """The channel that the last tile begins at: the first multiple of 8 from which it reaches the end. TMA stops the GPU
        (an illegal instruction) where a copy does not begin at a multiple of 16 bytes. ALIGNED: channels are one, too."""
        if ALIGNED:
            return channels - BLOCK
        else:
            return (channels - BLOCK + 7) // 8 * 8

    @gluon.jit
    def within(first, last):
        """The nearest to ``first`` of 0 ... ``last``, or 0: unlike a minimum, known to be a multiple of what both are."""
        first = gl.where(first < last, first, last)
        return gl.where(first > 0, first, 0)

    @gluon.jit
    def place_of(out, tile, group, slot, tiles_m, matrix, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                 GROUPS: gl.constexpr, ALIGNED: gl.constexpr):  # fmt: skip
        """``(where, rows, columns)``: where in ``out`` [slots * Co, RSC] a group's chunk of a tile lies, and the rows and
        columns (begin, end) of it that are its own.

        The last tile lies inside like all others but for 7 channels, on some rows and columns of the one before it: TMA
        takes half as long again for blocks of zeros as for values.
        """
        own_o = tile % tiles_m * BLOCK_M
        chunk = tile // tiles_m * GROUPS + group
        own_c = chunk // matrix.taps * BLOCK_N
        o = within(own_o, last_of(matrix.Co, BLOCK_M, ALIGNED))
        c = within(own_c, last_of(matrix.Ci, BLOCK_N, ALIGNED))
        where = out + (slot * matrix.Co + o).to(gl.int64) * matrix.columns + (chunk % matrix.taps * matrix.Ci + c)
        return where, (own_o - o, matrix.Co - o), (own_c - c, matrix.Ci - c)

    @gluon.jit
    def store_chunk(values, where, rows, columns, step):
        """Store sums from ``where`` on, in rows ``step`` elements apart, those of ``rows`` and ``columns`` (begin, end)."""
        layout: gl.constexpr = values.type.layout
        m = gl.expand_dims(gl.arange(0, values.shape[0], gl.SliceLayout(1, layout)), 1)
        n = gl.expand_dims(gl.arange(0, values.shape[1], gl.SliceLayout(0, layout)), 0)
        at = where + m.to(gl.int64) * step + n.to(gl.int64)
        own = (m >= rows[0]) & (m < rows[1]) & (n >= columns[0]) & (n < columns[1])
        gl.store(at, values.to(where.dtype.element_ty), mask=own)
