"""Lesson 10's "Your turn" cells: a window that looks ahead, a state with the newest first, the tokens that follow."""

import torch

from kernels.check.steps import step


@step("10-ahead", "the window that looks ahead, and its edge")
def ahead(answer):
    """Tap w of token t reads t + w, inside where that is below T; tried on a tile that overhangs the end."""
    T = 10
    t, w = torch.arange(7, 11)[:, None], torch.arange(3)[None, :]
    pair = answer(t, w, T)
    if not isinstance(pair, tuple) or len(pair) != 2:
        return "It must return two blocks, j and inside"
    j, inside = (torch.as_tensor(part).expand(4, 3) for part in pair)
    if torch.equal(j, (t - w).expand(4, 3)):
        return f"Token 7's tap 2 reads time {j[0, 2]}: that is two tokens back, and the window shall look ahead"
    if torch.equal(j, t + 2 - w):
        return f"Token 7's tap 0 reads time {j[0, 0]}: the taps are reversed, tap 0 is the token's own"
    if not torch.equal(j, t + w):
        row = int((j != t + w).any(1).nonzero()[0])
        return f"Token {7 + row}'s taps read times {j[row].tolist()}, not {7 + row}, {8 + row}, {9 + row}"
    wanted = t + w < T
    if torch.equal(inside, wanted):
        return ""
    if torch.equal(inside, t + w <= T):
        return f"Time {T} counts as inside, but with T = {T} the last token is {T - 1}"
    if torch.equal(inside, (t < T).expand(4, 3)):
        return "Token 9 exists, but its tap 1 reads time 10, which does not: the mask must ask for j, not for t"
    if torch.equal(inside, (t + w >= 0).expand(4, 3)):
        return "The mask j >= 0 was the edge of the window that looks back: this one reaches beyond the end, T"
    row, tap = (inside != wanted).nonzero()[0].tolist()
    return (
        f"With T = {T}, tap {tap} of token {7 + row} reads time {7 + row + tap}, and inside says {bool(inside[row, tap])}: "
        f"there are inputs at the times 0 to {T - 1}"
    )


@step("10-shift", "the update for any length of the piece")
def newest_first(answer):
    """Every length of piece from 0 to beyond the state, and W = 1, whose state has no slot."""
    for slots in (3, 1, 0):
        for L in (1, 0, 2, 3, 5):
            read = torch.arange(1, slots + L + 1)  # inputs in the order in which they were read
            state, piece = read[:slots].flip(0).expand(2, slots), read[slots:].expand(2, L)
            wanted = read.flip(0)[:slots].expand(2, slots)
            got = answer(state.clone(), piece.clone())
            case = f"The state {state[0].tolist()} and piece {piece[0].tolist()}"
            if tuple(got.shape) != (2, slots):
                because = ": a slice [-0:] is everything" if slots == 0 else ": a slice [:-0] is empty" * (L == 0)
                if slots and L and got.shape[-1] == L:
                    because = ": the piece alone is too short, and the other slots come from the old state"
                return f"{case} (W = {slots + 1}) give {got.shape[-1]} slots, not {slots}{because}"
            if torch.equal(got, wanted):
                continue
            if L and torch.equal(got, torch.cat([piece, state], -1)[..., :slots]):
                why = "the piece stands in reading order in it, oldest first: turn it around"
            elif torch.equal(got, torch.cat([state, piece], -1)[..., -slots:]):
                why = "that is the rule for a state whose oldest stands first"
            elif torch.equal(got, torch.cat([state, piece], -1).flip(-1)[..., :slots]):
                why = "the old state stands newest first already: turn the piece around alone"
            elif L < slots and got[0].tolist()[:L] == wanted[0].tolist()[:L]:
                why = f"the old slots must move on by L = {L} to make room"
            else:
                why = "the newest L come from the piece, newest first, the others from the old state"
            return f"{case} give {got[0].tolist()}, not {wanted[0].tolist()}: {why}"
    return ""


@step("10-after", "how much of its document follows each token")
def tokens_after(answer):
    """Empty documents at the beginning, in the middle, twice in a row, at the end."""
    for lengths in ((4, 3), (3, 0, 7), (0, 2, 0, 0, 3, 0)):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        wanted = torch.cat([torch.arange(n).flip(0) for n in lengths])
        got = torch.as_tensor(answer(cu.clone()))
        if tuple(got.shape) != tuple(wanted.shape):
            return f"With lengths {lengths}, the answer has shape {list(got.shape)}, not [{len(wanted)}]"
        if torch.equal(got, wanted):
            continue
        t = int((got != wanted).nonzero()[0])
        place = torch.cat([torch.arange(n) for n in lengths])
        if torch.equal(got, wanted + 1):
            why = "the last token of a document has nothing behind it: cu[n + 1] is where the next one begins"
        elif torch.equal(got, place):
            why = "that is the place in the document, what lies before the token"
        elif torch.equal(got, len(wanted) - 1 - torch.arange(len(wanted))):
            why = "that counts to the end of the row, into other documents"
        elif 0 in lengths:
            why = "an empty document has a number too, though it has no first token to count"
        else:
            n = int(torch.searchsorted(cu, torch.tensor(t), right=True)) - 1
            why = f"it is in document {n}, whose last token is cu[{n + 1}] - 1 = {int(cu[n + 1]) - 1}"
        said = f"With lengths {lengths}, your answer for token {t} is {got[t]}, and {wanted[t]} of its own document follow it"
        return f"{said}: {why}"
    return ""
