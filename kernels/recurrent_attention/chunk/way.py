"""The way chunk by chunk: what it takes, how long, and what its passes launch."""

from typing import NamedTuple

import torch
import triton.language as tl

from kernels.common.math import cdiv
from kernels.common.plan import Cost
from kernels.common.sequences import count_runs
from kernels.recurrent_attention.chunk import backward, forward
from kernels.recurrent_attention.chunk.cut import Cut, cuts, operand_dtype, size_class, table_options

SHORT = 16  # tokens along time up to which the recurrence takes no more steps than a chunk has rows to fill
WITHOUT = {"gv": "gates on values (gv)"}  # what chunks have no form for


def reason_not(problem):
    """Why chunks cannot take a problem, as text, or ``None``."""
    lacking = [WITHOUT[name] for name in problem.gates if name in WITHOUT]
    return f"only the recurrence has {' and '.join(lacking)}" if lacking else None


def cost(problem):
    """In steps of the recurrence: a chunk's products take as long as SHORT of them, and the next ones' hardly longer."""
    T = problem.q[1]
    if torch.compiler.is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes long to import

        if not statically_known_true(T <= SHORT):
            return Cost(-1)  # less than any number of tokens: one graph is for all lengths, and chosen for the long ones
    if torch.compiler.is_compiling():  # a length in a text would be taken for a constant: a graph for each
        return Cost(SHORT + 0.5)
    return Cost(SHORT + 0.5, f"{T} tokens along time are no more than {SHORT}: too few to fill a chunk")


class ChunkPlan(NamedTuple):
    """How each pass of a call is cut, from which its launches follow."""

    of_forward: Cut
    of_backward: Cut

    def forward(self, *rest):
        """As ``forward.forward``."""
        return forward.forward(self.of_forward, *rest)

    def backward(self, *rest):
        """As ``backward.backward``."""
        return backward.backward(self.of_backward, *rest)

    def __str__(self):
        return str(self.of_forward) + f"; backward {self.of_backward}" * (self.of_forward is not self.of_backward)


def plan(problem):
    """The ``ChunkPlan`` of a problem."""
    table = cuts(size_class(problem.q[3], problem.dtype), problem.device)
    both = cut(problem, table)
    if "NARROW" in table and problem.v[3] <= table["NARROW"]["V"]:
        narrow = cut(problem, table["NARROW"])
        if narrow.one_run:
            return ChunkPlan(narrow, both)
    if "FORWARD_C" in table and "gk" not in problem.gates:  # what gk comes to in a chunk is the backward pass's, too
        return ChunkPlan(cut(problem, table | {"C": table["FORWARD_C"]}), both)
    return ChunkPlan(both, both)


def cut(problem, table):
    """The ``Cut`` of a problem, by a table as ``cuts`` has it. A sequence is one run when there are heads enough to fill the
    GPU, else several, which are chained afterwards."""
    B, T, H, K, V, N = problem.sizes
    _, _, _, dtype, gates, packed, reverse, tf32, device = problem
    key, operands = size_class(K, dtype), operand_dtype(dtype)
    C = table["C"]
    side_by_side = heads = N * H if packed is None else H
    # a state too large for one program's registers is walked in tiles, each by a program of its own, and stored
    if stored := "walks" in table:
        tiles = table_options("chunk_states", key, device, C, K, V, heads)
        side_by_side *= cdiv(K, tiles["BLOCK_K"]) * cdiv(V, tiles["BLOCK_V"])
    wanted = cdiv(table["walks" if stored else "runs"], max(side_by_side, 1))  # runs a sequence, or a head
    if stored and side_by_side >= table.get("one_run", table["walks"]):
        wanted = 1
    RUN = max(cdiv(cdiv(T, wanted), C), 1) * C
    if dtype == torch.float32:
        precision = "tf32" if tf32 else "tf32x3"
    else:
        precision = "tf32"  # as many bits as float16 has, with float32's range for what sums up
    switches = {
        "DTYPE": tl.bfloat16 if operands == torch.bfloat16 else tl.float32,
        "PRECISION": precision,
        "PACKED": packed is not None,
        "REVERSE": reverse,
        "WIDE": False,
    }
    runs, chunks = count_runs(packed, N, T, RUN), count_runs(packed, N, T, C)
    scalar = {"USE_G": "g" in gates, "USE_GAMMA": "g_gamma" in gates}
    return Cut(B, T, H, K, V, N, C, RUN, runs, chunks, RUN >= T, heads, stored, key, operands, device, switches, scalar)
