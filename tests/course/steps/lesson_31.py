"""Wrong answers to lesson 31's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def speaker(value, asked="tl.load(tables[0] + kv_idx)"):
    return f"""@triton.jit
def by_turns(score, b, h, q_idx, kv_idx, tables):
    asks = tl.load(tables[0] + q_idx)
    asked = {asked}
    return {value}
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


WRONG = {
    "31-speaker": [
        (speaker("score + tl.load(tables[1] + asked * 3 + asks)"), "The two are exchanged"),
        (speaker("tl.load(tables[1] + asks * 3 + asked)"), "The score is gone"),
        (speaker("score * tl.load(tables[1] + asks * 3 + asked)"), "is multiplied by the bias"),
        (speaker("score + tl.load(tables[1] + asks + asked)"), "Rows of bias are 3 apart"),
        (speaker("score + tl.load(tables[1] + asks * 3 + asked)", "tl.load(tables[0] + q_idx)"), "stands at kv_idx"),
        (speaker("score + tl.load(tables[1] + asks * 3)"), "first entry of its row"),
        (speaker("score + tl.load(tables[1] + asks * 3 + asked)", "kv_idx"), "outside"),
        (speaker("score + tl.load(tables[1] + asks[:, None] * 3 + asked[None, :])"), "has the shape [8, 8, 8]"),
        (speaker("score + tl.load(tables[0] + asks * 3 + asked)", "tl.load(tables[1] + kv_idx)"), "tables[0] is speaker"),
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
