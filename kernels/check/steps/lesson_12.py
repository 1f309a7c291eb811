"""Lesson 12's "Your turn" cells: weights numbered from the token, a document's end, rows added in a fixed order."""

import torch

from kernels import runtime
from kernels.check.steps import step
from kernels.lab.trace import trace


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
        why = next((why for mask, why in mistakes if torch.equal(got, mask)), "compare with the end of X[j]'s own document")
        return (
            f"cu_seqlens = {cu.tolist()}, W = {W}: tap {tap} saw X[{place}] at t = {int(t[tap, place])}, and the document "
            f"ends before {int(ends[place])}, but it {'counts' if got[tap, place] else 'does not count'}: {why}"
        )
    return ""


@step("12-rows", "a sum of rows that has one order")
def added_rows(kernel):
    """One block and several, a last block that overhangs; addresses, writers and the order of the additions."""
    draw = torch.Generator().manual_seed(12)
    for P, N, BLOCK in ((5, 16, 16), (3, 20, 8), (1, 3, 4)):
        rows = torch.randn(P, N, generator=draw).to(runtime.device)
        out = torch.full((N,), float("nan"), device=runtime.device)
        recorded = trace(kernel, (-(-N // BLOCK),), rows, out, P, N, BLOCK=BLOCK)
        case = f"P = {P}, N = {N}, BLOCK = {BLOCK}"
        if any(access.kind == "atomic" for access in recorded.accesses):
            return "an atomic addition takes programs in any order: each column has one program here, so store its sum"
        wanted = rows.double().sum(0)
        for access in recorded.outside():
            return f"{case}: `{access.source}` reaches outside {access.tensor}: mask offs_n < N"
        if races := recorded.races():
            name, places = next(iter(races.items()))
            return f"{case}: {len(places)} elements of {name} have several writers: store at offs_n, with the mask"
        got = out.double()
        if got.isnan().any():
            return f"{case}: {int(got.isnan().sum())} of {N} sums are never stored, or NaN"
        if torch.allclose(got, wanted, atol=1e-5):
            loads = [access for access in recorded.accesses if access.kind == "load" and access.program == (0, 0, 0)]
            if len(loads) > P:
                return f"{case}: {len(loads)} loads for {P} rows"
            continue
        if P > 1 and torch.allclose(got, rows[-1].double(), atol=1e-5):
            return f"{case}: only the last row is left: add to acc, and store it after the loop"
        if P > 1 and torch.allclose(got, P * rows[0].double(), atol=1e-4):
            return f"{case}: row 0 is added {P} times: row p begins at p * N"
        if torch.allclose(got, wanted / P, atol=1e-5):
            return f"{case}: that is the rows' mean, not their sum"
        strided = [access.offsets[0] for access in recorded.accesses if access.kind == "load" and access.offsets.size]
        if len(strided) > 1 and strided[1] - strided[0] == BLOCK != N:
            return f"{case}: rows are taken {BLOCK} apart, the length of a block: a row has N elements"
        n = int((got - wanted).abs().argmax())
        return f"{case}: out[{n}] is {got[n]:.3g}, and column {n} adds up to {wanted[n]:.3g}"
    return ""
