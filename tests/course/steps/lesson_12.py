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
        (dk("dy * torch.cat([torch.zeros_like(x[:, :w]), x[:, :-w]], 1)"), "a slice [:-0] is empty"),
    ],
    "12-end": [
        (seen("j + W - 1 - w < cu_seqlens[-1]"), "the published mistake"),
        (seen("j + W - 1 - w <= cu_seqlens[n + 1]"), "the next document's first token"),
        (seen("j + w < cu_seqlens[n + 1]"), "You test the time j + w"),
        (seen("j < cu_seqlens[n + 1]"), "What you test always holds: j lies in its document"),
        (seen("j + W - 1 - w >= cu_seqlens[n]"), "t = j + W - 1 - w is never before it begins"),
        (seen("j - W + 1 + w >= cu_seqlens[n]"), "the forward pass's mask"),
        (seen("True"), "It must return 9 truth values"),
        (seen("j + W - 1 - w < cu_seqlens[n]"), "X[j]'s own document"),
    ],
    "12-sums": [
        (sums(start="last"), "begin W - 1 tokens after"),
        (sums(start="last + W"), "so begin there"),
        (sums(condition="True"), "belongs to the next program"),
        (sums(condition="t < last"), "yield the inputs [4, 3], and should yield [5, 4, 3]. dx[5] is complete at t = 5"),
        (sums(entered="[*sums, 0.0]"), "an input enters at the old end"),
        (sums(pair="t - W + 1, sums[0]"), "has only just entered"),
        (sums(pair="t, sums[0]"), "dx[5] is share(5, 0), and should be share(5, 2) + share(6, 1) + share(7, 0)"),
        (sums(kept="sums[1:]"), "the newest sum leaves"),
        (sums(pair="sums[-1]"), "It must yield pairs"),
    ],
}
