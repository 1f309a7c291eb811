"""What a backend is asked, and what it answers: a problem, or another convolution's that has the same sums, and its plan.

A weight gradient may be that of another convolution which has the same sums: what a kernel then reads and pads is less.

Patches. Where the taps of a row neither overlap nor leave gaps, stride = S, or there is one output column, the S pixels that
an output pixel sees of a row lie side by side in memory: S pixels of Ci channels are one pixel of S Ci channels, and a filter
of R x S taps is one of R x 1. Where patches are as high as they are far apart, too, rows of patches are images of their own.

Roles. With stride 1, count from the input pixel (h, w) instead: the output pixel that sees it through tap (r, s) is
(h - r δh + pt, w - s δw + pl). With r' = R - 1 - r and s' = S - 1 - s,

    dw[o, r, s, c] = sum_(n, h, w) x[n, h, w, c] dy[n, h + r' δh - p't, w + s' δw - p'l, o],     p't = (R - 1) δh - pt,

which is a weight gradient, too: im2col is that of dy, x is read once, and rows of the product are input channels. That is
less where there are fewer output channels than input channels, a tile's rows are a multiple of 64, or a tap is a copy.

Pixels as groups. Of a filter of one tap over dense images, F pixels are one pixel of F groups of channels: the gradient is
the sum of the groups', F partial sums. Rows of F C channels are multiples of 16 bytes, which TMA and loads of whole vectors
need, whatever C is; and few channels fill a tile, as many groups as fit in it multiplied together.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from kernels.common.operator import Layout
from kernels.conv_wgrad.geometry import Geometry

TMA_STEPS = 8  # pixels that TMA steps over at most
VECTOR = 8  # channels in 16 bytes
TOGETHER_CHANNELS = 128  # of groups that are multiplied as one in a product of rows, on the side that has more


class Problem(NamedTuple):
    """All that a backend and its plan depend on; ``precision``: torch's switch for float32 in convolutions; ``turned``: x and
    dy have each other's roles; ``fold``: so many pixels are groups of one, whose gradients are partial sums."""

    g: Geometry
    input: Layout
    grad_output: Layout
    split_k: int | None
    precision: str
    device: torch.device
    turned: bool = False
    fold: int = 1

    @property
    def dtype(self):
        """The inputs'."""
        return self.input.dtype

    @property
    def input_precision(self):
        """How float32 is multiplied, as Triton says it; ``None`` of other dtypes."""
        return ("tf32" if self.precision == "tf32" else "ieee") if self.dtype == torch.float32 else None


class Plan(NamedTuple):
    """One launch that writes ``slots`` partial sums [slots, Co, R, S, Ci/groups] or, where that is one, the gradient itself.

    ``arguments(x, dy, target)`` gives the kernel's tensors, descriptors among them. ``copied``: why x and dy are first
    copied, by ``copy``; empty where they are not.
    """

    text: str
    kernel: object
    grid: tuple[int]
    sizes: tuple
    meta: dict
    slots: int
    arguments: Callable | None = None
    copied: tuple[str, str] = ("", "")
    copy: Callable = torch.Tensor.contiguous


class Equivalent(NamedTuple):
    """A convolution with the same sums: its ``problem``, which kernels are given, and how its tensors come from those of the
    ``Geometry`` g. ``f`` is g with ``patches_as_channels``; ``copied``: why the input is copied for that, or empty."""

    g: Geometry
    f: Geometry
    problem: Problem
    copied: str = ""

    def tensors(self, input, grad_output):
        """``(input, grad_output)`` of the problem."""
        g, x = self.problem.g, patches(input, self.g, self.f)
        x, dy = (grad_output, x) if self.problem.turned else (x, grad_output)
        return x.reshape(g.input_shape), dy.reshape(g.output_shape)

    def __str__(self):
        said = []
        if self.f is not self.g:
            what = f"{self.f.R}x{self.f.S} over {self.f.Ci} channels"
            said.append(f"patches of {self.g.R}x{self.g.S} pixels lie side by side, a filter of {what}")
        if self.problem.turned:
            said.append("x and dy in each other's roles")
        if self.problem.fold > 1:
            said.append(f"{self.problem.fold} pixels side by side are groups of one")
        return "; ".join(said)


def equivalents(problem):
    """``[Equivalent, ...]`` of a problem: with patches as channels, and turned and folded where that is possible."""
    g, f = problem.g, patches_as_channels(problem.g)
    input, grad_output, copied = problem.input, problem.grad_output, ""
    if f is not g:
        input, copies = read_through(patches, input, g, f)
        grad_output, _ = read_through(torch.Tensor.reshape, grad_output, f.output_shape)
        copied = "its patches do not lie side by side" * copies
    plain = problem._replace(g=f, input=input, grad_output=grad_output)
    found = [Equivalent(g, f, plain, copied)]
    if t := turned(f):
        other = plain._replace(g=t, input=grad_output, grad_output=input, turned=True)
        found.append(Equivalent(g, f, other, copied))
    if other := folded(plain):
        found.append(Equivalent(g, f, other, copied))
    return found


def patches_as_channels(g):
    """The ``Geometry`` of the same sums whose patches are channels, g itself where they overlap or leave gaps."""
    if g.groups > 1 or 0 in (g.M, g.Ci):
        return g
    top, bottom, left, right = g.padding
    if g.S > 1 and g.dilation[1] == 1 and not left and not right and (g.stride[1] == g.S or g.Q == 1):
        pairs = {"stride": (g.stride[0], 1), "dilation": (g.dilation[0], 1)}
        g = replace(g, W=g.Q, Ci=g.S * g.Ci, S=1, **pairs)
    rows = g.stride[0] == g.R and g.dilation[0] == 1 and not top and not bottom and g.H == g.P * g.R
    if g.R > TMA_STEPS and g.S == 1 and g.stride[1] == 1 and not left and not right and rows:
        g = replace(g, N=g.N * g.P, H=g.R, stride=(1, 1))
    return g


def turned(g):
    """The ``Geometry`` of the same sums with x and dy in each other's roles, or ``None``: where the stride is not 1, or the
    padding is wider than the filter."""
    top, bottom, left, right = g.padding
    high, wide = g.span[0] - 1, g.span[1] - 1
    padding = (high - top, high - bottom, wide - left, wide - right)
    if g.groups > 1 or g.stride != (1, 1) or min(padding) < 0 or 0 in (g.M, g.Ci):
        return None
    return Geometry(g.N, g.P, g.Q, g.Co, g.Ci, g.R, g.S, (1, 1), padding, g.dilation)


def folded(problem):
    """The same ``Problem`` with pixels as groups, as few as make rows whole vectors and fill a tile; ``None`` where that is
    one pixel, or not possible."""
    g, tensors, fold = problem.g, (problem.input, problem.grad_output), 1
    narrow = lambda: 2 * fold * max(g.Ci, g.Co) <= TOGETHER_CHANNELS  # noqa: E731
    aligned = lambda: fold * g.Ci % VECTOR == 0 == fold * g.Co % VECTOR  # noqa: E731
    if not g.pointwise or g.groups > 1 or g.M == 0 or min(g.Ci, g.Co) < 2:
        return None
    while (narrow() or not aligned()) and g.M % (2 * fold) == 0:
        fold *= 2
    if fold == 1 or not aligned() or not all(t.meta().is_contiguous() for t in tensors):
        return None
    rows = Geometry(1, 1, g.M // fold, fold * g.Ci, fold * g.Co, 1, 1, groups=fold)
    view = lambda t, shape: Layout(shape, t.meta().view(shape).stride(), t.dtype, t.address)  # noqa: E731
    x, dy = view(problem.input, rows.input_shape), view(problem.grad_output, rows.output_shape)
    return problem._replace(g=rows, input=x, grad_output=dy, fold=fold)


def patches(x, g, f):
    """``x`` of the ``Geometry`` g as f, with patches as channels, sees it: a view where that is possible, or a copy."""
    return x if f is g else x[:, :, : f.W * f.Ci // g.Ci].reshape(f.input_shape)


def read_through(function, layout, *rest):
    """``(Layout of function(x, *rest), whether that is a copy)``, of a tensor x with this ``Layout``."""
    x = layout.meta()
    made = function(x, *rest)
    copied = made.untyped_storage() is not x.untyped_storage()
    return Layout(tuple(made.shape), made.stride(), layout.dtype, 0 if copied else layout.address), copied
