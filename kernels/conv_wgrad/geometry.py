"""The sizes of a 2-D convolution, normalised and checked once, for the operators and every backend."""

import math
from dataclasses import dataclass

import torch

from kernels.common.checks import is_whole, shown


@dataclass(frozen=True)
class Geometry:
    """All sizes of one convolution. Output pixel (p, q) sees, through tap (r, s), input pixel

    .. math:: h = p\\,\\sigma_h + r\\,\\delta_h - p_t, \\qquad w = q\\,\\sigma_w + s\\,\\delta_w - p_l

    Attributes:
        N, H, W, Ci: images, their height, width and channels.
        Co: output channels.
        R, S: height and width of the filter.
        stride, dilation: :math:`(\\sigma_h, \\sigma_w)` and :math:`(\\delta_h, \\delta_w)`.
        padding: rows and columns of zeros: (top, bottom, left, right).
        groups: input and output channels are cut into this many groups that do not see each other.
    """

    N: int
    H: int
    W: int
    Ci: int
    Co: int
    R: int
    S: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def span(self):
        """Input pixels from a filter's first tap to its last, (height, width): more than (R, S) where it is dilated."""
        return self.dilation[0] * (self.R - 1) + 1, self.dilation[1] * (self.S - 1) + 1

    @property
    def padded(self):
        """Height and width of the padded input."""
        top, bottom, left, right = self.padding
        return self.H + top + bottom, self.W + left + right

    @property
    def P(self):
        """Height of the output, 0 where the filter does not fit."""
        return max(0, (self.padded[0] - self.span[0]) // self.stride[0] + 1)

    @property
    def Q(self):
        """Width of the output, 0 where the filter does not fit."""
        return max(0, (self.padded[1] - self.span[1]) // self.stride[1] + 1)

    @property
    def M(self):
        """Output pixels of all images: the length of the weight gradient's reduction."""
        return self.N * self.P * self.Q

    @property
    def Ci_group(self):
        """Input channels of a group."""
        return self.Ci // self.groups

    @property
    def Co_group(self):
        """Output channels of a group."""
        return self.Co // self.groups

    @property
    def columns(self):
        """Columns of im2col, (r, s, c) flattened: weights of one output channel."""
        return self.R * self.S * self.Ci_group

    @property
    def pointwise(self):
        """Whether output pixel (p, q) sees input pixel (p, q) alone: the input is im2col already."""
        return (self.R, self.S, *self.stride, *self.padding) == (1, 1, 1, 1, 0, 0, 0, 0)

    @property
    def input_shape(self):
        """[N, H, W, Ci]."""
        return self.N, self.H, self.W, self.Ci

    @property
    def output_shape(self):
        """[N, P, Q, Co]."""
        return self.N, self.P, self.Q, self.Co

    @property
    def weight_shape(self):
        """[Co, R, S, Ci/groups]."""
        return self.Co, self.R, self.S, self.Ci_group

    @property
    def padding_of_torch(self):
        """``((h, w), (left, right, top, bottom))``: padding that torch's convolution can do, and the rest for ``F.pad``."""
        top, bottom, left, right = self.padding
        h, w = min(top, bottom), min(left, right)
        return (h, w), (left - w, right - w, top - h, bottom - h)

    @property
    def flops(self):
        """Floating-point operations of the weight gradient, a multiplication and an addition each."""
        return 2 * self.M * self.Co * self.columns

    def check_output(self):
        """Raise ``ValueError`` unless the filter fits in the padded input, as a forward pass needs it to."""
        if self.P == 0 or self.Q == 0:
            raise ValueError(
                f"weight's filter spans {self.span[0]} x {self.span[1]} pixels, needs to fit in the padded input of "
                f"{self.padded[0]} x {self.padded[1]}"
            )


def geometry(input_shape, Co, R, S, stride=1, padding=0, dilation=1, groups=1):
    """The checked ``Geometry`` of a convolution from the arguments as a caller writes them.

    Args:
        input_shape: (N, H, W, Ci).
        Co: output channels.
        R, S: height and width of the filter, at least 1.
        stride, dilation: int or (h, w), at least 1.
        padding: int, (h, w) or (top, bottom, left, right), at least 0; ``"valid"``: none; ``"same"``: as many as the filter's
            span takes away, the odd one at the bottom and on the right, for a stride of 1.
        groups: at least 1; divides Ci and Co.

    Raises:
        ValueError: an argument is not as above.
    """
    N, H, W, Ci = input_shape
    R, S, groups = (_integers(name, (value,), 1, value)[0] for name, value in (("R", R), ("S", S), ("groups", groups)))
    stride = _pair("stride", stride)
    dilation = _pair("dilation", dilation)
    given = padding
    if isinstance(padding, str):
        padding = _named_padding(padding, R, S, stride, dilation)
    padding = tuple(padding) if isinstance(padding, (tuple, list)) else (padding, padding)
    if len(padding) == 2:
        padding = (padding[0], padding[0], padding[1], padding[1])
    if len(padding) != 4:
        raise ValueError(
            f'padding is {shown(given)}, needs an int, (h, w), (top, bottom, left, right), "valid" or "same"'
        )
    padding = _integers("padding", padding, 0, given)
    for name, channels in (("input", Ci), ("the output", Co)):
        if channels % groups:
            raise ValueError(f"groups is {groups}, needs to divide the {channels} channels of {name}")
    return Geometry(N, H, W, Ci, Co, R, S, stride, padding, dilation, groups)


def tile_waste(shape, tiles):
    """How much of a tiled product is more than asked for: padded volume over volume, 1.0 where every tile is full.

    Args:
        shape: sizes of the product, such as (rows, columns, reduction).
        tiles: the tile along each.
    """
    padded = math.prod(-(-size // tile) * tile for size, tile in zip(shape, tiles, strict=True))
    return padded / math.prod(shape)


def _named_padding(name, R, S, stride, dilation):
    if name == "valid":
        return 0, 0, 0, 0
    if name != "same":
        raise ValueError(
            f'padding is {shown(name)}, needs "valid" or "same", an int, (h, w) or (top, bottom, left, right)'
        )
    if stride != (1, 1):
        raise ValueError(f'stride is {shown(stride)}, needs 1 with padding="same"')
    h, w = dilation[0] * (R - 1), dilation[1] * (S - 1)
    return h // 2, h - h // 2, w // 2, w - w // 2


def _pair(name, value):
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name} is {shown(value)}, needs an int or (h, w)")
    return _integers(name, pair, 1, value)


def _integers(name, values, least, given):
    """``values``, with numpy's integers as Python's."""
    for value in values:
        if not is_whole(value) or value < least:
            raise ValueError(f"{name} is {shown(given)}, needs whole numbers of at least {least}")
    return tuple([value if isinstance(value, int | torch.SymInt) else int(value) for value in values])
