"""Lesson 30's drawing: a query stands, its keys stream by, and three numbers are all that stays of them."""

import math
from collections.abc import Sequence
from fractions import Fraction

from kernels.lab.drawings.language import NOTE, filmstrip, ink


def _said(x: float) -> str:
    """0.25 as ¼, 1.75 as 1.75."""
    known = {0.25: "¼", 0.5: "½", 0.75: "¾"}
    return "−∞" if x == -math.inf else known.get(x, f"{x:.3g}".replace("-", "−"))


def online_softmax(scores: Sequence[int] = (0, 2, 1, 0), values: Sequence[int] = (8, 2, 4, 0)):
    """A frame a key: its score and value, what the older sums shrink by, and the three running numbers, in base 2."""
    if not 3 <= len(scores) == len(values) <= 6:
        raise ValueError(f"scores and values have {len(scores)} and {len(values)} numbers, need 3 to 6 of each, as many")
    states, top, l, acc = [], -math.inf, Fraction(0), Fraction(0)
    for score, value in zip(scores, values, strict=True):
        new_top = max(top, score)
        shrink = Fraction(2) ** (top - new_top) if top > -math.inf else Fraction(0)
        p = Fraction(2) ** (score - new_top)
        state = {"top": (top, new_top), "shrink": shrink, "p": p, "l": (l, shrink * l + p)}
        state["acc"] = (acc, shrink * acc + p * value)
        top, l, acc = new_top, state["l"][1], state["acc"][1]
        states.append(state)

    def draw(board, i):
        now = states[i]
        board.name("program", "stands")
        board.name("input", "streams by")
        board.name("accumulator", "stays in registers")
        query = board.box(0, 0.2, 1.5, 1.4, "program", "query")
        for n, (score, value) in enumerate(zip(scores, values)):
            key = board.box(2.4 + 2.2 * n, 0, 1.9, 1.8, "input", lit=n == i)
            if n >= i:
                board.text(*key.middle, f"score {score}\nvalue {value}", size=NOTE, halo=False)
            else:
                board.text(*key.middle, "gone", size=NOTE, colour="#8C8C8C", halo=False)
            if n == i:
                board.arrow((key.middle[0], 1.85), (key.middle[0], 2.55), "input")
        board.arrow(query.side("bottom"), (query.middle[0], 2.55), "program")
        old = _said(float(now["shrink"])), _said(float(now["p"]))
        value = values[i]
        lines = (
            ("top", f"max({_said(now['top'][0])}, {scores[i]}) = {_said(now['top'][1])}"),
            ("l", f"{old[0]} · {_said(float(now['l'][0]))} + {old[1]} = {_said(float(now['l'][1]))}"),
            ("acc", f"{old[0]} · {_said(float(now['acc'][0]))} + {old[1]} · {value} = {_said(float(now['acc'][1]))}"),
        )
        width = 2.4 + 2.2 * len(scores) - 0.3
        for row, (name, text) in enumerate(lines):
            y = 2.6 + 1.15 * row
            board.box(0, y, 1.5, 0.95, "accumulator", name)
            board.box(1.5, y, width - 1.5, 0.95, None, text)
        so_far = now["acc"][1] / now["l"][1]
        board.text(0, 6.5, f"output so far: acc / l = {float(so_far):.3g}", ha="left", size=NOTE, colour=ink("output"))

    titles = []
    for i, state in enumerate(states):
        rises = state["top"][1] > state["top"][0]
        shrink = _said(float(state["shrink"]))
        more = "" if i == 0 else f": a new maximum, shrink by {shrink}" if rises else ": no new maximum, shrink by 1"
        titles.append(f"key {i + 1}{more}")
    alt = (
        f"{len(scores)} frames. In each a box query stands at the left; the keys stand in a row beside it, one is lit and "
        "those before it are gone; below stand three boxes, top, l and acc, with their sums. "
        + " ".join(
            f"Key {i + 1}: top {_said(s['top'][1])}, l {_said(float(s['l'][1]))}, acc {_said(float(s['acc'][1]))}."
            for i, s in enumerate(states)
        )
    )
    return filmstrip(8, 2.55 * -(-len(scores) // 2), draw, titles, alt=alt, columns=2)
