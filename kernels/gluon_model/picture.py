"""Draw one program's run: partitions, operations in flight and buffers along its steps; and step through it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from kernels.common.lines import wrapped
from kernels.lab import style

#: What a partition does at a step: the event, its letter, its fill, its meaning.
LETTERS = {
    "wait": ("w", style.FILLS[7], "wait"),
    "expect": ("e", style.FILLS[3], "expect bytes"),
    "TMA load": ("L", style.FILLS[0], "start a load"),
    "TMA store": ("S", style.FILLS[5], "start a store"),
    "matrix product": ("M", style.FILLS[1], "start a matrix product"),
    "copy to tensor memory": ("T", style.FILLS[5], "start a copy to tensor memory"),
    "commit": ("c", style.FILLS[2], "commit"),
    "arrive": ("a", style.FILLS[4], "arrive"),
    "read": ("r", "white", "read on-chip memory"),
    "write": ("s", "white", "write on-chip memory"),
    "fence": ("f", "white", "fence"),
    "load": ("g", "white", "load from global memory"),
    "store": ("G", "white", "store to global memory"),
}
#: A buffer's states: fill, hatch, meaning.
STATES = {
    "filling": (style.FILLS[0], "////", "being filled"),
    "full": (style.FILLS[4], None, "filled"),
    "reading": (style.FILLS[1], "....", "being read"),
}
_MOST_LETTERED = 130  # columns up to which every step carries its letter


@dataclass
class Track:
    """A run as intervals of steps: what the figure draws and what the slider shows.

    columns: the events that take a step of their own; a barrier's new state does not, nor the end of a wait that was
    granted at once. blocked: by partition, the waits that took time. flights: the operations, from issue to landing.
    buffers: by buffer, its states in the order in which they began. An interval that never ended has no end.
    """

    columns: list = field(default_factory=list)
    barriers: list = field(default_factory=list)
    blocked: list = field(default_factory=list)
    flights: dict = field(default_factory=dict)
    buffers: dict = field(default_factory=dict)

    @classmethod
    def of(cls, machine) -> Track:
        """Read a machine's log."""
        track, waiting = cls(), {}
        for event in machine.events:
            now = len(track.columns)
            if event.kind == "barrier":
                track.barriers.append((now, event.what, event.detail))
                continue
            if event.kind == "pass":
                began = waiting.pop(event.who)
                if began[0] == now - 1:
                    continue
                track.blocked.append((event.who, began[0], now, began[1]))
                track.columns.append(event)
                continue
            if event.kind == "wait":
                waiting[event.who] = now, event
            elif event.kind == "issue":
                track.flights[event.detail] = [now, None]
                track._begin(event.detail, now)
            elif event.kind == "land":
                track.flights[event.detail][1] = now
                track._end(event.detail, now)
            elif event.kind in ("read", "write"):
                states = track.buffers.setdefault(_buffer(event.what), [])
                states.append([now, now + 1, "reading" if event.kind == "read" else "filling"])
                states += [[now + 1, None, "full"]] * (event.kind == "write")
            track.columns.append(event)
        track.blocked += [(who, began, None, event) for who, (began, event) in waiting.items()]
        return track

    def _begin(self, operation, now: int) -> None:
        written = {_buffer(view.label) for view in operation.writes}
        for view in operation.writes:
            self.buffers.setdefault(_buffer(view.label), []).append([now, None, "filling", operation])
        for view in operation.reads:
            if view.allocation.kind != "barrier" and _buffer(view.label) not in written:
                self.buffers.setdefault(_buffer(view.label), []).append([now, None, "reading", operation])

    def _end(self, operation, now: int) -> None:
        for states in self.buffers.values():
            for state in [s for s in states if len(s) == 4 and s[3] is operation]:
                state[1] = now
                if state[2] == "filling":
                    states.append([now, None, "full"])

    def shown(self, states, end: int):
        """A buffer's states as (start, stop, name) without gaps in what is drawn: a full buffer is full until refilled."""
        fills = sorted(start for start, _, name, *_ in states if name == "filling")
        for start, stop, name, *_ in states:
            if stop is None:
                stop = next((f for f in fills if f >= start), end) if name == "full" else end
            yield start, stop, name


def _buffer(label: str) -> str:
    """The buffer that a view is part of: acc[0] for acc[0][:, 64:128]."""
    name, _, rest = label.partition("[:")
    return name + rest.partition("]")[2]


def _letter(event):
    return LETTERS.get(event.what if event.kind == "issue" else event.kind)


def _track(machine) -> Track:
    """The track of a program that did something."""
    track = Track.of(machine)
    if not track.columns:
        raise ValueError(f"program {machine.program} of {machine.run.name} took no step, needs one to be shown")
    return track


def timeline(machine, first: int = 0, last: int | None = None, cursor: int | None = None, alt: str | None = None):
    """The figure behind ``Result.picture``; see there."""
    track = _track(machine)
    last = len(track.columns) if last is None else last
    if not 0 <= first < last <= len(track.columns):
        raise ValueError(f"first and last are {first} and {last}: the program has steps 0 to {len(track.columns)}")
    rows = _rows(machine, track, len(track.columns), (first, last) if cursor is None else None)
    columns = last - first
    width = min(max(columns * 0.17, 5.0), 12.0) + 1.2
    figure, axes = style.picture(width, 0.3 * len(rows) + 1.3)
    ax = axes[0, 0]
    lettered = columns <= _MOST_LETTERED
    used = set()
    ax.set_xlim(first, last)
    for y, (_, draw) in enumerate(rows):
        draw(ax, y, lettered, used)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [name for name, _ in rows])
    ax.set_xlabel("step of the run")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for spine in ("top", "right", "left"):
        ax.spines[spine].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if cursor is not None:
        ax.axvspan(cursor, cursor + 1, facecolor="none", edgecolor="black", linewidth=1.4, zorder=5)
    ax.set_title(f"{machine.run.name}, program {machine.program}", fontsize=style.TEXT_SIZE + 1)
    letters = [f"{letter} {meaning}" for letter, _, meaning in LETTERS.values() if letter in used]
    notes = ["Partitions: " + ", ".join(letters) + "; hatched: blocked." if letters else ""]
    notes += ["Engines: from issue to landing, with the buffer; ▸: in flight at the end."]
    notes += ["Buffers: //// being filled, plain filled, .... being read, blank never filled."]
    lines = [line for note in filter(None, notes) for line in textwrap.wrap(note, int(width * 13))]
    figure.set_size_inches(width, figure.get_figheight() + 0.15 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=style.NOTE_SIZE, ha="left", x=0.02)
    figure.alt = alt or _words(machine, track, first, last)
    return figure


def _words(machine, track: Track, first: int, last: int) -> str:
    """The figure in words: what each partition does and how long it is blocked, engines, buffers, and who waits for ever."""
    end = len(track.columns)
    text = f"A timeline of {machine.run.name}, program {machine.program}, steps {first} to {last - 1}, a row for each of: "
    rows = []
    for name in dict.fromkeys(p.name for p in machine.everybody):
        own = [_letter(e)[2] for e in track.columns[first:last] if e.who == name and _letter(e)]
        if not own:
            continue
        did = ", ".join(f"{what} ×{own.count(what)}" for what in dict.fromkeys(own))
        waits = [(max(a, first), min(end if b is None else b, last)) for who, a, b, _ in track.blocked if who == name]
        blocked = sum(max(b - a, 0) for a, b in waits)
        rows.append(f"{name} ({did}{f'; blocked for {blocked} steps' if blocked else ''})")
    for engine in ("copy engine", "tensor core"):
        flights = [(o, a, end if b is None else b) for o, (a, b) in track.flights.items() if o.engine == engine]
        flights = [f for f in flights if f[0].what != "commit" and f[1] < last and f[2] > first]
        if flights:
            rows.append(f"{engine} ({len(flights)} operations, up to {len(_lanes(flights, end))} in flight at once)")
    if track.buffers:
        rows.append(f"buffers {', '.join(sorted(track.buffers))}")
    stuck = [f" At the end {who} waits for {event.what} for ever." for who, _, b, event in track.blocked if b is None]
    return text + "; ".join(rows) + "." + "".join(stuck * (last == end))


def _rows(machine, track: Track, end: int, window=None):
    """(name, draw) of every row of the figure, from top to bottom; operations outside ``window`` take no rows."""
    first, last = window or (0, end)
    active = {event.who for event in track.columns}
    names = list(dict.fromkeys(p.name for p in machine.everybody if p.name in active))
    rows = [(name, _partition_row(track, name, end)) for name in names]
    for engine in ("copy engine", "tensor core"):
        flights = [(o, a, b) for o, (a, b) in track.flights.items() if o.engine == engine and o.what != "commit"]
        flights = [(o, a, b) for o, a, b in flights if a < last and (b is None or b > first)]
        for n, lane in enumerate(_lanes(flights, end)):
            rows.append((engine if n == 0 else "", _flight_row(lane, end)))
    rows += [(name, _buffer_row(track, states, end)) for name, states in sorted(track.buffers.items())]
    return rows


def _lanes(flights, end: int):
    """Spread intervals over as few rows as they need."""
    lanes = []
    for flight in flights:
        free = next((lane for lane in lanes if (end if lane[-1][2] is None else lane[-1][2]) <= flight[1]), None)
        if free is None:
            lanes.append([flight])
        else:
            free.append(flight)
    return lanes


def _box(ax, start, stop, y, height=0.8, **how) -> None:
    how = {"edgecolor": "black", "linewidth": 0.4} | how
    ax.add_patch(Rectangle((start, y - height / 2), stop - start, height, **how))


def _write(ax, x: float, y: float, text: str) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=style.NOTE_SIZE - 1.5, clip_on=True)


def _partition_row(track: Track, name: str, end: int):
    def draw(ax, y, lettered, used):
        for who, start, stop, event in track.blocked:
            if who == name:
                until = end if stop is None else stop
                _box(ax, start, until, y, 0.5, facecolor="white", hatch="////", linewidth=0.3, edgecolor="#888888")
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                text = {"va": "center", "fontsize": style.NOTE_SIZE - 1.5, "bbox": box}
                if stop is None and ax.get_xlim()[1] == end:
                    ax.text(end + 0.3, y, f"waits for {event.what} for ever", ha="left", **text)
                elif lettered and until - start > len(event.what) * 0.6 + 1.5:
                    ax.text((start + 1 + until) / 2, y, event.what, ha="center", clip_on=True, **text)
        for x, event in enumerate(track.columns):
            what = _letter(event)
            if event.who == name and what:
                used.add(what[0])
                _box(ax, x, x + 1, y, facecolor=what[1])
                if lettered:
                    _write(ax, x + 0.5, y, what[0])

    return draw


def _flight_row(lane, end: int):
    def draw(ax, y, lettered, used):
        for operation, start, stop in lane:
            label = ", ".join(
                view.label for view in operation.writes or operation.reads if view.allocation.kind != "barrier"
            )
            text = label + ("" if stop is not None else " ▸")
            stop = end if stop is None else stop
            _box(ax, start, stop, y, 0.6, facecolor=LETTERS[operation.what][1])
            if lettered and stop - start > 0.45 * len(text):
                _write(ax, (start + stop) / 2, y, text)

    return draw


def _buffer_row(track: Track, states, end: int):
    def draw(ax, y, lettered, used):
        for start, stop, name in sorted(
            track.shown(states, end), key=lambda s: ("full", "filling", "reading").index(s[2])
        ):
            fill, hatch, _ = STATES[name]
            _box(ax, start, stop, y, 0.6, facecolor=fill, hatch=hatch, linewidth=0.3)

    return draw


def state(machine, step: int) -> str:
    """The text behind ``Result.state``; see there."""
    track = _track(machine)
    if not 0 <= step < len(track.columns):
        raise ValueError(f"step is {step}: the program has steps 0 to {len(track.columns) - 1}")
    return _state(track, step)


def _state(track: Track, step: int) -> str:
    lines = [f"step {step} of {len(track.columns) - 1}"]
    last = {event.who: event for event in track.columns[: step + 1] if event.kind != "land"}
    stuck = {who: event for who, a, b, event in track.blocked if a <= step and (b is None or step < b)}
    for who, event in last.items():
        how = f" blocked on {_wanted(stuck[who])}" if who in stuck else ""
        lines.append(f"{who}{how}\n    {event.place.where}  {event.place.text}")
    flying = [o for o, (a, b) in track.flights.items() if a <= step and (b is None or step < b) and o.what != "commit"]
    lines += ["in flight"] + [f"    {o.what} of {o.issuer.name}, {_touched(o)}" for o in flying] * bool(flying)
    if not flying:
        lines[-1] += ": nothing"
    barriers = {name: detail for at, name, detail in track.barriers if at <= step}
    lines.append("barriers")
    for name, (phase, pending, nbytes) in barriers.items():
        lacks = [f"{pending} arrival{'s' * (pending > 1)}"] * (pending > 0) + [f"{nbytes} bytes"] * (nbytes != 0)
        lines.append(f"    {name}: in phase {phase}" + (f", lacks {' and '.join(lacks)}" if lacks else ""))
    lines.append("buffers")
    for name, states in sorted(track.buffers.items()):
        now = [s[2] for s in track.shown(states, len(track.columns)) if s[0] <= step < s[1]]
        order = ("reading", "filling", "full")
        lines.append(f"    {name}: " + (STATES[min(now, key=order.index)][2] if now else "not filled yet"))
    return wrapped("\n".join(lines))


def _wanted(event) -> str:
    return f"{event.what}, parity {event.detail.parity}" if event.detail is not None else event.what


def _touched(operation) -> str:
    reads = [view.label for view in operation.reads if view.allocation.kind != "barrier"]
    writes = [view.label for view in operation.writes]
    return "; ".join(
        filter(None, [", ".join(reads) and f"reads {', '.join(reads)}", ", ".join(writes) and f"fills {writes[0]}"])
    )


def player(machine):
    """The widget behind ``Result.player``; see there."""
    import html

    import ipywidgets

    track = _track(machine)
    count = len(track.columns)
    window = 60
    slider = ipywidgets.IntSlider(0, 0, count - 1, description="step", layout={"width": "95%"}, continuous_update=False)
    image, text = ipywidgets.HTML(), ipywidgets.HTML()

    def show(change=None):
        first = max(min(slider.value - window // 2, count - window), 0)
        image.value = timeline(machine, first, min(first + window, count), slider.value).html()
        text.value = f"<pre>{html.escape(_state(track, slider.value))}</pre>"

    slider.observe(show, names="value")
    show()
    return ipywidgets.VBox([slider, image, text])
