"""How a call of the chunked form is cut: into chunks for the products, into runs of chunks that are walked side by side."""

import dataclasses
import functools
import math
from dataclasses import dataclass, field

import torch

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.math import bits, block, cdiv
from kernels.common.sequences import sequence_of_runs


@dataclass(frozen=True)
class Cut:
    """Sizes, and what the kernels are told of them. ``C`` tokens are a chunk, ``RUN`` a run; there are so many of both."""

    B: int
    T: int
    H: int
    K: int
    V: int
    N: int
    C: int
    RUN: int
    runs: int
    chunks: int
    one_run: bool
    side_by_side: int  # heads, of all sequences unless they are packed
    stored: bool
    size_class: str
    operands: torch.dtype  # of the matrix products
    device: torch.device
    switches: dict  # what the kernels are told about the packing, the strides and the numbers' format
    scalar_gates: dict  # which of them there are
    known: dict = field(default_factory=dict)  # ``options``, once asked for

    def __str__(self):
        runs = "in one run" if self.one_run else f"in runs of {self.RUN} tokens that are walked side by side"
        stored = ", from stored states" if self.stored else ""
        return f"chunks of {self.C} tokens, {runs}{stored}"

    def options(self, kernel, without=()):
        """Constexpr arguments of ``kernel``: switches and what the table of configurations says, but for some."""
        if (kernel, without) in self.known:
            return self.known[kernel, without]
        options = table_options(kernel, self.size_class, self.device, self.C, self.K, self.V, self.side_by_side)
        options = self.switches | {"C": self.C} | options
        self.known[kernel, without] = {name: value for name, value in options.items() if name not in without}
        return self.known[kernel, without]

    def reaching(self, *tensors):
        """The same for kernels that read these [B, T, heads, size], ``None`` among them: offsets within a chunk have 64 bits
        where strides ask for that."""
        size = max(self.K, self.V)
        for x in tensors:
            if x is not None:
                _, token, _, component = x.stride()
                if self.C * token + size * component >= 2**31:
                    return self.wide
        return self

    @functools.cached_property
    def wide(self):
        """The same with offsets of 64 bits."""
        return dataclasses.replace(self, switches=self.switches | {"WIDE": True}, known={})

    def untouched(self, state):
        """A fp32 copy of the state that no token changed; zeros where there is none."""
        if state is None:
            return torch.zeros(self.N, self.H, self.K, self.V, dtype=torch.float32, device=self.device)
        return state.to(torch.float32, copy=True).contiguous()


@dataclass
class Places:
    """Which sequence a call's runs and chunks belong to, ``None`` unless packed: a kernel finds it, once a call."""

    cut: Cut
    cu_seqlens: torch.Tensor | None

    @functools.cached_property
    def runs(self):
        """Of each run."""
        return sequence_of_runs(self.cu_seqlens, self.cut.runs, self.cut.RUN)

    @functools.cached_property
    def chunks(self):
        """Of each chunk."""
        return sequence_of_runs(self.cu_seqlens, self.cut.chunks, self.cut.C)


def operand_dtype(dtype):
    """The dtype of the matrix products' operands: float16 becomes float32, whose range what sums up along time may need."""
    return torch.bfloat16 if dtype == torch.bfloat16 and not runtime.interpreted else torch.float32


def size_class(K, dtype):
    """The key of the chunk kernels' tables of configurations."""
    return f"K{max(64, block(K))} {bits(operand_dtype(dtype))}"


def new_scores(q, C):
    """Where the scores of a call go, [1 or 2, B, T, H, C]: the second are what rounding to operands of 16 bits leaves."""
    stored = operand_dtype(q.dtype)
    return q.new_empty(1 if stored == torch.float32 else 2, *q.shape[:3], C, dtype=stored)


def of_scores(scores):
    """``(scores, rest)`` of what ``new_scores`` gave, ``None`` for what is not there."""
    return (None, None) if scores is None else (scores[0], scores[1] if len(scores) > 1 else None)


def cuts(key, device):
    """``{"C": tokens in a chunk, "runs": runs that fill the GPU}``; instead of runs "walks", of tiles of the state, where it
    does not fit into registers, and "one_run", the walks that are enough not to walk twice.

    Where a forward pass differs: "FORWARD_C", the tokens in a chunk if it keeps nothing for the backward pass; "NARROW",
    what holds instead for states of at most "V" values if it makes one run of each sequence.
    """
    return configuration("recurrent_attention", "chunk", key, device)


def table_options(kernel, key, device, C, K, V, side_by_side):
    """What the table says of a kernel, its tiles no larger than the state. A line may hold others: "C128" for chunks so long,
    "WIDER_V" where V has more tiles than K, "FEW" with its "walks" where so many heads have fewer tiles than that."""
    options = configuration("recurrent_attention", kernel, key, device)
    options, others = _apart(options)
    if longer := others.get(f"C{C}"):
        options, others = _apart(longer)
    sizes = {"BLOCK_K": K, "BLOCK_V": V}
    tiles = {name: cdiv(size, options.get(name, block(size))) for name, size in sizes.items()}
    if "WIDER_V" in others and tiles["BLOCK_V"] > tiles["BLOCK_K"]:
        options = others["WIDER_V"]
    if "FEW" in others and side_by_side * math.prod(tiles.values()) < others["FEW"]["walks"]:
        options = {name: value for name, value in others["FEW"].items() if name != "walks"}
    return options | {name: min(block(size), options.get(name, block(size))) for name, size in sizes.items()}


def _apart(line):
    """A line's own options, and those it holds for other cases."""
    others = {name: value for name, value in line.items() if isinstance(value, dict)}
    return {name: value for name, value in line.items() if name not in others}, others
