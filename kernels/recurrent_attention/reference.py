"""Gated recurrent attention in plain PyTorch: slow, obviously right, any float dtype, differentiable by autograd."""

import torch


def recurrent_attention_reference(
    q,
    k,
    v,
    *,
    g=None,
    g_gamma=None,
    gk=None,
    gv=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    reverse=False,
    cu_seqlens=None,
):
    """The recurrence of ``recurrent_attention``, one token at a time: same arguments, same results, in q's dtype.

    .. math::
        S_t = D_t \\odot S_{t-1} + k_t v_t^\\top, \\qquad o_t = c\\, S_t^\\top q_t, \\qquad
        D_t = \\exp\\big(g_t + \\gamma_h + g^k_t \\mathbf 1^\\top + \\mathbf 1 (g^v_t)^\\top\\big)

    for every sequence and head, from :math:`S_0`, the initial state or zeros; ``reverse`` walks t from last to first.
    """
    B, T, H, K = q.shape
    V = v.shape[-1]
    c = K**-0.5 if scale is None else scale
    k, v = (x.repeat_interleave(H // max(x.shape[2], 1), dim=2) for x in (k, v))
    if cu_seqlens is None:
        spans = [(b, 0, T) for b in range(B)]
    else:
        ends = cu_seqlens.tolist()
        spans = [(0, begin, end) for begin, end in zip(ends[:-1], ends[1:], strict=True)]

    outputs, states = [], []
    for n, (b, begin, end) in enumerate(spans):
        S = q.new_zeros(H, K, V) if initial_state is None else initial_state[n].to(q.dtype)
        o = [None] * (end - begin)
        for t in reversed(range(begin, end)) if reverse else range(begin, end):
            log_decay = q.new_zeros(H, K, V)
            if g is not None:
                log_decay = log_decay + g[b, t, :, None, None]
            if g_gamma is not None:
                log_decay = log_decay + g_gamma[:, None, None]
            if gk is not None:
                log_decay = log_decay + gk[b, t, :, :, None]
            if gv is not None:
                log_decay = log_decay + gv[b, t, :, None, :]
            S = log_decay.exp() * S + k[b, t, :, :, None] * v[b, t, :, None, :]
            o[t - begin] = c * torch.einsum("hkv,hk->hv", S, q[b, t])
        outputs += o
        states.append(S)

    outputs += [q.new_zeros(H, V)] * (B * T - len(outputs))  # behind the last sequence lies padding
    o = torch.stack(outputs).reshape(B, T, H, V) if outputs else q.new_zeros(B, T, H, V)
    if not output_final_state:
        return o, None
    return o, torch.stack(states) if states else q.new_zeros(0, H, K, V)


def recurrent_attention_step_reference(
    q, k, v, state, *, g=None, g_gamma=None, gk=None, gv=None, scale=None, slots=None
):
    """One token of the recurrence: ``(o, new_state)`` for q, k [B, H, K] and v [B, H, V], nothing in place."""
    chosen = torch.arange(q.shape[0], device=q.device) if slots is None else slots.long().clamp(min=0)
    q, k, v, g, gk, gv = (None if x is None else x[:, None] for x in (q, k, v, g, gk, gv))
    gates = {"g": g, "g_gamma": g_gamma, "gk": gk, "gv": gv}
    start = state[chosen] if state.shape[0] else None
    o, updated = recurrent_attention_reference(
        q, k, v, **gates, scale=scale, initial_state=start, output_final_state=True
    )
    if slots is None:
        return o[:, 0], state.index_copy(0, chosen, updated.to(state.dtype))
    there = slots >= 0  # the other rows are padding
    o = torch.where(there[:, None, None], o[:, 0], 0)
    return o, state.index_copy(0, chosen[there], updated[there].to(state.dtype))
