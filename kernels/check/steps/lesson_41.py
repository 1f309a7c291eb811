"""Lesson 41's "Your turn" cells: gradients with channels first, pieces of even length, a column of ones in a tile."""

import torch

from kernels.check.steps import described, step
from kernels.check.steps.helpers import block, difference


@step("41-first", "where a tile of gradients lies with channels first")
def channels_first(helper):
    """Three images of 5 × 3 pixels and 7 channels: a tile crosses from one image into the next, and both ends."""
    P, Q, Co, M = 5, 3, 7, 45
    for m0, o0 in ((8, 0), (40, 4)):
        m, o = (m0 + torch.arange(8))[:, None], (o0 + torch.arange(4))[None, :]
        at, exists = block(helper, m, o, M, P, Q, Co, shape=(8, 4), results=2)
        inside = (m < M) & (o < Co)
        wrong = exists.bool() != inside
        if wrong.any():
            i, j = (int(one) for one in wrong.nonzero()[0])
            what = f"pixel {int(m[i, 0])} of {M}, channel {int(o[0, j])} of {Co}"
            return f"The lane of {what} counts as {'there' if exists[i, j] else 'missing'}"
        n, rest = m // (P * Q), m % (P * Q)
        right = ((n * Co + o) * P * Q + rest).double()
        known = (
            (
                m * Co + o,
                "That is where it lies with channels *last*: here a channel's whole image comes before the next",
            ),
            (o * M + m, "You give all images one plane for each channel: an image ends after its own Co planes"),
            (
                n * P * Q + o * P * Q + rest,
                "An image has Co planes of P · Q numbers: the next one begins Co · P · Q further",
            ),
            (
                (n * Co + o) * P * Q + m,
                "Your m runs on over images: a plane has P · Q pixels, so take what is left of m",
            ),
        )
        at, right = torch.where(inside, at, 0), torch.where(inside, right, 0)
        for answer, why in known:
            if torch.equal(at, torch.where(inside, answer.double(), 0)) and not torch.equal(at, right):
                return why
        if said := difference("at", at, right):
            return f"For the tile from pixel {m0} and channel {o0} on, {said}"
    return ""


@step("41-even", "pieces whose lengths differ by one at most")
def even(answer):
    """All small sums: every step in one piece, in order, none empty, none two steps longer than another."""
    for steps in (10, 7, 24, 5, 1, 97):
        for pieces in range(1, min(steps, 12) + 1):
            bounds = [answer(z, steps, pieces) for z in range(pieces)]
            for one in bounds:
                if not isinstance(one, tuple) or len(one) != 2 or not all(type(n) is int for n in one):
                    return f"It must return two integers, first and last, and returns {described(one)}: {one!r}"
            case = f"With {steps} steps in {pieces} pieces: {', '.join(f'{a} to {b - 1}' for a, b in bounds[:6])}"
            case += ", …" * (pieces > 6)
            taken = [i for a, b in bounds for i in range(a, b)]
            if twice := sorted({i for i in taken if taken.count(i) > 1}):
                return (
                    f"{case}. Step {twice[0]} is in two pieces, and is added twice: a piece ends where the next begins"
                )
            if beyond := [i for i in taken if not 0 <= i < steps]:
                return f"{case}. There is no step {beyond[0]}"
            if missing := [i for i in range(steps) if i not in taken]:
                return f"{case}. Step {missing[0]} is in no piece: what is left after a division has to be given to somebody"
            lengths = [b - a for a, b in bounds]
            if taken != list(range(steps)):
                return f"{case}. Pieces must follow one another, so that the second pass adds the steps in order"
            if min(lengths) <= 0:
                return f"{case}. Piece {lengths.index(min(lengths))} is empty, a program that only writes zeros"
            if max(lengths) - min(lengths) > 1:
                return (
                    f"{case}. One piece has {max(lengths)} steps and another {min(lengths)}; everybody waits for the "
                    "longest, so share what is left, a step each"
                )
    return ""


@step("41-ones", "a tile whose column J is all ones")
def ones(helper):
    """Tiles before, across and behind the last column; what lies past it has no meaning, and is not looked at."""
    J, tile = 20, torch.arange(1, 65).view(4, 16).double() + 100
    for j0 in (0, 16):
        j = (j0 + torch.arange(16))[None, :]
        A = torch.where(j < J, tile, 0.0).float()
        got, stored = block(helper, A, j, J, shape=(4, 16), results=2)
        wanted = j <= J
        if not torch.equal(stored[0].bool(), wanted[0]):
            first = int(j[0, (stored[0].bool() != wanted[0]).nonzero()[0, 0]])
            if first == J:
                return f"Column {J} is not stored. It is the bias's: with {J} weights there are {J + 1} columns now, 0 to {J}"
            return f"Column {first} {'is' if stored[0, first - j0] else 'is not'} stored; those of {J} weights and a bias are"
        for column in range(16):
            number = j0 + column
            if number > J:
                break
            right = torch.ones(4).double() if number == J else A[:, column].double()
            if not torch.equal(got[:, column], right):
                if number == J:
                    return f"Column {J} holds {got[0, column]:.0f}, and must hold ones: they sum each channel of dy"
                return (
                    f"Column {number} held {right[0]:.0f} and holds {got[0, column]:.0f}: that is a weight's. The ones stand "
                    f"behind the last weight, {J - 1}"
                )
    return ""
