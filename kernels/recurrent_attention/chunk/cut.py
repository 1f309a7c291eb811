"""How a call of the chunked form is cut: into chunks for the products, into runs of chunks that are computed side by side."""

import math
from typing import NamedTuple

import torch
import triton.language as tl

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.math import bits, block, cdiv
from kernels.common.sequences import count_runs
from kernels.recurrent_attention.chunk.rows import Tile


class Cut(NamedTuple):
    """Tokens in a chunk and in a run, how many there are of both, and whether states that enter chunks are stored."""

    C: int
    RUN: int
    runs: int
    chunks: int
    one_run: bool  # each sequence
    stored: bool
    problem: tuple
    wide: bool  # whether offsets within a chunk have 64 bits

    def __str__(self):
        runs = "in one run" if self.one_run else f"in runs of {self.RUN} tokens, computed side by side"
        stored = ", from stored states" if self.stored else ""
        return f"chunks of {self.C} tokens, {runs}{stored}"

    def options(self, kernel, **more):
        """Options of ``kernel``: a ``Tile``, of numbers' formats and what the table says; those of a launch."""
        p, operands = self.problem, operand_dtype(self.problem.q.dtype)
        B, T, H, K, V, N = p.sizes
        heads = H if p.packed is not None else N * H
        options = table_options(kernel, size_class(K, p.q.dtype), p.device, self.C, (K, V), heads)
        more |= {name: options.pop(name) for name in Tile._fields if name in options}
        DTYPE = tl.bfloat16 if operands == torch.bfloat16 else tl.float32
        # as many bits as float16 has, with float32's range for what sums up
        PRECISION = "tf32" if p.tf32 or p.q.dtype != torch.float32 else "tf32x3"
        tile = Tile(self.C, DTYPE=DTYPE, PRECISION=PRECISION, REVERSE=p.reverse, WIDE=self.wide, **more)
        return options | {"TILE": tile}


def cut(problem, do=None):
    """The ``Cut`` of a ``Problem``; backward with the layout of the output's gradient.

    A sequence is one run when there are heads enough to fill the GPU, else several, which are chained afterwards.
    """
    K, V = problem.sizes[3:5]
    table = cuts(size_class(K, problem.q.dtype), problem.device)
    both = _cut(problem, table, do)
    if do is not None:
        return both
    if "NARROW" in table and table["NARROW"]["V"] >= V:
        narrow = _cut(problem, table["NARROW"])
        if narrow.one_run:
            return narrow
    if "FORWARD_C" in table and problem.gates.gk is None:  # what gk comes to in a chunk is the backward pass's, too
        return _cut(problem, table | {"C": table["FORWARD_C"]})
    return both


def _cut(problem, table, do=None):
    """By a table as ``cuts`` has it."""
    B, T, H, K, V, N = problem.sizes
    C, packed = table["C"], problem.packed
    side_by_side = heads = N * H if packed is None else H
    # a state too large for one program's registers is cut into tiles, each a program's of its own, and stored
    if stored := "loops" in table:
        tiles = table_options("chunk_states", size_class(K, problem.q.dtype), problem.device, C, (K, V), heads)
        side_by_side *= cdiv(K, tiles["BLOCK_K"]) * cdiv(V, tiles["BLOCK_V"])
    wanted = cdiv(table["loops" if stored else "runs"], max(side_by_side, 1))  # runs a sequence, or a head
    if stored and side_by_side >= table.get("one_run", table["loops"]):
        wanted = 1
    RUN = max(cdiv(cdiv(T, wanted), C), 1) * C
    read = problem.q, problem.k, problem.v, problem.gates.gk, do
    wide = any(x is not None and C * x.strides[1] + max(K, V) * x.strides[3] >= 2**31 for x in read)
    return Cut(C, RUN, count_runs(packed, N, T, RUN), count_runs(packed, N, T, C), RUN >= T, stored, problem, wide)


def operand_dtype(dtype):
    """The dtype of the matrix products' operands: float16 becomes float32, whose range what sums up along time may need."""
    return torch.bfloat16 if dtype == torch.bfloat16 and not runtime.interpreted else torch.float32


def size_class(K, dtype):
    """The key of the chunk kernels' tables of configurations."""
    return f"K{max(64, block(K))} {bits(operand_dtype(dtype))}"


def tokens_in_chunk(q):
    """C of the pass back, and of the scores of a call on these queries."""
    return cuts(size_class(q.shape[-1], q.dtype), q.device)["C"]


def new_scores(q, C):
    """Where the scores of a call go, [1 or 2, B, T, H, C]: the second are what rounding to operands of 16 bits leaves."""
    stored = operand_dtype(q.dtype)
    return q.new_empty(1 if stored == torch.float32 else 2, *q.shape[:3], C, dtype=stored)


def cuts(key, device):
    """``{"C": tokens in a chunk, "runs": runs that fill the GPU}``; instead of runs "loops", over tiles of a state that
    does not fit into registers, and "one_run", the loops that are enough to have each of them once.

    Where a forward pass differs: "FORWARD_C", the tokens in a chunk if it keeps nothing for the backward pass; "NARROW",
    what holds instead for states of at most "V" values if it makes one run of each sequence.
    """
    return configuration("recurrent_attention", "chunk", key, device)


def table_options(kernel, key, device, C, state, side_by_side):
    """What the table says of a kernel, its tiles no larger than the ``state``, (K, V). A line may hold others: "C128" for
    chunks so long, "WIDER_V" where V has more tiles than K, "FEW" with its "loops" where so many heads have fewer tiles."""
    options = configuration("recurrent_attention", kernel, key, device)
    options, others = _apart(options)
    if longer := others.get(f"C{C}"):
        options, others = _apart(longer)
    sizes = dict(zip(("BLOCK_K", "BLOCK_V"), state, strict=True))
    tiles = {name: cdiv(size, options.get(name, block(size))) for name, size in sizes.items()}
    if "WIDER_V" in others and tiles["BLOCK_V"] > tiles["BLOCK_K"]:
        options = others["WIDER_V"]
    if "FEW" in others and side_by_side * math.prod(tiles.values()) < others["FEW"]["loops"]:
        options = {name: value for name, value in others["FEW"].items() if name != "loops"}
    return options | {name: min(block(size), options.get(name, block(size))) for name, size in sizes.items()}


def _apart(line):
    """A line's own options, and those it holds for other cases."""
    others = {name: value for name, value in line.items() if isinstance(value, dict)}
    return {name: value for name, value in line.items() if name not in others}, others
