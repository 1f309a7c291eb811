"""The visual language of all drawings: what a colour means, boxes, grids, arrows, filmstrips and their sliders.

A colour is a role, the same in every lesson. What a figure speaks of is *lit*; the rest stays as an outline, so that the
same drawing comes back with another part lit. Nothing is said by colour alone: roles have their names in the figure's
key, boxes their labels, and what must be told apart without colour carries a hatch or a number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke

from kernels.lab import style

#: role -> (fill, ink): black text stands on the fill, lines and arrows are drawn in the ink. In grey the fills differ, too.
ROLES = {
    "input": ("#77AADD", "#0B5394"),
    "weight": ("#EEDD88", "#7F6000"),
    "output": ("#BBCC33", "#4C6B00"),
    "accumulator": ("#EE8866", "#A33B12"),
    "program": ("#FFAABB", "#A3285A"),
    "time": ("#DDDDDD", "#555555"),
    "memory": ("#EEF3F7", "#6B7F8F"),
    "wrong": ("#FFFFFF", "#CC0000"),
}
OUTLINE = "#B0B0B0"  # what is not lit
INK = "#222222"
TEXT, NOTE = 9, 8  # points, at the width of a page


def fill(role: str) -> str:
    """The light colour of a role."""
    return ROLES[role][0]


def ink(role: str) -> str:
    """The dark colour of a role."""
    return ROLES[role][1]


@dataclass(frozen=True)
class Place:
    """A rectangle that was drawn, by its left, top, width and height; y grows downwards, as rows do."""

    x: float
    y: float
    w: float
    h: float

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.w / 2, self.y + self.h / 2

    def side(self, name: str, along: float = 0.5) -> tuple[float, float]:
        """A point on its left, right, top or bottom side, ``along`` of the way down or to the right."""
        across = {"left": (0, along), "right": (1, along), "top": (along, 0), "bottom": (along, 1)}[name]
        return self.x + across[0] * self.w, self.y + across[1] * self.h


class Grid(Place):
    """Cells that were drawn as rows and columns: ``grid.cell(r, c)`` is the place of one."""

    def __init__(self, x, y, rows, columns, size):
        super().__init__(x, y, columns * size[0], rows * size[1])
        object.__setattr__(self, "size", size)

    def cell(self, row: int, column: int) -> Place:
        """Where the cell in ``row`` and ``column`` stands."""
        w, h = self.size
        return Place(self.x + column * w, self.y + row * h, w, h)

    def span(self, rows: slice | range, columns: slice | range) -> Place:
        """The rectangle of a band of cells, for outlines and arrows."""
        first, last = self.cell(rows.start, columns.start), self.cell(rows.stop - 1, columns.stop - 1)
        return Place(first.x, first.y, last.x + last.w - first.x, last.y + last.h - first.y)


class Board:
    """One panel to draw on, in units of its own; y grows downwards. Remembers which roles it used, for the key."""

    def __init__(self, ax):
        self.ax, self.roles = ax, {}
        self.hatches = {}  # role -> how the key hatches it
        ax.set_axis_off()
        ax.set_aspect("equal")
        self._reach = [np.inf, np.inf, -np.inf, -np.inf]

    def _include(self, x, y, w=0.0, h=0.0):
        low_x, low_y, high_x, high_y = self._reach
        self._reach = [min(low_x, x), min(low_y, y), max(high_x, x + w), max(high_y, y + h)]
        self.ax.set_xlim(self._reach[0] - 0.2, self._reach[2] + 0.2)
        self.ax.set_ylim(self._reach[3] + 0.2, self._reach[1] - 0.2)

    def name(self, role: str, word: str, *, hatch: str = ""):
        """What the key calls a role in this figure, where the role's own name says too little, and its hatch there."""
        self.roles[role], self.hatches[role] = word, hatch

    def box(self, x, y, w, h, role: str | None = None, text: str = "", *, lit: bool = True, hatch: str = "",
            size: float = TEXT, edge: str | None = None, width: float = 0.8, style_: str = "-") -> Place:  # fmt: skip
        """A rectangle with a label in it; ``role`` gives its colour where it is lit."""
        if role and lit:
            self.roles.setdefault(role, role)
        face = fill(role) if role and lit else "white"
        line = edge or (INK if lit else OUTLINE)
        self.ax.add_patch(
            Rectangle(
                (x, y), w, h, facecolor=face, edgecolor=line, linewidth=width, hatch=hatch or None, linestyle=style_
            )
        )
        if text:
            self.text(x + w / 2, y + h / 2, text, size=size, colour=INK if lit else OUTLINE, halo=False)
        self._include(x, y, w, h)
        return Place(x, y, w, h)

    def cells(self, x, y, rows: int, columns: int, role: str | None = None, *, size=1.0,
              label: Callable | Sequence | None = None, lit: Callable | None = None,
              role_of: Callable | None = None, hatch: Callable | None = None, text_size: float = NOTE) -> Grid:  # fmt: skip
        """``rows`` × ``columns`` squares.

        ``label(r, c)`` (or a nested list) is written in each, ``lit(r, c)`` says which are filled, ``role_of(r, c)`` gives
        each its own role, ``hatch(r, c)`` its hatch. ``size`` is a side, or (width, height).
        """
        w, h = size if isinstance(size, tuple) else (size, size)
        grid = Grid(x, y, rows, columns, (w, h))
        for r in range(rows):
            for c in range(columns):
                written = label(r, c) if callable(label) else label[r][c] if label is not None else ""
                place = grid.cell(r, c)
                self.box(
                    place.x, place.y, w, h, role_of(r, c) if role_of else role, "" if written is None else str(written),
                    lit=lit(r, c) if lit else True, hatch=hatch(r, c) if hatch else "", size=text_size, width=0.5,
                    edge="#8C8C8C",
                )  # fmt: skip
        return grid

    def frame(self, place: Place, role: str = "program", text: str = "", *, width: float = 2.0, pad: float = 0.0,
              dashed: bool = False, side: str = "top", size: float = NOTE) -> None:  # fmt: skip
        """A bold outline around what was drawn, with its name at one side."""
        self.ax.add_patch(
            Rectangle(
                (place.x - pad, place.y - pad), place.w + 2 * pad, place.h + 2 * pad, fill=False, edgecolor=ink(role),
                linewidth=width, linestyle="--" if dashed else "-", zorder=4,
            )
        )  # fmt: skip
        self._include(place.x - pad, place.y - pad, place.w + 2 * pad, place.h + 2 * pad)
        if text:
            at = {
                "top": (place.x + place.w / 2, place.y - pad - 0.15, "center", "bottom"),
                "bottom": (place.x + place.w / 2, place.y + place.h + pad + 0.15, "center", "top"),
                "left": (place.x - pad - 0.15, place.y + place.h / 2, "right", "center"),
                "right": (place.x + place.w + pad + 0.15, place.y + place.h / 2, "left", "center"),
            }[side]
            self.text(*at[:2], text, ha=at[2], va=at[3], size=size, colour=ink(role))

    def arrow(self, start, end, role: str | None = None, text: str = "", *, lit: bool = True, width: float = 1.4,
              bend: float = 0.0, both: bool = False, size: float = NOTE, shift=(0.0, -0.18)) -> None:  # fmt: skip
        """An arrow from point to point, its label at the middle, moved by ``shift``."""
        colour = (ink(role) if role else INK) if lit else OUTLINE
        self.ax.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="<|-|>" if both else "-|>", mutation_scale=9, linewidth=width, color=colour,
                connectionstyle=f"arc3,rad={bend}", shrinkA=1, shrinkB=1, zorder=5,
            )
        )  # fmt: skip
        for x, y in (start, end):
            self._include(x, y)
        if text:
            x, y = (start[0] + end[0]) / 2 + shift[0], (start[1] + end[1]) / 2 + shift[1]
            self.text(x, y, text, size=size, colour=colour)

    def brace(self, start: float, end: float, at: float, text: str, *, vertical: bool = False, role: str | None = None,
              size: float = NOTE, depth: float = 0.25) -> None:  # fmt: skip
        """A bracket over x from ``start`` to ``end`` at height ``at`` (or, ``vertical``, over y), with its measure.

        A negative ``depth`` turns it to the other side.
        """
        colour = ink(role) if role else INK
        line = [(start, at + depth), (start, at), (end, at), (end, at + depth)]
        xs, ys = zip(*[(y, x) if vertical else (x, y) for x, y in line])
        self.ax.plot(xs, ys, color=colour, linewidth=0.9, solid_joinstyle="miter")
        middle, off = (start + end) / 2, at - np.sign(depth) * 0.12
        up = depth > 0
        if vertical:
            self.text(off, middle, text, size=size, colour=colour, ha="right" if up else "left")
        else:
            self.text(middle, off, text, size=size, colour=colour, va="bottom" if up else "top")
        for x, y in zip(xs, ys):
            self._include(x, y)

    def text(self, x, y, text: str, *, size: float = TEXT, colour: str = INK, ha: str = "center", va: str = "center",
             weight: str = "normal", mono: bool = False, halo: bool = True) -> None:  # fmt: skip
        """Words at a point. ``size`` in points, never below 7; ``halo`` keeps them readable across a line."""
        options = {"family": "monospace"} if mono else {}
        if halo:
            options["path_effects"] = [withStroke(linewidth=2.5, foreground="white")]
        self.ax.text(x, y, text, fontsize=max(size, 7), color=colour, ha=ha, va=va, weight=weight, zorder=6, **options)
        self._include(x, y)

    def title(self, text: str) -> None:
        """A short title above the panel."""
        self.ax.set_title(text, fontsize=TEXT, color=INK)


def _add_key(figure, roles, hatches) -> None:
    """The names of the roles that were used, with their colours, below the figure."""
    if roles:
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=fill(r), edgecolor=INK, linewidth=0.6, hatch=hatches.get(r) or None)
            for r in roles
        ]
        figure.legend(handles, list(roles.values()), loc="outside lower center", ncols=len(roles), fontsize=NOTE,
                      frameon=False, handlelength=1.1, handleheight=1.1, columnspacing=1.6)  # fmt: skip


def drawing(width: float, height: float, draw: Callable[[Board], None], *, alt: str, key: bool = True):
    """A figure of ``width`` × ``height`` inches that ``draw(board)`` fills; at most 8 inches wide, a page's width."""
    figure, axes = style.picture(width, height)
    board = Board(axes[0, 0])
    draw(board)
    if key:
        _add_key(figure, board.roles, board.hatches)
    figure.alt = alt
    return figure


class Filmstrip(style.Picture):
    """Frames of one process side by side; ``slider()`` shows one at a time where a kernel runs."""

    frames: Callable  # frame number -> Picture of this frame alone
    count: int

    def slider(self):
        """A slider over the same frames, as a widget (live only: the stored notebook shows the filmstrip)."""
        import ipywidgets

        shown = ipywidgets.HTML(value=self.frames(0).html())
        at = ipywidgets.IntSlider(value=0, min=0, max=self.count - 1, description="frame")
        at.observe(lambda change: setattr(shown, "value", self.frames(change["new"]).html()), "value")
        return ipywidgets.VBox([at, shown])


def filmstrip(width: float, height: float, draw: Callable[[Board, int], None], titles: Sequence[str], *, alt: str,
              columns: int | None = None, key: bool = True) -> Filmstrip:  # fmt: skip
    """Three to six frames: ``draw(board, i)`` fills frame i, ``titles[i]`` stands above it.

    width, height: inches of the whole strip. columns: frames in a row; all in one row unless told.
    """
    columns = columns or len(titles)
    rows = -(-len(titles) // columns)
    figure = Filmstrip(figsize=(width, height), dpi=style.DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flat
    roles, hatches = {}, {}
    for i, ax in enumerate(axes):
        board = Board(ax)
        if i < len(titles):
            draw(board, i)
            board.title(titles[i])
            roles |= board.roles
            hatches |= board.hatches
    if key:
        _add_key(figure, roles, hatches)

    def alone(i: int):
        def draw_one(board):
            draw(board, i)
            board.title(titles[i])

        return drawing(width / columns * 1.6, height / rows * 1.6, draw_one, alt=alt, key=key)

    figure.alt, figure.frames, figure.count = alt, alone, len(titles)
    return figure
