"""What a call is about: its gates as one tuple, the strides of what it is given, and all that a plan depends on."""

from collections import namedtuple
from typing import NamedTuple

import torch

from kernels.common.operator import Layout, strided

#: Something about each gate, such as its tensor, in the order of schemas and kernels; ``None`` about an absent one.
Gates = namedtuple("Gates", "g g_gamma gk gv", defaults=(None,) * 4)

#: The letters of their dimensions: batch rows, tokens, heads, rows and columns of the state. A single token's have no T.
DIMENSIONS = Gates(g="BTH", g_gamma="H", gk="BTHK", gv="BTHV")


#: Of [B, T, H, size]; 0 for what a tensor lacks: a gate's components, a token's time, all but the head of g_gamma.
Strides = namedtuple("Strides", "b t h d")

#: Of a state [N, H, K, V].
StateStrides = namedtuple("StateStrides", "n h k v")

#: The strides of all that a kernel reads and was given, ``None`` of what is absent; state: that which a loop begins with.
InputStrides = namedtuple("InputStrides", "q k v gates do state", defaults=(None, None))


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

    def strides(self, do=None, state=None):
        """The ``InputStrides``, with those of an output's gradient and of a state that have these layouts."""
        return input_strides(self.q, self.k, self.v, self.gates, do, state)


def problem_of(q, k, v, gates, cu_seqlens, reverse):
    """The ``Problem`` of these tensors, without TF32."""
    packed = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return Problem(*map(strided, (q, k, v)), Gates(*map(strided, gates)), packed, reverse, False, q.device)


def input_strides(q, k, v, gates, do=None, state=None, time="T"):
    """The ``InputStrides`` of these layouts, of all tokens; of a single token's with ``time=""``."""

    def of(layout, letters="BTHK"):
        if layout is None:
            return None
        letters = letters.replace("T", time).replace("V", "K")
        known = dict(zip(letters, layout.strides, strict=True))
        return Strides(*[known.get(letter, 0) for letter in "BTHK"])

    of_state = None if state is None else StateStrides(*state.strides)
    return InputStrides(of(q), of(k), of(v), Gates(*map(of, gates, DIMENSIONS)), of(do), of_state)


def over_group(gradient, tensor):
    """The sum of a gradient [B, T, H, size] over the query heads that share a head of ``tensor`` [B, T, Hkv, size]."""
    B, T, heads, size = tensor.shape
    if gradient.shape[2] == heads:
        return gradient
    return gradient.view(B, T, heads, gradient.shape[2] // heads, size).sum(3).to(tensor.dtype)
