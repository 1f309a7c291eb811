"""How a call of the chunked form is cut: into chunks for the products, into runs of chunks that are walked side by side."""

import functools
import math
from dataclasses import dataclass, field

import torch
import triton.language as tl

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.math import block, cdiv
from kernels.common.plan import Cost, remembered, strided
from kernels.common.precision import matmul_in_tf32
from kernels.common.sequences import count_runs, sequence_of_runs

SHORT = 16  # tokens along time up to which the recurrence takes no more steps than a chunk has rows to fill


def reason_not(problem):
    """Why chunks cannot take a problem, as text, or ``None``."""
    return "only the recurrence has gates on values (gv)" if problem.gates_on_values else None


def cost(problem):
    """In steps of the recurrence: a chunk's products take as long as SHORT of them, and the next ones' hardly longer."""
    return Cost(SHORT + 0.5, f"{problem.T} tokens along time are no more than {SHORT}: too few to fill a chunk")


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
    device: torch.device
    switches: dict  # what the kernels are told about the packing, the strides and the numbers' format
    gates: dict  # which scalar gates there are
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


def operand_dtype(q):
    """The dtype of the matrix products' operands: float16 becomes float32, whose range what sums up along time may need."""
    return torch.bfloat16 if q.dtype == torch.bfloat16 and not runtime.interpreted else torch.float32


def size_class(q):
    """The key of the chunk kernels' tables of configurations."""
    return f"K{max(64, block(q.shape[-1]))} {'16-bit' if operand_dtype(q) == torch.bfloat16 else '32-bit'}"


def cuts(q, device):
    """``{"C": tokens in a chunk, "runs": runs that fill the GPU}``; instead of runs "walks", of tiles of the state, where it
    does not fit into registers."""
    return configuration("recurrent_attention", "chunk", size_class(q), device)


def cut_of(tensors, g, g_gamma, reverse, cu_seqlens):
    """``(Cut, Places)`` of a call; ``tensors``: q, k, v, and others that have four dimensions, ``None`` among them."""
    packed = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    gates = g is not None, g_gamma is not None
    q = tensors[0]
    cut = plan(tuple(map(strided, tensors)), gates, reverse, packed, matmul_in_tf32(), q.device)
    return cut, Places(cut, cu_seqlens)


@remembered
def plan(tensors, gates, reverse, packed, tf32, device):
    """The ``Cut``. A sequence is one run when there are heads enough to fill the GPU, else several, chained afterwards."""
    tensors = [x for x in tensors if x is not None]
    q, _, v, *_ = tensors
    B, T, H, K = q.shape
    V = v.shape[-1]
    N = B if packed is None else packed
    table = cuts(q, device)
    C = table["C"]
    side_by_side = N * H if packed is None else H
    # a state too large for one program's registers is walked in tiles, each by a program of its own, and stored
    if stored := "walks" in table:
        options = configuration("recurrent_attention", "chunk_states", size_class(q), device)
        side_by_side *= math.prod(cdiv(size, options.get(f"BLOCK_{axis}", size)) for axis, size in (("K", K), ("V", V)))
    wanted = cdiv(table["walks" if stored else "runs"], max(side_by_side, 1))  # runs a sequence, or a head
    RUN = max(cdiv(cdiv(T, wanted), C), 1) * C
    if q.dtype == torch.float32:
        precision = "tf32" if tf32 else "tf32x3"
    else:
        precision = "tf32"  # as many bits as float16 has, with float32's range for what sums up
    switches = {
        "DTYPE": tl.bfloat16 if operand_dtype(q) == torch.bfloat16 else tl.float32,
        "PRECISION": precision,
        "PACKED": packed is not None,
        "REVERSE": reverse,
        "WIDE": any(C * x.strides[1] + x.shape[3] * x.strides[3] >= 2**31 for x in tensors),
    }
    runs, chunks = count_runs(packed, N, T, RUN), count_runs(packed, N, T, C)
    scalar = dict(zip(("USE_G", "USE_GAMMA"), gates, strict=True))
    return Cut(B, T, H, K, V, N, C, RUN, runs, chunks, RUN >= T, stored, size_class(q), device, switches, scalar)
