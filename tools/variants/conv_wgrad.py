"""Exercise 08 in other words: columns that number a filter's weights in another order, or a filter that is turned over."""

import torch

from kernels.check.conv_mistakes import Filter
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
            r"p\,\sigma_h + r\,\delta_h - \text{top},\; q\,\sigma_w + s\,\delta_w - \text{left}",
            rf"p\,\sigma_h + {tex[0]}\delta_h - \text{{top}},\; q\,\sigma_w + {tex[1]}\delta_w - \text{{left}}",
            "There is one group.",
            "There is one group."
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
            "through tap (0, 0), and",
            f"through tap {first}, and",
            r"$c$, $s$ and $r$ alike, with $C$ and $S$ for $Q$ and $P$. Then $h = p\,\sigma_h + r\,\delta_h - \text{top}$",
            rf"${c}$, ${b}$ and ${a}$ alike, with ${SIZE[c]}$ and ${SIZE[b]}$ for $Q$ and $P$. Then $h = p\,\sigma_h + {tex[0]}\delta_h - \text{{top}}$",
            "h = (p * ... - ...)[:, None] + r * ...",
            f"h = (p * ... - ...)[:, None] + {'(...)' if turned else 'r'} * ...",
        ),
        "together": (
            "stride=2, padding=1).flatten(1)",
            f"stride=2, padding=1){_arranged(task)}.flatten(1)",
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


def _by_hand(task: Filter) -> Edits:
    g = geometry((1, 3, 3, 1), 1, 2, 2, (1, 1), (0, 0, 0, 0), (1, 1))
    A = task.arranged(im2col(torch.arange(1.0, 10.0).view(1, 3, 3, 1), g).reshape(4, 4), g).int()
    dy = torch.tensor([1, 1, 0, 2])
    published = ("1 2 4 5", "2 3 5 6", "4 5 7 8", "5 6 8 9")
    changes = []
    for m, (old, row) in enumerate(zip(published, A.tolist())):
        tail = f"| {dy[m]} | {m // 2} |"
        changes += [f"| {old} {tail}", f"| {' '.join(map(str, row))} {tail}"]
    total, one, two = (
        ", ".join(str(n) for n in (dy[span, None] * A[span]).sum(0).tolist())
        for span in (slice(0, 4), slice(0, 2), slice(2, 4))
    )
    return {
        "by-hand-text": (
            *changes,
            r"$\mathrm{d}F = (13, 17, 25, 29)$; in two pieces $(3, 5, 9, 11) + (10, 12, 16, 18)$.",
            rf"$\mathrm{{d}}F = ({total})$; in two pieces $({one}) + ({two})$.",
        ),
        "by-hand": (
            "conv2d_wgrad_reference(x, dy, R=2, S=2).flatten()",
            f"conv2d_wgrad_reference(x, dy, R=2, S=2){_arranged(task)}.flatten()",
        ),
    }
