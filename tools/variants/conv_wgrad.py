"""Exercise 08 in other words: columns that number a filter's weights in another order, or a filter that is turned over."""

import math

import torch

from kernels.check.conv_problem import Filter
from kernels.conv_wgrad.reference import geometry, im2col
from tools.variants.edits import Edits

SIZE = {"r": "R", "s": "S", "c": "C"}


def edits(task: Filter) -> Edits:
    """What changes in the solution of exercise 08."""
    (a, b, c), turned = task.order, task.turned
    number = rf"({a} {SIZE[b]} + {b})\, {SIZE[c]} + {c}"
    tex = [rf"({size} - 1 - {digit})\," if turned else rf"{digit}\," for digit, size in (("r", "R"), ("s", "S"))]
    kernel = [f"(g.{size} - 1 - {digit})" if turned else digit for digit, size in (("r", "R"), ("s", "S"))]
    first = "(R - 1, S - 1)" if turned else "(0, 0)"
    return {
        "specification": (
            r"j = (r S + s)\, C + c \quad",
            rf"j = {number} \quad",
            r"h = p\,\sigma_h + r\,\delta_h - \text{top} \qquad w = q\,\sigma_w + s\,\delta_w - \text{left}",
            rf"h = p\,\sigma_h + {tex[0]}\delta_h - \text{{top}} \qquad w = q\,\sigma_w + {tex[1]}\delta_w - \text{{left}}",
            "`padding` (top, bottom, left, right).",
            "`padding` (top, bottom, left, right)."
            + " The filter is turned over, as in mathematics: tap $(R - 1, S - 1)$ looks farthest up and to the left."
            * turned,
        ),
        **_by_hand(task),
        "tile-kernel": (
            "# The three digits of j = (r S + s) C + c;",
            f"# The three digits of j = {task.number};",
            "r = offs_j // (g.S * g.C)\n    s = offs_j // g.C % g.S\n    c = offs_j % g.C\n",
            "".join(f"{digit} = {_digit(task, digit)}\n    " for digit in "rsc").removesuffix("    "),
            "+ r * g.dil_h",
            f"+ {kernel[0]} * g.dil_h",
            "+ s * g.dil_w",
            f"+ {kernel[1]} * g.dil_w",
        ),
        "im2col-hints": (
            "through tap (0, 0)?",
            f"through tap {first}?",
            r"$c$, $s$ and $r$ alike, with $C$ and $S$ for $Q$ and $P$. Then $h = p\,\sigma_h + r\,\delta_h - \text{top}$",
            rf"${c}$, ${b}$ and ${a}$ alike, with ${SIZE[c]}$ and ${SIZE[b]}$ for $Q$ and $P$. Then $h = p\,\sigma_h + {tex[0]}\delta_h - \text{{top}}$",
            *_small_case(task),
        ),
        "together": (
            "padding=(1, 1, 0, 0)).flatten(1)",
            f"padding=(1, 1, 0, 0)){_arranged(task)}.flatten(1)",
        ),
        "symptoms": (
            "$r$, $s$ and $c$ are the digits of $j$, and $c$ is the last.",
            f"$r$, $s$ and $c$ are the digits of $j$, and ${c}$ is the last.",
            *(
                ("`sh` goes with $p$ and `dil_h` with $r$;", "`sh` goes with $p$ and `dil_h` with $R - 1 - r$;")
                if turned
                else ()
            ),
        ),
    }


def _digit(task: Filter, digit: str) -> str:
    """The line that takes a digit out of j."""
    place, (_, b, c) = task.order.index(digit), task.order
    middle, last = SIZE[b], SIZE[c]
    return (f"offs_j // (g.{middle} * g.{last})", f"offs_j // g.{last} % g.{middle}", f"offs_j % g.{last}")[place]


def _arranged(task: Filter) -> str:
    """What turns the reference's [O, R, S, C] into this numbering."""
    order = ", ".join(str(1 + "rsc".index(digit)) for digit in task.order)
    return ".flip(1, 2)" * task.turned + f".permute(0, {order})" * (task.order != "rsc")


def _small_case(task: Filter) -> tuple[str, ...]:
    """The third hint's table: one row of three taps, an image of 2 x 4."""
    changes = []
    for m, published in (
        (2, "−2, −1, 0 | −2, −1, 0 | 2, 3, 0 | 12 13 10 |"),
        (3, "0, 1, 2 | 0, 1, 2 | 0, 1, 2 | 10 11 12 |"),
    ):
        p, q = divmod(m, 2)
        places = [2 * q + (2 - s if task.turned else s) - 2 for s in range(3)]
        columns = (places, [int(math.fmod(w, 4)) for w in places], [w % 4 for w in places])
        cells = [", ".join(str(w).replace("-", "−") for w in column) for column in columns]
        row = " ".join(str(10 * p + w % 4) for w in places)
        changes += [f"| {published}", f"| {' | '.join(cells)} | {row} |"]
    old = """column $j = 3$ is no weight: $r = 1$ there, so $h = 2$ for $m = 2$, which is no row of the image; for
$m = 0$ it is row 1, read in vain. Neither is stored."""
    if task.order.startswith("s"):
        new = """column $j = 3$ is no weight: $s = 3$ there, and the pixel to which it points
is read in vain. It is not stored."""
    elif task.turned:
        new = """column $j = 3$ is no weight: $r = 1$ there, so $h = -1$ for $m = 0$, which is no row of the image; for
$m = 2$ it is row 0, read in vain. Neither is stored."""
    else:
        new = old
    return *changes, old, new


def _by_hand(task: Filter) -> Edits:
    wide = torch.tensor([[1.0, 2, 3, 1], [4, 5, 6, 4], [7, 8, 9, 7]]).view(
        1, 3, 4, 1
    )  # the first column comes once more
    g = geometry(wide.shape, 1, 2, 2, (1, 1), (0, 0, 0, 0), (1, 1))
    published = im2col(wide, g).reshape(6, 4)
    A, dy = task.arranged(published, g).int(), torch.tensor([1, 1, 0, 0, 0, 2])
    changes = []
    for m, (old, row) in enumerate(zip(published.int().tolist(), A.tolist())):
        tail = f"| {dy[m]} | {m // 3} |"
        changes += [f"| {' '.join(map(str, old))} {tail}", f"| {' '.join(map(str, row))} {tail}"]
    total, one, two = (
        ", ".join(str(n) for n in (dy[span, None] * A[span]).sum(0).tolist())
        for span in (slice(0, 6), slice(0, 3), slice(3, 6))
    )
    return {
        "by-hand-text": (
            *changes,
            r"$\mathrm{d}F = (15, 13, 27, 25)$; in two pieces $(3, 5, 9, 11) + (12, 8, 18, 14)$.",
            rf"$\mathrm{{d}}F = ({total})$; in two pieces $({one}) + ({two})$.",
        ),
        "by-hand": (", dy, R=2, S=2).flatten()", f", dy, R=2, S=2){_arranged(task)}.flatten()"),
    }
