"""Lesson 31's "Your turn" cells: a nested gather, the address of a shared bias, softcap's gradient by its cap."""

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.check.steps import step
from kernels.check.steps.helpers import block, difference, empty, launch, values


@triton.jit
def _tile_kernel(s_ptr, t_ptr, speaker_ptr, bias_ptr, T, mod: tl.constexpr):
    m, n = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    inside = (m < T) & (n < T)
    score = tl.load(s_ptr + m * T + n, mask=inside, other=0.0)
    t = mod(score, 0, 0, m % T, n % T, (speaker_ptr, bias_ptr))
    tl.store(t_ptr + m * T + n, t, mask=inside)


@step("31-speaker", "a bias by who asks whom, in Triton")
def speaker(answer):
    """Seven positions in a tile of eight, three speakers who do not take turns in order; the bias has no symmetry."""
    T = 7
    score, bias = values(T, T), values(3, 3, seed=1)
    who = torch.tensor([0, 2, 2, 1, 0, 1, 2], device=runtime.device)
    out = empty(T, T)
    try:
        launch(_tile_kernel, (1,), score, out, who, bias, T, answer)
    except Exception as raised:
        if "invalid operands of type pointer" in str(raised.__cause__ or raised):
            return "A bias is added to an address: tables[0] is speaker, whose numbers are places, and tables[1] is bias"
        raise
    asks, asked = who[:, None], who[None, :]
    added = bias[asks, asked]
    for wrong, why in (
        (score + bias[asked, asks], "The two are exchanged: the row of bias is that of who asks, the query's speaker"),
        (added, "The score is gone: the bias is added to it"),
        (score * added, "The score is multiplied by the bias, which is added to it"),
        (score + bias.flatten()[(asks + asked).clamp(max=8)], "Rows of bias are 3 apart: row a begins at entry 3 a"),
        (score + bias.flatten()[asks * 3].expand(T, T), "Every key gets the first entry of its row: add who is asked"),
        (score + bias[asks, asks].expand(T, T), "Both indices are the query's speaker: who is asked stands at kv_idx"),
    ):
        if not difference("", out, wrong):
            return why
    return difference("the changed score", out, score + added)


@step("31-shared", "the address of a bias that heads share, in bounds in every lane")
def shared(answer):
    """A tile of 8 over 5 queries and 6 keys, for the heads of three groups; the table's rows lie apart."""
    M, N, share, stride = 5, 6, 2, 13
    m, n = torch.arange(8, device="cpu")[:, None], torch.arange(8, device="cpu")[None, :]
    inside = (m < M) & (n < N)
    for h in (0, 3, 5):
        got = block(answer, m, n, h, M, N, share, stride, shape=(8, 8))
        case = f"With M = {M}, N = {N}, two heads to a row and rows {stride} apart, head {h}"
        for row, entry, why in (
            (h, n - m + M - 1, "reads row h of the table: neighbours share one, so it is row h // SHARE"),
            (h % share, n - m + M - 1, "reads row h % SHARE: neighbours share one, so it is row h // SHARE"),
            (h // share, m - n + N - 1, "reads the distances mirrored: entry 0 is that of key 0 seen from the last query"),
            (h // share, n - m, "reads entry n - m, which is below 0 for keys before the query: distances begin at -(M - 1)"),
            (h // share, n - m + M, "reads one entry too far on: n - m is at least -(M - 1)"),
            (h // share, m * N + n, "reads the table as if it had an entry for each pair: it has one for each distance"),
        ):
            wanted = h // share * stride + n - m + M - 1
            if torch.equal(got[inside].long(), (row * stride + entry)[inside]) and not torch.equal(
                (row * stride + entry)[inside], wanted[inside]
            ):
                return f"{case} {why}"
        if said := difference("the address", got[:M, :N], wanted[:M, :N]):
            return f"{case}: {said}"
        entry = got - h // share * stride
        if bad := ((entry < 0) | (entry > M + N - 2)).nonzero().tolist():
            query, key = bad[0]
            return (
                f"{case}: the lane of query {query} and key {key}, which does not exist, reads entry "
                f"{int(entry[query, key])} of a row of {M + N - 1}. Fold indices into bounds first: m % M, n % N"
            )
    return ""


@step("31-cap", "softcap's gradient, by the score and by a learned cap")
def cap_gradient(answer):
    """What stands at positions that don't exist is infinite; two batch rows share a head's cap."""
    s, grad = (3 * values(2, 3, 4, 5, seed=i, dtype=torch.float64) for i in range(2))
    cap = torch.tensor([0.5, 1.0, 2.0], dtype=s.dtype, device=s.device)
    live = torch.ones(4, 5, dtype=torch.bool, device=s.device)
    live[3], live[:, 4] = False, False
    c, u = cap[:, None, None], torch.tanh(s / cap[:, None, None])
    slope = 1 - u * u
    by_cap = u - s / c * slope
    ds, dcap = answer(s.masked_fill(~live, torch.inf), grad.clone(), cap.clone(), live.clone())

    def total(share):
        return torch.where(live, share * grad, 0.0).sum((0, 2, 3))

    if torch.isnan(ds).any() or torch.isnan(dcap).any():
        return (
            "NaN: where live is false s is infinite here, and infinity times 0 is not a number. Put 0 in its place with "
            "torch.where, after everything else"
        )
    wanted = torch.where(live, slope * grad, 0.0)
    if not difference("", ds, torch.where(live, slope / c * grad, 0.0)):
        return "By the score it is too small by the cap: in cap * tanh(s / cap) the outer factor cancels the inner one"
    if not difference("", ds, torch.where(live, u * grad, 0.0)):
        return "By the score it has tanh itself for its factor: the derivative of tanh is 1 - tanh²"
    if said := difference("Of the two, ds", ds, wanted):
        return said
    if tuple(dcap.shape) != (3,):
        return f"One cap a head makes a gradient of shape (3,), and yours has {tuple(dcap.shape)}: sum over b, m and n"
    for share, why in (
        (u, "The cap stands in two places, and this is the outer one's share: s / cap depends on it, too"),
        (u + s / c * slope, "The inner share counts with a minus: s / cap falls where the cap rises"),
        (u - s * slope, "The derivative of s / cap by cap is -s / cap², and the outer factor cancels one of the two"),
        (-s / c * slope, "The cap stands in two places, and this is the inner one's share: it is a factor of tanh, too"),
    ):
        if not difference("", dcap, total(share)):
            return why
    if not difference("", dcap, (torch.where(live, by_cap, 1.0) * grad).sum((0, 2, 3))):
        return "Positions that don't exist are counted: there every share is 0"
    return difference("Of the two, dcap", dcap, total(by_cap))
