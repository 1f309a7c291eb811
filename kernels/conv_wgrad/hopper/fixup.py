"""Stream-K's fix-up: the last of a tile's shares adds what the others leave. Which share leaves its sum, which one adds.

    a share that is not the tile's last    store the sums;   wait for each other;   add 1 to the tile's counter, release
    the tile's last share                  wait until all others have, acquire;   add their sums, always in the same order

A partial sum is never seen by anybody else, so it lies in memory as it lies in registers: blocks of 8 x 8 sums, of which each
thread of a warp has two beside each other. The counters are zero before a launch, and are left zero.
"""

from kernels.common.gluon import gluon

if gluon is not None:
    from triton.experimental.gluon import language as gl

    @gluon.jit
    def fix_up_share_of(item, work):
        """As ``share_of`` of a ``FixUp`` work: full tiles first, then what is left of the others, then their splits."""
        cut = item - work.full
        first = gl.where(
            cut < 0, 0, gl.where(cut < work.rests, work.splits, (cut - work.rests) // work.tiles) * work.per
        )
        if cut < 0:
            length = work.blocks
            position = item * length
            end = position + length
        else:
            if cut < work.rests:
                length = work.rest
                position = cut * work.per
                end = gl.minimum(position + work.per, work.tiles * length)
            else:
                length = gl.minimum(work.per, work.blocks - first)
                position = (cut - work.rests) % work.tiles * length
                end = position + length
        return position, end, length, first

    @gluon.jit
    def last_segment_of(item, position, end, length, first, work):
        """``(tile, its first block here, how many, which of the cut tiles)`` of the last tile before ``end``."""
        cut = (end - 1) // length
        skipped = gl.maximum(position - cut * length, 0)
        return cut + gl.where(item < work.full, 0, work.full), first + skipped, end - cut * length - skipped, cut

    @gluon.jit
    def rank_of(item, cut, block, work):
        """``(rank, others)`` of a segment that begins with ``block``: its sum is the partial sum ``rank`` of the ``others``,
        or, where that is their number, it is the one that adds them."""
        per, splits = work.per, work.splits
        slot = block // per + (block > splits * per and block % per > 0).to(gl.int32)
        others = splits - 1
        if work.rest > 0:
            others += 1 + (cut * work.rest + work.rest - 1) // per - cut * work.rest // per
        rank = gl.where(slot < splits - 1, slot, gl.where(slot < splits, others, slot - gl.minimum(splits, 1)))
        whole = item < work.full
        return gl.where(whole, 0, rank), gl.where(whole, 0, others)

    @gluon.jit
    def within_chunk(values):
        """Where in memory each of a chunk's sums lies."""
        layout: gl.constexpr = values.type.layout
        m = gl.expand_dims(gl.arange(0, values.shape[0], gl.SliceLayout(1, layout)), 1)
        n = gl.expand_dims(gl.arange(0, values.shape[1], gl.SliceLayout(0, layout)), 0)
        return m // 8 * 64 + m % 8 * 8 + n // 8 * (8 * values.shape[0]) + n % 8

    @gluon.jit
    def leave_chunk(values, partials, counter, number):
        """Store a group's partial sum as the workspace's chunk ``number``, and say so."""
        at = partials + number.to(gl.int64) * (values.shape[0] * values.shape[1])
        gl.store(at + within_chunk(values), values)
        gl.barrier()
        gl.atomic_add(counter, 1, sem="release")

    @gluon.jit
    def add_chunks(values, partials, counter, number, step, others):
        """``values`` and a group's ``others`` partial sums, the workspace's chunks ``number``, ``number`` + ``step``, ..."""
        if others > 0:
            while gl.atomic_add(counter, 0, sem="acquire") != others:
                pass
            gl.store(counter, 0)
            for other in range(others):
                at = partials + (number + other * step).to(gl.int64) * (values.shape[0] * values.shape[1])
                values += gl.load(at + within_chunk(values), cache_modifier=".cg")
        return values
