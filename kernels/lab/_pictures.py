"""Draw a recorded launch: which program, or which access of one program, touches which element of a tensor."""

import textwrap

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from kernels.lab import style

_PANELS = {"load": "loaded", "store": "stored", "atomic": "updated by atomics"}
_MOST_NUMBERED = (24, 40)  # rows and columns up to which every cell carries its number


def draw(launch, name: str, program, index, axes, alt=None):
    """The figure behind ``Launch.picture``; see there."""
    launch._of(name)  # raises for an unknown name
    operand = launch.operands[name]
    cells, labels, shown = _cells(operand, index, axes)
    if program is None:
        panels = {kind: _by_program(launch, name, kind) for kind in _PANELS}
        what = "program"
    else:
        program = ((program,) if isinstance(program, int) else tuple(program)) + (0, 0)
        program = program[:3]
        panels = {kind: _by_access(launch, name, kind, program) for kind in _PANELS}
        what = "access"
        if not any(panels.values()):
            raise ValueError(f"program is {program}: that program of {launch.kernel} does not touch {name}")
    panels = {kind: groups for kind, groups in panels.items() if groups} or {"load": []}

    rows, columns = cells.shape
    size = min(0.42, 9 / columns, 5.5 / rows)
    width, height = max(columns * size, 2.6) + 1.0, max(rows * size, 0.45) + 1.1
    stacked = columns > 1.5 * rows
    shape = (len(panels), 1) if stacked else (1, len(panels))
    figure, grid = style.picture(max(width * shape[1], 5.2), height * shape[0] + 0.3, *shape)
    notes = []
    seen = [f"{shown} drawn as {_count(rows, 'row')} of {_count(columns, 'cell')}."]
    for ax, (kind, groups) in zip(grid.flat, panels.items(), strict=True):
        whose = "" if program is None else f", program {_text(program, launch.grid)}"
        ax.set_title(f"{shown} {_PANELS[kind] if groups else 'not touched'}{whose}", fontsize=style.TEXT_SIZE + 1)
        ax.set_ylabel(labels[0])
        ax.set_xlabel(labels[1])
        shared = _panel(ax, cells, groups, operand)
        seen.append(f"{_PANELS[kind].capitalize()}{whose}: {_words(cells, groups, operand, what)}")
        notes.append(
            f"Number and colour: the first {what} that touches the element; blank: none does." if groups else ""
        )
        notes.append(f"Hatched: touched by more than one {what}; ×n: by n." if shared else "")
        notes += _legend(groups, kind) if program is not None else []
    missed = (a for a in launch.outside() if a.tensor == name and program in (None, a.program))
    outside = sum(a.outside.size for a in missed)
    notes.append(f"Not drawn: {outside} active lanes outside {name}." if outside else "")
    lines = [line for note in dict.fromkeys(filter(None, notes)) for line in textwrap.wrap(note, 90)]
    figure.set_size_inches(figure.get_figwidth(), figure.get_figheight() + 0.15 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=style.NOTE_SIZE, ha="left", x=0.02)
    figure.alt = alt or " ".join([*seen, *notes[-1:]]).strip()
    return figure


def _cells(operand, index, axes):
    """The flat index drawn in each cell [rows, columns] (−1: no cell), the axis labels, and what is drawn, as
    text."""
    view = np.arange(int(np.prod(operand.shape)), dtype=np.int64).reshape(operand.shape)
    shown = f"{operand.name} {list(operand.shape)}"
    if index is not None:
        view = view[index]
        parts = index if isinstance(index, tuple) else (index,)
        shown = f"{operand.name}[{', '.join(_index_text(p) for p in parts)}]"
    if view.ndim > 2 or view.size == 0:
        raise ValueError(
            f"index is {index!r}: {operand.name} has shape {operand.shape}, and a picture needs one or two dimensions, "
            "not empty: for example index=0 or index=np.s_[0, :, :, 2]"
        )
    if axes is not None and len(axes) != max(view.ndim, 1):
        raise ValueError(f"axes is {axes!r}: the picture has {max(view.ndim, 1)} dimensions, name each")
    if view.ndim == 2:
        return view, axes or ("row", "column"), shown
    view = view.reshape(-1)
    (label,) = axes or ("element",)
    width = view.size
    if width > _MOST_NUMBERED[1]:
        width = 32
        while -(-view.size // width) > _MOST_NUMBERED[0]:
            width *= 2
    cells = np.full(-(-view.size // width) * width, -1)
    cells[: view.size] = view
    cells = cells.reshape(-1, width)
    return cells, ("", label) if len(cells) == 1 else (f"rows of {width}", f"{label}, modulo {width}"), shown


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _words(cells: np.ndarray, groups, operand, what: str) -> str:
    """A panel in words: where the first groups and the last lie, how many elements are shared, and left blank."""
    exists = cells >= 0
    element = np.where(exists, operand.flat(operand.offsets(np.maximum(cells, 0))), -1)
    hits = [(label, np.isin(element, flat) & exists) for label, _, flat in groups]
    hits = [(label, hit) for label, hit in hits if hit.any()]
    if not hits:
        return "none of them."
    named = hits if len(hits) <= 4 else [*hits[:3], hits[-1]]
    parts = [f"{what} {label} touches {_where(hit)}" for label, hit in named]
    if len(hits) > 4:
        parts.insert(3, "and so on" if len(hits) > 5 else f"{what} {hits[3][0]} likewise")
    count = sum(hit.astype(int) for _, hit in hits)
    shared, blank = int((count > 1).sum()), int((exists & (count == 0)).sum())
    text = "; ".join(parts) + "."
    text += f" {_count(shared, 'cell')} touched by more than one {what}, at most {count.max()}." if shared else ""
    return text + (f" {_count(blank, 'cell')} blank, touched by none." if blank else "")


def _where(hit: np.ndarray) -> str:
    """The cells of a mask: their rows and columns where they fill a rectangle, else their number and extent."""
    r, c = np.nonzero(hit)
    place = [f"{name} {low}" if low == high else f"{name}s {low} to {high}"
             for name, low, high in (("row", r.min(), r.max()), ("column", c.min(), c.max()))]  # fmt: skip
    where = ", ".join(place[1:] if hit.shape[0] == 1 else place)
    full = len(r) == (r.max() - r.min() + 1) * (c.max() - c.min() + 1)
    return where if full else f"{_count(len(r), 'cell')} within {where}"


def _index_text(part) -> str:
    if not isinstance(part, slice):
        return str(part)
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends) + ("" if part.step is None else f":{part.step}")


def _text(program: tuple[int, int, int], grid: tuple[int, ...]) -> str:
    return ",".join(map(str, program[: max(len(grid), 1)]))


def _by_program(launch, name: str, kind: str):
    """[(label, note, flat indices)], one a program, in the order in which the programs ran."""
    return [(_text(p, launch.grid), "", np.array(elements)) for p, elements in launch.programs(name, kind).items()]


def _by_access(launch, name: str, kind: str, program):
    accesses = [a for a in launch._of(name, kind) if a.program == program]
    return [(str(i + 1), f"line {a.line}  {a.source}", a.offsets) for i, a in enumerate(accesses)]


def _legend(groups, kind: str):
    """One note for each source line: the numbers of the accesses it made, and its text."""
    numbers: dict[str, list[str]] = {}
    for label, note, _ in groups:
        numbers.setdefault(note, []).append(label)
    for note, labels in numbers.items():
        which = (
            labels[0]
            if len(labels) == 1
            else f"{labels[0]}–{labels[-1]}"
            if _consecutive(labels)
            else ", ".join(labels)
        )
        yield f"{kind} {which}: {note}"


def _consecutive(labels: list[str]) -> bool:
    return int(labels[-1]) - int(labels[0]) == len(labels) - 1


def _panel(ax, cells: np.ndarray, groups, operand) -> bool:
    """Fill one panel; returns whether any element is touched more than once."""
    exists = cells >= 0
    # Elements that share memory (stride 0) are one element: look each cell up under the index that accesses carry.
    element = np.where(exists, operand.flat(operand.offsets(np.maximum(cells, 0))), -1)
    first, count = np.full(cells.shape, -1), np.zeros(cells.shape, dtype=int)
    for number, (_, _, flat) in enumerate(groups):
        hit = np.isin(element, flat) & exists
        first[hit & (first < 0)] = number
        count += hit
    rows, columns = cells.shape
    numbered = rows <= _MOST_NUMBERED[0] and columns <= _MOST_NUMBERED[1]
    for r in range(rows):
        for start, stop in _runs(np.stack((first[r], count[r] > 1, exists[r]))):
            if exists[r, start]:
                g, many = first[r, start], count[r, start] > 1
                ax.add_patch(
                    Rectangle(
                        (start - 0.5, r - 0.5),
                        stop - start,
                        1,
                        facecolor=style.FILLS[g % len(style.FILLS)] if g >= 0 else "white",
                        edgecolor="#00000038" if many else "none",
                        hatch=style.HATCH if many else None,
                        linewidth=0,
                    )
                )
    if numbered:
        for r, c in np.argwhere(exists):
            ax.add_patch(Rectangle((c - 0.5, r - 0.5), 1, 1, fill=False, edgecolor=style.GRID, linewidth=0.5))
            if first[r, c] >= 0:
                label = groups[first[r, c]][0] + (f"\n×{count[r, c]}" if count[r, c] > 1 else "")
                _write(ax, c, r, label)
    else:
        ax.add_patch(Rectangle((-0.5, -0.5), columns, rows, fill=False, edgecolor=style.GRID, linewidth=0.8))
        for number, (label, _, _) in enumerate(groups):
            own = np.argwhere(first == number)
            # Number a program's patch once, at the cell nearest its middle, where the patch is large enough to carry
            # it.
            if len(own) * 400 >= rows * columns:
                r, c = own[np.abs(own - own.mean(axis=0)).sum(axis=1).argmin()]
                _write(ax, c, r, label + (f" ×{count[r, c]}" if count[r, c] > 1 else ""))
    ax.set_xlim(-0.5, columns - 0.5)
    ax.set_ylim(rows - 0.5, -0.5)
    ax.set_aspect("equal" if numbered else "auto")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if rows == 1:
        ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    return bool((count > 1).any())


def _write(ax, x: float, y: float, text: str) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=style.NOTE_SIZE - 1.5, linespacing=0.9)


def _runs(rows: np.ndarray):
    """(start, stop) of the stretches of equal columns."""
    edges = np.flatnonzero((rows[:, 1:] != rows[:, :-1]).any(axis=0)) + 1
    return zip([0, *edges.tolist()], [*edges.tolist(), rows.shape[1]], strict=True)
