"""Exercise 02 in other words: the upper triangle, or one whose edge lies beside the main diagonal."""

import torch

from kernels.check.tiled_matmul import Triangle
from tools.variants.edits import Edits, number

A = [[1, 2, 3, 1], [2, 3, 1, 2], [3, 1, 2, 3], [1, 2, 3, 1]]
B = [[5, 6], [7, 8], [1, 2], [3, 4]]


def edits(task: Triangle) -> Edits:
    """What changes in the solution of exercise 02."""
    m, lower = f"m{number(task.diagonal)}", task.side == "lower"
    le, gt = ("≤", ">") if lower else ("≥", "<")
    common = {
        "title": (
            """row m sums over k ≤ m alone. So the
loop ends where the diagonal does, and half of the work is never done. Every causal kernel of the later parts has this triangle in it.""",
            f"""row m sums over k {le} {m} alone. So the
loop {"ends" if lower else "begins"} where that diagonal does, and much of the work is never done. Many a kernel of the later parts has such a triangle in it.""",
        ),
        **_by_hand(task),
    }
    return common | (_lower(task, m) if lower else _upper(task, m)) | {"specification": _specification(task, m, le, gt)}


def _specification(task: Triangle, m: str, le: str, gt: str) -> tuple[str, ...]:
    step = r"\texttt{BLOCK\_K}"
    if task.side == "lower":
        mixes, relation = f"up to row {m}", r"\le"
        starts, ends = (
            rf"\{{0, {step}, 2\,{step}, \dots\}} < E",
            rf"\sum_{{k=s}}^{{\min(s + {step} - 1,\; {m},\; K - 1)}}",
        )
        loop = f"""It ends at $E$, one more than the last k, ${m}$, of the *last* row of the
  program's tile; or at K, where that comes first."""
    else:
        mixes, relation = f"from row {m} on", r"\ge"
        starts = rf"\{{S, S + {step}, S + 2\,{step}, \dots\}} < K"
        ends = rf"\sum_{{k=\max(s,\; {m})}}^{{\min(s + {step} - 1,\; K - 1)}}"
        loop = f"""It begins at $S$, the largest multiple of `BLOCK_K` up to the k,
  ${m}$, with which the *first* row of the program's tile begins; at 0 where that k is negative."""
    return (
        "moment m mixes the rows of `b` up to its own.",
        f"moment m mixes the rows of `b` {mixes}.",
        r"\sum_{k < K,\; k \le m}",
        rf"\sum_{{k < K,\; k {relation} {m}}}",
        r"""\sum_{s \in \{0,\, \texttt{BLOCK\_K},\, 2\,\texttt{BLOCK\_K},\, \dots\} < E}\;\; \sum_{k=s}^{\min(s + \texttt{BLOCK\_K} - 1,\; m,\; K - 1)}""",
        rf"\sum_{{s \in {starts}}}\;\; {ends}",
        """It ends at $E$, the number of values of k that the *last* row of the
  program's tile needs: all of them when that row lies below the matrix's last column, else up to that row.""",
        loop,
        "What stands in `a` above the diagonal, where k > m, has no meaning.",
        f"What stands in `a` {task.outside} this diagonal, where k {gt} {m}, has no meaning.",
        "With `K = 0` the sum is empty, and `out` is zero.",
        "Where no k is left, or `K = 0`, the sum is empty, and `out` is zero.",
    )


def _matrix(rows) -> str:
    return r"\begin{pmatrix}" + r"\\".join("&".join(map(str, row)) for row in rows) + r"\end{pmatrix}"


def _by_hand(task: Triangle) -> Edits:
    kept = task.kept(torch.ones(4, 4, dtype=torch.long))
    out = (task.kept(torch.tensor(A)) @ torch.tensor(B)).tolist()
    shown = [[n if keep else "?" for n, keep in zip(*pair)] for pair in zip(A, kept.tolist())]
    typed = ", ".join("[" + ", ".join('float("nan")' if n == "?" else f"{n}.0" for n in row) + "]" for row in shown)
    b = ", ".join(f"[{x}.0, {y}.0]" for x, y in B)
    sign = ">=" if task.side == "lower" else "<="
    moved = f"torch.arange(4, device=device)[:, None]{number(task.diagonal)}"
    return {
        "by-hand-text": (
            "",
            f"""## By hand

Four rows, two columns, and tiles of one along K, so that there are four steps. A question mark is never looked at:

$${_matrix(shown)}{_matrix(B)} = {_matrix(out)}$$""",
        ),
        "by-hand": (
            'a = torch.tensor([[1.0, float("nan")], [3.0, 4.0]], device=device)',
            f"a = torch.tensor([{typed}], device=device)",
            "b = torch.tensor([[5.0, 6.0], [7.0, 8.0]], device=device)",
            f"b = torch.tensor([{b}], device=device)",
            "acc = torch.zeros(2, 2, device=device)\nfor k in range(2):",
            "acc = torch.zeros(4, 2, device=device)\nfor k in range(4):",
            "reaches = torch.arange(2, device=device)[:, None] >= k  # rows m with k <= m",
            f"reaches = {moved} {sign} k  # rows m with {task.condition}",
        ),
        "try-it": ("torch.full((2, 2), ", "torch.full((4, 2), "),
        "before": ("four times `nan`", "eight times `nan`"),
    }


def _lower(task: Triangle, m: str) -> Edits:
    d = number(task.diagonal)
    return {
        "kernel": (
            "end = (tl.program_id(0) + 1) * BLOCK_M\n",
            f"end = (tl.program_id(0) + 1) * BLOCK_M{d}\n",
            "offs_k[None, :] <= offs_m,",
            f"offs_k[None, :] <= offs_m{d},",
        ),
        "hints": (
            "and its diagonal. Three kinds",
            f"and its diagonal $k = {m}$. Three kinds",
            r"ends at $\min(s + \texttt{BLOCK\_K} - 1, m, K - 1)$.",
            rf"ends at $\min(s + \texttt{{BLOCK\_K}} - 1, {m}, K - 1)$.",
            "Lanes past $m$ must add 0,",
            f"Lanes past ${m}$ must add 0,",
            r"""$E = \min(\text{last row of the tile} + 1, K)$""",
            rf"$E = \min(\text{{last row of the tile}}{d} + 1, K)$",
            "end = <one more than the last row of this program's tile>",
            "end = <one more than the last k of this program's tile>",
            "a = tl.where(<steps, as a row> <= <rows>, a, 0.0)",
            "a = tl.where(<steps, as a row> <= ..., a, 0.0)",
        ),
        "symptoms": ("It must reach the last.", "It must reach the last row's last k."),
    }


def _upper(task: Triangle, m: str) -> Edits:
    d = number(task.diagonal)
    first = f"tl.program_id(0) * BLOCK_M{d}"
    first = f"max({first}, 0)" if task.diagonal < 0 else f"({first})" if task.diagonal else first
    return {
        "task": ("and `min(x, y)` of two numbers works", "and `min(x, y)` or `max(x, y)` of two numbers works"),
        "kernel": (
            "for each step up to the diagonal:",
            "for each step from the diagonal on:",
            "end = (tl.program_id(0) + 1) * BLOCK_M\n",
            f"first = {first} // BLOCK_K * BLOCK_K\n",
            "range(0, min(end, K), BLOCK_K)",
            "range(first, K, BLOCK_K)",
            "offs_k[None, :] <= offs_m,",
            f"offs_k[None, :] >= offs_m{d},",
        ),
        "hints": (
            "and its diagonal. Three kinds",
            f"and its diagonal $k = {m}$. Three kinds",
            r"""The inner sum of the specification ends at $\min(s + \texttt{BLOCK\_K} - 1, m, K - 1)$. Its three ends are the step itself, the triangle, and
the mask along K. Lanes past $m$ must add 0, and so must lanes past $K - 1$, and 0 times whatever lies in memory is NaN when that is NaN. The
outer sum ends at $E = \min(\text{last row of the tile} + 1, K)$.""",
            rf"""The inner sum of the specification runs from $\max(s, {m})$ to $\min(s + \texttt{{BLOCK\_K}} - 1, K - 1)$. Its ends are the step itself, the
triangle, and the mask along K. Lanes before ${m}$ must add 0, and so must lanes past $K - 1$, and 0 times whatever lies in memory is NaN when that
is NaN. The outer sum begins at the step that holds the first k of the tile's first row, if there is one: at 0 when that k is negative.""",
            "end = <one more than the last row of this program's tile>\nfor start in range(0, min(end, K), ...):",
            "first = <where the step begins that holds the first k of this program's tile>\nfor start in range(first, K, ...):",
            "a = tl.where(<steps, as a row> <= <rows>, a, 0.0)",
            "a = tl.where(<steps, as a row> >= ..., a, 0.0)",
        ),
        "symptoms": (
            "NaN above the diagonal was",
            "NaN below the diagonal was",
            "**Only rows near the top are wrong.** A step past the diagonal counts:",
            "**Only rows near the bottom are wrong.** A step before the diagonal counts:",
            "**The lower rows of each tile are too small.** The loop ends at the tile's first row. It must reach the last.",
            "**The upper rows of each tile are too small.** The loop begins at the tile's last row. It must begin at the first.",
            "or the loop ends too early.",
            "or the loop ends before K.",
        ),
        "next": (
            "Programs at the bottom of `out` now take many steps, those at the top few.",
            "Programs at the top of `out` now take many steps, those at the bottom few.",
        ),
    }
