"""Lesson 31's "Your turn" cells: a window with a prefix, the address of a shared bias, softcap's gradient by its cap."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import block, difference, values


@step("31-prefix", "a window with a prefix, as a function of one element")
def prefix(answer):
    """Two batch rows with different prefixes, one of them none; called on all positions at once."""
    T, size = 7, 3
    score = values(2, 1, T, T)
    lengths = torch.tensor([2, 0], device=score.device)
    at = torch.meshgrid(*(torch.arange(length, device=score.device) for length in score.shape), indexing="ij")
    b, _, m, n = at
    try:
        got = answer(lengths, size)(score.clone(), *at)
    except RuntimeError as raised:
        if "ambiguous" not in str(raised):
            raise
        return "`if`, `and` and `or` ask for one truth, and the mod is recorded once for all: use torch.where, & and |"
    if not isinstance(got, torch.Tensor) or got.shape != score.shape:
        return "The mod must return one changed score for the one that it is given"
    sees = got == score
    if not (sees | (got == -torch.inf)).all():
        at = tuple((~sees & (got != -torch.inf)).nonzero()[0].tolist())
        made = f"yours makes {float(got[at]):.3g} of {float(score[at]):.3g}"
        return f"A key that is seen keeps its score, any other gets -inf, and {made}"
    in_prefix, back = n < lengths[b], m - n
    window = (back >= 0) & (back < size)
    for mask, why in (
        (in_prefix & window, "A key is seen if it is in the prefix or in the window: not only if it is in both"),
        (in_prefix | (back < size), "Queries see later keys: the window ends with the query's own key"),
        (in_prefix | ((back >= 0) & (back <= size)), f"The window holds {size + 1} keys: its own is one of the {size}"),
        (in_prefix | ((back > 0) & (back <= size)), "No query sees its own key, which is the window's last"),
        ((n <= lengths[b]) | window, "The prefix is one key too long: prefix[b] keys are those before number prefix[b]"),
        ((m < lengths[b]) | window, "It is keys that make the prefix: those with kv_idx < prefix[b], for every query"),
        ((n < lengths[0]) | window, "Every batch row has the prefix of the first: take prefix[b]"),
        (window, "The prefix is never seen from behind the window"),
        (~(in_prefix | window), "Just the other keys are seen: torch.where takes its second argument where the first holds"),
    ):
        if torch.equal(sees, mask):
            return why
    wrong = (sees != (in_prefix | window)).nonzero()
    if not len(wrong):
        return ""
    row, _, query, key = wrong[0].tolist()
    seen = "sees" if sees[row, 0, query, key] else "does not see"
    return f"With a prefix of {int(lengths[row])} and a window of {size}, query {query} {seen} key {key}"


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
