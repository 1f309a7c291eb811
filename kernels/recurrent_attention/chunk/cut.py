"""How a call of the chunked form is cut: into chunks for the products, into runs of chunks that are walked side by side."""

import dataclasses
import functools
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
        options = configuration("recurrent_attention", kernel, self.size_class, self.device)
        wide = options.pop("WIDER_V", {})  # where V has more tiles than K: fewer, larger ones
        if wide and cdiv(self.V, options["BLOCK_V"]) > cdiv(self.K, options["BLOCK_K"]):
            options = wide
        tiles = {"BLOCK_K": block(self.K), "BLOCK_V": block(self.V)}
        tiles = {name: min(size, options.get(name, size)) for name, size in tiles.items()}
        options = self.switches | {"C": self.C} | options | tiles
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


def cuts(key, device):
    """``{"C": tokens in a chunk, "runs": runs that fill the GPU}``; instead of runs "walks", of tiles of the state, where it
    does not fit into registers."""
    return configuration("recurrent_attention", "chunk", key, device)
