"""The checks of exercise 08: im2col, a convolution's weight gradient as a product with it, and the same in pieces.

``im2col(x, A)`` writes what each output pixel sees, ``wgrad(x, dy, dw)`` the weight gradient, ``wgrad_split(x, dy,
partials, dw)`` the sums of Z pieces of the pixels and their sum. All take ``R=, S=, stride=, padding=, dilation=`` and
block sizes; x [N, H, W, C], dy [N, P, Q, O], A [M, J], dw [O, J], partials [Z, O, J], with m = (n, p, q), j = (r, s, c).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.conv_wgrad.geometry import Geometry, geometry
from kernels.conv_wgrad.reference import conv2d_wgrad_reference
from kernels.conv_wgrad.reference import im2col as im2col_reference
from kernels.lab.check.framework import ADDRESSES, Case, Draw, Exercise, Fenced, Output, Property

AXES = {"x": "NHWC", "dy": "NPQO", "A": "MJ", "dw": "OJ", "partials": "ZOJ"}
BORDER = tuple((axis, side) for axis in "HW" for side in ("before", "after"))


# The index map in plain PyTorch, so that it can be made wrong.


def pixel(m, g: Geometry):
    """(n, p, q) of output pixels m."""
    return m // (g.P * g.Q), m // g.Q % g.P, m % g.Q


def tap(j, g: Geometry):
    """(r, s, c) of columns j."""
    return j // (g.S * g.Ci), j // g.Ci % g.S, j % g.Ci


def place(p, q, r, s, g: Geometry):
    """(h, w): where output pixel (p, q) looks through tap (r, s)."""
    top, _, left, _ = g.padding
    return p * g.stride[0] + r * g.dilation[0] - top, q * g.stride[1] + s * g.dilation[1] - left


def gathered(x: torch.Tensor, *index) -> torch.Tensor:
    """``x`` at the given indices of its axes, 0 where one of them does not exist."""
    index = torch.broadcast_tensors(*index)
    inside = torch.stack([(i >= 0) & (i < size) for i, size in zip(index, x.shape)]).all(0)
    return torch.where(inside, x[tuple(torch.where(inside, i, 0) for i in index)], 0.0)


@dataclass(frozen=True)
class Problem:
    """One call: its tensors in float64 (dy is None for im2col), its sizes, blocks of pixels, and pieces."""

    x: torch.Tensor
    dy: torch.Tensor | None
    g: Geometry
    block: int
    pieces: int

    @property
    def blocks(self) -> int:
        """Blocks of pixels, the last one perhaps partial."""
        return -(-self.g.M // self.block)

    @property
    def per(self) -> int:
        """Blocks in a piece."""
        return -(-self.blocks // self.pieces)

    def columns(self, pixel=pixel, tap=tap, place=place) -> torch.Tensor:
        """A [M, J] by these parts of the index map."""
        n, p, q = pixel(torch.arange(self.g.M)[:, None], self.g)
        r, s, c = tap(torch.arange(self.g.columns), self.g)
        return gathered(self.x, n, *place(p, q, r, s, self.g), c)

    def rows(self, pixel=pixel) -> torch.Tensor:
        """dy as [M, O] by this part of the index map."""
        return gathered(self.dy, *(i[:, None] for i in pixel(torch.arange(self.g.M), self.g)), torch.arange(self.g.Co))

    def owned(self, blocks) -> torch.Tensor:
        """The pixels of these blocks that exist."""
        m = torch.tensor(list(blocks), dtype=torch.long)[:, None] * self.block + torch.arange(self.block)
        return m[(m >= 0) & (m < self.g.M)]

    def pieces_of(self, A, dy, blocks_of: Callable) -> torch.Tensor:
        """Partial sums [Z, O, J] where ``blocks_of(z)`` are the blocks that piece z sums."""
        owned = [self.owned(blocks_of(z)) for z in range(self.pieces)]
        return torch.stack([dy[m].mT @ A[m] for m in owned])

    def mine(self, z: int) -> range:
        """The blocks that piece z owns."""
        return range(min(z * self.per, self.blocks), min((z + 1) * self.per, self.blocks))

    def answer(self, name: str, A=None, dy=None) -> torch.Tensor:
        """What the output of this name holds, from A and from the rows of dy."""
        A = self.columns() if A is None else A
        if name == "A":
            return A
        dy = self.rows() if dy is None else dy
        return dy.mT @ A if name == "dw" else self.pieces_of(A, dy, self.mine)


def by_reference(problem: Problem) -> dict[str, torch.Tensor]:
    """The right answers, by the package's reference."""
    g = problem.g
    if problem.dy is None:
        return {"A": im2col_reference(problem.x, g).reshape(g.M, g.columns)}
    how = (g.R, g.S, g.stride, g.padding, g.dilation)
    images = [conv2d_wgrad_reference(problem.x, problem.dy, *how)]
    for z in range(problem.pieces):
        own = torch.zeros(g.M, 1, dtype=torch.float64)
        own[problem.owned(problem.mine(z))] = 1.0
        images.append(conv2d_wgrad_reference(problem.x, problem.dy * own.view(g.N, g.P, g.Q, 1), *how))
    dw, *partials = (image.reshape(g.Co, g.columns) for image in images)
    return {"dw": dw, "partials": torch.stack(partials)}


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


def _moved(dh, dw) -> Callable:
    def moved(p, q, r, s, g):
        h, w = place(p, q, r, s, g)
        return h + dh, w + dw

    return moved


_PLACES = {
    "stride and dilation are swapped: the stride goes with p and q, the dilation with r and s": (
        _by(stride=lambda g: g.dilation, dilation=lambda g: g.stride)
    ),
    "the stride is left out: h = p * sh + ...": _by(stride=lambda g: (1, 1)),
    "the dilation is left out: h = ... + r * dh": _by(dilation=lambda g: (1, 1)),
    "the strides of rows and columns are swapped: sh goes with p": _by(stride=lambda g: g.stride[::-1]),
    "the dilations of rows and columns are swapped: dh goes with r": _by(dilation=lambda g: g.dilation[::-1]),
    "the padding is left out: h = ... - pt": _by(padding=lambda g: (0, 0, 0, 0)),
    "the padding is added: it is subtracted, h = ... - pt": _by(padding=lambda g: tuple(-n for n in g.padding)),
    "the paddings of rows and columns are swapped: pt goes with h, pl with w": (
        _by(padding=lambda g: (g.padding[2], 0, g.padding[0], 0))
    ),
    "the padding is multiplied by the stride: h = p * sh - pt + ...": (
        _by(padding=lambda g: (g.padding[0] * g.stride[0], 0, g.padding[2] * g.stride[1], 0))
    ),
    "the padding counts once more than there is: h = ... - pt": _moved(-1, -1),
    "the padding counts once less than there is: h = ... - pt": _moved(1, 1),
    "one row too few is subtracted: h = ... - pt": _moved(1, 0),
    "one row too many is subtracted: h = ... - pt": _moved(-1, 0),
    "one column too few is subtracted: w = ... - pl": _moved(0, 1),
    "one column too many is subtracted: w = ... - pl": _moved(0, -1),
}


def _without_row_or_column(problem: Problem):
    """Masks that keep too little: the image's first or last row or column counts as padding."""
    for axis, name in ((1, "row"), (2, "column")):
        for which, index in (("first", 0), ("last", -1)):
            x = problem.x.clone()
            x.select(axis, index).zero_()
            yield f"the image's {which} {name} is taken for padding: look at the comparison in mask_{'hw'[axis - 1]}", x


def _pairs(problem: Problem):
    """Mistaken operands: (cause, A, rows of dy), None for the right ones."""
    for cause, wrong in _PIXELS.items():
        yield cause, problem.columns(pixel=wrong), None if problem.dy is None else problem.rows(wrong)
    for cause, wrong in _TAPS.items():
        yield cause, problem.columns(tap=wrong), None
    for cause, wrong in _PLACES.items():
        yield cause, problem.columns(place=wrong), None
    if problem.g.H == problem.g.W:
        cause = "rows and columns are swapped in the address: h moves by stride_x[1], w by stride_x[2]"
        yield cause, replace(problem, x=problem.x.transpose(1, 2)).columns(), None
    if problem.g.H > 1 and problem.g.W > 1:
        for cause, x in _without_row_or_column(problem):
            yield cause, replace(problem, x=x).columns(), None
    if problem.dy is None:
        return
    for wrong in _PIXELS.values():
        yield "dy is read at another pixel than A: both take (n, p, q) of the same m", None, problem.rows(wrong)
        yield "A is taken at another pixel than dy: both take (n, p, q) of the same m", problem.columns(pixel=wrong), None


def _subsets(problem: Problem):
    """Mistaken loops of one program over all pixels: (cause, the pixels that it adds up)."""
    g, blocks = problem.g, problem.blocks
    yield "only the last block of pixels is left: add to acc, do not replace it", problem.owned([blocks - 1])
    yield "the partial block at the end is left out: there are cdiv(M, BLOCK_K)", problem.owned(range(g.M // problem.block))
    yield "only the first image counts: the sum runs over all M = N P Q pixels", torch.arange(g.P * g.Q)
    yield "only the first row of the output counts: the sum runs over all M = N P Q pixels", torch.arange(g.Q)
    yield "the last block of pixels is left out: there are cdiv(M, BLOCK_K)", problem.owned(range(blocks - 1))
    yield "the first block of pixels is left out", problem.owned(range(1, blocks))
    yield "only the first block of pixels is added: loop over all", problem.owned([0])
    yield "every step adds the first block's pixels: offs_m moves by BLOCK_K", problem.owned([0] * blocks)


_OWN = "piece z owns the blocks z * per ... (z + 1) * per - 1, per = cdiv(blocks, Z)"


def _shares(problem: Problem):
    """Mistaken pieces: (cause, the blocks of piece z)."""
    Z, B, per = problem.pieces, problem.blocks, problem.per
    down = B // Z
    yield "blocks at the end belong to no piece: round up, per = cdiv(blocks, Z)", lambda z: range(z * down, (z + 1) * down)
    yield (
        f"the ranges overlap: the block where one piece ends begins the next; {_OWN}",
        lambda z: range(z * B // Z, -(-(z + 1) * B // Z)),
    )
    yield f"the ranges overlap: each piece adds one block too many; {_OWN}", lambda z: range(z * per, min((z + 1) * per + 1, B))
    yield f"each piece leaves out its last block; {_OWN}", lambda z: problem.mine(z)[:-1]
    yield f"each piece leaves out its first block; {_OWN}", lambda z: problem.mine(z)[1:]
    yield f"each piece adds one block, number z: {_OWN}", lambda z: [z] if z < B else []
    yield f"every piece adds the blocks of the first: {_OWN}", lambda z: problem.mine(0)
    yield f"every piece adds all blocks: {_OWN}", lambda z: range(B)
    yield f"a piece runs on to the last block: {_OWN}", lambda z: range(z * per, B)
    yield f"the blocks are dealt out in turn: {_OWN}", lambda z: range(z, B, Z)
    rest = lambda z: range(z * down, (z + 1) * down if z < Z - 1 else B)  # noqa: E731
    yield f"the last piece adds all that is left over: {_OWN}", rest
    yield f"the ranges are not those of the exercise: {_OWN}", lambda z: range(z * B // Z, (z + 1) * B // Z)


def _sums(problem: Problem, partials: torch.Tensor):
    """Mistaken sums of the pieces: (cause, dw)."""
    Z = problem.pieces
    order = "the pieces are not added from the first to the last: total starts at 0, z runs up"
    backwards = torch.zeros_like(partials[0], dtype=torch.float32)
    for piece in reversed(partials.float()):
        backwards = backwards + piece
    yield order, backwards.double()
    yield "only the last piece is left: add to total, do not replace it", partials[-1]
    for n in range(1, Z):
        yield f"only the first {n} of the {Z} pieces are added: z runs over all Z", partials[:n].sum(0)
    yield "the first piece is left out", partials[1:].sum(0)
    yield "every step adds the first piece: the address moves by stride_z", Z * partials[0]
    yield "the sum is divided by Z: it is no mean", partials.mean(0)


def suspects(case: Case, out: Output):
    """Known mistakes of the three functions, and the answers they give."""
    problem = _problem(case)
    for cause, A, dy in _pairs(problem):
        yield cause, problem.answer(out.name, A, dy)
    if problem.dy is None:
        return
    A, dy = problem.columns(), problem.rows()
    if out.name == "partials":
        holes = problem.answer("partials")
        empty = [z for z in range(problem.pieces) if not problem.mine(z)]
        holes[empty] = float("nan")
        yield "a piece without blocks is not stored: it is the sum of nothing, zeros", holes
        for cause, blocks_of in _shares(problem):
            yield cause, problem.pieces_of(A, dy, blocks_of)
        return
    for cause, m in _subsets(problem):
        yield cause, dy[m].mT @ A[m]
    if len(case.outs) > 1:
        yield from _sums(problem, problem.answer("partials"))


def _problem(case: Case) -> Problem:
    """The problem that a case poses."""
    tensors = {tensor.name: tensor for tensor in case.tensors}
    values = {tensor.name: tensor.values.double() for tensor in case.inputs}
    names = ("R", "S", "stride", "padding", "dilation")
    g = geometry(values["x"].shape, tensors["dy"].size("O") if "dy" in tensors else 1, *(case.launch[n] for n in names))
    pieces = tensors["partials"].size("Z") if "partials" in tensors else 1
    return Problem(values["x"], values.get("dy"), g, case.launch["BLOCK_K"], pieces)


@dataclass(frozen=True)
class Function:
    """One of the three functions: its inputs, its outputs, its block sizes."""

    inputs: tuple[str, ...]
    outs: tuple[str, ...]
    blocks: tuple[str, ...]

    def case(
        self, draw: Draw, *, N=2, H=5, W=5, C=8, O=16, R=2, S=2, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1),
        Z=2, blocks=(16, 16, 16), **how,
    ) -> Case:  # fmt: skip
        """One call of these sizes; ``blocks`` are BLOCK_M, BLOCK_N and BLOCK_K.

        ``how``: ``values`` replaces normal ones by name, ``half`` is the inputs' dtype, ``magnitude`` multiplies them;
        ``orders``, ``shared``, ``out_order`` and ``packed`` say how tensors lie in memory; ``poison`` and ``tolerance``
        go to the case and its outputs.
        """
        g = geometry((N, H, W, C), O, R, S, stride, padding, dilation)
        sizes = {"N": N, "H": H, "W": W, "C": C, "P": g.P, "Q": g.Q, "O": O, "M": g.M, "J": g.columns, "Z": Z}
        fence = {"N": 2, "H": 8, "W": 8, "O": blocks[0], "J": blocks[1], "M": blocks[2], "Z": 1}
        fence = None if how.get("packed") else fence
        inputs = []
        for name in self.inputs:
            axes, still = AXES[name], how.get("shared", {}).get(name, "")
            one = [1 if axis in still else sizes[axis] for axis in axes]
            values = how.get("values", {}).get(name)
            if values is None:
                values = draw.normal(*one, scale=how.get("magnitude", 1.0), dtype=how.get("half", torch.float32))
            values = values.expand([sizes[axis] for axis in axes])
            inputs.append(Fenced(name, axes, values, fence=fence, order=how.get("orders", {}).get(name, ""), shared=still))
        launch = {"R": R, "S": S, "stride": stride, "padding": padding, "dilation": dilation}
        launch |= {f"BLOCK_{axis}": n for axis, n in zip("MNK", blocks) if f"BLOCK_{axis}" in self.blocks}
        case = Case(inputs, [], launch, poison=how.get("poison", ()))
        x, *dy = (tensor.values.double() for tensor in inputs)
        answers = by_reference(Problem(x, dy[0] if dy else None, g, blocks[2], Z))
        for name in self.outs:
            tensor = Fenced(
                name, AXES[name], torch.empty([sizes[axis] for axis in AXES[name]]), fence=fence,
                order=how.get("out_order", {}).get(name, ""),
            )  # fmt: skip
            # The precision property alone looks at the last digits.
            case.outs.append(Output(tensor, answers[name], tolerance=how.get("tolerance", 5e-3)))
        return case

    # What more than one of the functions is held to.

    def whole(self, draw):
        """Sizes that fill every block, several images; a square image, so that what is swapped has the right shape."""
        yield self.case(draw, N=draw.size(2, 2, 4), packed=True)
        yield self.case(draw, N=draw.size(2, 2, 4), W=10, S=3, packed=True)

    def padded(self, draw):
        """Padding on all sides, on each side another one, and around a filter larger than the image."""
        yield self.case(draw, R=3, S=3, padding=(1, 1, 1, 1), poison=BORDER)
        yield self.case(draw, H=4, W=6, R=3, padding=(0, draw.size(2, 1, 2), draw.size(2, 2, 3), 1), poison=BORDER)
        yield self.case(draw, H=2, W=3, R=5, S=4, padding=(3, draw.size(2, 2, 3), 2, 2), poison=BORDER)

    def spread(self, draw):
        """Strides and dilations, each for rows and columns its own; a stride larger than the filter."""
        H = draw.size(9, 8, 11)
        yield self.case(draw, H=H, W=11, stride=(1, 2))
        yield self.case(draw, H=H, W=11, R=3, dilation=(2, 3))
        yield self.case(draw, H=H, W=11, stride=(2, 3), dilation=(3, 1), poison=BORDER)
        yield self.case(draw, H=12, W=11, stride=(4, 3), padding=(1, 0, 1, 0), poison=BORDER)

    def everywhere(self, draw):
        """All of it at once."""
        for H, W in ((7, 9), (9, 6)):
            how = {"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2)}
            yield self.case(draw, H=draw.size(H, H, H + 2), W=W, C=draw.size(8, 4, 8), R=3, **how, poison=BORDER)

    def pixels(self, draw):
        """Numbers of pixels that fill no block, fewer than a block has, a single one."""
        after = (("N", "before"), ("N", "after"))
        yield self.case(draw, N=3, H=draw.size(6, 5, 7), W=6, poison=after)
        yield self.case(draw, N=1, H=3, W=draw.size(4, 3, 6), poison=after)
        yield self.case(draw, N=1, H=1, W=1, R=1, S=1, poison=after)

    def channels(self, draw):
        """Numbers of channels and columns that fill no block, and fewer than a block has."""
        ends = tuple((axis, side) for axis in "OCJ" for side in ("before", "after"))
        yield self.case(draw, C=draw.size(3, 3, 7, but_not_of=4), O=draw.size(20, 17, 31), S=3, poison=ends)
        yield self.case(draw, C=draw.size(3, 1, 7), O=draw.size(5, 1, 15), R=1, S=1, poison=ends)

    def tiles(self, draw):
        """The same problem in blocks of several sizes."""
        H = draw.size(9, 9, 13)
        for blocks in ((16, 32, 64), (32, 64, 16), (64, 16, 32)):
            yield self.case(draw, H=H, W=9, C=16, O=64, blocks=blocks)

    def memory(self, draw):
        """Channels first in memory, as NCHW has them; other orders; images and gradients that stand still."""
        sizes = {"W": draw.size(6, 5, 9), "S": 3}
        yield self.case(draw, **sizes)
        yield self.case(draw, **sizes, orders={"x": "NCHW", "dy": "NOPQ"})
        yield self.case(draw, **sizes, orders={"x": "WCNH", "dy": "QPON"})
        yield self.case(draw, **sizes, out_order={"A": "JM", "dw": "JO", "partials": "JZO"})
        yield self.case(draw, **sizes, shared={"x": "N", "dy": "NPQ"})

    def half(self, draw):
        """float16 values whose products float16 cannot hold, then sums whose last digits it cannot."""
        for magnitude in (300.0, 1.0):
            yield self.case(draw, N=8, half=torch.float16, magnitude=magnitude, tolerance=2e-5)

    def bfloat(self, draw):
        """bfloat16 values."""
        yield self.case(draw, half=torch.bfloat16)

    def single(self, draw):
        """float32 values: a GPU's tl.dot rounds them to TF32 unless told otherwise, the interpreter never does."""
        yield self.case(draw, N=8, tolerance=2e-5)

    def everything(self, draw):
        """Everything ragged at once, for the addresses."""
        how = {"stride": (2, 1), "padding": (1, 2, 0, 1), "dilation": (1, 2)}
        yield self.case(draw, N=3, H=draw.size(6, 5, 7), W=7, C=3, O=draw.size(20, 17, 31), R=3, **how)


_IM2COL = Function(("x",), ("A",), ("BLOCK_N", "BLOCK_K"))
_WGRAD = Function(("x", "dy"), ("dw",), ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
_SPLIT = Function(("x", "dy"), ("partials", "dw"), ("BLOCK_M", "BLOCK_N", "BLOCK_K"))


def _ragged(draw):
    yield from _IM2COL.pixels(draw)
    yield from _IM2COL.channels(draw)


def _no_pixels(draw):
    yield from _WGRAD.pixels(draw)
    yield _WGRAD.case(draw, N=0)


def _even(draw):
    for Z in (2, 1, 4):
        yield _SPLIT.case(draw, N=draw.size(4, 4, 8, multiple_of=4), Z=Z, packed=True)


def _uneven(draw):
    """Blocks that the pieces do not share evenly, and a partial one."""
    for N, Z in ((5, 3), (7, 4), (6, 5)):
        yield _SPLIT.case(draw, N=N, H=draw.size(5, 5, 6), Z=Z)


def _more_pieces(draw):
    """More pieces than blocks; pieces without blocks though there are fewer; no blocks at all."""
    yield _SPLIT.case(draw, N=2, Z=draw.size(5, 3, 6))
    yield _SPLIT.case(draw, N=9, Z=7)
    yield _SPLIT.case(draw, N=0, Z=3)


def _cancelling(draw):
    """Three pieces, of which the second undoes the large first: in order, the third is left to its last digit."""
    x, dy = draw.normal(3, 5, 5, 8), draw.normal(3, 4, 4, 16)
    x[1], dy[0], dy[1] = x[0], 2.0**30 * dy[0], -(2.0**30) * dy[0]
    yield _SPLIT.case(draw, N=3, Z=3, values={"x": x, "dy": dy})


def _split_ragged(draw):
    yield from _SPLIT.pixels(draw)
    yield from _SPLIT.channels(draw)


def _several_pieces(draw):
    yield _SPLIT.case(draw, N=6, C=draw.size(5, 3, 7), O=draw.size(20, 17, 31), Z=4)


MASKS = {(tensor, axis, "after"): "" for tensor, axes in AXES.items() for axis in axes}
MASKS |= {("x", axis, side): f"mask_{axis.lower()}" for axis, side in BORDER}
MASKS |= {(tensor, "N", "after"): "mask_m" for tensor in ("x", "dy")}
MASKS |= {("A", "M", "after"): "mask_m", ("dy", "O", "after"): "mask_o"}
MASKS |= {(tensor, "J", "after"): "mask_j" for tensor in ("A", "dw", "partials")}
MASKS |= {(tensor, "O", "after"): "mask_o" for tensor in ("dw", "partials")}

READ_STRIDES = "Lesson 01, step 4"
MAP, BORDERS, TILE = "Lesson 12, step 1", "Lesson 12, step 2", "Lesson 12, step 3"
LOOP, PIECES, BITS = "Lesson 12, step 5", "Lesson 13, step 3", "Lesson 13, step 4"

MEMORY = "each tensor has its own strides, and some are 0: an address takes those of its own"
BLOCKS = "the answer depends on a block size: offsets of block i are i * BLOCK + tl.arange(0, BLOCK)"
F16 = "something is rounded to float16: acc, partials and total stay float32"


def _inside(function, lesson):
    return Property(
        "stays inside its tensors", 1, lesson, function.everything, ADDRESSES, needs="the interpreter", addresses=True
    )


IM2COL = Exercise(
    "im2col",
    "the kernel stores nothing yet. It needs the index map, a load of the pixels it points to, and a store of A.",
    (
        Property(
            "pixels and taps", 2, MAP, _IM2COL.whole, "m = (n P + p) Q + q, j = (r S + s) C + c, and A[m, j] = x[n, p + r, q + s, c]"
        ),
        Property("padding", 2, BORDERS, _IM2COL.padded, "h = p * sh + r * dh - pt, and x is 0 outside the image"),
        Property("stride and dilation", 2, MAP, _IM2COL.spread, "h = p * sh + r * dh - pt, w = q * sw + s * dw - pl"),
        Property("ragged sizes", 1, TILE, _ragged, "rows beyond M and columns beyond J are not stored (mask_m, mask_j)"),
        Property("block sizes", 1, TILE, _IM2COL.tiles, BLOCKS),
        Property("strides in memory", 1, READ_STRIDES, _IM2COL.memory, MEMORY),
        _inside(_IM2COL, BORDERS),
    ),
    suspects,
    MASKS,
)
WGRAD = Exercise(
    "wgrad",
    "the kernel stores nothing yet. It needs a loop over the blocks of pixels, and a store of dw.",
    (
        Property("whole blocks", 2, LOOP, _WGRAD.whole, "dw[o, j] = sum over m of dy[m, o] A[m, j]: the product of dy^T and A"),
        Property("padding, stride, dilation", 1, MAP, _WGRAD.everywhere, "the tile of A is im2col_tile's"),
        Property("ragged pixels", 2, LOOP, _no_pixels, "pixels beyond M add nothing: dy and A are 0 there (mask_m)"),
        Property("ragged channels", 1, LOOP, _WGRAD.channels, "channels beyond O and columns beyond J are not stored"),
        Property("block sizes", 1, LOOP, _WGRAD.tiles, BLOCKS),
        Property("strides in memory", 1, READ_STRIDES, _WGRAD.memory, MEMORY),
        Property("float16", 1, LOOP, _WGRAD.half, F16),
        _inside(_WGRAD, LOOP),
        Property("bfloat16", 0, LOOP, _WGRAD.bfloat, needs="a GPU"),
        Property("float32 without TF32", 0, LOOP, _WGRAD.single, 'say input_precision="ieee"', needs="a GPU"),
    ),
    suspects,
    MASKS,
)
SPLIT = Exercise(
    "wgrad_split",
    "the kernels store nothing yet. They need the blocks of each piece, their sum, and the sum of the pieces.",
    (
        Property("equal pieces", 2, PIECES, _even, _OWN),
        Property("unequal pieces", 2, PIECES, _uneven, _OWN),
        Property("pieces without blocks", 1, PIECES, _more_pieces, "a piece without blocks is stored too, as zeros"),
        Property(
            "order of the sum", 1, BITS, _cancelling, "the pieces are added from the first to the last, in float32"
        ),
        Property(
            "the same bits every time",
            1,
            BITS,
            _several_pieces,
            "programs come in no fixed order, so the last bits change from run to run: one program adds up all pieces",
            needs="the interpreter",
            shared_updates=True,
        ),
        Property("ragged sizes", 1, PIECES, _split_ragged, "each program's tile ends at O and J (mask_o, mask_j)"),
        Property("strides in memory", 1, READ_STRIDES, _SPLIT.memory, MEMORY),
        _inside(_SPLIT, PIECES),
    ),
    suspects,
    MASKS,
)
