"""Plausible wrong answers to lesson 10's "Your turn" cells, and what the diagnosis must say."""

WRONG = {
    "10-ahead": [
        ("def ahead(t, w, T):\n    j = t - w\n    return j, j >= 0", "two tokens back"),
        ("def ahead(t, w, T):\n    j = t + 2 - w\n    return j, j < T", "the taps are reversed"),
        ("def ahead(t, w, T):\n    j = t + w\n    return j, j <= T", "the last token is 9"),
        ("def ahead(t, w, T):\n    j = t + w\n    return j, (t < T) & (w >= 0)", "must ask for j, not for t"),
        ("def ahead(t, w, T):\n    j = t + w\n    return j, j >= 0", "reaches beyond the end"),
        ("def ahead(t, w, T):\n    return (t + w).clamp(max=T - 1), t + w < T", "Token 8's taps read times [8, 9, 9]"),
    ],
    "10-shift": [
        (
            "def newest_first(state, piece):\n    return torch.cat([piece, state], -1)[..., : state.shape[-1]]",
            "turn it around",
        ),
        (
            "def newest_first(state, piece):\n"
            "    slots, new = state.shape[-1], piece.flip(-1)\n"
            "    state[..., : new.shape[-1]] = new[..., :slots]\n"
            "    return state",
            "must move on by L = 1",
        ),
        (
            "def newest_first(state, piece):\n    return torch.cat([state, piece], -1)[..., -state.shape[-1] :]",
            "oldest stands first",
        ),
        (
            "def newest_first(state, piece):\n"
            "    return torch.cat([state, piece], -1).flip(-1)[..., : state.shape[-1]]",
            "turn the piece around alone",
        ),
        (
            "def newest_first(state, piece):\n    return piece.flip(-1)[..., : state.shape[-1]]",
            "the piece alone is too short",
        ),
        (
            "def newest_first(state, piece):\n"
            "    kept = state[..., : -piece.shape[-1]]\n"
            "    return torch.cat([piece.flip(-1), kept], -1)[..., : state.shape[-1]]",
            "a slice [:-0] is empty",
        ),
        (
            "def newest_first(state, piece):\n"
            "    return torch.cat([state.flip(-1), piece], -1)[..., -state.shape[-1] :].flip(-1)",
            "a slice [-0:] is everything",
        ),
    ],
    "10-after": [
        (
            "def tokens_after(cu_seqlens):\n"
            "    t = torch.arange(int(cu_seqlens[-1]))\n"
            "    n = torch.searchsorted(cu_seqlens, t, right=True) - 1\n"
            "    return t - cu_seqlens[n]",
            "the place in the document",
        ),
        (
            "def tokens_after(cu_seqlens):\n"
            "    t = torch.arange(int(cu_seqlens[-1]))\n"
            "    n = torch.searchsorted(cu_seqlens, t, right=True) - 1\n"
            "    return cu_seqlens[n + 1] - t",
            "where the next one begins",
        ),
        (
            "def tokens_after(cu_seqlens):\n    T = int(cu_seqlens[-1])\n    return T - 1 - torch.arange(T)",
            "into other documents",
        ),
        (
            "def tokens_after(cu_seqlens):\n"
            "    t = torch.arange(int(cu_seqlens[-1]))\n"
            "    n = (t[:, None] == cu_seqlens[:-1].unique()).any(1).cumsum(0) - 1\n"
            "    return cu_seqlens[n + 1] - 1 - t",
            "an empty document has a number too",
        ),
    ],
}
