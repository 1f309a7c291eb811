"""Lesson 40's "Your turn" cells: padding that keeps the size, weights in torch's order, a residue class as a dense walk."""

import itertools

import torch

from kernels.check.steps import described, step
from kernels.check.steps.helpers import block


def _integers(got, names: str) -> str:
    """What is wrong with an answer that must be one integer for each of ``names``; empty if nothing."""
    count = len(names.split(", "))
    if not isinstance(got, (tuple, list)) or len(got) != count:
        return f"It must return {count} integers, {names}, and returns {described(got)}"
    odd = next((one for one in got if isinstance(one, bool) or not isinstance(one, int)), None)
    return "" if odd is None else f"It must return integers, and returns {described(odd)}: divide with `//`"


def _outputs(H, R, stride, dilation, padding):
    return (H + padding - dilation * (R - 1) - 1) // stride + 1


@step("40-same", "the padding that keeps the size")
def same(answer):
    """All small sizes: even and odd filters, holes, strides, and filters so small that nothing is missing."""
    for stride, dilation, R, H in itertools.product((1, 2, 3), (1, 2, 3), (3, 2, 1, 4, 5), (5, 6, 7, 9, 1)):
        got = answer(H, R, stride, dilation)
        if said := _integers(got, "top, bottom"):
            return said
        total, span, wanted = sum(got), dilation * (R - 1) + 1, -(-H // stride)
        least = max((wanted - 1) * stride + span - H, 0)
        case = f"With H = {H}, R = {R}, stride {stride} and dilation {dilation} you pad {got[0]} and {got[1]} rows"
        if min(got) < 0:
            return (
                f"{case}: the last filter ends inside the image, so nothing is missing, and padding cannot be negative"
            )
        if total < least or _outputs(H, R, stride, dilation, total) != wanted:
            there = _outputs(H, R, stride, dilation, total)
            why = f"the last filter begins at row {(wanted - 1) * stride} of the padded image and spans {span} rows"
            if dilation > 1 and total == max((wanted - 1) * stride + R - H, 0):
                why += f", not {R}: dilation spreads its taps"
            return f"{case}, which makes {max(there, 0)} output rows, not {wanted}: {why}"
        if total > least:
            return (
                f"{case}, and {least} in all are enough for {wanted} output rows: with a stride the last filter begins at "
                f"row {(wanted - 1) * stride} of the padded image, not one row after every other"
            )
        if got[0] != total // 2:
            return f"{case}: {total} in all is right, but half of it belongs above, and an odd one below"
    return ""


@step("40-torch", "a tile of im2col in torch's order of weights")
def torch_order(helper):
    """A filter that is higher than wide, dilated differently along each axis; 16 columns that begin anywhere."""
    R, S, dilation, strides = 3, 2, (2, 3), (1000, 50, 7)
    h0, w0 = torch.tensor([[-1], [1], [3], [5]]), torch.tensor([[0], [2], [-2], [4]])
    for first in (0, 5, 16):
        j = first + torch.arange(16)[None, :]
        got = block(helper, j, h0, w0, R, S, *dilation, *strides, shape=(4, 16), results=3)

        def tile(r, s, c, dil=dilation):
            h, w = h0 + r * dil[0], w0 + s * dil[1]
            return [x.double() for x in (h.expand(4, 16), w.expand(4, 16), h * 1000 + w * 50 + c * 7)]

        wanted = r, s, c = j // S % R, j % S, j // (R * S)
        right = tile(*wanted)
        if all(map(torch.equal, got, right)):
            continue
        known = (
            (tile(j // R % S, j % R, c), "You exchange r and s: s is the innermost, and has S values"),
            (tile(j // R % R, j % S, c), "Of a channel's R · S taps, a row has S: it is S by which r is divided off"),
            (tile(j // S, s, c), "Your r grows beyond R − 1: take it modulo R, as each channel begins with tap row 0"),
            (tile(r, s, j // S), "Each channel has R · S columns: divide by both to find c"),
            (tile(r, s, c, (1, 1)), "The taps lie dilation pixels apart"),
            (tile(r, s, c, (1, 3)), "Tap r lies r · dil_h rows below where the filter begins, not r rows"),
            (tile(r, s, c, (2, 1)), "Tap s lies s · dil_w columns to the right of where the filter begins, not s columns"),
            (tile(r, s, c, (3, 2)), "You exchange the two dilations: dil_h is for rows"),
            (tile(r, s, 0 * c), "Every channel reads channel 0: add c times stride_c"),
        )
        for answer, why in known:
            if all(map(torch.equal, got, answer)):
                return why
        for name, ours, theirs in zip(("h", "w", "the place"), got, right):
            if not torch.equal(ours, theirs):
                m, i = (int(i) for i in (ours != theirs).nonzero()[0])
                why = {
                    "h": "h is h0 + r · dil_h, with the tap's r",
                    "w": "w is w0 + s · dil_w, with the tap's s",
                    "the place": "h and w are right, and each of h, w and c has to be multiplied with its stride",
                }[name]
                return (
                    f"For column j = {int(j[0, i])}, which is channel {int(c[0, i])}, tap ({int(r[0, i])}, {int(s[0, i])}), "
                    f"of a pixel that begins at ({int(h0[m])}, {int(w0[m])}), {name} is {ours[m, i]:.0f}, expected "
                    f"{theirs[m, i]:.0f}. {why}"
                )
    return ""


@step("40-class", "a residue class as a walk of its own")
def residue_class(answer):
    """Every class of four strides and paddings: rows, taps and outputs by their numbers."""
    for stride, top, a, i, k in itertools.product((2, 3, 1, 4), (1, 0, 2, 3), range(4), range(4), range(3)):
        if a >= stride:
            continue
        got = answer(i, k, a, stride, top)
        if said := _integers(got, "h, r, p"):
            return said
        h, r, p = got
        case = f"With stride {stride}, top = {top} and class a = {a}, row number {i} and tap number {k}"
        first = (a - top) % stride
        rows = ", ".join(str(first + n * stride) for n in range(3))
        if h < 0:
            return (
                f"{case}: you say row {h}, which does not exist; the first with (h + top) mod {stride} = {a} is {first}"
            )
        if (h + top) % stride != a:
            return f"{case}: row {h} is of class {(h + top) % stride}. The rows of class {a} are {rows}, …"
        if h != first + i * stride:
            return f"{case}: you say row {h}, of the right class, but its rows are {rows}, …, counted from 0"
        if r != a + k * stride:
            taps = ", ".join(str(a + n * stride) for n in range(3))
            return f"{case}: you say tap {r}; rows of this class meet the taps {taps}, … (r mod {stride} = a)"
        if p * stride + r - top != h:
            return (
                f"{case}: row {h} and tap {r} meet in output row {(h + top - r) // stride}, you say {p}. Output row {p} with "
                f"tap {r} sees row {p * stride + r - top}"
            )
    return ""
