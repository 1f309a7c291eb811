"""The public functions: what may be asked, which mode answers, and its launches. Their docstrings are the ones of record.

A call goes from its checks through PyTorch's dispatcher (``register``) to ``forward`` or ``backward``, here or of
``chunk.launches``, which look up the plan of tensors with these strides and launch it. ``recurrent_attention.explain`` prints
the choice and the plan.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels import runtime
from kernels.common.checks import (
    check_choice,
    check_cu_seqlens,
    check_flag,
    check_number,
    check_slots,
    check_tensor,
    check_writable,
    explains,
    public,
)
from kernels.common.configs import configuration, declare
from kernels.common.math import bits, block, cdiv
from kernels.common.operator import Launch, launch, planned, register, strided
from kernels.common.sequences import clear_outside, count_runs, sequence_of_runs
from kernels.recurrent_attention import plain
from kernels.recurrent_attention.chunk import launches as chunk
from kernels.recurrent_attention.plain_backward import Gradients, Through, pairs_kernel, states_kernel, through_kernel
from kernels.recurrent_attention.problem import DIMENSIONS, Gates, input_strides, over_group, problem_of

MODES = ("auto", "recurrent", "chunk")
SHORT = 16  # tokens along time up to which the recurrence takes no more steps than a chunk has rows to fill

_SIZES = [f"K{2**n} {bits}-bit" for n in range(4, 31) for bits in (16, 32)]
_RECURRENT = "forward step backward backward_states backward_pairs"
_CHUNK = "chunk chunk_outputs chunk_stored_outputs chunk_states chunk_gradients chunk_inside chunk_decay chunk_scores"
declare("recurrent_attention", dict.fromkeys(f"{_RECURRENT} {_CHUNK}".split(), _SIZES))


@public(casts=("q", "k", "v"))
def recurrent_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    mode: str = "auto",
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention with a decaying memory: a matrix per head that every token decays, writes to, and is read from.

    .. math::
        S_t = D_t \\odot S_{t-1} + k_t v_t^\\top, \\qquad o_t = c\\, S_t^\\top q_t, \\qquad
        D_t = \\exp\\big(g_t + \\gamma_h + g^k_t \\mathbf 1^\\top + \\mathbf 1 (g^v_t)^\\top\\big)

    for every sequence and head, from :math:`S_0`, the initial state or zeros: decay first, then write, then read, so that
    :math:`o_t` includes token t. States and sums are fp32. Gates are logarithms of decays, so usually :math:`\\le 0`;
    -inf erases the memory, and has gradient 0. Differentiable once in every tensor argument; the gradient of each has that
    tensor's dtype. Gradients of gates are sums of products without a subtraction, right at any strength. Bit-identical from
    run to run; never waits for the GPU.

    The named special cases are arguments, not functions; flash-linear-attention's ``chunk_``, ``fused_chunk_`` and
    ``fused_recurrent_`` functions are one here:

    ============================  ====================================================================================
    linear attention              no gate: its ``linear_attn(normalize=False)``
    normalised linear attention   v with a column of ones appended; divide the other columns of o by that one
    retention                     ``g_gamma = log(1 - 2 ** (-5 - arange(H)))``: its ``retention``
    lightning attention           ``g_gamma = -8 / H * arange(H) * (1 - layer / layers)``: its ``lightning_attn``
    simple GLA                    ``g``, ``g_gamma``: its ``simple_gla``
    Mamba-2 (SSD)                 q = C, k = B, v = x dt, ``g = A * dt``, ``scale = 1``
    GLA                           ``gk``: its ``chunk_gla(g=)``, ``fused_recurrent_gla(gk=)``
    HGRN-2                        ``gk`` with k = 1 - exp(gk), through the same
    gates on both sides           ``gk`` and ``gv``: its ``fused_recurrent_gla(gk=, gv=)``
    ============================  ====================================================================================

    Its other names are ours: scale, initial_state, output_final_state, reverse, cu_seqlens, state_v_first; ``chunk_size`` and
    ``cu_seqlens_cpu`` have no use here. Its packed ``initial_state`` and final states are [N, H, K, V], too.

    Args:
        q: queries [B, T, H, K], float32, float16 or bfloat16; any strides, as for every argument.
        k: keys [B, T, Hkv, K] in q's dtype; each of its heads serves H / Hkv consecutive heads of q.
        v: values [B, T, Hkv, V] in q's dtype.
        g: a gate for each token and head, [B, T, H], any of the three dtypes, or ``None``.
        g_gamma: a gate for each head, :math:`\\gamma`, [H], or ``None``.
        gk: a gate for each row of the state, [B, T, H, K], or ``None``.
        gv: a gate for each column of the state, [B, T, H, V], or ``None``.
        scale: c, a number; ``None`` means :math:`K^{-1/2}`. ``torch.compile`` makes a graph for each number, as it does for
            those of torch's own attention; one that changes is better multiplied into q, with ``scale=1``.
        initial_state: :math:`S_0`, [N, H, K, V]; ``None`` means zeros.
        output_final_state: return the state after the last token, too.
        reverse: walk from the last token of each sequence to its first.
        cu_seqlens: int32 or int64 [N+1], for sequences packed end to end along T with B = 1: sequence n is tokens
            ``cu_seqlens[n]`` to ``cu_seqlens[n+1] - 1``; it may be empty. Tokens behind the last are padding: their o and all
            their gradients are 0. ``None``: every batch row is a sequence, N = B.
        mode: ``"recurrent"``: one token at a time, every gate; ``"chunk"``: matrix products, every gate but gv;
            ``"auto"`` chooses between them. ``recurrent_attention.explain`` says which, and why. In chunks, a NaN or an
            infinity of one token reaches the outputs of earlier ones, too, of its sequence alone.
        state_v_first: initial_state and final_state are [N, H, V, K], as flash-linear-attention's layers keep them: the same
            as passing ``initial_state.mT``, which is read in place.

    Returns:
        ``(o, final_state)``: o [B, T, H, V] in q's dtype; final_state [N, H, K, V] float32, or ``None`` if not asked for.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit, or ``mode="chunk"`` with gv; the values of
            ``cu_seqlens`` do not (checked when it is on the CPU or ``KERNELS_CHECK=1``).
        RuntimeError: a second derivative, forward mode or a transform of ``torch.func`` is asked for.

    Source: gated linear attention (Yang et al., 2023, arXiv:2312.06635) and its library flash-linear-attention.
    """
    gates = Gates(g, g_gamma, gk, gv)
    scale = _check("BTHKV", q, k, v, gates, scale)
    if not (type(output_final_state) is type(reverse) is type(state_v_first) is bool):
        output_final_state = check_flag("output_final_state", output_final_state)
        reverse, state_v_first = check_flag("reverse", reverse), check_flag("state_v_first", state_v_first)
    if cu_seqlens is not None:
        check_cu_seqlens(cu_seqlens, q.shape[0], ("q", q), q.shape[1])
        cu_seqlens = cu_seqlens.contiguous()
    if initial_state is not None:
        N = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        _check_state("initial_state", initial_state, q, v, state_v_first, N, "N")
        initial_state = initial_state.mT if state_v_first else initial_state
    mode, _ = _choose(mode, q.shape[1], gates)
    rest = initial_state, cu_seqlens, scale, output_final_state, reverse
    if mode == "chunk":
        o, final_state, _ = _attend_in_chunks(q, k, v, g, g_gamma, gk, *rest)
    else:
        o, final_state = _attend(q, k, v, *gates, *rest)
    if not output_final_state:
        return o, None
    return o, final_state.mT if state_v_first else final_state


@public(casts=("q", "k", "v"))
def recurrent_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    *,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    slots: Tensor | None = None,
    state_v_first: bool = False,
) -> Tensor:
    """One token of ``recurrent_attention`` for each sequence, for decoding; updates ``state`` in place. Not differentiable.

    .. math:: S \\leftarrow D \\odot S + k v^\\top, \\qquad o = c\\, S^\\top q

    Args:
        q: [B, H, K], float32, float16 or bfloat16.
        k: [B, Hkv, K] in q's dtype.
        v: [B, Hkv, V] in q's dtype.
        state: S, float32 [B, H, K, V], or a pool [S, H, K, V] with ``slots``; updated in place, and so contiguous, or the
            transposed view of what is: ``state.mT`` of [B, H, V, K].
        g: [B, H], or ``None``.
        g_gamma: [H], or ``None``.
        gk: [B, H, K], or ``None``.
        gv: [B, H, V], or ``None``.
        scale: c; ``None`` means :math:`K^{-1/2}`.
        slots: int32 or int64 [B], which state of the pool belongs to each row of q, no two the same; negative where a row is
            padding: its o is 0. ``None``: row b uses state b.
        state_v_first: state is [B or pool, H, V, K].

    Returns:
        o [B, H, V] in q's dtype.

    Raises:
        ValueError: an argument's type, shape, dtype, device or layout does not fit; the values of ``slots`` do not
            (checked when it is on the CPU or ``KERNELS_CHECK=1``).
        RuntimeError: a gradient is asked for.
    """
    gates = Gates(g, g_gamma, gk, gv)
    scale = _check("BHKV", q, k, v, gates, scale)
    count = q.shape[0] if slots is None else None
    _check_state("state", state, q, v, state_v_first, count, "B or pool", dtypes=(torch.float32,))
    if not (state.is_contiguous() or state.mT.is_contiguous()):
        raise ValueError(
            f"state has strides {state.stride()}, needs to be contiguous, as it is or transposed: it is updated in place"
        )
    check_writable("state", state)
    if slots is not None:
        check_slots("slots", slots, q.shape[0], state.shape[0], ("q", q))
    return _step(q, k, v, state.mT if state_v_first else state, *gates, slots, scale)


@explains(recurrent_attention)
def explain(q, k, v, scale, initial_state, output_final_state, reverse, cu_seqlens, mode, state_v_first, **gates):
    """Which mode ``recurrent_attention`` would take for these arguments, and why, as text; then what that launches."""
    gates = Gates(**gates)
    _check("BTHKV", q, k, v, gates, scale)
    N = check_cu_seqlens(cu_seqlens, q.shape[0], ("q", q), q.shape[1])
    if initial_state is not None:
        _check_state("initial_state", initial_state, q, v, state_v_first, N, "N")
    mode, why = _choose(mode, q.shape[1], gates)
    if mode == "chunk":
        return f"chunk: {why}\n{chunk.explained(problem_of(q, k, v, gates, cu_seqlens, reverse))}"
    columns = _configured("forward", q.shape[-1], v.shape[-1], q.dtype, q.device)["TILE"].BV
    tiles = cdiv(v.shape[-1], columns)
    programs = "1 program" if tiles == 1 else f"{tiles} programs"
    return f"recurrent: {why}\n{programs} for each head of a sequence, {columns} columns of the state in each"


def _choose(mode, T, gates):
    """``(mode, why)``, ``"auto"`` or a mode by name."""
    if mode not in MODES:
        check_choice("mode", mode, MODES)
    only = "only the recurrence has gates on values (gv)"
    if mode == "chunk" and gates.gv is not None:
        raise ValueError(f"mode is 'chunk', needs to be 'recurrent' with gv: {only}")
    if mode != "auto":
        return mode, "the caller asked for it"
    if gates.gv is not None:
        return "recurrent", only
    if torch.compiler.is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes long to import

        if not statically_known_true(T <= SHORT):
            return "chunk", ""  # one graph is for all lengths, and chosen for the long ones
    if T > SHORT:
        return "chunk", "matrix products over chunks of tokens are faster than one token after the other"
    if torch.compiler.is_compiling():  # a length in a text would be taken for a constant: a graph for each
        return "recurrent", ""
    return "recurrent", f"{T} tokens along time are no more than {SHORT}: too few to fill a chunk"


def _check_state(name, state, q, v, v_first, count, legend, **more):
    """A state, ``count`` of them: so many, or any number for ``None``."""
    H, K, V = *q.shape[-2:], v.shape[-1]
    dims, sizes = ("H, V, K", (H, V, K)) if v_first else ("H, K, V", (H, K, V))
    check_tensor(name, state, (count, *sizes), f"[{legend}, {dims}]", like=("q", q), **more)


def _check(letters, q, k, v, gates, scale):
    """The scale for what tokens bring, if it fits; ``letters`` of its sizes: ``"BTHKV"``, or of a single token ``"BHKV"``."""
    token = "T" not in letters
    names, like = ", ".join(letters[:-3]), ("q", q)
    check_tensor("q", q, (None,) * (len(letters) - 1), f"[{names}, H, K]")
    *rows, H, K = q.shape
    check_tensor("k", k, (*rows, None, K), f"[{names}, Hkv, K]", like=like)
    Hkv = k.shape[-2]
    if H % Hkv if Hkv else H:
        raise ValueError(f"k has {Hkv} heads, needs a number that divides q's {H}: each serves H / Hkv heads of q")
    check_tensor("v", v, (*rows, Hkv, None), f"[{names}, Hkv, V]", like=like)
    if k.dtype != q.dtype or v.dtype != q.dtype:
        name, dtype = ("v", v.dtype) if k.dtype == q.dtype else ("k", k.dtype)
        dtype, needs = (str(d).removeprefix("torch.") for d in (dtype, q.dtype))
        raise ValueError(f"{name} has dtype {dtype}, needs {needs}, the dtype of q")
    sizes = dict(zip(letters, (*rows, H, K, v.shape[-1]), strict=True))
    for name, gate, dims in zip(Gates._fields, gates, DIMENSIONS, strict=True):
        if gate is not None:
            dims = dims.replace("T", "" if token else "T")
            check_tensor(name, gate, [sizes[d] for d in dims], f"[{', '.join(dims)}]", like=like)
    if scale is None:
        return float(max(K, 1) ** -0.5)
    check_number("scale", scale)
    return float(scale)


# The plans of the recurrence: grids, sizes, tiles. A program owns some columns of one head's state, all of their rows.


def size_class(K, dtype):
    """The key of a launch configuration: rows of the padded state, and bits per element of q, k and v."""
    return f"K{block(K)} {bits(dtype)}"


def _configured(kernel, K, V, dtype, device, **more):
    """Options of a kernel, and its ``Tile`` of BV columns of the state: all, if none are set."""
    options = configuration("recurrent_attention", kernel, size_class(K, dtype), device)
    more |= {name: options.pop(name) for name in ("C", "EVERY") if name in options}
    BV = min(options.pop("BV", block(V)), block(V))
    return options | {"TILE": plain.Tile(K, V, block(K), BV, **more)}


@planned
def plan_forward(problem, state):
    """The ``Launch`` of a ``Problem`` that begins with a state of this layout."""
    B, T, H, K, V, N = problem.sizes
    meta = _configured("forward", K, V, problem.q.dtype, problem.device, REVERSE=problem.reverse)
    tiles = cdiv(V, meta["TILE"].BV)
    return Launch((N * H * tiles,), (plain.Sizes(T, H, problem.group, tiles), problem.strides(state=state)), meta)


class BackwardPlan(NamedTuple):
    """The loop that keeps states for the one back, this one, and the pairs of tokens inside blocks of C."""

    states: Launch
    through: Launch
    pairs: Launch
    C: int
    sizes: plain.Sizes  # of the latter two
    kept: int  # states


@planned
def plan_backward(problem, state, do, dfinal):
    """The ``BackwardPlan`` of a ``Problem``, and of a state and gradients with these layouts."""
    B, T, H, K, V, N = problem.sizes
    of = K, V, problem.q.dtype, problem.device
    # 22 or 16 of float32's 24 bits; the interpreter has all of them, and knows only the first name
    precision = "tf32x3" if problem.q.dtype == torch.float32 or runtime.interpreted else "bf16x3"
    shared = {"REVERSE": problem.reverse, "PRECISION": precision}
    through = _configured("backward", *of, **shared)
    shared |= {"C": through["TILE"].C}
    C, EVERY = through["TILE"].C, through["TILE"].EVERY
    states = _configured("backward_states", *of, **shared, EVERY=EVERY)
    pairs = configuration("recurrent_attention", "backward_pairs", size_class(*of[::2]), problem.device)
    SLICE = pairs.pop("SLICE")
    slices = {"SLICE_K": min(SLICE, block(K)), "SLICE_V": min(SLICE, block(V)), "DIGITS": C.bit_length() - 1}
    pairs |= {"TILE": plain.Tile(K, V, **shared, **slices)}

    tiles = cdiv(V, states["TILE"].BV)
    sizes = plain.Sizes(T, H, problem.group, tiles)
    states = Launch((N * H * tiles,), (sizes, problem.strides(state=state)), states)
    kept, blocks = (count_runs(problem.packed, N, T, tokens) for tokens in (C * EVERY, C))
    tiles = cdiv(V, through["TILE"].BV)
    sizes = plain.Sizes(T, H, problem.group, tiles, B * T, blocks)
    through = Launch((N * H * tiles,), (sizes, problem.strides(do, dfinal)), through)
    return BackwardPlan(states, through, Launch((blocks * H,), (sizes, problem.strides(do)), pairs), C, sizes, kept)


@planned
def plan_step(q, k, v, gates, state, slots, device):
    """The ``Launch`` of one token's step, for tensors with these layouts."""
    (B, H, K), V = q.shape, v.shape[2]
    meta = _configured("step", K, V, q.dtype, device)
    tiles = cdiv(V, meta["TILE"].BV)
    strides = input_strides(q, k, v, gates, state=state, time="")
    sizes = plain.Sizes(None, H, H // max(k.shape[1], 1), tiles)
    return Launch((B * H * tiles,), (sizes, strides, 0 if slots is None else slots.strides[0]), meta)


# Behind the dispatcher: tensors that have been checked, and what the recurrence launches for them.


def forward(q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, scale, output_final_state, reverse):
    """``(o, final state)``; no final state is an empty tensor."""
    gates = Gates(g, g_gamma, gk, gv)
    problem = problem_of(q, k, v, gates, cu_seqlens, reverse)
    grid, sizes, meta = plan_forward(problem, strided(initial_state))
    (B, T, H, K), V, N = q.shape, v.shape[3], q.shape[0] if cu_seqlens is None else problem.packed
    o = q.new_empty(B, T, H, V)
    final = q.new_empty(N, H, K, V, dtype=torch.float32) if output_final_state else None
    launch(
        plain.recurrent_forward_kernel, grid, q, k, v, gates, initial_state, cu_seqlens, o, final, scale, *sizes, **meta
    )
    clear_outside(cu_seqlens, T, o)
    return o, q.new_empty(0) if final is None else final


def backward(
    do, dfinal, q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, scale, output_final_state, reverse, needs
):
    """The gradients of q, k, v, the gates and the initial state, ``None`` where ``needs`` says so."""
    if do is None:  # only the final state was used
        do = q.new_zeros(()).expand(*q.shape[:3], v.shape[3])
    dfinal = dfinal if output_final_state else None
    (B, T, H, K), V, gates = q.shape, v.shape[3], Gates(g, g_gamma, gk, gv)
    problem = problem_of(q, k, v, gates, cu_seqlens, reverse)
    plan = plan_backward(problem, *map(strided, (initial_state, do, dfinal)))
    need_q, need_k, need_v, *need_gates, need_initial = needs
    need = Gates(*need_gates)
    new = lambda wanted, *shape, dtype=torch.float32: q.new_empty(shape, dtype=dtype) if wanted else None

    states = new(True, plan.kept, H, K, V)
    grid, sizes, meta = plan.states
    launch(states_kernel, grid, k, v, gates, initial_state, cu_seqlens, states, *sizes, **meta)

    tiles, blocks = plan.sizes.tiles, plan.sizes.blocks
    through = Through(
        dq=new(True, tiles, B, T, H, K),
        dk=new(True, tiles, B, T, H, K),
        dv=new(True, B, T, H, V),
        o=new(need.gv, B, T, H, V),
        passing_k=new(need.g or need.g_gamma or need.gk, tiles, blocks, H, *(() if gk is None else (K,))),
        passing_v=new(need.gv, blocks, H, V),
        dinitial=initial_state.new_empty(initial_state.shape) if need_initial else None,
    )
    grid, sizes, meta = plan.through
    launch(through_kernel, grid, do, dfinal, q, k, v, gates, states, cu_seqlens, through, scale, *sizes, **meta)

    in_groups = problem.group > 1
    grads = Gradients(
        dq=new(need_q, B, T, H, K, dtype=q.dtype),
        dk=new(need_k, B, T, H, K, dtype=torch.float32 if in_groups else k.dtype),
        dv=new(need_v, B, T, H, V, dtype=torch.float32 if in_groups else v.dtype),
        dg=new(need.g or need.g_gamma, B, T, H),
        dgk=new(need.gk, B, T, H, K, dtype=gk.dtype if need.gk else None),
        dgv=new(need.gv, B, T, H, V, dtype=gv.dtype if need.gv else None),
    )
    sequences = sequence_of_runs(cu_seqlens, blocks, plan.C)
    grid, sizes, meta = plan.pairs
    launch(pairs_kernel, grid, do, q, k, v, gates, sequences, cu_seqlens, through, grads, scale, *sizes, **meta)
    clear_outside(cu_seqlens, T, *grads)

    dq, dk, dv, dg, dgk, dgv = grads
    dk, dv = over_group(dk, k) if need_k else None, over_group(dv, v) if need_v else None
    dgamma = dg.sum((0, 1)).to(g_gamma.dtype) if need.g_gamma else None
    return dq, dk, dv, dg.to(g.dtype) if need.g else None, dgamma, dgk, dgv, through.dinitial


def step(q, k, v, state, g, g_gamma, gk, gv, slots, scale):
    """One token: the new ``o``; ``state`` is updated."""
    gates = Gates(g, g_gamma, gk, gv)
    layouts = *map(strided, (q, k, v)), Gates(*map(strided, gates)), strided(state), strided(slots)
    grid, sizes, meta = plan_step(*layouts, q.device)
    o = q.new_empty(*q.shape[:2], v.shape[2])
    launch(plain.recurrent_step_kernel, grid, q, k, v, gates, state, slots, o, scale, *sizes, **meta)
    return o


# As torch sees them: operators with known output shapes, in a compiled graph as in an eager one. A token of a head decays its
# state, adds to it and is read from; backward, it does so again, and seven more operations on the state follow. In chunks of
# C tokens these are products.


def _shapes(q, v, initial_state, cu_seqlens, scale, output_final_state, reverse):
    B, T, H, K = q.shape
    V, N = v.shape[3], B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    final = q.new_empty(N, H, K, V, dtype=torch.float32) if output_final_state else q.new_empty(0)
    return q.new_empty(B, T, H, V), final


def _chunk_shapes(q, k, v, g, g_gamma, gk, *rest):
    return *_shapes(q, v, *rest), q.new_empty(0) if gk is None else chunk.new_scores(q, chunk.tokens_in_chunk(q))


def _per_token(operations):
    return lambda q, v: q.shape[:-1].numel() * operations * q.shape[-1] * v.shape[-1]


def _products(q, v, states, q_side, v_side):
    """Those of all tokens: with their ``states`` of [K, V], and with the others of their chunk along K and along V."""
    K, V = q.shape[-1], v.shape[-1]
    return q.shape[:-1].numel() * 2 * (states * K * V + chunk.tokens_in_chunk(q) * (q_side * K + v_side * V))


_GATES = ", ".join(f"Tensor? {name}" for name in Gates._fields)
_IN_CHUNKS = ", ".join(f"Tensor? {name}" for name in Gates._fields[:3])
_NUMBERS = "float scale, bool output_final_state, bool reverse"

_attend = register(
    f"recurrent_attention(Tensor q, Tensor k, Tensor v, {_GATES}, Tensor? initial_state, Tensor? cu_seqlens, {_NUMBERS}) "
    "-> (Tensor o, Tensor final_state)",
    forward,
    lambda q, k, v, g, g_gamma, gk, gv, *rest: _shapes(q, v, *rest),
    backward=backward,
    gradients=("q", "k", "v", *Gates._fields, "initial_state"),
    saved=("q", "k", "v", *Gates._fields, "initial_state", "cu_seqlens"),
    flops=lambda q, k, v, *rest: _per_token(5)(q, v),
    backward_flops=lambda do, dfinal, q, k, v, *rest: _per_token(12)(q, v),
)
_attend_in_chunks = register(
    f"recurrent_attention_chunk(Tensor q, Tensor k, Tensor v, {_IN_CHUNKS}, Tensor? initial_state, Tensor? cu_seqlens, "
    f"{_NUMBERS}) -> (Tensor o, Tensor final_state, Tensor scores)",
    chunk.forward,
    _chunk_shapes,
    backward=chunk.backward,
    gradients=("q", "k", "v", *Gates._fields[:3], "initial_state"),
    saved=("q", "k", "v", *Gates._fields[:3], "initial_state", "cu_seqlens", "scores"),
    constant=("scores",),
    public="recurrent_attention",
    flops=lambda q, k, v, *rest: _products(q, v, 2, 1, 1),
    backward_flops=lambda do, dfinal, q, k, v, *rest: _products(q, v, 5, 3, 2),
)
_step = register(
    f"recurrent_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) state, {_GATES}, Tensor? slots, float scale) "
    "-> Tensor o",
    step,
    lambda q, k, v, *rest: q.new_empty(*q.shape[:2], v.shape[-1]),
    operator="recurrent_attention",
    flops=lambda q, k, v, *rest: _per_token(5)(q, v),
)
