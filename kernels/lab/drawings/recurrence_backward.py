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


def chunk_gradients(C: int = 4):
    """What each gradient of a chunk is made of: a state on one side, the triangle of pairs in the middle."""

    def draw(board):
        board.name("accumulator", "states and their gradients")
        board.name("program", "pairs in the chunk")
        board.name("output", "gradients")
        entering = board.box(0, 1.2, 3.0, 1.4, "accumulator", "S$^{(m)}$ enters", size=9)
        leaving = board.box(14.0, 1.2, 3.6, 1.4, "accumulator", "dS$^{(m+1)}$ comes back", size=TEXT)
        pairs = board.cells(7.0, 0, C, C, "program", lit=lambda t, s: s <= t)
        board.text(7.0 + C / 2, -0.45, "A and P: t reads s", size=TEXT)
        wide = {"dq": 4.0, "dk": 8.2, "dv": 12.4}
        outs = {name: board.box(x, 6.3, 1.8, 1.0, "output", name) for name, x in wide.items()}
        for along, out in zip((0.25, 0.5, 0.75), outs.values()):
            board.arrow(pairs.side("bottom", along), out.side("top"), "program")
        board.arrow(entering.side("bottom", 0.7), outs["dq"].side("top", 0.2), "accumulator")
        board.arrow(leaving.side("bottom", 0.3), outs["dk"].side("top", 0.8), "accumulator")
        board.arrow(leaving.side("bottom", 0.5), outs["dv"].side("top", 0.8), "accumulator")
        before = board.box(0, 8.6, 3.0, 1.4, "accumulator", "dS$^{(m)}$ goes on", size=9)
        corner = leaving.x + 0.85 * leaving.w, 9.3
        board.arrow(leaving.side("bottom", 0.85), corner, "accumulator")
        board.arrow(corner, before.side("right"), "accumulator", "faded by the whole chunk, and q doᵀ added")

    alt = (
        "Left the state that enters a chunk, right the gradient that comes back from behind it, between them the triangle "
        "of its pairs. The triangle has arrows to dq, dk and dv, the entering state one to dq, the gradient from behind one "
        "each to dk and dv, and one around the chunk to the gradient that goes on to the chunk before."
    )
    return drawing(7.2, 4.2, draw, alt=alt)
