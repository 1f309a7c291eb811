"""The public functions: validate, choose, register. Their docstrings are the ones of record."""

import functools

import torch
from torch import Tensor

from kernels.common.checks import (
    autocast,
    check_choice,
    check_cu_seqlens,
    check_cu_values,
    check_number,
    check_slots,
    check_tensor,
    check_writable,
    explains,
    public,
    remembered_check,
)
from kernels.common.operator import Operator
from kernels.common.precision import matmul_in_tf32
from kernels.recurrent_attention import plan
from kernels.recurrent_attention.chunk.cut import cuts, new_scores, size_class
from kernels.recurrent_attention.gates import DIMENSIONS, OF_A_TOKEN, Gates

MODES = ("auto", *plan.WAYS)


@public
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
    q, k, v = autocast(q, k, v)
    gates = g, g_gamma, gk, gv
    numbers = scale, output_final_state, reverse, mode
    known, *numbers = _checked(q, k, v, initial_state, cu_seqlens, *numbers, state_v_first, *gates)
    initial_state = initial_state.mT if state_v_first and initial_state is not None else initial_state
    if cu_seqlens is not None:
        cu_seqlens = check_cu_values(cu_seqlens, q.shape[1])
    o, final_state, _ = _attend(q, k, v, *gates, initial_state, cu_seqlens, *numbers, known=known)
    if not output_final_state:
        return o, None
    return o, final_state.mT if state_v_first else final_state


@public
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
    q, k, v = autocast(q, k, v)
    gates = g, g_gamma, gk, gv
    _check_step(q, k, v, state, slots is None, scale, state_v_first, *gates)
    if not (state.is_contiguous() or state.mT.is_contiguous()):
        raise ValueError(
            f"state has strides {state.stride()}, needs to be contiguous, as it is or transposed: it is updated in place"
        )
    check_writable("state", state)
    if slots is not None:
        check_slots("slots", slots, q.shape[0], state.shape[0], ("q", q))
    state = state.mT if state_v_first else state
    return _step(q, k, v, state, *gates, slots, _scale(scale, q))


@explains(recurrent_attention)
def explain(q, k, v, scale, initial_state, output_final_state, reverse, cu_seqlens, mode, state_v_first, **gates):
    """Which mode ``recurrent_attention`` would take for these arguments, and why, as text; then what that launches."""
    q, k, v = autocast(q, k, v)
    gates = Gates(**gates)
    choice = _chosen(q, k, v, initial_state, cu_seqlens, scale, mode, state_v_first, *gates)
    check_cu_values(cu_seqlens, q.shape[1])
    reason = "; ".join(choice.passed_over.values()) or "the caller asked for it"
    x = plan.Inputs(q, k, v, gates, initial_state, cu_seqlens, scale, reverse)
    return f"{choice.name}: {reason}\n{plan.planned(x, choice.name)}"


def _scale(scale, q):
    return float(max(q.shape[-1], 1) ** -0.5 if scale is None else scale)


def _state(H, K, V, v_first):
    """The last dimensions of a state, in symbols and as numbers."""
    return ("H, V, K", (H, V, K)) if v_first else ("H, K, V", (H, K, V))


@functools.partial(remembered_check, layouts=True)
def _checked(alike, q, k, v, initial_state, cu_seqlens, scale, output_final_state, reverse, mode, v_first, *gates):
    """``(Known of such calls, or None, scale, output_final_state, reverse, mode)`` of arguments that fit."""
    mode = _chosen(q, k, v, initial_state, cu_seqlens, scale, mode, v_first, *gates).name
    numbers = _scale(scale, q), output_final_state, reverse, mode
    if not alike:
        return None, *numbers
    return _attend.alike(*numbers, switch=matmul_in_tf32 if q.dtype == torch.float32 else None), *numbers


def _chosen(q, k, v, initial_state, cu_seqlens, scale, mode, state_v_first, *gates):
    """The ``Choice`` of a mode, for arguments that fit."""
    check_choice("mode", mode, MODES)
    gates = Gates(*gates)
    _check_token(q, k, v, gates, scale)
    B, _, H, K = q.shape
    N = check_cu_seqlens(cu_seqlens, B, ("q", q))
    if initial_state is not None:
        legend, sizes = _state(H, K, v.shape[-1], state_v_first)
        check_tensor("initial_state", initial_state, (N, *sizes), f"[N, {legend}]", like=("q", q))
    return plan.chosen(mode, q, k, v, gates)


@remembered_check
def _check_step(q, k, v, state, one_each, scale, state_v_first, *gates):
    """Whether a step's arguments fit, but for the layout of its state, and slots."""
    _check_token(q, k, v, Gates(*gates), scale, token=True)
    B, H, K = q.shape
    legend, sizes = _state(H, K, v.shape[-1], state_v_first)
    shape = (B if one_each else None, *sizes)
    check_tensor("state", state, shape, f"[B or pool, {legend}]", dtypes=(torch.float32,), like=("q", q))
    return True


def _check_token(q, k, v, gates, scale, token=False):
    """Check what tokens bring, or what a single one does."""
    names = "B" if token else "B, T"
    like = ("q", q)
    check_tensor("q", q, (None,) * (3 if token else 4), f"[{names}, H, K]")
    *rows, H, K = q.shape
    check_tensor("k", k, (*rows, None, K), f"[{names}, Hkv, K]", like=like)
    Hkv = k.shape[-2]
    if H % Hkv if Hkv else H:
        raise ValueError(f"k has {Hkv} heads, needs a number that divides q's {H}: each serves H / Hkv heads of q")
    check_tensor("v", v, (*rows, Hkv, None), f"[{names}, Hkv, V]", like=like)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {_name(tensor.dtype)}, needs {_name(q.dtype)}, the dtype of q")
    sizes = dict(zip("BHKV" if token else "BTHKV", (*rows, H, K, v.shape[-1]), strict=True))
    for name, gate, letters in zip(Gates._fields, gates, OF_A_TOKEN if token else DIMENSIONS, strict=True):
        if gate is not None:
            check_tensor(name, gate, [sizes[d] for d in letters], f"[{', '.join(letters)}]", like=like)
    check_number("scale", scale)


def _name(dtype):
    return str(dtype).removeprefix("torch.")


# As torch sees them: one opaque call with known output shapes, in a compiled graph as in an eager one.


def _shapes(q, k, v, *rest):
    *gates, initial_state, cu_seqlens, scale, output_final_state, reverse, mode = rest
    B, T, H, K = q.shape
    V = v.shape[-1]
    final = scores = None
    if mode == "chunk" and Gates(*gates).gk is not None and T > 0 and H > 0:
        scores = new_scores(q, cuts(size_class(K, q.dtype), q.device)["C"])
    if output_final_state:
        N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
        final = q.new_empty(N, H, K, V, dtype=torch.float32)
    return q.new_empty(B, T, H, V), final, scores


_GATES = ", ".join(f"Tensor? {name}" for name in Gates._fields)
_DIFFERENTIABLE = ("q", "k", "v", *Gates._fields, "initial_state")

_attend = Operator(
    f"recurrent_attention(Tensor q, Tensor k, Tensor v, {_GATES}, Tensor? initial_state, Tensor? cu_seqlens, float scale, "
    "bool output_final_state, bool reverse, str mode) -> (Tensor o, Tensor final_state, Tensor scores)",
    plan.forward,
    _shapes,
    backward=plan.backward,
    gradients=_DIFFERENTIABLE,
    saved=(*_DIFFERENTIABLE, "cu_seqlens", "scores"),
    constant=("scores",),
)
_step = Operator(
    f"recurrent_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) state, {_GATES}, Tensor? slots, float scale) "
    "-> Tensor o",
    plan.step,
    lambda q, k, v, *rest: q.new_empty(*q.shape[:2], v.shape[-1]),
    room="recurrent_attention",
)


# What torch's counter of floating-point operations is told. A token of a head decays its state, adds to it and is read from;
# backward, it does so again, and seven more operations on the state follow. In chunks of C tokens these are products.


def _products(q, v, mode, states, q_side, v_side):
    """Those of all tokens: with their ``states`` of [K, V], and with the others of their chunk along K and along V."""
    K, V = q.shape[-1], v.shape[-1]
    if mode == "chunk":
        C = cuts(size_class(K, q.dtype), q.device)["C"]
        return q.shape[:-1].numel() * 2 * (states * K * V + C * (q_side * K + v_side * V))
    return q.shape[:-1].numel() * (5 if states == 2 else 12) * K * V


def _flops(q, k, v, *rest):
    return _products(q, v, rest[-1], 2, 1, 1)


def _backward_flops(do, dfinal, q, k, v, *rest):
    return _products(q, v, rest[-2], 5, 3, 2)


_attend.counts(_flops, _backward_flops)
_step.counts(lambda q, k, v, *rest: 5 * q.numel() * v.shape[-1])
