"""Wrong answers to lesson 31's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def prefix(sees, value="torch.where(sees, score, -torch.inf)"):
    return f"""def prefix_window(prefix, size):
    def mod(score, b, h, q_idx, kv_idx):
        back = q_idx - kv_idx
        sees = {sees}
        return {value}

    return mod
"""


def shared(value, fold="offs_m % M, offs_n % N"):
    return f"@triton.jit\ndef address(offs_m, offs_n, h, M, N, SHARE, stride):\n    m, n = {fold}\n    return {value}\n"


def cap(ds="torch.where(live, (1 - u * u) * grad, 0.0)", share="u - s / kappa * (1 - u * u)", dcap=None):
    return f"""def cap_gradient(s, grad, cap, live):
    kappa = cap[:, None, None]
    u = torch.tanh(s / kappa)
    ds = {ds}
    dcap = {dcap or f"torch.where(live, ({share}) * grad, 0.0).sum((0, 2, 3))"}
    return ds, dcap
"""


WINDOW = "(back >= 0) & (back < size)"
WRONG = {
    "31-prefix": [
        (prefix("kv_idx < prefix[b] or back < size"), "ask for one truth"),
        (prefix(f"(kv_idx < prefix[b]) & {WINDOW}"), "not only if it is in both"),
        (prefix("(kv_idx < prefix[b]) | (back < size)"), "Queries see later keys"),
        (prefix("(kv_idx < prefix[b]) | ((back >= 0) & (back <= size))"), "The window holds 4 keys"),
        (prefix("(kv_idx < prefix[b]) | ((back > 0) & (back <= size))"), "No query sees its own key"),
        (prefix(f"(kv_idx <= prefix[b]) | ({WINDOW})"), "one key too long"),
        (prefix(f"(q_idx < prefix[b]) | ({WINDOW})"), "It is keys that make the prefix"),
        (prefix(f"(kv_idx < prefix[0]) | ({WINDOW})"), "the prefix of the first"),
        (prefix(WINDOW), "never seen from behind"),
        (prefix(f"(kv_idx < prefix[b]) | ({WINDOW})", "torch.where(sees, -torch.inf, score)"), "Just the other keys"),
        (prefix(f"(kv_idx < prefix[b]) | ({WINDOW})", "torch.where(sees, 0.0 * score, -torch.inf)"), "keeps its score"),
        (prefix(f"(kv_idx < prefix[b]) | ({WINDOW})", "torch.where(sees, score, -1e9)"), "yours makes -1e+09 of"),
        (prefix("back < 0"), "query 0 does not see key 0"),
    ],
    "31-shared": [
        (shared("h * stride + n - m + M - 1"), "neighbours share one"),
        (shared("h % SHARE * stride + n - m + M - 1"), "reads row h % SHARE"),
        (shared("h // SHARE * stride + m - n + N - 1"), "mirrored"),
        (shared("h // SHARE * stride + n - m"), "distances begin at"),
        (shared("h // SHARE * stride + n - m + M"), "one entry too far on"),
        (shared("h // SHARE * stride + m * N + n"), "one for each distance"),
        (shared("h // SHARE * stride + n - m + M - 1", "offs_m, offs_n"), "Fold indices into bounds first"),
        (shared("h // SHARE * (M + N - 1) + n - m + M - 1"), "head 3: the address"),
    ],
    "31-cap": [
        (cap(ds="torch.where(live, (1 - u * u) / kappa * grad, 0.0)"), "too small by the cap"),
        (cap(ds="torch.where(live, u * grad, 0.0)"), "has tanh itself"),
        (cap(share="u"), "this is the outer one's share"),
        (cap(share="u + s / kappa * (1 - u * u)"), "counts with a minus"),
        (cap(share="u - s * (1 - u * u)"), "cancels one of the two"),
        (cap(share="-s / kappa * (1 - u * u)"), "this is the inner one's share"),
        (cap(dcap="((u - s / kappa * (1 - u * u)) * grad * live).sum((0, 2, 3))"), "infinity times 0"),
        (cap(dcap="torch.where(live, (u - s / kappa * (1 - u * u)) * grad, 0.0).sum((2, 3))"), "sum over b, m and n"),
        (cap(ds="(1 - u * u) * grad + 0 * live + 1"), "Of the two, ds["),
    ],
}
