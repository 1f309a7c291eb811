"""Drawings of lessons 31 and 32: a mod on a tile of scores, and a line on its way from Python to Triton."""

from kernels.lab.drawings.language import NOTE, drawing, ink


def _short(x: float) -> str:
    return f"{x:g}".replace("-", "−").replace("0.5", "½").replace("0.25", "¼").replace(".5", "½")


def score_mod_tile(first: tuple[int, int] = (5, 2), slopes=(0.25, 0.5), h: int = 1):
    """ALiBi on a tile of 3 queries and 4 keys: what comes as a tile, as a column, as a row and as one number.

    first: the tile's first query and key. slopes: the captured tensor. h: the tile's head. Every score is 1.
    """
    queries, keys = [first[0] + i for i in range(3)], [first[1] + j for j in range(4)]
    rows, columns, w = len(queries), len(keys), 1.15
    away = [[n - m for n in keys] for m in queries]
    step, y = columns * w, 2.2

    def draw(board):
        board.name("input", "what the mod is given")
        board.name("weight", "a tensor that it captures")
        board.name("output", "what it returns")
        board.name("memory", "computed on the way")

        def tile(x, role, label, under):
            place = board.cells(x, y, rows, columns, role, size=(w, 1), label=label, text_size=10)
            board.text(place.middle[0], y + rows + 0.45, under, mono=True, size=NOTE)
            return place

        score = tile(0, "input", [[1] * columns] * rows, "score")
        board.text(score.middle[0], y - 0.4, "a tile", size=NOTE, colour=ink("input"))
        x = step + 0.55
        board.text(x, y + 1.5, "+", size=15)
        table = board.cells(x + 0.55, 0, 1, len(slopes), "weight", size=(w, 1), label=[[_short(s) for s in slopes]],
                            lit=lambda r, c: c == h, text_size=10)  # fmt: skip
        board.text(table.x + table.w / 2, -0.45, "slopes", mono=True, size=NOTE)
        one = board.cells(x + 0.8, y + 1, 1, 1, "weight", size=(w, 1), label=[[_short(slopes[h])]], text_size=10)
        board.arrow(table.cell(0, h).side("bottom"), one.side("top"), "weight")
        board.text(one.middle[0], y + rows + 0.45, "slopes[h]", mono=True, size=NOTE)
        board.text(one.middle[0], y + 2.4, "one load a tile", size=NOTE, colour=ink("weight"))
        x = one.x + w + 0.5
        board.text(x, y + 1.5, "·", size=18)
        column = board.cells(x + 0.85, y, rows, 1, "input", size=(w, 1), label=[[m] for m in queries], text_size=10)
        board.text(column.middle[0], y - 0.4, "q_idx", mono=True, size=NOTE)
        differences = column.x + w + 0.3
        row = board.cells(differences, 0.4, 1, columns, "input", size=(w, 1), label=[keys], text_size=10)
        board.text(row.middle[0], -0.05, "kv_idx", mono=True, size=NOTE)
        board.cells(differences, y, rows, columns, "memory", size=(w, 1), text_size=10,
                    label=[[_short(a) for a in line] for line in away])  # fmt: skip
        board.text(differences + step / 2, y + rows + 0.45, "kv_idx - q_idx", mono=True, size=NOTE)
        board.text(column.middle[0], y + rows + 0.45, "a column", size=NOTE, colour=ink("input"))
        board.text(row.x + row.w + 0.15, 0.9, "a row", size=NOTE, colour=ink("input"), ha="left")
        x = differences + step + 0.5
        board.text(x, y + 1.5, "=", size=15)
        tile(x + 0.5, "output", [[_short(1 + slopes[h] * a) for a in line] for line in away], "a tile")

    alt = (
        f"From left to right: a tile of {rows} by {columns} scores, all 1; plus one number, {_short(slopes[h])}, which an "
        f"arrow takes from entry {h} of the {len(slopes)} slopes; times a tile of differences, which stands right of a "
        f"column q_idx of {queries[0]} to {queries[-1]} and below a row kv_idx of {keys[0]} to {keys[-1]}; equals a tile "
        f"of changed scores, {_short(1 + slopes[h] * away[0][0])} at its top left."
    )
    return drawing(8, 2.5, draw, alt=alt)


#: What stands in the line, the node that records it, the operands' rows, its value by hand, and the line of Triton.
LINES = (
    ("slopes[h]", "index", (), "¼", "index = tl.load(table_0 + h)"),
    ("kv_idx - q_idx", "sub", (), "−3", "sub = kv_idx - q_idx"),
    ("slopes[h] * (…)", "mul", (0, 1), "−¾", "mul = index * sub.to(tl.float32)"),
    ("score + …", "add", (2,), "¼", "add = score + mul"),
)


def score_mod_lines(lit: str | None = None):
    """ALiBi's line, the graph that recording makes of it, and the Triton emitted from that; the by-hand values beside it.

    lit: "line", "graph" or "text" lights one of the three alone; all of them unless told.
    """
    if lit not in (None, "line", "graph", "text"):
        raise ValueError(f"lit is {lit!r}, needs to be 'line', 'graph', 'text' or None")

    def on(part):
        return lit in (None, part)

    def draw(board):
        board.name("input", "your line") if on("line") else None
        board.name("program", "a recorded operation") if on("graph") else None
        board.name("output", "emitted Triton") if on("text") else None
        nodes = []
        for r, (source, node, operands, value, text) in enumerate(LINES):
            y = 1.6 * r
            left = board.box(0, y, 4.4, 1, "input", lit=on("line"))
            board.text(*left.middle, source, mono=True, size=NOTE, halo=False)
            nodes.append(board.box(7.1, y, 2.6, 1, "program", f"{node}   {value}", lit=on("graph")))
            right = board.box(12.3, y, 8.6, 1, "output", lit=on("text"))
            board.text(*right.middle, text, mono=True, size=NOTE, halo=False)
            board.arrow(left.side("right"), nodes[r].side("left"), lit=on("graph"))
            board.arrow(nodes[r].side("right"), right.side("left"), lit=on("text"))
            for operand in operands:
                if operand == r - 1:
                    board.arrow(nodes[operand].side("bottom"), nodes[r].side("top"), "program", lit=on("graph"))
                else:
                    board.arrow(nodes[operand].side("right", 0.8), nodes[r].side("right", 0.2), "program", bend=-0.7,
                                lit=on("graph"))  # fmt: skip
        board.text(5.75, 0.2, "record", size=NOTE)
        board.text(11, 0.2, "emit", size=NOTE)
        board.text(8.4, -0.45, "operation, value by hand", size=NOTE)

    alt = (
        "Three columns of four boxes with arrows from left to right. Parts of the line: slopes[h], kv_idx - q_idx, their "
        "product, score plus that. Recorded operations with values: index ¼, sub −3, mul −¾, add ¼; arrows lead from index "
        "and sub to mul, from mul to add. Emitted: " + "; ".join(line[-1] for line in LINES) + "."
    )
    return drawing(8, 2.7, draw, alt=alt)
