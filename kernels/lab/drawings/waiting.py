"""What programs do on lesson 03's machine: they take turns and wait."""

from kernels.lab.drawings.language import NOTE, Board


def draw_hiding(board: Board, warps=(1, 4, 8), latency: int = 7, rounds: int = 2) -> None:
    """Warps of one quarter that work for a tick and wait for ``latency``: rows of time."""
    period = latency + 1
    y = 0.0
    for count in warps:
        busy = set()
        share = f"{count} warp{'s' * (count > 1)}: busy {count} of {period} ticks"
        board.text(0, y - 0.5, share, size=NOTE, ha="left")
        for warp in range(count):
            board.text(-0.3, y + 0.4, f"warp {warp}", size=7, ha="right")
            for step in range(rounds):
                at = warp + step * period
                board.box(at, y, 1, 0.8, "program", hatch="////", width=0.5)
                board.box(at + 1, y + 0.25, latency, 0.3, "time", width=0.4)
                busy.add(at)
            y += 0.95
        y += 0.15
        for at in range(rounds * period + count - 1):
            board.box(at, y, 1, 0.8, "output", lit=at in busy, width=0.5)
        board.text(-0.3, y + 0.4, "busy", size=7, ha="right", weight="bold")
        y += 2.2
    board.box(8, y - 1.3, 1, 0.8, "program", hatch="////", width=0.5)
    board.text(9.3, y - 0.9, "works", size=7, ha="left")
    board.box(12.5, y - 1.05, 2, 0.3, "time", width=0.4)
    board.text(14.8, y - 0.9, "waits for its data", size=7, ha="left")
    board.arrow((0, y - 0.9), (4, y - 0.9), "time", text="time", shift=(3.2, 0))


PIPE = {  # title of a frame: the cells that are full, of four rows and eight columns
    "one request": {(1, 3)},
    "one row of requests": {(1, c) for c in range(8)},
    "half full": {(r, c) for r in range(4) for c in range(8) if (r + c) % 2},
    "full": {(r, c) for r in range(4) for c in range(8)},
}


def draw_pipe(board: Board, frame: int) -> None:
    """A frame of ``pipe`` on a board."""
    full = list(PIPE.values())[frame]
    hatch = lambda r, c: "////" if (r, c) in full else ""  # noqa: E731
    board.cells(0, 0, 4, 8, "input", lit=lambda r, c: (r, c) in full, hatch=hatch)
    board.arrow((8.1, 2), (9.6, 2), "input")
    board.brace(0, 8, 4.5, "latency", depth=-0.3)
    board.brace(0, 4, -0.4, "bandwidth" if frame == 0 else "", vertical=True, depth=0.3)
    share = {1: "1/32", 8: "1/4", 16: "1/2", 32: "all"}[len(full)]
    board.text(4, 6.4, f"{len(full)} in flight: {share} of the bandwidth", size=7)
