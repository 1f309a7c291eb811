"""Wrong answers to lesson 12's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def dk(value, body=""):
    return f"""def dk_reversed(dy, x, W):
    dk = torch.zeros(*x.shape, W, dtype=x.dtype, device=x.device)
    for w in range(W):
        {body or "dk[:, :, :, w] = " + value}
    return dk
"""


def seen(value):
    return f"""def seen_inside(j, w, W, cu_seqlens):
    n = torch.searchsorted(cu_seqlens, j, right=True) - 1
    return {value}
"""


def sums(start="last + W - 1", entered="[0.0, *sums]", condition="t <= last", pair="t, sums[-1]", kept="sums[:-1]"):
    return f"""def sums_back(share, first, last, W):
    sums = [0.0] * (W - 1)
    for t in range({start}, first - 1, -1):
        sums = {entered}
        sums = [total + share(t, w) for w, total in enumerate(sums)]
        if {condition}:
            yield {pair}
        sums = {kept}
"""


WRONG = {
    "12-reversed": [
        (dk("dy * x.roll(w, 1)"), "which `roll` brings round"),
        (dk("dy * F.pad(x, (0, 0, W - 1 - w, 0))[:, : x.shape[1]]"), "lesson 10's order"),
        (dk("dy * F.pad(x, (0, 0, 0, w))[:, w:]"), "these taps look back"),
        (dk("", "dk[:, :, :, w] = F.pad(dy * x, (0, 0, w, 0))[:, : x.shape[1]]"), "dy is moved along with x"),
        (
            dk("dy * F.pad(x.flatten(0, 1), (0, 0, w, 0))[: len(x) * x.shape[1]].view_as(x)"),
            "the last inputs of sequence 0",
        ),
        (dk("dy * x"), "the gradient of k["),
    ],
    "12-end": [
        (seen("j + W - 1 - w < cu_seqlens[-1]"), "the published mistake"),
        (seen("j + W - 1 - w <= cu_seqlens[n + 1]"), "the first token of the next document"),
        (seen("j + w < cu_seqlens[n + 1]"), "not at j + w"),
        (seen("j < cu_seqlens[n + 1]"), "the time is what must stay inside"),
        (seen("j - W + 1 + w >= cu_seqlens[n]"), "the forward pass's mask"),
        (seen("True"), "it must return 9 truth values"),
        (seen("j + W - 1 - w < cu_seqlens[n]"), "X[j]'s own document"),
    ],
    "12-sums": [
        (sums(start="last"), "begin W - 1 tokens after"),
        (sums(start="last + W"), "which no input of this run needs"),
        (sums(condition="True"), "is the next program's"),
        (sums(condition="t < last"), "it yields the inputs [4, 3], not [5, 4, 3]"),
        (sums(entered="[*sums, 0.0]"), "an input enters at the old end"),
        (sums(pair="t - W + 1, sums[0]"), "has only just entered"),
        (sums(pair="t, sums[0]"), "the newest sum is the one that leaves"),
        (sums(kept="sums[1:]"), "the newest sum is the one that leaves"),
        (sums(pair="sums[-1]"), "TypeError"),
    ],
}
