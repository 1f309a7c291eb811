"""What a call is about: its gates as one tuple, the strides of what it is given, and all that a plan depends on."""

from typing import Any, NamedTuple

import torch

from kernels.common.operator import Layout


class Gates(NamedTuple):
    """Something about each gate, such as its tensor, in the order of schemas and kernels; ``None`` about an absent one."""

    g: Any = None
    g_gamma: Any = None
    gk: Any = None
    gv: Any = None


#: The letters of their dimensions: batch rows, tokens, heads, rows and columns of the state. A single token's have no T.
DIMENSIONS = Gates(g="BTH", g_gamma="H", gk="BTHK", gv="BTHV")


class Strides(NamedTuple):
    """Of [B, T, H, size]; 0 for what a tensor lacks: a gate's components, a token's time, all but the head of g_gamma."""

    b: int
    t: int
    h: int
    d: int


class StateStrides(NamedTuple):
    """Of a state [N, H, K, V]."""

    n: int
    h: int
    k: int
    v: int


class Problem(NamedTuple):
    """All that a plan depends on: layouts of what tokens bring, ``None`` among them, and options."""

    q: Layout
    k: Layout
    v: Layout
    gates: Gates
    packed: int | None  # how many sequences, if they are
    reverse: bool
    tf32: bool  # whether float32 products of chunks may be made of TF32
    device: torch.device

    @property
    def sizes(self):
        """``(B, T, H, K, V, N)``."""
        return (*self.q.shape, self.v.shape[3], self.q.shape[0] if self.packed is None else self.packed)

    @property
    def group(self):
        """How many consecutive query heads share one head of k and v."""
        return self.q.shape[2] // max(self.k.shape[2], 1)


def strides(layout, letters="BTHK"):
    """The ``Strides`` of a tensor whose dimensions have these letters; ``None`` of ``None``."""
    if layout is None:
        return None
    of = dict(zip(letters.replace("V", "K"), layout.strides, strict=True))
    return Strides(*[of.get(letter, 0) for letter in "BTHK"])


def gate_strides(gates, token=False):
    """Those of all gates, of all tokens or of a single one."""
    letters = [letters.replace("T", "" if token else "T") for letters in DIMENSIONS]
    return Gates(*map(strides, gates, letters))


def state_strides(layout):
    """The ``StateStrides`` of a state, ``None`` of ``None``."""
    return None if layout is None else StateStrides(*layout.strides)


def over_group(gradient, tensor):
    """The sum of a gradient [B, T, H, size] over the query heads that share a head of ``tensor`` [B, T, Hkv, size]."""
    B, T, heads, size = tensor.shape
    if gradient.shape[2] == heads:
        return gradient
    return gradient.view(B, T, heads, gradient.shape[2] // heads, size).sum(3).to(tensor.dtype)
