"""Lesson 12's "Your turn" cells: weights numbered from the token, a document's end, sums that travel back."""

import torch

from kernels.check.steps import described, step


@step("12-reversed", "the outer product with the taps counted from the token")
def reversed_taps(answer):
    """Two sequences, more and fewer tokens than taps, in float64."""
    draw = torch.Generator().manual_seed(12)
    for T, W in ((7, 3), (2, 4), (5, 1)):
        dy, x = (torch.randn(2, T, 3, generator=draw, dtype=torch.float64) for _ in range(2))
        behind = torch.cat([x.new_zeros(2, W, 3), x], dim=1)  # W zeros in front
        wanted = torch.stack([dy * behind[:, W - w : W - w + T] for w in range(W)], dim=-1)
        case = f"With T = {T} and W = {W}"
        try:
            got = answer(dy.clone(), x.clone(), W)
        except RuntimeError as mismatch:
            if "must match" not in str(mismatch):
                raise
            return (
                f"{case}, dy and x don't meet with the same number of tokens: x, moved by w, must have T of them again, for "
                "w = 0 too (a slice [:-0] is empty), and for a w beyond T"
            )
        if tuple(got.shape) != tuple(wanted.shape):
            return f"{case}, the answer has shape {list(got.shape)}, not {list(wanted.shape)}"
        if torch.allclose(got, wanted):
            continue
        if torch.allclose(got, wanted.flip(-1)):
            return f"{case}, the taps are in lesson 10's order, oldest first: here tap 0 is the token's own"
        if torch.allclose(got, torch.stack([dy * x.roll(w, 1) for w in range(W)], dim=-1)):
            return (
                f"{case}, the first tokens multiply the last inputs of their sequence, which `roll` brings round: there "
                "must be 0"
            )
        one_line = torch.cat([x.new_zeros(W, 3), x.flatten(0, 1)])  # the sequences as one
        leaking = torch.stack([dy * one_line[W - w : W - w + 2 * T].view(2, T, 3) for w in range(W)], dim=-1)
        if torch.allclose(got, leaking):
            return f"{case}, the first tokens of sequence 1 multiply the last inputs of sequence 0"
        ahead = torch.cat([x, x.new_zeros(2, W, 3)], dim=1)
        if torch.allclose(got, torch.stack([dy * ahead[:, w : w + T] for w in range(W)], dim=-1)):
            return f"{case}, token t multiplies x[t + w]: these taps look back, at x[t - w]"
        both = torch.stack([(dy * x).roll(w, 1) for w in range(W)], dim=-1)
        if torch.allclose(got[:, W - 1 :], both[:, W - 1 :]):
            return f"{case}, dy is moved along with x: the weights of token t get dy at t, whatever the tap"
        b, t, d, w = (got - wanted).abs().nan_to_num(torch.inf).flatten().argmax().item(), *[0] * 3
        b, t, d, w = (int(i) for i in torch.unravel_index(torch.tensor(b), got.shape))
        return (
            f"{case}, the gradient of k[{b}, {t}, {d}, {w}] is {got[b, t, d, w]:.3g}, not dy[{t}] x[{t - w}] = "
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
                return f"It must return {T} truth values, one for each place of j, and returns {described(row)}"
        got, wanted = torch.stack(rows).bool(), t < ends
        if torch.equal(got, wanted):
            continue
        tap, place = (got != wanted).nonzero()[0].tolist()
        mistakes = (
            (
                t < T,
                "Your condition ends with the line, which is the published mistake: let it end with X[j]'s document",
            ),
            (
                t <= ends,
                "cu_seqlens[n + 1] is already the next document's first token: leave it out, with < in place of <=",
            ),
            (j + w < ends, "You test the time j + w, but tap w saw X[j] at j + W - 1 - w (step 3, line 1)"),
            (
                (j < ends).expand(W, T),
                "What you test always holds: j lies in its document, and t = j + W - 1 - w is never before it begins. "
                "Test whether t is past its end",
            ),
            (
                j - W + 1 + w >= begins,
                "Yours is the forward pass's mask, at the document's beginning: here the time may pass its end",
            ),
        )
        why = next(
            (why for mask, why in mistakes if torch.equal(got, mask)),
            "Compute t for this j and w by hand, and compare it with the end of X[j]'s own document",
        )
        first, end, when = int(begins[place]), int(ends[place]), int(t[tap, place])
        return (
            f"With cu_seqlens = {cu.tolist()} and W = {W}, j = {place} and w = {tap} give {bool(got[tap, place])}, and must "
            f"give {bool(wanted[tap, place])}: tap {tap} saw X[{place}] at t = {when}, and its document has the places "
            f"{first} to {end - 1}. {why}"
        )
    return ""


def _shares(places) -> str:
    """The shares (t, w) that a sum consists of, written as a sum."""
    return " + ".join(f"share({t}, {w})" for t, w in sorted(places)) or "0"


@step("12-sums", "the sums that travel back")
def sums_back(answer):
    """Each share is a digit of its own, so that a sum says which it holds; a run inside, at both ends, shorter than W - 1."""
    for T, first, last, W in ((9, 3, 5, 3), (4, 0, 3, 2), (6, 2, 2, 4), (3, 0, 2, 1)):
        digits, asked = {}, []

        def share(t, w, T=T, digits=digits, asked=asked):
            asked.append((t, w))
            return 4 ** digits.setdefault((t, w), len(digits)) if t < T else 0

        got = list(answer(share, first, last, W))
        if odd := [pair for pair in got if not isinstance(pair, (tuple, list)) or len(pair) != 2]:
            return f"It must yield pairs, an input j and its sum, and yields {odd[0]!r}"
        case = f"With first = {first}, last = {last}, W = {W} and {T} tokens in all"
        inputs, wanted = [j for j, _ in got], list(range(last, first - 1, -1))
        if W > 1 and any(j < first for j in inputs):
            return (
                f"{case}, you yield dx[{min(inputs)}], the sum of X[t - W + 1] at t = {min(inputs) + W - 1}. Walking back, "
                "that input has only just entered, and all tokens to come see it: yield the sum of the one that none of them "
                "sees"
            )
        if any(j > last for j in inputs):
            return (
                f"{case}, you yield dx[{max(inputs)}], which lies beyond the run and belongs to the next program: yield only "
                f"while the complete sum is of an input up to {last}"
            )
        for j, total in got:
            held = {at: int(total) // 4**digit % 4 for at, digit in digits.items()}
            due = {(j + W - 1 - w, w) for w in range(W) if j + W - 1 - w < T}
            lacks = sorted(at for at in due if held.get(at, 0) == 0)
            foreign = sorted(at for at, times in held.items() if times and at not in due)
            twice = sorted(at for at, times in held.items() if times > 1 and at in due)
            mine = _shares(at for at, times in held.items() if times)
            sums = f"{case}, dx[{j}] is {mine}, and should be {_shares(due)}"
            if foreign:
                (t, w), *_ = foreign
                return (
                    f"{sums}. What token {t} owes through tap {w} is for X[{t - W + 1 + w}]: the sums no longer stand beside "
                    "their inputs. Walking back, an older input enters at the old end, and the newest sum leaves"
                )
            if lacks and not any(t > last for t, _ in asked):
                return (
                    f"{sums}. No token after {last} was asked, but W - 1 = {W - 1} of them see X[{last}], too: begin W - 1 "
                    "tokens after the run's last"
                )
            if lacks:
                return (
                    f"{sums}. Its sum left too early, or stood in the wrong place: an input enters at the old end, and its "
                    "sum stays until its own token has added to it"
                )
            if twice:
                times = held[twice[0]]
                return f"{sums}. Token {twice[0][0]} gave its share {times} times: each step of the walk adds it once"
        if inputs != wanted:
            gone = [j for j in wanted if j not in inputs]
            why = "Each once, in this order"
            if gone:
                why = f"dx[{gone[0]}] is complete at t = {gone[0]}: is your `if` true there?"
            return f"{case}, you yield the inputs {inputs}, and should yield {wanted}. {why}"
        needed = {(t, w) for t in range(first, last + W) for w in range(W)}
        if extra := sorted(set(asked) - needed):
            return (
                f"{case}, all sums are right, but you ask for a share of token {extra[-1][0]}, which no input of this run "
                f"needs: the last token that sees X[{last}] is {last + W - 1}, so begin there"
            )
        if len(asked) > len(needed):
            return f"{case}, all sums are right, but you ask for {len(asked)} shares, where {len(needed)} are enough"
    return ""
