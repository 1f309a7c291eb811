"""Lesson 12's "Your turn" cells: weights numbered from the token, a document's end, sums that travel back."""

import torch

from kernels.check.steps import step


@step("12-reversed", "the outer product with the taps counted from the token")
def reversed_taps(answer):
    """Two sequences, more and fewer tokens than taps, in float64."""
    draw = torch.Generator().manual_seed(12)
    for T, W in ((7, 3), (2, 4), (5, 1)):
        dy, x = (torch.randn(2, T, 3, generator=draw, dtype=torch.float64) for _ in range(2))
        behind = torch.cat([x.new_zeros(2, W, 3), x], dim=1)  # W zeros in front
        wanted = torch.stack([dy * behind[:, W - w : W - w + T] for w in range(W)], dim=-1)
        got = answer(dy.clone(), x.clone(), W)
        case = f"with T = {T} and W = {W}"
        if tuple(got.shape) != tuple(wanted.shape):
            return f"{case} the answer has shape {list(got.shape)}, not {list(wanted.shape)}"
        if torch.allclose(got, wanted):
            continue
        if torch.allclose(got, wanted.flip(-1)):
            return f"{case} the taps are in lesson 10's order, oldest first: here tap 0 is the token's own"
        if torch.allclose(got, torch.stack([dy * x.roll(w, 1) for w in range(W)], dim=-1)):
            return (
                f"{case} the first tokens multiply the last inputs of their sequence, which `roll` brings round: there "
                "must be 0"
            )
        one_line = torch.cat([x.new_zeros(W, 3), x.flatten(0, 1)])  # the sequences as one
        leaking = torch.stack([dy * one_line[W - w : W - w + 2 * T].view(2, T, 3) for w in range(W)], dim=-1)
        if torch.allclose(got, leaking):
            return f"{case} the first tokens of sequence 1 multiply the last inputs of sequence 0"
        ahead = torch.cat([x, x.new_zeros(2, W, 3)], dim=1)
        if torch.allclose(got, torch.stack([dy * ahead[:, w : w + T] for w in range(W)], dim=-1)):
            return f"{case} token t multiplies x[t + w]: these taps look back, at x[t - w]"
        both = torch.stack([(dy * x).roll(w, 1) for w in range(W)], dim=-1)
        if torch.allclose(got[:, W - 1 :], both[:, W - 1 :]):
            return f"{case} dy is moved along with x: the weights of token t get dy at t, whatever the tap"
        b, t, d, w = (got - wanted).abs().nan_to_num(torch.inf).flatten().argmax().item(), *[0] * 3
        b, t, d, w = (int(i) for i in torch.unravel_index(torch.tensor(b), got.shape))
        return (
            f"{case} the gradient of k[{b}, {t}, {d}, {w}] is {got[b, t, d, w]:.3g}, not dy[{t}] x[{t - w}] = "
            f"{wanted[b, t, d, w]:.3g}" + (" (before the start there is 0)" if t < w else "")
        )
    return ""


@step("12-end", "the mask that ends with the document")
def document_end(answer):
    """Documents of many lengths, empty ones too, every tap at once, so that no two mistakes look alike."""
    for lengths in ((4, 5), (3, 0, 7), (0, 1, 1, 6), (5, 0)):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        T, W = int(cu[-1]), 4
        j, w = torch.arange(T), torch.arange(W)[:, None]
        begins, ends = (side.repeat_interleave(torch.tensor(lengths)) for side in (cu[:-1], cu[1:]))
        t = j + W - 1 - w
        rows = [answer(j.clone(), tap, W, cu.clone()) for tap in range(W)]
        for row in rows:
            if not isinstance(row, torch.Tensor) or tuple(row.shape) != (T,):
                return f"it must return {T} truth values, one for each place of j, and gives {row!r}"
        got, wanted = torch.stack(rows).bool(), t < ends
        if torch.equal(got, wanted):
            continue
        tap, place = (got != wanted).nonzero()[0].tolist()
        mistakes = (
            (t < T, "this asks for the end of the line, not of the document: the published mistake"),
            (t <= ends, "cu[n + 1] is the first token of the next document"),
            (j + w < ends, "tap w saw X[j] at j + W - 1 - w, not at j + w"),
            ((j < ends).expand(W, T), "the time is what must stay inside, not j"),
            (j - W + 1 + w >= begins, "that is the forward pass's mask, at the document's beginning"),
        )
        why = next(
            (why for mask, why in mistakes if torch.equal(got, mask)), "compare with the end of X[j]'s own document"
        )
        return (
            f"cu_seqlens = {cu.tolist()}, W = {W}: tap {tap} saw X[{place}] at t = {int(t[tap, place])}, and the document "
            f"ends before {int(ends[place])}, but it {'counts' if got[tap, place] else 'does not count'}: {why}"
        )
    return ""


@step("12-sums", "the sums that travel back")
def sums_back(answer):
    """Each share is a digit of its own, so that a sum says which it holds; a run inside, at both ends, shorter than W - 1."""
    for T, first, last, W in ((9, 3, 5, 3), (4, 0, 3, 2), (6, 2, 2, 4), (3, 0, 2, 1)):
        digits, asked = {}, []

        def share(t, w, T=T, digits=digits, asked=asked):
            asked.append((t, w))
            return 4 ** digits.setdefault((t, w), len(digits)) if t < T else 0

        got = [tuple(pair) for pair in answer(share, first, last, W)]
        case = f"inputs {first} to {last}, W = {W}, {T} tokens"
        if any(len(pair) != 2 for pair in got):
            return f"{case}: yield the input j and its sum, as a pair"
        inputs, wanted = [j for j, _ in got], list(range(last, first - 1, -1))
        if W > 1 and any(j < first for j in inputs):
            return (
                f"{case}: the sum of input {min(inputs)} is yielded, that of X[t - W + 1] at some t: walking back that one "
                "has only just entered, so look for the one that no token to come sees"
            )
        if any(j > last for j in inputs):
            return f"{case}: the sum of input {max(inputs)} is the next program's: yield those from {last} down alone"
        for j, total in got:
            held = {at: int(total) // 4**digit % 4 for at, digit in digits.items()}
            due = {(j + W - 1 - w, w) for w in range(W) if j + W - 1 - w < T}
            lacks = sorted(at for at in due if held.get(at, 0) == 0)
            foreign = sorted(at for at, times in held.items() if times and at not in due)
            twice = sorted(at for at, times in held.items() if times > 1 and at in due)
            if foreign:
                (t, w), *_ = foreign
                return (
                    f"{case}: dx[{j}] holds what token {t} owes to X[{t - W + 1 + w}]: the older input enters at the old "
                    "end, and the newest sum is the one that leaves"
                )
            if lacks and not any(t > last for t, _ in asked):
                return (
                    f"{case}: dx[{j}] lacks the share of token {lacks[0][0]}: begin W - 1 tokens after the run's last"
                )
            if lacks:
                return (
                    f"{case}: dx[{j}] lacks the share of token {lacks[0][0]}, through its tap {lacks[0][1]}: an input enters "
                    "at the old end, and its sum stays until its own token has added to it"
                )
            if twice:
                return f"{case}: dx[{j}] holds the share of token {twice[0][0]} {held[twice[0]]} times"
        if inputs != wanted:
            return f"{case}: it yields the inputs {inputs}, not {wanted}"
        needed = {(t, w) for t in range(first, last + W) for w in range(W)}
        if extra := sorted(set(asked) - needed):
            return f"{case}: it asks for a share of token {extra[0][0]}, which no input of this run needs"
        if len(asked) > len(needed):
            return f"{case}: it asks for {len(asked)} shares, where {len(needed)} do"
    return ""
