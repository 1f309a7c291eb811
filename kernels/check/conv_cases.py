"""The calls that the checks of exercise 08 make: how each of the three functions is called, property by property."""

import functools
from dataclasses import dataclass, replace

import torch

from kernels.check.conv_problem import Problem, by_reference, problem_of
from kernels.check.framework import Case, Draw, Fenced, Output
from kernels.check.tensors import both_ends
from kernels.conv_wgrad.reference import geometry

AXES = {"x": "NHWC", "dy": "NPQO", "A": "MJ", "dweight": "OJ", "partials": "ZOJ"}
BORDER = both_ends("HW")


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
        fence = {"N": 2, "H": 4, "W": 4, "O": blocks[0], "J": blocks[1], "M": blocks[2], "Z": 1}
        fence = None if how.get("packed") else fence

        def values(name, *shape):
            if name in how.get("values", {}):
                return how["values"][name]
            return draw.normal(*shape, scale=how.get("magnitude", 1.0), dtype=how.get("half", torch.float32))

        inputs = []
        for name in self.inputs:
            order, still = how.get("orders", {}).get(name, ""), how.get("shared", {}).get(name, "")
            make = functools.partial(values, name)
            inputs.append(Fenced.of(name, AXES[name], sizes, make, fence=fence, order=order, shared=still))
        launch = {"R": R, "S": S, "stride": stride, "padding": padding, "dilation": dilation}
        launch |= {f"BLOCK_{axis}": n for axis, n in zip("MNK", blocks) if f"BLOCK_{axis}" in self.blocks}
        case = Case(inputs, [], launch, poison=how.get("poison", ()))
        x, *dy = (tensor.values.double() for tensor in inputs)
        answers = by_reference(Problem(x, dy[0] if dy else None, g, blocks[2], Z))
        for name in self.outs:
            order = how.get("out_order", {}).get(name, "")
            tensor = Fenced.of(name, AXES[name], sizes, torch.empty, fence=fence, order=order)
            # The precision property alone looks at the last digits.
            case.outs.append(Output(tensor, answers[name], tolerance=how.get("tolerance", 5e-3)))
        return case

    # What more than one of the functions is held to.

    def whole(self, draw):
        """Sizes that fill every block, several images; a square image, too, so that what is swapped has the right shape.

        A tile of A is no square: a column that should be a row has the wrong shape at once.
        """
        how = {"C": 16, "blocks": (16, 32, 16), "packed": True}
        yield self.case(draw, N=draw.size(2, 2, 3), H=9, W=9, **how)
        yield self.case(draw, N=draw.size(2, 2, 4), W=10, S=3, **how)

    def padded(self, draw):
        """Padding on all sides, on each side another one, around a filter larger than the image, and twice round it."""
        yield self.case(draw, N=1, H=6, W=6, C=16, R=3, S=3, padding=(2, 2, 2, 2), poison=BORDER)
        yield self.case(draw, H=4, W=6, R=3, padding=(0, draw.size(2, 1, 2), draw.size(2, 2, 3), 1), poison=BORDER)
        yield self.case(draw, N=4, H=2, W=3, R=5, S=4, padding=(3, draw.size(2, 2, 3), 2, 2), poison=BORDER)
        yield self.case(draw, N=4, H=2, W=3, S=3, padding=(0, 0, 4, draw.size(5, 4, 6)), poison=BORDER)

    def spread(self, draw):
        """Strides and dilations, each for rows and columns its own; a stride larger than the filter."""
        H = draw.size(9, 8, 11)
        yield self.case(draw, H=H, W=11, stride=(3, 2))
        yield self.case(draw, H=H, W=11, R=3, dilation=(2, 3))
        yield self.case(draw, H=H, W=11, stride=(2, 3), dilation=(3, 1), poison=BORDER)
        yield self.case(draw, H=12, W=11, stride=(4, 3), padding=(1, 0, 1, 0), poison=BORDER)

    def everywhere(self, draw):
        """All of it at once."""
        for H, W, top, bottom in ((7, 9, 1, 0), (9, 6, 0, 2)):
            how = {"stride": (2, 1), "padding": (top, bottom, 2, 1), "dilation": (1, 2)}
            yield self.case(draw, H=draw.size(H, H, H + 2), W=W, C=draw.size(8, 4, 8), R=3, **how, poison=BORDER)

    def pixels(self, draw):
        """Numbers of pixels that fill no block, fewer than a block has, a single one, one beyond a block."""
        after = both_ends("N")
        yield self.case(draw, N=3, H=draw.size(6, 5, 7), W=6, poison=after)
        yield self.case(draw, N=1, H=3, W=draw.size(4, 3, 6), poison=after)
        for W in (1, 17):
            yield self.case(draw, N=1, H=1, W=W, C=16, R=1, S=1, poison=after)

    def channels(self, draw):
        """Numbers of channels and columns that fill no block, fewer than a block has, and one more."""
        ends = both_ends("OCJ")
        yield self.case(draw, C=draw.size(3, 3, 7, but_not_of=4), O=draw.size(20, 17, 31), S=3, poison=ends)
        yield self.case(draw, C=draw.size(3, 1, 7), O=draw.size(5, 1, 15), R=1, S=1, poison=ends)
        yield self.case(draw, C=17, O=17, R=1, S=1, poison=ends)

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
        yield self.case(draw, **sizes, out_order={"A": "JM", "dweight": "JO", "partials": "JZO"})
        yield self.case(draw, **sizes, shared={"x": "N", "dy": "NPQ"})
        yield self.case(draw, N=3, Z=3).stretched(x="N", dy="N", A="M", dweight="O", partials="Z")

    def half(self, draw):
        """float16 values whose products float16 cannot hold, sums whose last digits it cannot, and float32 values."""
        for magnitude in (300.0, 1.0):
            yield self.case(draw, N=8, half=torch.float16, magnitude=magnitude, tolerance=2e-5)
        yield self.case(draw, N=8, tolerance=2e-5)

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

    def usual(self, draw):
        """A tile as a GPU wants it, float16; then float32, whose digits are asked for."""
        for half, blocks in ((torch.float16, (64, 64, 32)), (torch.float32, (32, 32, 32))):
            yield self.case(draw, C=64, O=64, half=half, blocks=blocks, packed=True)

    def own(self, draw) -> Case:
        """A call for blocks of the learner's own, which decide what each piece sums: the sum of all is judged, not they."""
        case = self.case(draw, C=16, half=torch.float16, packed=True)
        case.outs = [out if out.name == "dweight" else replace(out, expected=None) for out in case.outs]
        return case

    def costed(self, draw):
        """Two images, two tiles on each axis of the gradient, six blocks of pixels, nothing ragged but the last block."""
        yield self.case(draw, N=2, H=8, W=8, C=8, O=32, R=2, S=2, Z=3, packed=True)

    def steps(self, case: Case) -> int:
        """A load and a store for each tile of A; two loads for each block of each tile, and a store; the pieces' sum."""
        problem, (outer, columns) = problem_of(case), case.outs[-1].tensor.shape
        across = -(-columns // case.launch["BLOCK_N"])
        if "A" in self.outs:
            return 2 * problem.blocks * across
        tiles = -(-outer // case.launch["BLOCK_M"]) * across
        pieces = problem.pieces if "partials" in self.outs else 0
        return tiles * (2 * problem.blocks + 1 + (2 * pieces if pieces else 0))

    def ragged(self, draw):
        """Pixels, then channels and columns that fill no block."""
        yield from self.pixels(draw)
        yield from self.channels(draw)

    def no_pixels(self, draw):
        """The same for pixels, and no image at all."""
        yield from self.pixels(draw)
        yield self.case(draw, N=0)

    def even(self, draw):
        """Blocks that the pieces share evenly."""
        for Z in (2, 4, 1):
            yield self.case(draw, N=draw.size(2, 1, 3), H=9, W=9, Z=Z, packed=True)

    def uneven(self, draw):
        """Blocks that the pieces do not share evenly, and a partial one; each piece has some."""
        yield self.case(draw, N=draw.size(5, 3, 9, but_not_of=2), Z=2)
        yield self.case(draw, N=7, Z=4)
        yield self.case(draw, N=3, H=6, W=6, Z=3)

    def more_pieces(self, draw):
        """Far more pieces than blocks; pieces without blocks though there are fewer; no blocks at all."""
        yield self.case(draw, N=2, Z=draw.size(20, 17, 31))
        yield self.case(draw, N=9, Z=7)
        yield self.case(draw, N=0, Z=3)

    def cancelling(self, draw):
        """Three pieces, of which the second undoes the large first: in order, the third is left to its last digit."""
        x, dy = draw.normal(3, 5, 5, 8), draw.normal(3, 4, 4, 16)
        x[1], dy[0], dy[1] = x[0], 2.0**30 * dy[0], -(2.0**30) * dy[0]
        yield self.case(draw, N=3, Z=3, values={"x": x, "dy": dy})
        # The second block of the second piece is lost in it; in a sum of all blocks it would not be.
        x, dy = draw.normal(6, 5, 5, 8), draw.normal(6, 4, 4, 16)
        x[2], dy[0], dy[1], dy[2] = x[0], 2.0**60 * dy[0], 0.0, -(2.0**60) * dy[0]
        case = self.case(draw, N=6, Z=3, values={"x": x, "dy": dy})
        partials, dweight = case.outs
        case.outs = [partials, Output(dweight.tensor, partials.expected[2], tolerance=5e-3)]
        yield case

    def several_pieces(self, draw):
        """Several pieces of everything ragged."""
        yield self.case(draw, N=6, C=draw.size(5, 3, 7), O=draw.size(20, 17, 31), Z=4)
