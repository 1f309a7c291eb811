"""The public functions: validate, choose, wire autograd. Their docstrings are the ones of record."""

import torch
from torch import Tensor

from kernels.common.operator import autocast, public, refuse_second_derivative
from kernels.common.sequences import check_cu_seqlens
from kernels.common.validate import check_choice, check_number, check_slots, check_tensor
from kernels.recurrent_attention.chunk import backward as chunk_backward
from kernels.recurrent_attention.chunk import decays as chunk_decays
from kernels.recurrent_attention.chunk import forward as chunk_forward
from kernels.recurrent_attention.recurrence import backward as backward_pass
from kernels.recurrent_attention.recurrence import forward as forward_pass

MODES = ("auto", "recurrent", "chunk")
SHORT = 16  # tokens along time up to which the recurrence takes no more steps than a chunk has rows to fill


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
        scale: c, a number; ``None`` means :math:`K^{-1/2}`.
        initial_state: :math:`S_0`, [N, H, K, V]; ``None`` means zeros.
        output_final_state: return the state after the last token, too.
        reverse: walk from the last token of each sequence to its first.
        cu_seqlens: int32 or int64 [N+1], for sequences packed end to end along T with B = 1: sequence n is tokens
            ``cu_seqlens[n]`` to ``cu_seqlens[n+1] - 1``; it may be empty. ``None``: every batch row is a sequence, N = B.
        mode: ``"recurrent"``: one token at a time, every gate; ``"chunk"``: matrix products, every gate but gv;
            ``"auto"`` chooses between them. ``recurrent_attention.explain`` says which, and why.
        state_v_first: initial_state and final_state are [N, H, V, K], as flash-linear-attention's layers keep them: the same
            as passing ``initial_state.mT``, which is read in place.

    Returns:
        ``(o, final_state)``: o [B, T, H, V] in q's dtype; final_state [N, H, K, V] float32, or ``None`` if not asked for.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit, or ``mode="chunk"`` with gv; the values of
            ``cu_seqlens`` do not (checked when it is on the CPU or ``KERNELS_CHECK=1``).

    Source: gated linear attention (Yang et al., 2023, arXiv:2312.06635) and its library flash-linear-attention.
    """
    q, k, v = autocast(q, k, v)
    _check(q, k, v, g, g_gamma, gk, gv, scale, initial_state, cu_seqlens, mode, ("B", "T"), state_v_first)
    initial_state = initial_state.mT if state_v_first and initial_state is not None else initial_state
    mode, _ = _choose(mode, q, gk, gv)
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.contiguous()
    scale = _scale(scale, q)
    o, final_state, _ = _forward(
        q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, scale, output_final_state, reverse, mode
    )
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
        slots: int64 [B], which state of the pool belongs to each row of q, no two the same; ``None``: row b uses state b.
        state_v_first: state is [B or pool, H, V, K].

    Returns:
        o [B, H, V] in q's dtype.

    Raises:
        ValueError: an argument's type, shape, dtype, device or layout does not fit; the values of ``slots`` do not
            (checked when it is on the CPU or ``KERNELS_CHECK=1``).
    """
    _check_token(q, k, v, g, g_gamma, gk, gv, scale, ("B",))
    B, H, K = q.shape
    like = ("q", q)
    pool = B if slots is None else None
    legend, sizes = _state(H, K, v.shape[-1], state_v_first)
    check_tensor("state", state, (pool, *sizes), f"[B or pool, {legend}]", dtypes=(torch.float32,), like=like)
    if not (state.is_contiguous() or state.mT.is_contiguous()):
        raise ValueError(
            f"state has strides {state.stride()}, needs to be contiguous, as it is or transposed: it is updated in place"
        )
    if state.requires_grad and torch.is_grad_enabled():
        raise ValueError("state requires a gradient, needs none: a step updates it in place and is not differentiable")
    if slots is not None:
        check_slots("slots", slots, B, state.shape[0], like)
    state = state.mT if state_v_first else state
    return _step(q, k, v, state, g, g_gamma, gk, gv, slots, _scale(scale, q))


def explain(
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
) -> str:
    """Which mode ``recurrent_attention`` would take for these arguments, and why, as text."""
    _check(q, k, v, g, g_gamma, gk, gv, scale, initial_state, cu_seqlens, mode, ("B", "T"), state_v_first)
    return "{}: {}".format(*_choose(mode, q, gk, gv))


recurrent_attention.explain = explain


def _choose(mode, q, gk, gv):
    """``(mode, reason)``."""
    if mode == "chunk" and gv is not None:
        raise ValueError("mode is 'chunk', needs to be 'recurrent' with gv: chunks have no form for a gate on values")
    if mode != "auto":
        return mode, "the caller asked for it"
    if gv is not None:
        return "recurrent", "only the recurrence has gates on values (gv)"
    if q.shape[1] <= SHORT:
        return "recurrent", f"{q.shape[1]} tokens along time are no more than {SHORT}: too few to fill a chunk"
    return "chunk", "matrix products over chunks of tokens are faster than one token after the other"


def _scale(scale, q):
    return float(max(q.shape[-1], 1) ** -0.5 if scale is None else scale)


def _state(H, K, V, v_first):
    """The last dimensions of a state, in symbols and as numbers."""
    return ("H, V, K", (H, V, K)) if v_first else ("H, K, V", (H, K, V))


def _check(q, k, v, g, g_gamma, gk, gv, scale, initial_state, cu_seqlens, mode, lead, state_v_first):
    check_choice("mode", mode, MODES)
    _check_token(q, k, v, g, g_gamma, gk, gv, scale, lead)
    B, T, H, K = q.shape
    N = check_cu_seqlens(cu_seqlens, B, T, ("q", q))
    if initial_state is not None:
        legend, sizes = _state(H, K, v.shape[-1], state_v_first)
        check_tensor("initial_state", initial_state, (N, *sizes), f"[N, {legend}]", like=("q", q))


def _check_token(q, k, v, g, g_gamma, gk, gv, scale, lead):
    """Check what a token brings; ``lead`` names the dimensions in front of the heads."""
    names = ", ".join(lead)
    like = ("q", q)
    check_tensor("q", q, (None,) * len(lead) + (None, None), f"[{names}, H, K]")
    *rows, H, K = q.shape
    check_tensor("k", k, (*rows, None, K), f"[{names}, Hkv, K]", like=like)
    Hkv = k.shape[-2]
    if H % Hkv if Hkv else H:
        raise ValueError(f"k has {Hkv} heads, needs a number that divides q's {H}: each serves H / Hkv heads of q")
    check_tensor("v", v, (*rows, Hkv, None), f"[{names}, Hkv, V]", like=like)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {_name(tensor.dtype)}, needs {_name(q.dtype)}, the dtype of q")
    if g is not None:
        check_tensor("g", g, (*rows, H), f"[{names}, H]", like=like)
    if g_gamma is not None:
        check_tensor("g_gamma", g_gamma, (H,), "[H]", like=like)
    if gk is not None:
        check_tensor("gk", gk, (*rows, H, K), f"[{names}, H, K]", like=like)
    if gv is not None:
        check_tensor("gv", gv, (*rows, H, v.shape[-1]), f"[{names}, H, V]", like=like)
    check_number("scale", scale)


def _name(dtype):
    return str(dtype).removeprefix("torch.")


# Custom operators, so that torch.compile sees one opaque call with known output shapes instead of breaking the graph.


@torch.library.custom_op("kernels_from_math::recurrent_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    g_gamma: Tensor | None,
    gk: Tensor | None,
    gv: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    output_final_state: bool,
    reverse: bool,
    mode: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(o, final state, scores)``, empty where there is none; the scores are for the backward pass of chunk mode."""
    scores = None
    rest = (scale, initial_state, output_final_state, reverse, cu_seqlens)
    if mode == "chunk":
        o, final_state, scores = chunk_forward.forward(q, k, v, g, g_gamma, gk, *rest)
    else:
        o, final_state = forward_pass.forward(q, k, v, g, g_gamma, gk, gv, *rest)
    return o, *(q.new_empty(0) if x is None else x for x in (final_state, scores))


@_forward.register_fake
def _(q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, scale, output_final_state, reverse, mode):
    B, T, H, K = q.shape
    V = v.shape[-1]
    o = q.new_empty(B, T, H, V)
    scores = q.new_empty(0)
    if mode == "chunk" and gk is not None and T > 0 and H > 0:
        scores = q.new_empty(B, T, H, chunk_decays.cuts(q)["C"], dtype=chunk_decays.operand_dtype(q))
    if not output_final_state:
        return o, q.new_empty(0), scores
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return o, q.new_empty(N, H, K, V, dtype=torch.float32), scores


@torch.library.custom_op("kernels_from_math::recurrent_attention_backward", mutates_args=())
def _backward(
    do: Tensor,
    dfinal: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    g_gamma: Tensor | None,
    gk: Tensor | None,
    gv: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scores: Tensor,
    scale: float,
    reverse: bool,
    mode: str,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    if mode == "chunk":
        chunk_needs = needs[:6] + needs[7:]
        grads = chunk_backward.backward(
            do, dfinal, q, k, v, g, g_gamma, gk, scale, initial_state, reverse, cu_seqlens, chunk_needs,
            scores if scores.numel() else None,
        )  # fmt: skip
        grads = *grads[:6], None, grads[6]
    else:
        grads = backward_pass.backward(
            do, dfinal, q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens, needs
        )
    return tuple(q.new_empty(0) if grad is None else grad for grad in grads)


@_backward.register_fake
def _(do, dfinal, q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, scores, scale, reverse, mode, needs):
    given = (q, k, v, g, g_gamma, gk, gv, initial_state)
    return tuple(t.new_empty(t.shape) if need else q.new_empty(0) for t, need in zip(given, needs, strict=True))


def _save(ctx, inputs, output):
    *tensors, scale, output_final_state, reverse, mode = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.scale, ctx.reverse, ctx.mode = scale, reverse, mode
    ctx.final_state = output_final_state
    ctx.set_materialize_grads(False)


def _differentiate(ctx, do, dfinal, _):
    q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, scores = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:8])
    if do is None:  # only the final state was used
        do = q.new_zeros(()).expand(*q.shape[:3], v.shape[-1])
    grads = _backward(
        do, dfinal if ctx.final_state else None, q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens,
        scores, ctx.scale, ctx.reverse, ctx.mode, needs,
    )  # fmt: skip
    grads = (grad if need else None for grad, need in zip(grads, needs, strict=True))
    return *grads, None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(refuse_second_derivative("recurrent_attention"))


@torch.library.custom_op("kernels_from_math::recurrent_attention_step", mutates_args=("state",))
def _step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    g: Tensor | None,
    g_gamma: Tensor | None,
    gk: Tensor | None,
    gv: Tensor | None,
    slots: Tensor | None,
    scale: float,
) -> Tensor:
    return forward_pass.step(q, k, v, state, g, g_gamma, gk, gv, scale, slots)


@_step.register_fake
def _(q, k, v, state, g, g_gamma, gk, gv, slots, scale):
    return q.new_empty(*q.shape[:2], v.shape[-1])
