"""Recurrent attention, backward: two walks that never meet, what a program takes from one, errors of the gates' gradient."""

import numpy as np

from kernels.lab import style
from kernels.lab.drawings.language import TEXT, Filmstrip, drawing, filmstrip

#: The colour and the marker of each formula of a gate's gradient, in all figures the same.
FORMULAS = {
    "sum form": 0, "ours, recurrent": 0, "ours, chunk": 2,
    "running sum": 1, "without the diagonal": 4, "FLA, recurrent": 3, "FLA, chunk": 5,
}  # fmt: skip


def two_walks(T: int = 4, gates: bool = False):
    """The walk forward above the tokens, the walk back below; ``gates`` shows what their gradients would need of both."""

    def draw(board):
        board.name("accumulator", "held for one step of a loop")
        board.name("input", "tokens")
        if not gates:
            board.name("output", "gradients")
        wide = 3.0

        def row(y, name, label, way):
            places = [board.box(i * wide, y, 1.6, 0.9, "accumulator", label(i), size=9) for i in range(T + 1)]
            for left, right in zip(places, places[1:]):
                ends = left.side("right"), right.side("left")
                board.arrow(*(ends if way > 0 else ends[::-1]), "accumulator")
            board.text(-0.3, y + 0.45, name, size=9, ha="right")

        row(1.5, "forward", lambda i: f"S$_{i}$", 1)
        row(5.1, "back", lambda i: f"dS$_{i}$", -1)
        for t in range(1, T + 1):
            x = t * wide + 0.05
            token = board.box(x, 3.3, 1.5, 0.9, "input", f"token {t}", size=TEXT)
            if gates and t == 3:
                board.arrow(((t - 1) * wide + 0.9, 2.4), (x, 3.65), "wrong", width=1.8)
                board.arrow((x + 0.75, 5.1), token.side("bottom"), "wrong", width=1.8)
                board.text(x + 1.0, 4.65, f"dg$_{t}$ needs S$_{t - 1}$ and dS$_{t}$", size=TEXT, ha="left")
            if not gates:
                board.box(x, -0.1, 1.5, 0.8, "output", f"dq$_{t}$", size=9)
                board.arrow((x + 0.75, 1.5), (x + 0.75, 0.7), "output")
                board.box(x, 6.8, 1.5, 0.8, "output", f"dk$_{t}$, dv$_{t}$", size=TEXT)
                board.arrow((x + 0.75, 6.0), (x + 0.75, 6.8), "output")

    alt = (
        f"{T} tokens in a row. Above them states S0 to S{T} with arrows to the right; below them their gradients dS{T} to "
        "dS0 with arrows to the left. "
    )
    alt += (
        "Red arrows lead to token 3 from S2 above and from dS3 below: the gate's gradient needs both."
        if gates
        else "From each state an arrow leads up to that token's dq, from each gradient one down to its dk and dv."
    )
    return drawing(7.2, 3.0 if gates else 4.0, draw, alt=alt)


def gradient_step(BLOCK_V: int = 2, program: int = 1) -> Filmstrip:
    """One token of the walk back, at the gradient of a state of 3 × 4: add, take dv and dk, fade.

    Only the columns of ``program`` are lit. Decay one half, scale 1.
    """
    behind = np.array([[2, 0, 1, 3], [0, 4, 1, 0], [1, 1, 0, 2]])
    q, do, k, v = np.array([1, 1, 0]), np.array([1, 0, 1, 1]), np.array([1, 0, 2]), np.array([3, 1, 2, -1])
    dS = behind + np.outer(q, do)
    own = range(program * BLOCK_V, (program + 1) * BLOCK_V)

    def lit(_, j):
        return j in own

    def draw(board, frame):
        for role, word in (("input", "loaded"), ("accumulator", "the state's gradient"), ("output", "stored")):
            board.name(role, word)
        board.box(-0.5, -0.4, 8.3, 7.6, width=0)  # the same room in each frame
        shown = [[f"{x / 2:g}" for x in row] for row in dS] if frame == 2 else dS
        state = board.cells(2, 2, 3, 4, "accumulator", label=shown, lit=lit, text_size=9)
        board.frame(state.span(range(3), own), "program")
        if frame < 2:
            for name, other, left, top in ((("q", "do", q, do), ("k", "v", k, v))[frame],):
                board.cells(0, 2, 3, 1, "input", label=left[:, None], text_size=9)
                board.cells(2, 0, 1, 4, "input", label=top[None, :], lit=lit, text_size=9)
                board.text(0.5, 1.55, name, size=9)
                board.text(1.5, 0.5, other, size=9)
        if frame == 0:
            board.text(4, 6.0, "row's q times column's do", size=TEXT)
            board.text(4, 6.7, "has been added", size=TEXT)
        if frame == 1:
            board.cells(2, 6, 1, 4, "output", label=(k @ dS)[None, :], lit=lit, text_size=9)
            board.text(1.4, 6.5, "dv", size=9)
            share = dS[:, list(own)] @ v[list(own)]
            board.cells(6.8, 2, 3, 1, "output", label=share[:, None], text_size=9)
            board.text(7.3, 1.3, "share\nof dk", size=TEXT)
        if frame == 2:
            board.text(4, 6.0, "half of it goes on", size=TEXT)
            board.text(4, 6.7, "to the token before", size=TEXT)

    alt = (
        "Three frames with the gradient of a state of three rows and four columns, of which columns "
        f"{own[0]} to {own[-1]} are framed and lit. Add: a q column at its left and a do row above it, whose products have "
        "been added. Take: with k and v instead, each column gives an element of dv below it, complete; each row gives at "
        "its right a sum over the lit columns alone, a share of dk. Fade: every number is halved."
    )
    return filmstrip(8, 3.2, draw, ["add", "take dv, and a share of dk", "fade"], alt=alt)


def undone_steps(errors: dict[str, list[float]]):
    """The error of a state that is undone step by step, relative to its size, a line for each decay, by its name."""
    figure, axes = style.picture(6.8, 3.2)
    ax = axes[0, 0]
    for i, (name, line) in enumerate(errors.items()):
        every = max(1, len(line) // 20)
        looks = {"color": style.INKS[i], "marker": style.MARKERS[i], "markevery": every, "markersize": 4}
        ax.semilogy(range(1, len(line) + 1), line, **looks)
        at = next((t for t, error in enumerate(line) if error > 1e-4), 0)
        where = (at + 1, line[at]) if len(line) > 10 else (len(line), 1e5)  # steep ones are named at the top
        ax.annotate(name, where, (12, -10), textcoords="offset points", color=style.INKS[i], fontsize=9)
    ax.axhline(1, color="black", linewidth=0.8, linestyle="--")
    ax.annotate("as large as the state", (1, 1), (-4, 4), ha="right", fontsize=9,
                xycoords=ax.get_yaxis_transform(), textcoords="offset points")  # fmt: skip
    longest = max(map(len, errors.values()))
    ax.set(xlim=(0, 1.18 * longest), ylim=(1e-8, 1e6), xlabel="undone steps", ylabel="error of the state, relative")
    said = []
    for name, line in errors.items():
        lost = next((t for t, error in enumerate(line, start=1) if error > 1), None)
        said.append(f"{name} {f'is lost after {lost} steps' if lost else f'is right to {line[-1]:.0e} after {len(line)}'}")
    figure.alt = (
        "Error of the undone state against the number of undone steps, on a logarithmic axis, one rising line a decay: "
        f"{'; '.join(said)}. A dashed line marks an error as large as the state."
    )
    return figure


def gate_errors(panels: dict, xlabel: str, *, alt: str):
    """Errors of the gates' gradient over the gate, a panel for each experiment and a line for each formula.

    panels: title -> (gates, {name of a formula: errors relative to the gradient's size}).
    """
    figure, axes = style.picture(6.8, 3.4, 1, len(panels))
    for ax, (title, (gates, lines)) in zip(axes.flat, panels.items(), strict=True):
        for name, errors in lines.items():
            i = FORMULAS[name]
            looks = {"marker": style.MARKERS[i], "color": style.INKS[i], "markerfacecolor": "white", "label": name}
            ax.semilogy(gates, errors, **looks)
        ax.axhline(1, color="black", linewidth=0.8, linestyle="--")
        ax.set(xlim=(1, -31), ylim=(1e-8, 1e11), xlabel=xlabel, title=title)
        ax.title.set_size(style.TEXT_SIZE)
    axes[0, 0].set_ylabel("relative error of the gradient (dashed: 1)")
    axes[0, 0].legend(fontsize=style.TEXT_SIZE, loc="upper left")
    figure.alt = alt
    return figure


def gate_parts():
    """A gate's rectangle of pairs, cut at the edges of its chunk in four, and what each part is, in the same colours."""
    parts = (
        ("1  both in the chunk:", "$W_{ts}$,  s < u $\\leq$ t"),
        ("2  s before it, in the state that enters:", "$c\\,e^{\\Gamma_t}\\,q_t^\\top S\\,do_t$,  t $\\geq$ u"),
        ("3  t behind it, in the gradient that comes back:", "$e^{\\Gamma_C-\\Gamma_s}\\,k_s^\\top dS\\,v_s$,  s < u"),
        ("4  both outside:", "$e^{\\Gamma_C}\\,\\langle S, dS\\rangle$"),
    )
    t, s = np.meshgrid(np.arange(1, 14), np.arange(13), indexing="ij")  # 12 tokens; s = 0: S_0; t = 13: dlast
    figure, ((ax, words),) = style.picture(8.0, 3.9, 1, 2)
    ax.bar(s[s <= t], 1, 1, t[s <= t] - 0.5, color="white", edgecolor=style.GRID, linewidth=0.5)
    for i, (late, early) in enumerate(((False, False), (False, True), (True, False), (True, True))):
        inside = (s < 7) & (t >= 7) & ((s <= 4) == early) & ((t >= 9) == late)
        ax.bar(s[inside], 1, 1, t[inside] - 0.5, edgecolor=style.GRID, linewidth=0.5, color=style.FILLS[i])
        middle = s[inside].mean(), t[inside].mean()
        ax.text(*middle, f"{i + 1}", ha="center", va="center", fontsize=style.TEXT_SIZE, fontweight="bold")
        looks = {"facecolor": style.FILLS[i], "edgecolor": "none", "boxstyle": "square,pad=0.35"}
        words.text(0, 0.9 - 0.26 * i, parts[i][0], fontsize=style.TEXT_SIZE, va="center", transform=words.transAxes)
        words.text(0.06, 0.79 - 0.26 * i, parts[i][1], fontsize=style.TEXT_SIZE + 1, va="center", bbox=looks,
                   transform=words.transAxes)  # fmt: skip
    ax.plot([4.5, 8.5, 8.5, 4.5, 4.5], [4.5, 4.5, 8.5, 8.5, 4.5], color="black", linewidth=1.2)
    ax.text(8.8, 5.4, "the chunk,\ntokens 5 to 8", fontsize=style.TEXT_SIZE, va="center")
    ax.set(xlim=(-0.5, 12.5), ylim=(13.5, 0.5), aspect="equal", xlabel="key s, which wrote", ylabel="query t, which reads")
    ax.set_xticks([0, 2, 4, 6, 8, 10, 12], ["$S_0$", 2, 4, 6, 8, 10, 12])
    ax.set_yticks([1, 3, 5, 7, 9, 11, 13], [1, 3, 5, 7, 9, 11, "$\\mathrm{d}S_\\mathrm{last}$"])
    ax.set_title("gate u = 7", fontsize=style.TEXT_SIZE)
    words.axis("off")
    figure.alt = (
        "Left the lower triangle of pairs, queries downwards and keys to the right, with the chunk of tokens 5 to 8 framed. "
        "The rectangle of gate 7, rows from 7 on and columns before 7, is cut at the chunk's edges into four coloured parts: "
        "1 in the chunk, 2 left of it, 3 below it, 4 left of and below it. Right the sum's four terms, each in its colour."
    )
    return figure


def chunk_gradients(C: int = 4, t: int = 2, s: int = 1):
    """A row and a column of a chunk's pairs: which gradients are sums over them, and what comes from outside the chunk."""

    def draw(board):
        board.name("accumulator", "states and their gradients")
        board.name("program", "pairs: row t reads column s")
        board.name("output", "gradients")
        board.name("memory", "the chunk's other pairs")
        pairs = board.cells(
            5.0, 0, C, C, lit=lambda row, column: column <= row,
            role_of=lambda row, column: "program" if row == t or column == s else "memory",
        )  # fmt: skip
        row, column = pairs.span(range(t, t + 1), range(t + 1)), pairs.span(range(s, C), range(s, s + 1))
        board.frame(row, "input", width=2.4)
        board.frame(column, "weight", width=2.4, dashed=True)
        entering = board.box(0, t, 3.0, 1.0, "accumulator", "S$^{(m)}$ enters")
        query = board.box(12.0, t, 2.4, 1.0, "output", "dq$_t$")
        board.arrow(entering.side("right"), row.side("left"), "accumulator")
        board.arrow(row.side("right"), query.side("left"), "input", "along row t: dA k", shift=(0.5, -0.3), size=TEXT)
        keys = board.box(column.x - 0.6, 5.6, 2.2, 1.0, "output", "dk$_s$, dv$_s$")
        board.arrow(column.side("bottom"), keys.side("top"), "weight")
        board.text(column.x - 0.2, 4.8, "down column s: dA$^T$q, A$^T$do", ha="right")
        behind = board.box(11.0, 5.6, 3.4, 1.0, "accumulator", "dS$^{(m+1)}$ comes back")
        board.arrow(behind.side("left"), keys.side("right"), "accumulator")
        before = board.box(0, 7.7, 3.0, 1.0, "accumulator", "dS$^{(m)}$ goes on")
        corner, on = (behind.side("bottom")[0], 8.2), r"decays through the chunk; c e$^{\Gamma_t}$ q do$^T$ is added"
        board.arrow(behind.side("bottom"), corner, "accumulator")
        board.arrow(corner, before.side("right"), "accumulator", on, size=TEXT, shift=(0.0, -0.3))

    alt = (
        "A triangle of pairs. Row t is framed: the state that enters comes to it from the left, and an arrow leads on to "
        "dq of t at its right. Column s is framed: below it are dk and dv of s, to which the gradient from behind the chunk "
        "comes from the right. That gradient also goes on, below, to the chunk before."
    )
    return drawing(7.6, 4.6, draw, alt=alt)


def trainings(losses: dict, right: str, levels: dict):
    """Losses by step, a line for each training by its name; below, how far each is from the one called ``right``."""
    figure, axes = style.picture(7.6, 5.2, 2, 1)
    (above,), (below,) = axes
    steps = max(map(len, losses.values()))
    for i, (name, line) in enumerate(losses.items()):
        looks = {"color": style.INKS[i], "linewidth": 1.4, "linestyle": ("--", ":", "-.")[i % 3], "label": name}
        if name == right:
            above.plot(line, **looks | {"linewidth": 4, "alpha": 0.45, "linestyle": "-"})
            continue
        beside = losses[right][: len(line)]
        above.plot(line, **looks)
        below.semilogy(((line - beside).abs() / beside).clamp(min=1e-9), **looks)
    for ax, marks in ((above, levels), (below, {"third digit": 1e-3})):
        for mark, level in marks.items():
            ax.axhline(level, color=style.GRID, linestyle="--", linewidth=1)
            ax.text(1.015 * steps, level, f" {mark}", fontsize=style.TEXT_SIZE, va="bottom")
        ax.set(xlim=(-5, 1.22 * steps))
    above.set(ylabel="loss a letter", ylim=(0, 3.2))
    below.set(xlabel="step", ylabel=f"apart from {right}, relative", ylim=(1e-9, 3))
    above.legend(fontsize=style.TEXT_SIZE, loc="lower left")
    figure.alt = (
        f"Above, the loss of {len(losses)} trainings over {steps} steps: {', '.join(losses)}. Dashed lines mark "
        f"{' and '.join(levels)}. Below, on a logarithmic axis, how far each is from {right}, and a line at the third digit, "
        "which the wrong ones cross."
    )
    return figure


def slopes(steps: list[float], apart: dict[str, list[float]]):
    """How far a gradient and the loss's slope are apart over the step h, a line for each gradient by its name."""
    figure, axes = style.picture(7.6, 3.6)
    ax = axes[0, 0]
    ends = sorted((line[-1], name) for name, line in apart.items())
    for i, (name, line) in enumerate(apart.items()):
        looks = {"color": style.INKS[i], "marker": style.MARKERS[i], "markerfacecolor": "white", "label": name}
        ax.loglog(steps, line, **looks)
        place = ends.index((line[-1], name))  # names of lines that end near each other keep apart
        low, high = (0 <= j < len(ends) and 0.1 < ends[j][0] / line[-1] < 10 for j in (place - 1, place + 1))
        where = (7, -3 + 6 * low - 6 * high)
        ax.annotate(name, (steps[-1], line[-1]), where, textcoords="offset points", color=style.INKS[i], fontsize=9)
    ax.set(xlim=(2 * steps[0], steps[-1] / 900), ylim=(1e-10, 20), xlabel="h", ylabel="gradient and slope apart, relative")
    figure.alt = (
        "How far gradient and slope are apart over the step h, both axes logarithmic, h falling to the right: "
        f"{', '.join(apart)}. A right gradient's line falls with the square of h and rises again where rounding takes over; "
        "a wrong one's stays up."
    )
    return figure
