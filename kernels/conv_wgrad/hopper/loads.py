"""What the kernels for Hopper and Blackwell share: which blocks are a program's, the copying warp, where sums are stored.

``tma`` says what tiles, chunks and blocks are, and makes the numbers that these functions take apart.
"""

from kernels.common.gluon import gluon

if gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

    from kernels.conv_wgrad.hopper.fixup import joined_share_of, last_segment_of

    @gluon.jit
    def share_of(item, work):
        """``(position, end, length, first)``: tiles of ``length`` blocks lie end to end, each begins with its tile's block
        ``first``; the share is what lies at ``position`` ... ``end`` - 1."""
        items, programs, whole, tiles, tiles_m, blocks, per = work
        first = gl.minimum(item, whole) // tiles * per
        if item < whole:
            length = gl.minimum(per, blocks - first)
            position = item % tiles * length
            end = position + length
        else:
            length = blocks - first
            position = (item - whole) * per
            end = gl.minimum(position + per, tiles * length)
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
        dy_desc, x_desc, dy_s, x_s, ready, free, both, work, walk, POINTWISE: gl.constexpr, GROUPS: gl.constexpr,
        STAGES: gl.constexpr, JOINED: gl.constexpr = False,
    ):  # fmt: skip
        """The copying warp: every block of every share, into the ring's next buffers, as soon as they are free.

        POINTWISE: x is im2col already, [pixels, channels]. JOINED: the work is a ``Joined`` one. both: in a pair
        of multiprocessors that share x, the barriers of buffers that are free in both; elsewhere nobody asks.
        """
        PAIR: gl.constexpr = gl.num_ctas() == 2
        BLOCK_K: gl.constexpr = dy_desc.block_type.shape[0]
        BLOCK_M: gl.constexpr = dy_desc.block_type.shape[1]
        BLOCK_N: gl.constexpr = x_desc.block_type.shape[1]
        if JOINED:
            items, programs, full, tiles, tiles_m, blocks, per, pieces, left, rests, most = work
        else:
            items, programs, whole, tiles, tiles_m, blocks, per = work
        P, Q, S, taps, stride_h, stride_w, top, left, dil_h, dil_w, last_o, last_c = walk
        count = 0
        for item in range(gl.program_id(0), items, programs):
            if JOINED:
                position, end, length, first = joined_share_of(item, work)
            else:
                position, end, length, first = share_of(item, work)
            while position < end:
                if JOINED:
                    tile, block, n, cut = last_segment_of(item, position, end, length, first, work)
                else:
                    tile, block, n, slot = segment_of(position, end, length, first, per)
                o = gl.minimum(tile % tiles_m * BLOCK_M, last_o)
                chunks = ()
                for group in gl.static_range(GROUPS):
                    chunk = tile // tiles_m * GROUPS + group
                    tap = chunk % taps
                    r = (tap // S * dil_h).to(gl.int16)
                    s = (tap % S * dil_w).to(gl.int16)
                    chunks = chunks + ((r, s, gl.minimum(chunk // taps * BLOCK_N, last_c)),)
                for m in range(block * BLOCK_K, (block + n) * BLOCK_K, BLOCK_K):
                    row = m // Q
                    h = row % P * stride_h - top
                    w = m % Q * stride_w - left
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
                            at = [row // P, h, w, c]
                            tma.async_load_im2col(x_desc, at, [r, s], ready.index(stage), buffer, multicast=PAIR)
                    count += 1
                if JOINED:
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
    def place_of(out, tile, group, slot, tiles_m, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                 GROUPS: gl.constexpr, ALIGNED: gl.constexpr):  # fmt: skip
        """``(where, rows, columns)``: where in ``out`` [slots * Co, RSC] a group's chunk of a tile lies, and the rows and
        columns (begin, end) of it that are its own.

        The last tile lies inside like all others but for 7 channels, on some rows and columns of the one before it: TMA
        takes half as long again for blocks of zeros as for values.
        """
        Co, Ci, taps, step = sizes
        own_o = tile % tiles_m * BLOCK_M
        chunk = tile // tiles_m * GROUPS + group
        own_c = chunk // taps * BLOCK_N
        o = within(own_o, last_of(Co, BLOCK_M, ALIGNED))
        c = within(own_c, last_of(Ci, BLOCK_N, ALIGNED))
        where = out + (slot * Co + o).to(gl.int64) * step + (chunk % taps * Ci + c)
        return where, (own_o - o, Co - o), (own_c - c, Ci - c)

    @gluon.jit
    def store_chunk(values, where, rows, columns, step):
        """Store sums from ``where`` on, in rows ``step`` elements apart, those of ``rows`` and ``columns`` (begin, end)."""
        layout: gl.constexpr = values.type.layout
        m = gl.expand_dims(gl.arange(0, values.shape[0], gl.SliceLayout(1, layout)), 1)
        n = gl.expand_dims(gl.arange(0, values.shape[1], gl.SliceLayout(0, layout)), 0)
        at = where + m.to(gl.int64) * step + n.to(gl.int64)
        own = (m >= rows[0]) & (m < rows[1]) & (n >= columns[0]) & (n < columns[1])
        gl.store(at, values.to(where.dtype.element_ty), mask=own)
