"""What the mode ``"chunk"`` launches: its plans, and both passes of tensors that have been checked."""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.common.math import block, cdiv
from kernels.common.operator import Launch, launch, planned, strided
from kernels.common.sequences import clear_outside, sequence_of_runs
from kernels.recurrent_attention.chunk.backward import Gradients, gradients_kernel, inside_kernel
from kernels.recurrent_attention.chunk.cut import Cut, cut, new_scores, operand_dtype
from kernels.recurrent_attention.chunk.decays import Decays, scalar_decay_kernel, vector_decay_kernel
from kernels.recurrent_attention.chunk.forward import outputs_kernel, stored_outputs_kernel
from kernels.recurrent_attention.chunk.levels import level_masks_kernel, scores_kernel
from kernels.recurrent_attention.chunk.states import Walked, chain_kernel, states_kernel
from kernels.recurrent_attention.problem import Gates, Problem, Strides, gate_strides, over_group, strides


class Plan(NamedTuple):
    """What a pass launches: first the gates' decays, for ``gk`` the scores as well; then a walk of states, chained where a
    sequence is several runs; then the outputs, or the gradients and for ``gk`` those inside the chunks."""

    cut: Cut
    decays: Launch | None
    scores: Launch | None
    walk: Launch
    chain: Launch
    outputs: Launch | None
    gradients: Launch | None
    inside: Launch | None
    tiles: int  # of the gradients, each with a part of a scalar gate's


@planned
def plan_pass(problem, do=None):
    """The ``Plan`` of a forward pass; of a backward pass with the layout of the output's gradient."""
    of = cut(problem, do)
    B, T, H, K, V, N = problem.sizes
    C, RUN, chunks, group = of.C, of.RUN, of.chunks, problem.group
    q, k, v, gates = strides(problem.q), strides(problem.k), strides(problem.v), gate_strides(problem.gates)
    decays = scores = inside = None
    heads = group, group  # of q that share one of k, of v
    if gates.gk is not None:
        LEVELS = C.bit_length() - 1
        sizes = chunks, T, H, K, group, q, k
        options = of.options("chunk_decay", "BLOCK_V", "DTYPE", "PRECISION")
        decays = Launch((chunks * H * cdiv(K, options["BLOCK_K"]),), (*sizes, gates), options)
        scores = Launch((chunks * H,), sizes, of.options("chunk_scores", "BLOCK_V") | {"LEVELS": LEVELS})
        options = of.options("chunk_inside", "BLOCK_V") | {"LEVELS": LEVELS}
        inside = Launch((chunks * H * cdiv(K, options["BLOCK_K"]),), sizes, options)
        q = k = Strides(T * H * K, H * K, K, 1)  # from here on they are read with their decays
        heads = 1, group
    elif gates.g is not None or gates.g_gamma is not None:
        options = {"C": C, "BLOCK_H": block(min(16, H), least=1), "REVERSE": problem.reverse}
        decays = Launch((chunks, cdiv(H, options["BLOCK_H"])), (chunks, T, H, gates), options)

    options = of.options("chunk_states") | {"ONE_RUN": of.one_run}
    walks = H * cdiv(K, options["BLOCK_K"]) * cdiv(V, options["BLOCK_V"]) * (1 if do is None else 2)
    of_costates = (None, None) if do is None else (q, strides(do))
    walk = Launch((of.runs * walks,), (of.runs, T, RUN, H, K, V, *heads, k, v, *of_costates), options)
    chain = Launch((N * walks,), (T, RUN, H, K, V), {name: options[name] for name in ("BLOCK_K", "BLOCK_V")})
    if do is not None:
        options = of.options("chunk_gradients")
        tiles = max(cdiv(K, options["BLOCK_K"]), cdiv(V, options["BLOCK_V"]))
        sizes = chunks, T, H, K, V, *heads, B * T * H, q, k, v, strides(do)
        gradients = Launch((chunks * H * tiles,), sizes, options)
        return Plan(of, decays, scores, walk, chain, None, gradients, inside, tiles)
    if of.stored:
        options = of.options("chunk_stored_outputs")
        options |= {"ROWS": min(options.get("ROWS", C), C)}
        tiles = C // options["ROWS"] * cdiv(V, options["BLOCK_V"])
        outputs = Launch((chunks * H * tiles,), (chunks, T, H, K, V, *heads, q, k, v), options)
    else:
        options = of.options("chunk_outputs") | {"ONE_RUN": of.one_run}
        tiles = cdiv(V, options["BLOCK_V"])
        outputs = Launch((of.runs * H * tiles,), (of.runs, T, RUN, H, K, V, *heads, q, k, v), options)
    return Plan(of, decays, scores, walk, chain, outputs, None, None, tiles)


def explained(problem):
    """How both passes are cut, as text."""
    ahead, back = (str(cut(problem, do)) for do in (None, problem.v))
    return ahead + f"; backward {back}" * (ahead != back)


class Given(NamedTuple):
    """What the launches of a call read; runs, chunks: the sequence of each one, where sequences are packed."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Gates
    scale: float
    cu_seqlens: Tensor | None
    runs: Tensor | None
    chunks: Tensor | None


class Prepared(NamedTuple):
    """What the gates come to, q and k with their decays where a gate has components, and then the levels' masks."""

    decays: Decays
    q: Tensor
    k: Tensor
    parted: Tensor | None = None
    crossed: Tensor | None = None
    scores: Tensor | None = None


def forward(q, k, v, g, g_gamma, gk, initial_state, cu_seqlens, scale, output_final_state, reverse):
    """``(o, final state, scores)``, empty tensors for what there is not; the scores are for the backward pass."""
    (B, T, H, K), V, gates = q.shape, v.shape[3], Gates(g, g_gamma, gk)
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    o, none = q.new_empty(B, T, H, V), lambda: q.new_empty(0)
    if T == 0 or H == 0:
        return o, _untouched(q, initial_state, (N, H, K, V)) if output_final_state else none(), none()
    plan, x = _begin(q, k, v, gates, scale, cu_seqlens, reverse)
    of = plan.cut
    ready = _prepare(plan, x)
    start = None if initial_state is None else initial_state.contiguous()
    final = None
    if of.stored or not of.one_run:
        states, final, *_ = _walk(plan, x, ready, start, output_final_state, operand_dtype(q.dtype) if of.stored else None)
    elif output_final_state:
        final = q.new_empty(N, H, K, V, dtype=torch.float32)
    grid, sizes, meta = plan.outputs
    if of.stored:
        launch(
            stored_outputs_kernel, grid, ready.q, ready.k, v, ready.decays, states, o, x.chunks, cu_seqlens, scale, *sizes,
            **meta,
        )  # fmt: skip
    else:
        start, end = (start, final) if of.one_run else (states, None)
        launch(
            outputs_kernel, grid, ready.q, ready.k, v, ready.decays, start, o, end, x.runs, cu_seqlens, scale, *sizes, **meta
        )  # fmt: skip
    clear_outside(cu_seqlens, T, o)
    return o, none() if final is None else final, none() if ready.scores is None else ready.scores


def backward(
    do, dfinal, q, k, v, g, g_gamma, gk, initial_state, cu_seqlens, scores, scale, output_final_state, reverse, needs
):  # fmt: skip
    """The gradients of q, k, v, the gates and the initial state, ``None`` where ``needs`` says so."""
    if do is None:  # only the final state was used
        do = q.new_zeros(()).expand(*q.shape[:3], v.shape[3])
    dfinal = dfinal if output_final_state else None
    (B, T, H, K), V, gates = q.shape, v.shape[3], Gates(g, g_gamma, gk)
    if T == 0 or H == 0:
        given = q, k, v, g, g_gamma, gk
        zeros = [t.new_zeros(t.shape) if need else None for t, need in zip(given, needs[:-1], strict=True)]
        state = initial_state.shape if needs[-1] else None
        return *zeros, _untouched(q, dfinal, state).to(initial_state.dtype) if needs[-1] else None
    plan, x = _begin(q, k, v, gates, scale, cu_seqlens, reverse, do)
    ready = _prepare(plan, x, scores if scores.numel() else None)
    need_q, need_k, need_v, need_g, need_gamma, need_gk, need_initial = needs
    back = do, dfinal, need_initial
    states, _, costates, dinitial = _walk(plan, x, ready, initial_state, False, operand_dtype(q.dtype), back)

    vector, in_groups = gk is not None, H > k.shape[2]
    float32 = lambda *shape: q.new_empty(shape, dtype=torch.float32)
    dq = q.new_empty(B, T, H, K)
    dk, dv = (float32(B, T, H, size) if in_groups else q.new_empty(B, T, H, size) for size in (K, V))
    dg = products = None
    if need_g or need_gamma or need_gk:
        dg = float32(B, T, H, K) if vector else float32(plan.tiles, B, T, H)
    grads = Gradients(dq, dk, dv, dg, None)
    if vector:
        through = float32(3, B, T, H, K)
        products = float32(B, T, H, plan.cut.C)
        grads = Gradients(through[0], through[1], dv, None if dg is None else through[2], products)
    grid, sizes, meta = plan.gradients
    launch(
        gradients_kernel, grid, ready.q, ready.k, v, do, ready.decays, states, costates, grads, x.chunks, cu_seqlens, scale,
        *sizes, **meta,
    )  # fmt: skip
    if vector:
        grid, sizes, meta = plan.inside
        launch(
            inside_kernel, grid, q, k, ready.decays.gamma, ready.parted, ready.crossed, products, *grads[:2], grads.dg, dq,
            dk, dg, x.chunks, cu_seqlens, *sizes, **meta,
        )  # fmt: skip

    if dg is not None and not vector:
        dg = dg[0] if plan.tiles == 1 else dg.sum(0)
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


def _begin(q, k, v, gates, scale, cu_seqlens, reverse, do=None):
    """``(plan, Given)`` of a pass, backward with the output's gradient."""
    packed = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    tf32 = q.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    layouts = strided(q), strided(k), strided(v), Gates(*[strided(gate) for gate in gates])
    plan = plan_pass(Problem(*layouts, packed, reverse, tf32, q.device), strided(do))
    of, runs, chunks = plan.cut, None, None
    if packed is not None:
        runs, chunks = sequence_of_runs(cu_seqlens, of.runs, of.RUN), sequence_of_runs(cu_seqlens, of.chunks, of.C)
    return plan, Given(q, k, v, gates, scale, cu_seqlens, runs, chunks)


def _untouched(q, state, shape):
    """A float32 copy of the state that no token changed; zeros where there is none."""
    if state is None:
        return q.new_zeros(shape, dtype=torch.float32)
    return state.to(torch.float32, copy=True).contiguous()


def _prepare(plan, x, scores=None):
    """``Prepared``: run the kernels that turn gates into decays, and those that make the scores unless they are given."""
    if plan.decays is None:
        return Prepared(Decays(), x.q, x.k)
    (B, T, H, K), C, chunks = x.q.shape, plan.cut.C, plan.cut.chunks
    new = lambda *shape, dtype=torch.float32: x.q.new_empty(shape, dtype=dtype)
    grid, sizes, meta = plan.decays
    if x.gates.gk is None:
        resets = new(chunks, H, C, dtype=torch.int32) if x.q.dtype == torch.float32 else None
        gamma, from_start, to_end = new(3, chunks, H, C)
        decays = Decays(gamma, resets, from_start, to_end, new(chunks, H))
        launch(scalar_decay_kernel, grid, x.gates, *decays[:5], x.chunks, x.cu_seqlens, *sizes, **meta)
        return Prepared(decays, x.q, x.k)

    operands, LEVELS = operand_dtype(x.q.dtype), plan.scores.meta["LEVELS"]
    q, k = new(2, B, T, H, K, dtype=operands)
    gamma, chunk_decay = new(B, T, H, K), new(chunks, H, K)
    launch(
        vector_decay_kernel, grid, x.q, x.k, x.gates, gamma, q, k, chunk_decay, x.chunks, x.cu_seqlens, *sizes, **meta
    )  # fmt: skip
    fine = torch.float16 if operands == torch.bfloat16 else operands  # as the operands that they multiply
    parted, crossed = new(2, LEVELS, C, C, dtype=fine)
    launch(level_masks_kernel, (LEVELS,), parted, crossed, C=C)
    made = new_scores(x.q, C) if scores is None else scores
    planes = made[0], made[1] if len(made) > 1 else None
    if scores is None:
        grid, sizes, meta = plan.scores
        launch(scores_kernel, grid, x.q, x.k, gamma, parted, *planes, x.chunks, x.cu_seqlens, x.scale, *sizes, **meta)
    return Prepared(Decays(gamma, None, None, None, chunk_decay, *planes), q, k, parted, crossed, made)


def _walk(plan, x, ready, start, end, each, back=None):
    """States of every sequence, and costates in the same launches: those entering the chunks, those leaving the sequences.

    Args:
        plan: the pass's ``Plan``.
        x: its ``Given``.
        ready: its ``Prepared``; the state grows by the outer products of its k and v.
        start: state [N, H, K, V] before the first token, or ``None``.
        end: whether the states that leave the sequences are wanted.
        each: dtype of the states that enter the chunks, or ``None`` where they are not wanted.
        back: the same of the costates, ``(do, state's gradient behind the last token or None, end)``, or ``None``.

    Returns:
        ``(states, final, costates, cofinal)``: [chunks, H, K, V] and [N, H, K, V] float32, ``None`` where not wanted. Without
        ``each``, where a sequence is several runs, states [runs, H, K, V] are those that enter the runs.
    """
    cut, (B, _, H, K), V = plan.cut, x.q.shape, x.v.shape[3]
    N = B if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    do, costart, coend = (None, None, False) if back is None else back
    sides = [(start, end)] if back is None else [(start, end), (costart, coend)]

    def new(count, wanted=True, dtype=torch.float32):
        return x.q.new_empty(count, H, K, V, dtype=dtype) if wanted else None

    def run(walked):
        grid, sizes, meta = plan.walk
        walked = [*walked, Walked()][:2]
        q = None if back is None else ready.q
        launch(
            states_kernel, grid, ready.k, x.v, q, do, ready.decays, *walked, x.runs, x.cu_seqlens, x.scale, *sizes, **meta
        )  # fmt: skip

    walked = [
        Walked(None if state is None else state.contiguous(), new(cut.chunks, each is not None, each), new(N, wanted))
        for state, wanted in sides
    ]
    runs = walked
    if cut.one_run:
        run(walked)
    else:
        decays = [x.q.new_empty(cut.runs, H, K, dtype=torch.float32) for _ in sides]
        runs = [Walked(end=new(cut.runs), run_decay=decay) for decay in decays]
        run(runs)
        grid, sizes, meta = plan.chain
        (first, second), (of_first, of_second) = [*runs, Walked()][:2], [*walked, Walked()][:2]
        launch(
            chain_kernel, grid, first.end, second.end, first.run_decay, second.run_decay, of_first.start, of_second.start,
            of_first.end, of_second.end, x.cu_seqlens, *sizes, **meta,
        )  # fmt: skip
        if each is None:
            return first.end, of_first.end, None, None
        run([Walked(entering.end, of.each) for entering, of in zip(runs, walked, strict=True)])
    (states, costates) = [*walked, Walked()][:2]
    return states.each, states.end, costates.each, costates.end
