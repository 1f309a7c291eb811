"""Exercise 08: im2col, a convolution's weight gradient as a product with it, and the same in pieces.

``im2col(x, A)`` writes what each output pixel sees, ``wgrad(x, dy, dweight)`` the weight gradient, ``wgrad_split(x, dy,
partials, dweight)`` the sums of Z pieces of the pixels and their sum. All take ``R=, S=, stride=, padding=, dilation=`` and
block sizes; x [N, H, W, C], dy [N, P, Q, O], A [M, J], dweight [O, J], partials [Z, O, J], with m = (n, p, q), j = (r, s, c).
Images are maps of the globe: beyond their rows there are zeros, their columns run round.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Output, Property, Size, Tier, calls
from kernels.check.shared import READ_STRIDES, made
from kernels.check.tensors import both_ends
from kernels.conv_wgrad.reference import Geometry, conv2d_wgrad_reference, geometry
from kernels.conv_wgrad.reference import im2col as im2col_reference

AXES = {"x": "NHWC", "dy": "NPQO", "A": "MJ", "dweight": "OJ", "partials": "ZOJ"}

# The equation: an index map in parts, sums and pieces.


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


def around(h, w, g: Geometry):
    """(h, w) on the globe: columns run round, rows do not."""
    return h, w % g.W


def gathered(x: torch.Tensor, *index) -> torch.Tensor:
    """``x`` at the given indices of its axes, 0 where one of them does not exist."""
    index = torch.broadcast_tensors(*index)
    inside = torch.stack([(i >= 0) & (i < size) for i, size in zip(index, x.shape)]).all(0)
    return torch.where(inside, x[tuple(torch.where(inside, i, 0) for i in index)], 0.0)


@dataclass(frozen=True)
class Problem:
    """One call: its tensors in float64 (dy is None for im2col), its sizes, blocks of pixels, pieces."""

    x: torch.Tensor
    dy: torch.Tensor | None
    g: Geometry
    block: int
    pieces: int

    @classmethod
    def of(cls, case: Case) -> "Problem":
        """The problem that a case poses."""
        tensors, launch = {tensor.name: tensor for tensor in case.tensors}, case.launch
        values = {tensor.name: tensor.values.double() for tensor in case.inputs}
        how = (launch[name] for name in ("R", "S", "stride", "padding", "dilation"))
        g = geometry(values["x"].shape, tensors["dy"].size("O") if "dy" in tensors else 1, *how)
        pieces = tensors["partials"].size("Z") if "partials" in tensors else 1
        return cls(values["x"], values.get("dy"), g, launch["BLOCK_K"], pieces)

    @property
    def blocks(self) -> int:
        """Blocks of pixels, the last one perhaps partial."""
        return -(-self.g.M // self.block)

    @property
    def per(self) -> int:
        """Blocks in a piece."""
        return -(-self.blocks // self.pieces)

    def mine(self, z: int) -> range:
        """The blocks that piece z owns."""
        return range(min(z * self.per, self.blocks), min((z + 1) * self.per, self.blocks))

    def columns(self, pixel=pixel, tap=tap, place=place, around=around) -> torch.Tensor:
        """A [M, J] by these parts of the index map."""
        n, p, q = pixel(torch.arange(self.g.M)[:, None], self.g)
        r, s, c = tap(torch.arange(self.g.columns), self.g)
        return gathered(self.x, n, *around(*place(p, q, r, s, self.g), self.g), c)

    def rows(self, pixel=pixel) -> torch.Tensor:
        """dy as [M, O] by this part of the index map."""
        return gathered(self.dy, *(i[:, None] for i in pixel(torch.arange(self.g.M), self.g)), torch.arange(self.g.Co))

    def owned(self, blocks, wrapped=False) -> torch.Tensor:
        """The pixels of these blocks; those beyond the last pixel are ``wrapped`` round to the first, or left out."""
        m = (torch.tensor(list(blocks), dtype=torch.long)[:, None] * self.block + torch.arange(self.block)).flatten()
        return m % max(self.g.M, 1) if wrapped else m[(m >= 0) & (m < self.g.M)]

    def answer(self, name: str, A=None, dy=None, blocks_of: Callable | None = None, wrapped=False) -> torch.Tensor:
        """What the output of this name holds, from A and the rows of dy, where piece z sums ``blocks_of(z)``."""
        A = self.columns() if A is None else A
        if name == "A":
            return A
        dy = self.rows() if dy is None else dy
        if name == "dweight":
            return dy.mT @ A
        owned = [self.owned((blocks_of or self.mine)(z), wrapped) for z in range(self.pieces)]
        return torch.stack([dy[m].mT @ A[m] for m in owned])


def by_reference(problem: Problem) -> dict[str, dict]:
    """The right answers, by the package's reference on images whose columns beyond either edge stand there."""
    g, (top, bottom, left, right) = problem.g, problem.g.padding
    x = problem.x[:, :, torch.arange(-left, g.W + right) % g.W]
    how = (g.R, g.S, g.stride, (top, bottom, 0, 0), g.dilation)
    if problem.dy is None:
        return {"A": {"expected": im2col_reference(x, geometry(x.shape, g.Co, *how)).reshape(g.M, g.columns)}}
    images = [conv2d_wgrad_reference(x, problem.dy, *how)]
    for z in range(problem.pieces):
        own = torch.zeros(g.M, 1, dtype=torch.float64)
        own[problem.owned(problem.mine(z))] = 1.0
        images.append(conv2d_wgrad_reference(x, problem.dy * own.view(g.N, g.P, g.Q, 1), *how))
    dweight, *partials = (image.reshape(g.Co, g.columns) for image in images)
    return {"dweight": {"expected": dweight}, "partials": {"expected": torch.stack(partials)}}


# The calls.


def _call(
    inputs: str, outs: str, draw: Draw, *, N=2, H=5, W=5, C=8, O=16, R=2, S=2, stride=(1, 1), padding=(0, 0, 0, 0),
    dilation=(1, 1), Z=2, blocks=(16, 16, 16), half=torch.float32, magnitude=1.0, given=None, **how,
) -> Case:  # fmt: skip
    """One call of these sizes; ``blocks`` are BLOCK_M, BLOCK_N and BLOCK_K.

    ``given`` are x and dy in place of normal values, of which ``half`` is the dtype and ``magnitude`` a factor.
    """
    padding = tuple(draw.size(*pad) if isinstance(pad, Size) else pad for pad in padding)
    g = geometry((N, H, W, C), O, R, S, stride, padding, dilation)
    sizes = {"N": N, "H": H, "W": W, "C": C, "P": g.P, "Q": g.Q, "O": O, "M": g.M, "J": g.columns, "Z": Z}

    def values(name, *shape):
        return given[name] if given else draw.normal(*shape, scale=magnitude, dtype=half)

    def known(case):
        x, *dy = (tensor.values.double() for tensor in case.inputs)
        return by_reference(Problem(x, dy[0] if dy else None, g, blocks[2], Z))

    launch = {"R": R, "S": S, "stride": stride, "padding": padding, "dilation": dilation}
    launch |= {f"BLOCK_{axis}": n for axis, n in zip("MNK", blocks) if axis != "M" or "dy" in inputs}
    fence = {"N": 2, "H": 4, "W": 4, "O": blocks[0], "J": blocks[1], "M": blocks[2], "Z": 1}
    return made((inputs.split(), outs.split()), AXES, sizes, values, launch, known, fence=fence, **how)


def _steps(case: Case) -> int:
    """A load and a store for each tile of A; two loads for each block of each tile, and a store; the pieces' sum."""
    problem, (outer, columns), names = Problem.of(case), case.outs[-1].tensor.shape, [out.name for out in case.outs]
    across = -(-columns // case.launch["BLOCK_N"])
    if "A" in names:
        return 2 * problem.blocks * across
    tiles = -(-outer // case.launch["BLOCK_M"]) * across
    return tiles * (2 * problem.blocks + 1 + (2 * problem.pieces if "partials" in names else 0))


def _cancelling(draw):
    """Three pieces, of which the second undoes the large first: in order, the third is left to its last digit.

    Then each is of two blocks, and the second one's second is lost in it; in a sum of all blocks it would not be.
    """
    for N, large in ((3, 2.0**30), (6, 2.0**60)):
        x, dy, second = draw.normal(N, 5, 5, 8), draw.normal(N, 4, 4, 16), N // 3
        x[second], dy[0], dy[second], dy[1:second] = x[0], large * dy[0], -large * dy[0], 0.0
        case = _split(draw, N=N, Z=3, given={"x": x, "dy": dy})
        partials, dweight = case.outs
        case.outs = [partials, Output(dweight.tensor, partials.expected[2], tolerance=5e-3)]
        yield case


# What known mistakes give: another part of the index map, or other operands, or other blocks.


def _sized(change: Callable) -> dict:
    """Where the convolution with other sizes looks: ``change(g)`` names the fields that are others."""
    return {"place": lambda p, q, r, s, g: place(p, q, r, s, replace(g, **change(g)))}


def _moved(rows: int, columns: int) -> dict:
    return {"around": lambda h, w, g: around(h + rows, w + columns, g)}


_PARTS = {
    "p runs on into the next image: p = m // Q % P": {"pixel": lambda m, g: (m // (g.P * g.Q), m // g.Q, m % g.Q)},
    "p and q are swapped: q is the fastest digit of m = (n P + p) Q + q": {
        "pixel": lambda m, g: (m // (g.P * g.Q), m % g.P, m // g.P % g.Q)
    },
    "p and q are swapped where the pixel is used: rows take p, columns q": {
        "pixel": lambda m, g: (m // (g.P * g.Q), m % g.Q, m // g.Q % g.P)
    },
    "every image is taken for the first: n = m // (P Q)": {"pixel": lambda m, g: (0 * m, *pixel(m, g)[1:])},
    "r and s are swapped: s is the faster digit of j = (r S + s) C + c": {
        "tap": lambda j, g: (j // g.Ci % g.R, j // (g.R * g.Ci), j % g.Ci)
    },
    "channels come first: c is the fastest digit of j = (r S + s) C + c": {
        "tap": lambda j, g: (j // g.S % g.R, j % g.S, j // (g.R * g.S))
    },
    "stride and dilation are swapped: the stride goes with p and q, the dilation with r and s": _sized(
        lambda g: {"stride": g.dilation, "dilation": g.stride}
    ),
    "stride and dilation are swapped in h: sh goes with p, dil_h with r": _sized(
        lambda g: {"stride": (g.dilation[0], g.stride[1]), "dilation": (g.stride[0], g.dilation[1])}
    ),
    "the stride is left out: h = p * sh + ...": _sized(lambda g: {"stride": (1, 1)}),
    "the dilation is left out: h = ... + r * dil_h": _sized(lambda g: {"dilation": (1, 1)}),
    "the strides of rows and columns are swapped: sh goes with p": _sized(lambda g: {"stride": g.stride[::-1]}),
    "the dilations of rows and columns are swapped: dil_h goes with r": _sized(
        lambda g: {"dilation": g.dilation[::-1]}
    ),
    "columns take the stride of rows: sw goes with q": _sized(lambda g: {"stride": (g.stride[0],) * 2}),
    "the padding is left out: h = ... - pt": _sized(lambda g: {"padding": (0, 0, 0, 0)}),
    "the padding is added: it is subtracted, h = ... - pt": _sized(lambda g: {"padding": tuple(-n for n in g.padding)}),
    "the paddings of rows and columns are swapped: pt goes with h, pl with w": _sized(
        lambda g: {"padding": (g.padding[2], 0, g.padding[0], 0)}
    ),
    "h and w are 1 too small: h = p * sh + r * dil_h - pt": _moved(-1, -1),
    "h and w are 1 too large: h = p * sh + r * dil_h - pt": _moved(1, 1),
    "h is 1 too large: h = p * sh + r * dil_h - pt": _moved(1, 0),
    "h is 1 too small: h = p * sh + r * dil_h - pt": _moved(-1, 0),
    "w is 1 too large: w = q * sw + s * dil_w - pl": _moved(0, 1),
    "w is 1 too small: w = q * sw + s * dil_w - pl": _moved(0, -1),
    "columns beyond either edge are 0: they run round, w mod W": {"around": lambda h, w, g: (h, w)},
    "columns left of the edge are 0: w % W is negative there, add W": {
        "around": lambda h, w, g: (h, torch.where(w < 0, w, w % g.W))
    },
    "columns run round once only: w mod W, however large the padding": {
        "around": lambda h, w, g: (h, torch.where(w < 0, w + g.W, torch.where(w >= g.W, w - g.W, w)))
    },
    "W is added once before the remainder, and a wide padding needs more: w % W first, then add W where that is negative": {
        "around": lambda h, w, g: (h, torch.fmod(w + g.W, g.W))
    },
    "rows run round too: beyond the poles there are zeros, mask_h": {"around": lambda h, w, g: (h % g.H, w % g.W)},
}
OWN = "piece z owns the blocks z * per ... (z + 1) * per - 1, per = cdiv(blocks, Z)"
WRAPPED = "pixels beyond M wrap round: % M finds rows that exist, and adds them again; they must add 0 (mask_m)"


def _operands(problem: Problem):
    """Mistaken operands: (cause, A, rows of dy), None for the right ones."""
    for cause, part in _PARTS.items():
        dy = problem.rows(part["pixel"]) if "pixel" in part and problem.dy is not None else None
        yield cause, problem.columns(**part), dy
    for which, row in (("first", 0), ("last", -1)) if problem.g.H > 1 else ():
        x = problem.x.clone()
        x[:, row] = 0.0
        cause = f"the image's {which} row is taken for padding: look at the comparison in mask_h"
        yield cause, replace(problem, x=x).columns(), None


def _loops(problem: Problem):
    """Mistaken loops over all pixels: (cause, dweight)."""
    g, blocks, owned = problem.g, problem.blocks, problem.owned
    along = (torch.arange(blocks)[:, None] + torch.arange(problem.block)).flatten()
    A, dy = problem.columns(), problem.rows()
    subsets = {
        "only the last block of pixels is left: add to acc, do not replace it": owned([blocks - 1]),
        "the partial block at the end is left out: there are cdiv(M, BLOCK_K)": owned(range(g.M // problem.block)),
        "only the first image counts: the sum runs over all M = N P Q pixels": torch.arange(min(g.M, g.P * g.Q)),
        "the last block of pixels is left out: there are cdiv(M, BLOCK_K)": owned(range(blocks - 1)),
        WRAPPED: owned(range(blocks), wrapped=True),
        "every step adds the first block's pixels: offs_m moves by BLOCK_K": owned([0] * blocks),
        "block b begins at pixel b: offs_m moves by BLOCK_K, block * BLOCK_K": along[along < g.M],
    }
    for cause, m in subsets.items():
        yield cause, dy[m].mT @ A[m]
    if g.Co == problem.block and g.M % problem.block == 0:
        tiles = (x.unflatten(0, (blocks, problem.block)) for x in (dy, A))
        yield "dy is not transposed: the sum runs over its rows, tl.trans(dy)", torch.matmul(*tiles).sum(0)


def _pieces(problem: Problem):
    """Mistaken pieces: (cause, the blocks of piece z)."""
    Z, B, per = problem.pieces, problem.blocks, problem.per
    down = B // Z
    return {
        "blocks at the end belong to no piece: round up, per = cdiv(blocks, Z)": lambda z: range(z * down, (z + 1) * down),
        f"the ranges overlap: the block where one piece ends begins the next; {OWN}": (
            lambda z: range(z * B // Z, -(-(z + 1) * B // Z))
        ),
        f"the ranges overlap: each piece adds one block too many; {OWN}": (
            lambda z: range(z * per, min((z + 1) * per + 1, B))
        ),
        f"each piece adds one block, number z: {OWN}": lambda z: [z] if z < B else [],
        f"every piece adds the blocks of the first: {OWN}": lambda z: problem.mine(0),
        f"every piece adds all blocks: {OWN}": lambda z: range(B),
        f"the blocks are dealt out in turn: {OWN}": lambda z: range(z, B, Z),
        f"the last piece adds all that is left over: {OWN}": (
            lambda z: range(z * down, (z + 1) * down if z < Z - 1 else B)
        ),
    }.items()


def _sums(problem: Problem, partials: torch.Tensor):
    """Mistaken sums of the pieces: (cause, dweight)."""
    Z, A, dy = problem.pieces, problem.columns(), problem.rows()

    def added(terms):
        return sum((term.float() for term in terms), torch.zeros_like(partials[0], dtype=torch.float32)).double()

    yield "the pieces are not added from the first to the last: total starts at 0, z runs up", added(reversed(partials))
    anew = added(dy[m].mT @ A[m] for m in (problem.owned([block]) for block in range(problem.blocks)))
    yield "dweight is made anew from x and dy: it is the sum of what partials holds", anew
    yield "only the last piece is left: add to total, do not replace it", partials[-1]
    for n in range(1, Z):
        yield f"only the first {n} of the {Z} pieces are added: z runs over all Z", partials[:n].sum(0)
    yield "the first piece is left out", partials[1:].sum(0)
    yield "every step adds the first piece: the address moves by stride_z", Z * partials[0]
    yield "the sum is divided by Z: it is no mean", partials.mean(0)


def suspects(case: Case, out: Output):
    """Known mistakes of the three functions, and the answers they give."""
    problem = Problem.of(case)
    if out.name == "dweight" and len(case.outs) > 1:  # its pieces are judged before it, so their sum is wrong
        yield from _sums(problem, problem.answer("partials"))
        return
    yield from _loops(problem) if out.name == "dweight" else ()
    for cause, A, dy in _operands(problem):
        yield cause, problem.answer(out.name, A, dy)
    if out.name == "partials":
        holes = problem.answer("partials")
        holes[[z for z in range(problem.pieces) if not problem.mine(z)]] = float("nan")
        yield "a piece without blocks is not stored: it is the sum of nothing, zeros", holes
        yield WRAPPED, problem.answer("partials", wrapped=True)
        for cause, blocks_of in _pieces(problem):
            yield cause, problem.answer("partials", blocks_of=blocks_of)


# The three exercises.

MASKS = {(tensor, axis, "after"): "" for tensor, axes in AXES.items() for axis in axes}
MASKS |= {("x", "H", side): "mask_h" for side in ("before", "after")}
MASKS |= {(tensor, axis, "after"): "mask_m" for tensor, axis in (("x", "N"), ("dy", "N"), ("A", "M"))}
MASKS |= {(tensor, "J", "after"): "mask_j" for tensor in ("A", "dweight", "partials")}
MASKS |= {(tensor, "O", "after"): "mask_o" for tensor in ("dy", "dweight", "partials")}
SPOKEN = {(tensor, "N"): "M" for tensor in ("x", "dy")}  # pixels are numbered m, whatever the image

READ_FP32 = "Lesson 05, step 4"
PIXEL, MAP, TILE = (f"Lesson 40, step {step}" for step in (1, 2, 3))
PRODUCT, LOOP = "Lesson 41, step 1", "Lesson 41, step 2"
PIECES, ORDER = "Lesson 42, step 1", "Lesson 42, step 2"
BORDER, ENDS = both_ends("HW"), both_ends("OCJ")

_gather, _product, _split = (
    functools.partial(_call, *names) for names in (("x", "A"), ("x dy", "dweight"), ("x dy", "partials dweight"))
)
# Sizes that fill every block; a square image, too, so that what is swapped has the right shape, but a tile that is none.
WHOLE = (
    {"N": Size(2, 2, 3), "H": 9, "W": 9, "C": 16, "blocks": (16, 32, 16), "packed": True},
    {"N": Size(2, 2, 4), "W": 10, "S": 3, "C": 16, "blocks": (16, 32, 16), "packed": True},
)
# Numbers of pixels that fill no block, fewer than a block has, a single one, one beyond a block.
PIXELS = tuple(
    row | {"poison": both_ends("N")}
    for row in (
        {"N": 3, "H": Size(6, 5, 7), "W": 6},
        {"N": 1, "H": 3, "W": Size(4, 3, 6)},
        *({"N": 1, "H": 1, "W": W, "C": 16, "R": 1, "S": 1} for W in (1, 17)),
    )
)
CHANNELS = (
    {"C": Size(3, 3, 7, 1, 4), "O": Size(20, 17, 31), "S": 3, "poison": ENDS},
    {"C": Size(3, 1, 7), "O": Size(5, 1, 15), "R": 1, "S": 1, "poison": ENDS},
    {"C": 17, "O": 17, "R": 1, "S": 1, "poison": ENDS},
)
RAGGED = {"N": 3, "H": Size(6, 5, 7), "W": 7, "C": 3, "O": Size(20, 17, 31), "R": 3} | {
    "stride": (2, 1), "padding": (1, 2, 0, 1), "dilation": (1, 2)
}  # fmt: skip
F16 = "something is rounded to float16: acc, partials and total stay float32, and tiles keep their tensor's dtype"


def _memory(call: Callable) -> Property:
    """Channels first in memory, as NCHW has them; other orders; images and gradients that stand still."""
    cases = calls(
        call,
        {},
        {"orders": {"NHWC": "NCHW", "NPQO": "NOPQ"}},
        {"orders": {"NHWC": "WCNH", "NPQO": "QPON"}},
        {"out_orders": {"MJ": "JM", "OJ": "JO", "ZOJ": "JZO"}},
        {"shared": {"x": "N", "dy": "NPQ"}},
        {"N": 3, "W": 5, "S": 2, "Z": 3, "far": {name: axes[0] for name, axes in AXES.items()}},
        W=Size(6, 5, 9),
        S=3,
    )
    memory = "each tensor has its own strides, and some are 0: an address takes those of its own"
    return Property("strides in memory", 1, READ_STRIDES, cases, memory)


def _tiles(call: Callable, lesson: str) -> Property:
    """The same problem in blocks of several sizes."""
    blocks = ({"blocks": each} for each in ((16, 32, 64), (32, 64, 16), (64, 16, 32)))
    said = "the answer depends on a block size: offsets of block i are i * BLOCK + tl.arange(0, BLOCK)"
    return Property("block sizes", 1, lesson, calls(call, *blocks, H=Size(9, 9, 13), W=9, C=16, O=64), said)


def _exercise(
    name: str, missing: str, call: Callable, properties: tuple, lesson: str, read: float, advice: str, **compiles
) -> Exercise:
    """One of the three: two images, two tiles on each axis of the gradient, six blocks of pixels are costed."""
    # A tile as a GPU wants it, float16; then float32, whose digits are asked for.
    usual = ({"half": torch.float16, "blocks": (64, 64, 32)}, {"blocks": (32, 32, 32)})
    tiers = (Tier(3, read=read, steps=1.1), Tier(1, read=2 * read, written=4.0, steps=2.0))
    costed = calls(call, H=8, W=8, O=32, Z=3, packed=True)
    return Exercise(
        name, missing, properties, suspects, MASKS, given=("at", "at_tile"), spoken=SPOKEN,
        compiles=Compiles(calls(call, *usual, C=64, O=64, packed=True), lesson, **compiles),
        cheap=Cheap(costed, _steps, tiers, advice, lesson, sectors=2.0),
    )  # fmt: skip


IM2COL = _exercise(
    "im2col",
    "the kernel stores nothing yet. It needs the index map, a load of the pixels it points to, and a store of A.",
    _gather,
    (
        Property(
            "pixels and taps", 2, MAP, calls(_gather, *WHOLE),
            "A[m, j] = x[n, p + r, q + s, c], m = (n P + p) Q + q, j = (r S + s) C + c",
        ),
        _memory(_gather),
        Property(
            "ragged sizes", 1, TILE, calls(_gather, *PIXELS, *CHANNELS),
            "rows beyond M and columns beyond J are not stored (mask_m, mask_j)",
        ),
        Property(  # on each side another one, around a filter larger than the image, and twice round it
            "padding", 2, PIXEL,
            calls(
                _gather,
                {"N": 1, "H": 6, "W": 6, "C": 16, "R": 3, "S": 3, "padding": (2, 2, 2, 2)},
                {"H": 4, "W": 6, "R": 3, "padding": (0, Size(2, 1, 2), Size(2, 2, 3), 1)},
                {"N": 4, "H": 2, "W": 3, "R": 5, "S": 4, "padding": (3, Size(2, 2, 3), 2, 2)},
                {"N": 4, "H": 2, "W": 3, "S": 3, "padding": (0, 0, 4, Size(5, 4, 6))},
                poison=BORDER,
            ),
            "h = p * sh + r * dil_h - pt, and x is 0 where that is no row; w = (q * sw + s * dil_w - pl) mod W, 0..W-1",
        ),
        Property(  # each for rows and columns its own; a stride larger than the filter
            "stride and dilation", 2, PIXEL,
            calls(
                _gather,
                {"stride": (3, 2)},
                {"R": 3, "dilation": (2, 3)},
                {"stride": (2, 3), "dilation": (3, 1), "poison": BORDER},
                {"H": 12, "stride": (4, 3), "padding": (1, 0, 1, 0), "poison": BORDER},
                H=Size(9, 8, 11), W=11,
            ),
            "h = p * sh + r * dil_h - pt, w = q * sw + s * dil_w - pl",
        ),
        _tiles(_gather, TILE),
        Property.stays_inside(TILE, calls(_gather, **RAGGED)),
    ),
    TILE,
    3.1,
    "each element of A is loaded once, where it is stored",
)  # fmt: skip
WGRAD = _exercise(
    "wgrad",
    "the kernel stores nothing yet. It needs a loop over the blocks of pixels, and a store of dweight.",
    _product,
    (
        Property(  # and more of them than a cap would let pass
            "whole blocks", 2, PRODUCT, calls(_product, *WHOLE, {"N": 41, "C": 4, "packed": True}),
            "dweight[o, j] = sum over m of dy[m, o] A[m, j], that is dy^T A",
        ),
        _memory(_product),
        Property(
            "ragged pixels", 2, LOOP, calls(_product, *PIXELS, {"N": 0}),
            "pixels beyond M add nothing: dy and A are 0 there (mask_m)",
        ),
        Property(
            "ragged channels", 1, LOOP, calls(_product, *CHANNELS),
            "channels beyond O and columns beyond J are not stored",
        ),
        Property(
            "padding, stride, dilation", 1, PIXEL,
            calls(
                _product,
                {"H": Size(7, 7, 9), "W": 9, "padding": (1, 0, 2, 1)},
                {"H": Size(9, 9, 11), "W": 6, "padding": (0, 2, 2, 1)},
                C=Size(8, 4, 8), R=3, stride=(2, 1), dilation=(1, 2), poison=BORDER,
            ),
            "the tile of A is im2col_tile's",
        ),
        _tiles(_product, LOOP),
        Property(  # products that float16 cannot hold, sums whose last digits it cannot, and float32 values
            "float16", 1, READ_FP32,
            calls(
                _product, {"magnitude": 300.0}, {}, {"half": torch.float32}, N=8, half=torch.float16, tolerance=2e-5
            ),
            F16,
        ),
        Property.stays_inside(LOOP, calls(_product, **RAGGED)),
        Property.in_bfloat16(READ_FP32, calls(_product, half=torch.bfloat16)),
        Property(  # which a GPU's tl.dot rounds unless told otherwise, the interpreter never does
            "float32 without TF32", 0, READ_FP32, calls(_product, N=8, tolerance=2e-5), 'say input_precision="ieee"',
            needs="a GPU",
        ),
    ),
    LOOP,
    3.05,
    "there are cdiv(M, BLOCK_K) blocks of pixels, each with one load of dy and one of x; one store after the last",
    products={80: "HMMA", 90: "HGMMA"},
)  # fmt: skip


def _own(draw: Draw) -> Case:
    """A call for blocks of the learner's own, which decide what each piece sums: the sum of all is judged, not they."""
    return _split(draw, C=16, half=torch.float16, packed=True, judge=("dweight",))


SPLIT = _exercise(
    "wgrad_split",
    "the kernels store nothing yet. They need the blocks of each piece, their sum, and the sum of the pieces.",
    _split,
    (
        Property(
            "equal pieces", 2, PIECES,
            calls(_split, {}, {"Z": 4}, {"Z": 1}, N=Size(2, 1, 3), H=9, W=9, packed=True), OWN,
        ),
        _memory(_split),
        Property(  # and a partial block; more pieces, and more blocks in one, than a cap would let pass
            "unequal pieces", 2, PIECES,
            calls(
                _split,
                {"N": Size(5, 3, 9, 1, 2)},
                {"N": 7, "Z": 4},
                {"N": 3, "H": 6, "W": 6, "Z": 3},
                {"N": 19, "C": 4, "Z": 10},
                {"N": 81, "C": 4},
            ),
            OWN,
        ),
        Property(  # far more than there are blocks; though there are fewer; no blocks at all
            "pieces without blocks", 1, PIECES, calls(_split, {"Z": Size(20, 17, 31)}, {"N": 9, "Z": 7}, {"N": 0, "Z": 3}),
            "a piece without blocks is stored too, as zeros",
        ),
        Property(
            "order of the sum", 1, ORDER, _cancelling, "the pieces are added from the first to the last, in float32", F16
        ),
        Property(
            "the same bits every time", 1, ORDER,
            calls(_split, N=6, C=Size(5, 3, 7), O=Size(20, 17, 31), Z=4),
            "programs come in no fixed order, so the last bits change from run to run: one program adds up all pieces",
            needs="the interpreter",
            shared_updates=True,
        ),
        Property(
            "ragged sizes", 1, PIECES, calls(_split, *PIXELS, *CHANNELS),
            "each program's tile ends at O and J (mask_o, mask_j)",
        ),
        Property.stays_inside(PIECES, calls(_split, **RAGGED)),
    ),
    PIECES,
    3.8,
    "each block of pixels belongs to one piece, and each piece of a tile is stored once and loaded once",
    products={80: "HMMA", 90: "HGMMA"},
    own_blocks=_own,
)  # fmt: skip
