"""Part 5's figures: a ring of buffers and its timetable, what orders two accesses, registers dealt out, turns."""

import math

from matplotlib.patches import Wedge

from kernels.lab.drawings.language import INK, NOTE, OUTLINE, Board, drawing, fill, filmstrip, ink

#: A buffer's states on the ring: role of its fill, hatch.
BUFFER = {"free": (None, ""), "on its way": ("input", "////"), "filled": ("input", ""), "read": ("accumulator", "....")}


def ring(depth: int = 4, frames=((0, 0, 0), (3, 1, 0), (4, 3, 0), (5, 4, 1))):
    """A ring of ``depth`` buffers that turns: who fills which, who reads which, and in which round.

    frames: (copies asked for, copies landed, products over) for each frame; the product of the next step has begun wherever
    its copy has landed.
    """

    def draw(board: Board, frame: int):
        asked, landed, over = frames[frame]
        board.box(-4.6, -4.7, 9.2, 10.3, edge="white")
        for slot in range(depth):
            steps = range(slot, asked, depth)
            step = steps[-1] if steps else None
            state = "free" if step is None or step < over else "on its way" if step >= landed else "filled"
            state = "read" if state == "filled" and step == over else state
            middle = 90 - 360 * slot / depth
            role, hatch = BUFFER[state]
            board.ax.add_patch(
                Wedge((0, 0), 3.0, middle - 165 / depth, middle + 165 / depth, width=1.5, linewidth=0.8,
                      facecolor=fill(role) if role else "white", edgecolor=INK, hatch=hatch or None)
            )  # fmt: skip
            x, y = (2.25 * f(math.radians(middle)) for f in (math.cos, math.sin))
            board.text(x, y, f"{slot}" if step is None or state == "free" else f"step {step}", size=7)
        loads, multiplies = asked, over
        for step, radius, role in ((loads, 3.75, "input"), (multiplies, 0.75, "accumulator")):
            angle = math.radians(90 - 360 * (step % depth) / depth)
            ends = (radius, 3.05) if radius > 3 else (radius - 0.7, 1.45)
            board.arrow(*((r * math.cos(angle), r * math.sin(angle)) for r in ends), role, width=1.8)
        blocked = asked - over == depth
        words = f"loader: step {loads}, round {loads // depth}" + (", blocked" if blocked else "")
        board.text(0, -3.9, words, size=7, colour=ink("input"))
        waits = landed <= over
        words = f"multiplier: step {multiplies}, round {multiplies // depth}" + (", blocked" if waits else "")
        board.text(0, -4.7, words, size=7, colour=ink("accumulator"))
        board.ax.set_ylim(-5.3, 4.2)  # upwards here: angles turn the usual way

    titles = ["all free", "ahead by three", "all taken: it waits", "one came back"]
    alt = (
        f"{len(frames)} frames of a ring of {depth} buffers, numbered clockwise, with an arrow from outside for the loader "
        "and one from inside for the multiplier. At first all are free and both arrows point at buffer 0. Then the loader is "
        "three steps ahead (hatched: on their way), and the multiplier reads step 0 (dotted). When all four are taken the "
        "loader points at buffer 0 again, in round 1, and is blocked; in the last frame the product of step 0 is over, and "
        "step 4 is on its way into its buffer."
    )
    return filmstrip(7.9, 2.5, draw, titles[: len(frames)], alt=alt, key=False)


def ring_depths(timetables: dict, product: float):
    """Rings of several depths along time: a row a buffer, and the tensor core's row, in which products should stand side by
    side.

    timetables: depth -> (asked, landed, over), the times of each step. product: how long one takes.
    """

    def draw(board: Board):
        y, tall = 0.0, 1.5
        for depth, (asked, landed, over) in timetables.items():
            rows = depth * tall
            for i, (begin, here, end) in enumerate(zip(asked, landed, over, strict=True)):
                row = y + i % depth * tall
                board.box(begin, row, here - begin, tall - 0.3, "input", hatch="////", width=0.5)
                board.box(end - product, row, product, tall - 0.3, "accumulator", hatch="....", width=0.5)
                board.box(end - product, y + rows, product, tall - 0.3, "accumulator", str(i), size=7, width=0.5)
            for slot in range(depth):
                board.text(-0.4, y + slot * tall + 0.6, f"buffer {slot}", size=7, ha="right")
            board.text(-0.4, y + rows + 0.6, "tensor core", size=7, ha="right", weight="bold")
            board.text(over[-1] + 0.6, y + rows + 0.6, f"D = {depth}: done at {over[-1]}", size=NOTE, ha="left")
            y += rows + tall + 0.9
        board.name("input", "on its way (hatched)")
        board.name("accumulator", "being multiplied (dotted)")
        board.arrow((0, y - 0.4), (12, y - 0.4), "time", "time", shift=(7.2, 0))

    ends = ", ".join(f"with {D} at {over[-1]}" for D, (_, _, over) in timetables.items())
    alt = (
        f"{len(timetables)} panels along time, a row for each buffer of the ring: hatched while a copy is on its way, dotted "
        "while the tensor core reads it. The last row of each panel is the tensor core with its products' numbers. With one "
        f"buffer there is a long gap before each; the deeper the ring, the shorter the gaps. The last product ends {ends}."
    )
    return drawing(8.0, 2.7, draw, alt=alt)


#: What happens in each lane, from top to bottom: (lane, row of the patient run or None, row of the hasty one, words).
EVENTS = (
    ("multiplier", 0, 0, "starts\nproduct"),
    ("product", 1, 1, "reads a[0]"),
    ("multiplier", 2, None, "waits for\nproduct"),
    ("multiplier", 3, 2, "arrives on\nempty[0]"),
    ("loader", 4, 3, "waits for\nempty[0]"),
    ("copy", 5, 4, "writes a[0]"),
)
LANES = ("multiplier", "product", "loader", "copy")


def happens_before():
    """Two runs of the first release: what each actor does, and the arrows along which it is known; one arrow is missing."""

    def draw(board: Board, frame: int):
        patient = frame == 1
        board.box(-1.6, -1.6, 14.4, 12.6, edge="white")
        for lane, name in enumerate(LANES):
            board.text(3.6 * lane + 0.5, -0.9, name, size=7, weight="bold")
            board.ax.plot([3.6 * lane + 0.5] * 2, [-0.4, 10.9], color=OUTLINE, linewidth=0.8, linestyle=":", zorder=1)
        place = {}
        for lane, late, early, words in EVENTS:
            row = late if patient else early
            if row is not None:
                role = {"product": "accumulator", "copy": "input"}.get(lane, "memory")
                x = 3.6 * LANES.index(lane) - 1.0
                place[words] = board.box(x, row * 1.9, 3.0, 1.35, role, words, size=7)
        start, reads, waits, arrives, passes, writes = (place.get(words) for *_, words in EVENTS)
        path = [start, reads, waits, arrives] if patient else [start, arrives]
        for a, b in (*zip(path, path[1:]), (arrives, passes), (passes, writes), *([] if patient else [(start, reads)])):
            board.arrow(*_between(a, b), "output", width=1.6)
        if not patient:
            board.arrow(reads.side("bottom"), writes.side("left", 0.7), "wrong", both=True, bend=0.35)
            board.text(2.6, 8.6, "no path: either\nmay be first", size=7, colour=ink("wrong"))

    alt = (
        "Two panels with a lane each for multiplier, product, loader and copy, time downwards. On the left the multiplier "
        "starts the product and arrives on empty[0] at once; arrows lead on to the loader and its copy, which writes a[0]; "
        "none leads from the product's reading of a[0] to that writing: a double arrow marks the two as unordered. On the "
        "right the multiplier waits for the product first, and one chain of arrows leads from the reading to the writing."
    )
    return filmstrip(7.9, 3.3, draw, ["released at once: a race", "released after the wait: ordered"], alt=alt, key=False)


def _between(a, b):
    """From one box to another, from the sides that face each other."""
    if a.x == b.x:
        return a.side("bottom"), b.side("top")
    right = b.x > a.x
    return a.side("right" if right else "left"), b.side("left" if right else "right")


def registers(partitions: dict, launched: int, accumulator: int, has: int = 65536):
    """A multiprocessor's registers: dealt out evenly at the launch, and then by ``setmaxnreg``.

    partitions: name -> (warps, registers a thread afterwards). launched: registers a thread at the launch. accumulator: those
    of them that a multiplying thread's sums take.
    """
    whole = 24.0

    def draw(board: Board):
        for row, (title, share) in enumerate((("launch", lambda own: launched), ("afterwards", lambda own: own))):
            x, y = 0.0, row * 3.0
            board.text(-0.4, y + 0.7, title, size=NOTE, ha="right")
            board.box(0, y, whole, 1.4)
            for name, (warps, own) in partitions.items():
                wide = 32 * warps * share(own) / has * whole
                board.box(x, y, wide, 1.4, "program", width=1.0)
                sums = min(accumulator, share(own)) / share(own) * wide if "load" not in name else 0
                board.box(x, y, sums, 1.4, "accumulator" if sums else None, hatch="....", width=0.5)
                board.text(x + wide / 2, y - 0.35, f"{name}: {warps} warps", size=7)
                board.text(x + wide / 2, y + 0.7, str(share(own)), size=NOTE)
                x += wide
            board.text(x + 0.2, y + 1.75, f"{sum(32 * w * share(r) for w, r in partitions.values()):,} of {has:,}", size=7)
        board.name("program", "registers a thread")
        board.name("accumulator", "of them the sums (dotted)")

    dealt = ", ".join(f"{name} {own}" for name, (_, own) in partitions.items())
    alt = (
        f"Two bars of a multiprocessor's {has:,} registers. At the launch every warp has {launched} registers a thread, so "
        f"that a loader has as much as a multiplier of as many warps. Afterwards: {dealt}. A dotted part of a multiplier is "
        f"what its sums take, {accumulator} a thread."
    )
    return drawing(7.9, 2.5, draw, alt=alt)


def ping_pong(timelines: dict, until: float):
    """Who has the tensor cores and who the other units, a panel a schedule: groups side by side, told apart by hatch.

    timelines: title -> the pieces (unit, group, what, begin, end), unit being "tensor cores" or "softmax". until: where the
    picture ends; what begins later is left out.
    """
    units = {"tensor cores": "accumulator", "softmax": "output"}

    def draw(board: Board):
        y = 0.0
        for title, pieces in timelines.items():
            board.text(0, y - 0.45, title, size=NOTE, ha="left")
            for row, (unit, role) in enumerate(units.items()):
                top = y + 1.1 * row
                board.text(-0.3, top + 0.45, unit, size=7, ha="right", weight="bold" if row == 0 else "normal")
                board.box(0, top, until, 0.9, "memory", lit=False, width=0.5)
                for _, group, what, begin, end in (piece for piece in pieces if piece[0] == unit and piece[3] < until):
                    wide = min(end, until) - begin
                    place = board.box(begin, top, wide, 0.9, role, hatch="////" if group else "", width=0.5)
                    if wide > 1:
                        board.text(*place.middle, what, size=7)
            y += 3.6
        board.arrow((0, y - 1.0), (4, y - 1.0), "time", "time", shift=(2.9, 0))

    busy = {
        title: sum(min(end, until) - begin for unit, *_, begin, end in own if unit == "tensor cores" and begin < until)
        for title, own in timelines.items()
    }
    told = "; ".join(f"{title}: tensor cores busy for {some:g} of {until:g} units of time" for title, some in busy.items())
    alt = (
        f"{len(timelines)} schedules along time, each with a row for the tensor cores and one for the softmax; a second "
        f"group's pieces are hatched. {told}. Gaps in the tensor cores' row stand over pieces of softmax."
    )
    return drawing(7.9, 0.5 + 0.85 * len(timelines), draw, alt=alt, key=False)
