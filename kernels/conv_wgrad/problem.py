"""What a backend is asked, and what it answers: a problem, its predicted time, and its plan."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from kernels.common.operator import Layout
from kernels.conv_wgrad.geometry import Geometry


class Problem(NamedTuple):
    """All that a backend and its plan depend on; ``turned``: x and dy have each other's roles, see ``equivalent``."""

    g: Geometry
    input: Layout
    grad_output: Layout
    split_k: int | None
    precision: str
    device: torch.device
    turned: bool = False

    @property
    def dtype(self):
        """The inputs'."""
        return self.input.dtype


class Cost(NamedTuple):
    """A predicted time, and what makes it that long, as text."""

    time: float
    because: str = ""


class Plan(NamedTuple):
    """One launch that writes ``slots`` partial sums [slots, Co, R, S, Ci/groups] or, where that is one, the gradient itself.

    ``copied``: which of x and dy are made contiguous first. ``arguments(x, dy, target, bias)`` gives the kernel's tensors,
    descriptors among them; ``None``: they are ``taken`` of (dy, x, target, dy, bias). ``bias_grid``: the grid of a launch
    that brings the bias gradient, too, ``None`` where it can't.
    """

    text: str
    kernel: object
    grid: tuple[int]
    sizes: tuple
    meta: dict
    slots: int
    copied: tuple[bool, bool] = (False, False)
    taken: slice = slice(5)
    arguments: Callable | None = None
    bias_grid: tuple[int] | None = None

    def __str__(self):
        return self.text


def read_through(function, layout, *rest):
    """``(function(x, *rest), whether that is a copy)``, of a meta tensor x with this ``Layout``."""
    x = layout.meta()
    made = function(x, *rest)
    return made, made.untyped_storage() is not x.untyped_storage()
