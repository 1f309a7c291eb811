"""What the kernels for Hopper and Blackwell share: which blocks are a program's, the copying warp, where sums are stored.

``tma`` says what tiles, chunks and blocks are; ``work`` how they are shared out.
"""

from typing import Any, NamedTuple

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


class Tile(NamedTuple):
    """Compile-time numbers. POINTWISE: x is im2col already, [pixels, channels]. Input channels and columns are given in units
    of UNIT, so that the compiler knows which sums it may store at once; ALIGNED: all channels are multiples of 8. SLICE: the
    columns that Blackwell's storing warps have in registers at a time."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUPS: int
    STAGES: int
    POINTWISE: bool
    UNIT: int = 1
    ALIGNED: bool = False
    SLICE: int = 0


class Ring(NamedTuple):
    """Buffers of dy and of a group's chunk of x in shared memory, and their barriers; both: in a pair of multiprocessors that
    share x, of buffers that are free in both."""

    dy: Any
    x: Any
    ready: Any
    free: Any
    both: Any


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
    def load_blocks(dy_desc, x_desc, ring, work, window, T: gl.constexpr, FIX_UP: gl.constexpr = False):
        """The copying warp: every block of every share, into the ring's next buffers, as soon as they are free."""
        PAIR: gl.constexpr = gl.num_ctas() == 2
        GROUPS: gl.constexpr = T.GROUPS
        STAGES: gl.constexpr = T.STAGES
        BLOCK_K: gl.constexpr = T.BLOCK_K
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
                o = gl.minimum(tile % work.tiles_m * T.BLOCK_M, window.last_o)
                chunks = ()
                for group in gl.static_range(GROUPS):
                    chunk = tile // work.tiles_m * GROUPS + group
                    tap = chunk % window.taps
                    r = (tap // window.S * window.dil_h).to(gl.int16)
                    s = (tap % window.S * window.dil_w).to(gl.int16)
                    chunks = chunks + ((r, s, gl.minimum(chunk // window.taps * T.BLOCK_N, window.last_c)),)
                for m in range(block * BLOCK_K, (block + n) * BLOCK_K, BLOCK_K):
                    row = m // window.Q
                    h = row % window.P * window.stride_h - window.top
                    w = m % window.Q * window.stride_w - window.left
                    stage = count % STAGES
                    mbarrier.wait(ring.free.index(stage), (count // STAGES + 1) & 1)
                    mbarrier.expect(ring.ready.index(stage), dy_desc.nbytes_per_cta + GROUPS * x_desc.nbytes_per_cta)
                    tma.async_load(dy_desc, [m, o], ring.ready.index(stage), ring.dy.index(stage))
                    if PAIR:  # only the pair's first waits here, and asks for what both are given
                        mbarrier.wait(ring.both.index(stage), (count // STAGES + 1) & 1)
                    for group in gl.static_range(GROUPS):
                        r, s, c = chunks[group]
                        buffer = ring.x.index(stage * GROUPS + group)
                        if T.POINTWISE:
                            tma.async_load(x_desc, [m, c], ring.ready.index(stage), buffer, multicast=PAIR)
                        else:
                            at = [row // window.P, h, w, c]
                            tma.async_load_im2col(x_desc, at, [r, s], ring.ready.index(stage), buffer, multicast=PAIR)
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
    def place_of(out, tile, group, slot, tiles_m, matrix, T: gl.constexpr):
        """``(where, rows, columns)``: where in ``out`` [slots * Co, RSC] a group's chunk of a tile lies, and the rows and
        columns (begin, end) of it that are its own.

        The last tile lies inside like all others but for 7 channels, on some rows and columns of the one before it: TMA
        takes half as long again for blocks of zeros as for values.
        """
        own_o = tile % tiles_m * T.BLOCK_M
        chunk = tile // tiles_m * T.GROUPS + group
        own_c = chunk // matrix.taps * T.BLOCK_N
        o = within(own_o, last_of(matrix.Co, T.BLOCK_M, T.ALIGNED))
        c = within(own_c, last_of(matrix.Ci, T.BLOCK_N, T.ALIGNED))
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
