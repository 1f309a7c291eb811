"""How every figure of the course looks: one palette, one font size, files that are the same bytes each time.

Colours are told apart by colour-blind readers; nothing is said by colour alone (numbers, hatches and marker shapes
repeat it), so figures read in black and white.
"""

import io
import sys
from base64 import b64encode
from html import escape

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

#: Light fills that black text stands on (Paul Tol's "light" scheme).
FILLS = ("#77AADD", "#EE8866", "#EEDD88", "#99DDFF", "#BBCC33", "#FFAABB", "#44BB99", "#DDDDDD")
#: Line and marker colours (Okabe and Ito), each with its marker shape.
INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCH = "////"
GRID = "#BBBBBB"
NOTE_SIZE, TEXT_SIZE = 8, 9
DPI = 100


class Picture(Figure):
    """A figure that a notebook shows when it is a cell's last value, once, whether or not pyplot is in use.

    ``alt`` says what it looks like, for whoever cannot see it. JupyterLab shows an image without its text, so it gets HTML
    beside it, which JupyterLab and other readers of notebooks prefer.
    """

    alt = ""

    def __init__(self, *args, **kwargs):
        """A matplotlib figure; where pyplot has told Jupyter how to draw any figure, it is told to leave this one."""
        super().__init__(*args, **kwargs)
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if shell is not None:
            shell.display_formatter.formatters["image/png"].for_type(Picture, lambda figure: None)

    def png(self) -> bytes:
        """As a file, the same bytes each time."""
        file = io.BytesIO()
        self.savefig(file, format="png", metadata={"Software": None})
        return file.getvalue()

    def html(self) -> str:
        """As HTML, with its text."""
        return f'<img src="data:image/png;base64,{b64encode(self.png()).decode()}" alt="{escape(self.alt)}">'

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        html = self.html()
        png = html.partition(",")[2].partition('"')[0]
        return {"image/png": png, "text/html": html}, {"image/png": {"alt": self.alt}}


def picture(width: float, height: float, rows: int = 1, columns: int = 1):
    """A new figure of ``width`` × ``height`` inches and its array of axes [rows, columns]."""
    figure = Picture(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        dress(ax)
    return figure, axes


def dress(ax) -> None:
    """Give axes that ``picture`` has not made the size of their labels."""
    ax.tick_params(labelsize=NOTE_SIZE)
    ax.xaxis.label.set_size(TEXT_SIZE)
    ax.yaxis.label.set_size(TEXT_SIZE)


def grid(ax, axis: str = "both") -> None:
    """Thin lines at the ticks."""
    ax.grid(axis=axis, color=GRID, linewidth=0.4, alpha=0.6)


def points(ax, x, y, series: int, label: str, solid: bool) -> None:
    """Scatter one series in its own colour and marker shape; hollow unless ``solid``."""
    ink = INKS[series % len(INKS)]
    marker = MARKERS[series % len(MARKERS)]
    ax.scatter(x, y, s=36, marker=marker, facecolors=ink if solid else "white", edgecolors=ink, label=label, zorder=3)


def bar(series: int) -> dict:
    """Fill, edge and hatch of one series of bars."""
    hatch = (None, "////", "....", "\\\\\\\\", "xxxx")[series % 5]
    return {"facecolor": FILLS[series % len(FILLS)], "edgecolor": "black", "linewidth": 0.5, "hatch": hatch}


def value() -> dict:
    """A number beside a bar, readable where it crosses a line."""
    return {"fontsize": NOTE_SIZE - 1, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5}}
