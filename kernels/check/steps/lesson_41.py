"""Lesson 41's "Your turn" cells: gradients with channels first, the waste of groups, a column of ones in a tile."""

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
            where = f"For the tile from pixel {m0} and channel {o0} on, {said.rstrip('.')}"
            return f"{where}. An image has Co planes and a plane P · Q pixels: image, channel and pixel, in this order"
    return ""


@step("41-groups", "what tiles waste where channels come in groups")
def groups(answer):
    """One group, whole tiles, and groups whose channels fill a tile to a fraction."""
    tile = (64, 128, 64)

    def up(n, to):
        return -(-n // to) * to

    for case in ((384, 3456, 8192, 1), (128, 1152, 1000, 8), (128, 1152, 4096, 2), (384, 9408, 4096, 192)):
        Co, J, M, G = case
        rows, columns, pixels = Co // G, J // G, up(M, 64) / M
        right = up(rows, 64) * up(columns, 128) / (rows * columns) * pixels
        got = answer(Co, J, M, G, tile)
        if not isinstance(got, (int, float)):
            return f"It must return a number, and returns {described(got)}"
        said = f"For {Co} channels and {J} columns in all, {M} pixels and {G} groups yours is {got:.4g}, not {right:.4g}"
        if abs(got - right) < 1e-9 * right:
            continue
        for wrong, why in (
            (up(Co, 64) * up(J, 128) / (Co * J) * pixels, "Each group is a product of its own, and is padded by itself"),
            (up(rows, 64) * up(columns, 128) / (Co * columns) * pixels, "G products are done and G asked for: G cancels"),
            (up(rows, 64) * up(J, 128) / (rows * J) * pixels, "An output channel sees its group's J / G columns only"),
            (up(Co, 64) * up(columns, 128) / (Co * columns) * pixels, "A group has Co / G output channels"),
            (right / pixels, "The last step over the pixels is padded, too"),
            (right * rows * columns * M, "That is how much is multiplied: ω is that over what was asked for"),
            (right * G, "G products are done and G asked for: G cancels"),
            (right / G, "G products are done and G asked for: G cancels"),
            (1 / right, "That is what was asked for over what is multiplied: ω is the other way round"),
            (1.0, "Nothing is padded there: each side of a tile that overhangs is multiplied to its end"),
        ):
            if abs(got - wrong) < 1e-9 * wrong:
                return f"{said}. {why}"
        return f"{said}: rows, columns and pixels, each rounded up to whole tiles, over the three as they are"
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
            is_stored = bool(stored[0, first - j0])
            why = f"behind the bias, column {J}, the tile overhangs"
            why = why if is_stored else f"columns 0 to {J - 1} are the weights'"
            return f"Column {first} {'is' if is_stored else 'is not'} stored: {why}"
        for column in range(16):
            number = j0 + column
            if number > J:
                break
            right = torch.ones(4).double() if number == J else A[:, column].double()
            if not torch.equal(got[:, column], right):
                if number == J:
                    held = "the zeros that it was loaded with" if not got[:, column].any() else f"{got[0, column]:.0f}"
                    return f"Column {J} holds {held}, and must hold ones in every row: they sum each channel of dy"
                return (
                    f"Column {number} held {right[0]:.0f} and holds {got[0, column]:.0f}: that is a weight's. The ones stand "
                    f"behind the last weight, {J - 1}"
                )
    return ""
