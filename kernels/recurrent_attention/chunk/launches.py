"""What the mode ``"chunk"`` launches: how a call is cut, its plans, and both passes of tensors that have been checked.

It is cut into chunks for the products, and into runs of chunks that are computed side by side.
"""

import math
from collections import namedtuple
from typing import NamedTuple

import torch
import triton.language as tl

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.math import bits, block, cdiv
from kernels.common.operator import Launch, launch, planned, strided
from kernels.common.sequences import clear_outside, count_runs, sequence_of_runs
from kernels.recurrent_attention.chunk.backward import Gradients, gradients_kernel, inside_kernel
from kernels.recurrent_attention.chunk.decays import (
    level_masks_kernel,
    scalar_decay_kernel,
    scores_kernel,
    vector_decay_kernel,
)
from kernels.recurrent_attention.chunk.forward import chain_kernel, outputs_kernel, states_kernel, stored_outputs_kernel
from kernels.recurrent_attention.chunk.rows import Decays, Packing, Runs, Sizes, States, Tile
from kernels.recurrent_attention.problem import Gates, Problem, Strides, over_group


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
    line = configuration("recurrent_attention", kernel, key, device)
    options = line = line.get(f"C{C}", line)
    sizes = dict(zip(("BLOCK_K", "BLOCK_V"), state, strict=True))
    tiles = {name: cdiv(size, line.get(name, block(size))) for name, size in sizes.items()}
    if "WIDER_V" in line and tiles["BLOCK_V"] > tiles["BLOCK_K"]:
        options = line["WIDER_V"]
    if "FEW" in line and side_by_side * math.prod(tiles.values()) < line["FEW"]["loops"]:
        options = line["FEW"]
    options = {name: value for name, value in options.items() if name != "loops" and not isinstance(value, dict)}
    return options | {name: min(block(size), options.get(name, block(size))) for name, size in sizes.items()}


class Plan(NamedTuple):
    """What a pass launches: first the gates' decays, for ``gk`` the scores as well; then a loop of states, chained where a
    sequence is several runs; last the outputs or the gradients, and for ``gk`` those inside the chunks."""

    cut: Cut
    decays: Launch | None
    scores: Launch | None
    loop: Launch
    chain: Launch
    last: Launch
    inside: Launch | None
    tiles: int  # of the gradients, each with a part of a scalar gate's


@planned
def plan_pass(problem, do=None):
    """The ``Plan`` of a forward pass; of a backward pass with the layout of the output's gradient."""
    of = cut(problem, do)
    B, T, H, K, V, N = problem.sizes
    C, chunks, runs = of.C, of.chunks, Runs(of.runs, of.RUN)
    sizes, strides = Sizes(T, H, K, V, problem.group, problem.group), problem.strides(do)
    numbers = chunks, sizes, strides._replace(do=None)  # before the loop, the same in both passes
    tiles_of = lambda options: (cdiv(K, options["TILE"].BLOCK_K), cdiv(V, options["TILE"].BLOCK_V))
    decays = scores = inside = None
    if problem.gates.gk is not None:
        LEVELS, options = C.bit_length() - 1, of.options("chunk_decay")
        decays = Launch((chunks * H * tiles_of(options)[0],), numbers, options)
        scores = Launch((chunks * H,), numbers, of.options("chunk_scores", LEVELS=LEVELS))
        options = of.options("chunk_inside", LEVELS=LEVELS)
        inside = Launch((chunks * H * tiles_of(options)[0],), numbers, options)
        own = Strides(T * H * K, H * K, K, 1)  # from here on q and k are read with their decays
        sizes, strides = sizes._replace(heads_k=1), strides._replace(q=own, k=own)
    elif problem.gates.g is not None or problem.gates.g_gamma is not None:
        BLOCK_H = block(min(16, H), least=1)
        TILE = Tile(C, REVERSE=problem.reverse, BLOCK_H=BLOCK_H)
        decays = Launch((chunks, cdiv(H, BLOCK_H)), numbers, {"TILE": TILE})

    options = of.options("chunk_states", ONE_RUN=of.one_run)
    tiles_k, tiles_v = tiles_of(options)
    loops = H * tiles_k * tiles_v * (1 if do is None else 2)
    loop = Launch((of.runs * loops,), (runs, sizes, strides), options)
    chain = Launch((N * loops,), (of.RUN, sizes), {"TILE": options["TILE"]})
    if do is not None:
        options = of.options("chunk_gradients")
        tiles = max(tiles_of(options))
        last = Launch((chunks * H * tiles,), (chunks, sizes, strides), options)
    elif of.stored:
        options = of.options("chunk_stored_outputs")
        ROWS = min(options["TILE"].ROWS or C, C)
        options["TILE"] = options["TILE"]._replace(ROWS=ROWS)
        tiles = C // ROWS * tiles_of(options)[1]
        last = Launch((chunks * H * tiles,), (chunks, sizes, strides), options)
    else:
        options = of.options("chunk_outputs", ONE_RUN=of.one_run)
        tiles = tiles_of(options)[1]
        last = Launch((of.runs * H * tiles,), (runs, sizes, strides), options)
    return Plan(of, decays, scores, loop, chain, last, inside, tiles)


def explained(problem):
    """How both passes are cut, as text."""
    ahead, back = (str(cut(problem, do)) for do in (None, problem.v))
    return ahead + f"; backward {back}" * (ahead != back)


#: What the launches of a pass read: q and k with their decays where a gate has components, and then the levels' masks.
Inputs = namedtuple("Inputs", "plan q k v decays packing scale parted crossed scores", defaults=(None,) * 3)


def forward(q, k, v, g, g_gamma, gk, initial_state, cu_seqlens, scale, output_final_state, reverse):
    """``(o, final state, scores)``, empty tensors for what there is not; the scores are for the backward pass."""
    (B, T, H, K), V = q.shape, v.shape[3]
    N, o = B if cu_seqlens is None else cu_seqlens.shape[0] - 1, q.new_empty(B, T, H, V)
    if T == 0 or H == 0:  # no token changes the state
        final = q.new_zeros(N, H, K, V, dtype=torch.float32) if output_final_state else q.new_empty(0)
        if output_final_state and initial_state is not None:
            final.copy_(initial_state)
        return o, final, q.new_empty(0) if gk is None else new_scores(q, tokens_in_chunk(q))
    x = _prepare((q, k, v), Gates(g, g_gamma, gk), cu_seqlens, scale, reverse)
    start, final, of = None if initial_state is None else initial_state.contiguous(), None, x.plan.cut
    if of.stored or not of.one_run:
        each = operand_dtype(q.dtype) if of.stored else None
        states, final, *_ = _loop(x, each, (start, output_final_state), None)
    elif output_final_state:
        final = q.new_empty(N, H, K, V, dtype=torch.float32)
    grid, sizes, meta = x.plan.last
    if of.stored:
        launch(stored_outputs_kernel, grid, x.q, x.k, v, x.decays, states, o, x.packing, scale, *sizes, **meta)
    else:
        start, end = (start, final) if of.one_run else (states, None)
        launch(outputs_kernel, grid, x.q, x.k, v, x.decays, start, o, end, x.packing, scale, *sizes, **meta)
    clear_outside(cu_seqlens, T, o)
    return o, *(q.new_empty(0) if made is None else made for made in (final, x.scores))


def backward(
    do, dfinal, q, k, v, g, g_gamma, gk, initial_state, cu_seqlens, scores, scale, output_final_state, reverse, needs
):
    """The gradients of q, k, v, the gates and the initial state, ``None`` where ``needs`` says so."""
    if do is None:  # only the final state was used
        do = q.new_zeros(()).expand(*q.shape[:3], v.shape[3])
    dfinal = dfinal if output_final_state else None
    (B, T, H, K), V = q.shape, v.shape[3]
    need_q, need_k, need_v, need_g, need_gamma, need_gk, need_initial = needs
    if T == 0 or H == 0:
        tensors = q, k, v, g, g_gamma, gk, initial_state
        grads = [t.new_zeros(t.shape) if need else None for t, need in zip(tensors, needs, strict=True)]
        if need_initial and dfinal is not None:
            grads[-1].copy_(dfinal)
        return grads
    made = scores if scores.numel() else None
    x = _prepare((q, k, v), Gates(g, g_gamma, gk), cu_seqlens, scale, reverse, do, made)
    sides = (initial_state, False), (dfinal, need_initial)
    states, _, costates, dinitial = _loop(x, operand_dtype(q.dtype), *sides, do=do)

    vector, in_groups = gk is not None, H > k.shape[2]
    float32 = lambda *shape: q.new_empty(shape, dtype=torch.float32)
    dq = q.new_empty(B, T, H, K)
    dk, dv = (float32(B, T, H, size) if in_groups else q.new_empty(B, T, H, size) for size in (K, V))
    dg = None
    if need_g or need_gamma or need_gk:
        dg = float32(B, T, H, K) if vector else float32(x.plan.tiles, B, T, H)
    grads = through = Gradients(dq, dk, dg, dv, dg_per_tile=B * T * H)
    if vector:
        of_q, of_k, of_g = float32(3, B, T, H, K)
        through = Gradients(of_q, of_k, None if dg is None else of_g, dv, float32(B, T, H, x.plan.cut.C))
    grid, sizes, meta = x.plan.last
    read = x.q, x.k, v, do, x.decays, states, costates
    launch(gradients_kernel, grid, *read, through, x.packing, scale, *sizes, **meta)
    if vector:
        grid, sizes, meta = x.plan.inside
        launch(inside_kernel, grid, q, k, x.decays, x.parted, x.crossed, through, grads, x.packing, *sizes, **meta)

    if dg is not None and not vector:
        dg = dg[0] if x.plan.tiles == 1 else dg.sum(0)
    clear_outside(cu_seqlens, T, dq, dk, dv, dg)
    dgk = dg.to(gk.dtype) if need_gk else None
    if vector and (need_g or need_gamma):
        dg = dg.sum(-1)  # over the components, all of which it decays
    return (
        dq if need_q else None,
        over_group(dk, k) if need_k else None,
        over_group(dv, v) if need_v else None,
        dg.to(g.dtype) if need_g else None,
        dg.sum((0, 1)).to(g_gamma.dtype) if need_gamma else None,
        dgk,
        dinitial.to(initial_state.dtype) if need_initial else None,
    )


def _prepare(qkv, gates, cu_seqlens, scale, reverse, do=None, scores=None):
    """The ``Inputs`` of a pass, backward with the output's gradient: run the kernels that turn gates into decays, and those
    that make the scores unless they are given."""
    q, k, v = qkv
    packed = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    tf32 = q.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    problem = Problem(*map(strided, qkv), Gates(*map(strided, gates)), packed, reverse, tf32, q.device)
    plan = plan_pass(problem, strided(do))
    (B, T, H, K), (C, RUN, runs, chunks, *_), packing = q.shape, plan.cut, Packing()
    if packed is not None:
        packing = Packing(cu_seqlens, sequence_of_runs(cu_seqlens, runs, RUN), sequence_of_runs(cu_seqlens, chunks, C))
    if plan.decays is None:
        return Inputs(plan, q, k, v, Decays(), packing, scale)
    new = lambda *shape, dtype=torch.float32: q.new_empty(shape, dtype=dtype)
    grid, sizes, meta = plan.decays
    if gates.gk is None:
        gamma, from_start, to_end = new(3, chunks, H, C)
        resets = new(chunks, H, C, dtype=torch.int32) if q.dtype == torch.float32 else None
        decays = Decays(gamma, resets, from_start, to_end, new(chunks, H))
        launch(scalar_decay_kernel, grid, gamma, decays, gates, packing, *sizes, **meta)
        return Inputs(plan, q, k, v, decays, packing, scale)

    operands, LEVELS = operand_dtype(q.dtype), plan.scores.meta["TILE"].LEVELS
    decayed_q, decayed_k = new(2, B, T, H, K, dtype=operands)
    gamma, chunk_decay = new(B, T, H, K), new(chunks, H, K)
    kept = new_scores(q, C) if scores is None else scores
    planes = kept[0], kept[1] if len(kept) > 1 else None
    decays = Decays(gamma, None, None, None, chunk_decay, *planes)
    launch(vector_decay_kernel, grid, q, k, gates, decays, decayed_q, decayed_k, packing, *sizes, **meta)
    fine = torch.float16 if operands == torch.bfloat16 else operands  # as the operands that they multiply
    parted, crossed = new(2, LEVELS, C, C, dtype=fine)
    launch(level_masks_kernel, (LEVELS,), parted, crossed, TILE=Tile(C))
    if scores is None:
        grid, sizes, meta = plan.scores
        launch(scores_kernel, grid, q, k, decays, parted, packing, scale, *sizes, **meta)
    return Inputs(plan, decayed_q, decayed_k, v, decays, packing, scale, parted, crossed, kept)


def _loop(x, each, *sides, do=None):
    """States of every sequence, and costates in the same launches: those entering the chunks, those leaving the sequences.

    Args:
        x: the pass's ``Inputs``; the state grows by the outer products of its k and v.
        each: dtype of the states that enter the chunks, or ``None`` where they are not wanted.
        sides: of the states and of the costates, which are ``None`` without ``do``, ``(start, end)``: the state [N, H, K, V]
            at the loop's start or ``None``, and whether the one at its end is wanted.
        do: the output's gradient, by whose products with q the costates grow.

    Returns:
        ``(states, final, costates, cofinal)``: [chunks, H, K, V] and [N, H, K, V] float32, ``None`` where not wanted. Without
        ``each``, where a sequence is several runs, states [runs, H, K, V] are those that enter the runs.
    """
    of = x.plan.cut
    B, T, H, K, V, N = of.problem.sizes

    def new(count, wanted=True, dtype=torch.float32):
        return x.q.new_empty(count, H, K, V, dtype=dtype) if wanted else None

    def both(of_side):
        return [States() if side is None else of_side(*side) for side in sides]

    def run(states, costates):
        grid, sizes, meta = x.plan.loop
        read = x.k, x.v, None if do is None else x.q, do, x.decays
        launch(states_kernel, grid, *read, states, costates, x.packing, x.scale, *sizes, **meta)

    begin = lambda start: None if start is None else start.contiguous()
    loops = both(lambda start, end: States(begin(start), new(of.chunks, each is not None, each), new(N, end)))
    if of.one_run:
        run(*loops)
    else:
        runs = both(lambda *_: States(end=new(of.runs), run_decay=x.q.new_empty(of.runs, H, K, dtype=torch.float32)))
        run(*runs)
        chained = [loop._replace(each=None, run_decay=one.run_decay) for loop, one in zip(loops, runs, strict=True)]
        grid, sizes, meta = x.plan.chain
        launch(chain_kernel, grid, *[one.end for one in runs], *chained, x.packing.cu, *sizes, **meta)
        if each is None:
            return runs[0].end, chained[0].end, None, None
        run(*[States(one.end, loop.each) for loop, one in zip(loops, runs, strict=True)])
    (_, states, final, _), (_, costates, cofinal, _) = loops
    return states, final, costates, cofinal
