"""What the mistakes that the checks of exercise 08 know would give: another index map, other sums or pieces."""

from collections.abc import Callable
from dataclasses import replace

import torch

from kernels.check.conv_problem import Problem, pixel, place, problem_of
from kernels.check.framework import Case, Output

# What known mistakes give. Each is a part of the index map, or other operands, or other blocks.

_PIXELS = {
    "p runs on into the next image: p = m // Q % P": lambda m, g: (m // (g.P * g.Q), m // g.Q, m % g.Q),
    "p and q are swapped: q is the fastest digit of m = (n P + p) Q + q": (
        lambda m, g: (m // (g.P * g.Q), m % g.P, m // g.P % g.Q)
    ),
    "p and q are swapped where the pixel is used: rows take p, columns q": (
        lambda m, g: (m // (g.P * g.Q), m % g.Q, m // g.Q % g.P)
    ),
    "every image is taken for the first: n = m // (P Q)": lambda m, g: (0 * m, *pixel(m, g)[1:]),
    "n is the fastest digit: it is the slowest of m = (n P + p) Q + q": (
        lambda m, g: (m % g.N, m // g.N // g.Q % g.P, m // g.N % g.Q)
    ),
}
_TAPS = {
    "r and s are swapped: s is the faster digit of j = (r S + s) C + c": (
        lambda j, g: (j // g.Ci % g.R, j // (g.R * g.Ci), j % g.Ci)
    ),
    "channels come first: c is the fastest digit of j = (r S + s) C + c": (
        lambda j, g: (j // g.S % g.R, j % g.S, j // (g.R * g.S))
    ),
    "s runs on into the next row of the filter: s = j // C % S": (
        lambda j, g: (j // (g.S * g.Ci), j // g.Ci, j % g.Ci)
    ),
    "every column looks through tap (0, 0): r and s move it": lambda j, g: (0 * j, 0 * j, j % g.Ci),
}


def _by(**changes) -> Callable:
    """Where the convolution with other sizes looks: ``changes`` maps a field to a function of the geometry."""
    return lambda p, q, r, s, g: place(p, q, r, s, replace(g, **{name: change(g) for name, change in changes.items()}))


def _moved(rows, columns) -> Callable:
    def moved(p, q, r, s, g):
        h, w = place(p, q, r, s, g)
        return h + rows, w + columns

    return moved


_PLACES = {
    "stride and dilation are swapped: the stride goes with p and q, the dilation with r and s": (
        _by(stride=lambda g: g.dilation, dilation=lambda g: g.stride)
    ),
    "stride and dilation are swapped in h: sh goes with p, dil_h with r": (
        _by(stride=lambda g: (g.dilation[0], g.stride[1]), dilation=lambda g: (g.stride[0], g.dilation[1]))
    ),
    "stride and dilation are swapped in w: sw goes with q, dil_w with s": (
        _by(stride=lambda g: (g.stride[0], g.dilation[1]), dilation=lambda g: (g.dilation[0], g.stride[1]))
    ),
    "the stride is left out: h = p * sh + ...": _by(stride=lambda g: (1, 1)),
    "the dilation is left out: h = ... + r * dil_h": _by(dilation=lambda g: (1, 1)),
    "the strides of rows and columns are swapped: sh goes with p": _by(stride=lambda g: g.stride[::-1]),
    "the dilations of rows and columns are swapped: dil_h goes with r": _by(dilation=lambda g: g.dilation[::-1]),
    "columns take the stride of rows: sw goes with q": _by(stride=lambda g: (g.stride[0],) * 2),
    "rows take the stride of columns: sh goes with p": _by(stride=lambda g: (g.stride[1],) * 2),
    "columns take the dilation of rows: dil_w goes with s": _by(dilation=lambda g: (g.dilation[0],) * 2),
    "rows take the dilation of columns: dil_h goes with r": _by(dilation=lambda g: (g.dilation[1],) * 2),
    "columns take the padding of rows: pl goes with w": _by(padding=lambda g: (g.padding[0],) * 4),
    "rows take the padding of columns: pt goes with h": _by(padding=lambda g: (g.padding[2],) * 4),
    "the padding is left out: h = ... - pt": _by(padding=lambda g: (0, 0, 0, 0)),
    "the padding is added: it is subtracted, h = ... - pt": _by(padding=lambda g: tuple(-n for n in g.padding)),
    "pt is added: it is subtracted, h = ... - pt": _by(padding=lambda g: (-g.padding[0], 0, g.padding[2], 0)),
    "pl is added: it is subtracted, w = ... - pl": _by(padding=lambda g: (g.padding[0], 0, -g.padding[2], 0)),
    "the paddings of rows and columns are swapped: pt goes with h, pl with w": (
        _by(padding=lambda g: (g.padding[2], 0, g.padding[0], 0))
    ),
    "the padding is multiplied by the stride: h = p * sh - pt + ...": (
        _by(padding=lambda g: (g.padding[0] * g.stride[0], 0, g.padding[2] * g.stride[1], 0))
    ),
    "h and w are 1 too small: h = p * sh + r * dil_h - pt": _moved(-1, -1),
    "h and w are 1 too large: h = p * sh + r * dil_h - pt": _moved(1, 1),
    "h is 1 too large: h = p * sh + r * dil_h - pt": _moved(1, 0),
    "h is 1 too small: h = p * sh + r * dil_h - pt": _moved(-1, 0),
    "w is 1 too large: w = q * sw + s * dil_w - pl": _moved(0, 1),
    "w is 1 too small: w = q * sw + s * dil_w - pl": _moved(0, -1),
}


_AROUND = {
    "columns beyond either edge are 0: they run round, w mod W": lambda h, w, g: (h, w),
    "columns left of the edge are 0: w % W is negative there, add W": lambda h, w, g: (
        h,
        torch.where(w < 0, w, w % g.W),
    ),
    "columns right of the edge are 0: they run round, w mod W": lambda h, w, g: (h, torch.where(w < g.W, w % g.W, w)),
    "columns stop at the edge, as if the first and the last went on: they run round, w mod W": (
        lambda h, w, g: (h, w.clamp(0, g.W - 1))
    ),
    "columns run round once only: w mod W, however large the padding": (
        lambda h, w, g: (h, torch.where(w < 0, w + g.W, torch.where(w >= g.W, w - g.W, w)))
    ),
    "W is added once before the remainder, and a wide padding needs more: w % W first, then add W where that is negative": (
        lambda h, w, g: (h, torch.fmod(w + g.W, g.W))
    ),
    "columns run back from the edge, as in a mirror: they run round, w mod W": (
        lambda h, w, g: (h, (g.W - 1) - ((g.W - 1) - w.abs()).abs())
    ),
    "rows run round too: beyond the poles there are zeros, mask_h": lambda h, w, g: (h % g.H, w % g.W),
    "rows run round and columns do not: it is w that runs round": lambda h, w, g: (h % g.H, w),
    "w is taken by H: columns run round by W": lambda h, w, g: (h, w % g.H),
}


def _without_row(problem: Problem):
    """Masks that keep too little: the image's first or last row counts as padding."""
    for which, index in (("first", 0), ("last", -1)):
        x = problem.x.clone()
        x[:, index].zero_()
        yield f"the image's {which} row is taken for padding: look at the comparison in mask_h", x


def _pairs(problem: Problem):
    """Mistaken operands: (cause, A, rows of dy), None for the right ones."""
    for cause, wrong in _PIXELS.items():
        yield cause, problem.columns(pixel=wrong), None if problem.dy is None else problem.rows(wrong)
    for cause, wrong in _TAPS.items():
        yield cause, problem.columns(tap=wrong), None
    for cause, wrong in _PLACES.items():
        yield cause, problem.columns(place=wrong), None
    for cause, wrong in _AROUND.items():
        yield cause, problem.columns(around=wrong), None
    if problem.g.H == problem.g.W:
        cause = "rows and columns are swapped in the address: h moves by stride_x[1], w by stride_x[2]"
        yield cause, replace(problem, x=problem.x.transpose(1, 2)).columns(), None
    if problem.g.H > 1:
        for cause, x in _without_row(problem):
            yield cause, replace(problem, x=x).columns(), None
    if problem.dy is None:
        return
    for wrong in _PIXELS.values():
        yield "dy is read at another pixel than A: both take (n, p, q) of the same m", None, problem.rows(wrong)
        yield (
            "A is taken at another pixel than dy: both take (n, p, q) of the same m",
            problem.columns(pixel=wrong),
            None,
        )


WRAPPED = "pixels beyond M wrap round: % M finds rows that exist, and adds them again; they must add 0 (mask_m)"


def _loops(problem: Problem):
    """Mistaken loops over all pixels: (cause, dweight)."""
    g, blocks, A, dy = problem.g, problem.blocks, problem.columns(), problem.rows()
    subsets = {
        "only the last block of pixels is left: add to acc, do not replace it": problem.owned([blocks - 1]),
        "the partial block at the end is left out: there are cdiv(M, BLOCK_K)": problem.owned(
            range(g.M // problem.block)
        ),
        "only the first image counts: the sum runs over all M = N P Q pixels": torch.arange(min(g.M, g.P * g.Q)),
        "only the first row of the output counts: the sum runs over all M = N P Q pixels": torch.arange(min(g.M, g.Q)),
        "the last block of pixels is left out: there are cdiv(M, BLOCK_K)": problem.owned(range(blocks - 1)),
        "the first block of pixels is left out": problem.owned(range(1, blocks)),
        WRAPPED: problem.wrapped(range(blocks)),
        "only the first block of pixels is added: loop over all": problem.owned([0]),
        "every step adds the first block's pixels: offs_m moves by BLOCK_K": problem.owned([0] * blocks),
    }
    along = (torch.arange(blocks)[:, None] + torch.arange(problem.block)).flatten()
    subsets["block b begins at pixel b: offs_m moves by BLOCK_K, block * BLOCK_K"] = along[along < g.M]
    for cause, m in subsets.items():
        yield cause, dy[m].mT @ A[m]
    if g.Co == problem.block and g.M % problem.block == 0:
        tiles = (x.unflatten(0, (blocks, problem.block)) for x in (dy, A))
        yield "dy is not transposed: the sum runs over its rows, tl.trans(dy)", torch.matmul(*tiles).sum(0)


OWN = "piece z owns the blocks z * per ... (z + 1) * per - 1, per = cdiv(blocks, Z)"


def _shares(problem: Problem):
    """Mistaken pieces: (cause, the blocks of piece z)."""
    Z, B, per = problem.pieces, problem.blocks, problem.per
    down = B // Z
    yield (
        "blocks at the end belong to no piece: round up, per = cdiv(blocks, Z)",
        lambda z: range(z * down, (z + 1) * down),
    )
    yield (
        f"the ranges overlap: the block where one piece ends begins the next; {OWN}",
        lambda z: range(z * B // Z, -(-(z + 1) * B // Z)),
    )
    yield (
        f"the ranges overlap: each piece adds one block too many; {OWN}",
        lambda z: range(z * per, min((z + 1) * per + 1, B)),
    )
    yield f"each piece leaves out its last block; {OWN}", lambda z: problem.mine(z)[:-1]
    yield f"each piece leaves out its first block; {OWN}", lambda z: problem.mine(z)[1:]
    yield f"each piece adds one block, number z: {OWN}", lambda z: [z] if z < B else []
    yield f"every piece adds the blocks of the first: {OWN}", lambda z: problem.mine(0)
    yield f"every piece adds all blocks: {OWN}", lambda z: range(B)
    yield f"a piece runs on to the last block: {OWN}", lambda z: range(z * per, B)
    yield f"the blocks are dealt out in turn: {OWN}", lambda z: range(z, B, Z)
    rest = lambda z: range(z * down, (z + 1) * down if z < Z - 1 else B)  # noqa: E731
    yield f"the last piece adds all that is left over: {OWN}", rest
    yield f"the ranges are not those of the exercise: {OWN}", lambda z: range(z * B // Z, (z + 1) * B // Z)


def _sums(problem: Problem, partials: torch.Tensor):
    """Mistaken sums of the pieces: (cause, dweight)."""
    Z = problem.pieces
    order = "the pieces are not added from the first to the last: total starts at 0, z runs up"
    backwards = torch.zeros_like(partials[0], dtype=torch.float32)
    for piece in reversed(partials.float()):
        backwards = backwards + piece
    yield order, backwards.double()
    anew, A, dy = torch.zeros_like(backwards), problem.columns(), problem.rows()
    for m in (problem.owned([block]) for block in range(problem.blocks)):
        anew = anew + (dy[m].mT @ A[m]).float()
    yield "dweight is made anew from x and dy: it is the sum of what partials holds", anew.double()
    if Z == 2:  # both mistakes leave the same piece
        yield "the first piece is missing: total starts at 0, z at 0, and each step adds to total", partials[-1]
    yield "only the last piece is left: add to total, do not replace it", partials[-1]
    for n in range(1, Z):
        yield f"only the first {n} of the {Z} pieces are added: z runs over all Z", partials[:n].sum(0)
    yield "the first piece is left out", partials[1:].sum(0)
    yield "every step adds the first piece: the address moves by stride_z", Z * partials[0]
    yield "the sum is divided by Z: it is no mean", partials.mean(0)


def suspects(case: Case, out: Output):
    """Known mistakes of the three functions, and the answers they give."""
    problem = problem_of(case)
    if out.name == "dweight":
        if len(case.outs) > 1:  # its pieces are judged before it, so their sum is wrong
            yield from _sums(problem, problem.answer("partials"))
            return
        yield from _loops(problem)
    for cause, A, dy in _pairs(problem):
        yield cause, problem.answer(out.name, A, dy)
    if out.name == "partials":
        holes = problem.answer("partials")
        holes[[z for z in range(problem.pieces) if not problem.mine(z)]] = float("nan")
        yield "a piece without blocks is not stored: it is the sum of nothing, zeros", holes
        yield WRAPPED, problem.pieces_of(problem.columns(), problem.rows(), problem.mine, problem.wrapped)
        for cause, blocks_of in _shares(problem):
            yield cause, problem.pieces_of(problem.columns(), problem.rows(), blocks_of)
