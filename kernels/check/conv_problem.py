"""Exercise 08 in plain PyTorch: its index map part by part, its sums and pieces."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.check.framework import Case
from kernels.conv_wgrad.reference import Geometry, conv2d_wgrad_reference, geometry
from kernels.conv_wgrad.reference import im2col as im2col_reference


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

    @property
    def blocks(self) -> int:
        """Blocks of pixels, the last one perhaps partial."""
        return -(-self.g.M // self.block)

    @property
    def per(self) -> int:
        """Blocks in a piece."""
        return -(-self.blocks // self.pieces)

    def columns(self, pixel=pixel, tap=tap, place=place, around=around) -> torch.Tensor:
        """A [M, J] by these parts of the index map."""
        n, p, q = pixel(torch.arange(self.g.M)[:, None], self.g)
        r, s, c = tap(torch.arange(self.g.columns), self.g)
        return gathered(self.x, n, *around(*place(p, q, r, s, self.g), self.g), c)

    def rows(self, pixel=pixel) -> torch.Tensor:
        """dy as [M, O] by this part of the index map."""
        return gathered(self.dy, *(i[:, None] for i in pixel(torch.arange(self.g.M), self.g)), torch.arange(self.g.Co))

    def owned(self, blocks) -> torch.Tensor:
        """The pixels of these blocks that exist."""
        m = torch.tensor(list(blocks), dtype=torch.long)[:, None] * self.block + torch.arange(self.block)
        return m[(m >= 0) & (m < self.g.M)]

    def wrapped(self, blocks) -> torch.Tensor:
        """The pixels of these blocks, those beyond the last one counted from the first."""
        m = torch.tensor(list(blocks), dtype=torch.long)[:, None] * self.block + torch.arange(self.block)
        return m.flatten() % max(self.g.M, 1)

    def pieces_of(self, A, dy, blocks_of: Callable, pixels_of: Callable | None = None) -> torch.Tensor:
        """Partial sums [Z, O, J] where ``blocks_of(z)`` are the blocks that piece z sums, and ``pixels_of`` their pixels."""
        owned = [(pixels_of or self.owned)(blocks_of(z)) for z in range(self.pieces)]
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
        return dy.mT @ A if name == "dweight" else self.pieces_of(A, dy, self.mine)


def by_reference(problem: Problem) -> dict[str, torch.Tensor]:
    """The right answers, by the package's reference on images whose columns beyond either edge stand there."""
    g, (top, bottom, left, right) = problem.g, problem.g.padding
    x = problem.x[:, :, torch.arange(-left, g.W + right) % g.W]
    how = (g.R, g.S, g.stride, (top, bottom, 0, 0), g.dilation)
    if problem.dy is None:
        return {"A": im2col_reference(x, geometry(x.shape, g.Co, *how)).reshape(g.M, g.columns)}
    images = [conv2d_wgrad_reference(x, problem.dy, *how)]
    for z in range(problem.pieces):
        own = torch.zeros(g.M, 1, dtype=torch.float64)
        own[problem.owned(problem.mine(z))] = 1.0
        images.append(conv2d_wgrad_reference(x, problem.dy * own.view(g.N, g.P, g.Q, 1), *how))
    dweight, *partials = (image.reshape(g.Co, g.columns) for image in images)
    return {"dweight": dweight, "partials": torch.stack(partials)}


def problem_of(case: Case) -> Problem:
    """The problem that a case poses."""
    tensors = {tensor.name: tensor for tensor in case.tensors}
    values = {tensor.name: tensor.values.double() for tensor in case.inputs}
    names = ("R", "S", "stride", "padding", "dilation")
    g = geometry(values["x"].shape, tensors["dy"].size("O") if "dy" in tensors else 1, *(case.launch[n] for n in names))
    pieces = tensors["partials"].size("Z") if "partials" in tensors else 1
    return Problem(values["x"], values.get("dy"), g, case.launch["BLOCK_K"], pieces)
