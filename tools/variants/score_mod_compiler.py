"""Exercise 07 in other words: the tile holds its scores in another unit than the mod's."""

from kernels.check.score_mod_mistakes import Unit
from tools.variants.edits import Edits

TEX = {"log 2": r"\log 2", "log 10": r"\log 10", "-1": "-1", "-log 2": r"-\log 2"}
WHY = {
    "log 2": "as a kernel has them that computes with powers of 2",
    "log 10": "as a kernel has them that computes with powers of 10",
    "-1": "as a kernel has them that counts in energies, of which the lowest wins",
    "-log 2": "as a kernel has them that counts in energies and computes with powers of 2",
}


def edits(task: Unit) -> Edits:
    """What changes in the solution of exercise 07."""
    c = TEX[task.unit]
    # As it stands in the emitted text.
    score = "-score" if task.unit == "-1" else f"score * {task.number!r}"
    ds = "-({ds})" if task.unit == "-1" else f"{task.number!r} * ({{ds}})"
    return {
        "specification": (
            "computes it for a tile: `score` is `[BLOCK, BLOCK]`, `q_idx` a column,",
            f"computes it for a tile: `score` is `[BLOCK, BLOCK]` and holds the scores in another unit, $s = {c} \\cdot$ `score`, {WHY[task.unit]}; `q_idx` is a column,",
            "the gradient of the score. Along",
            "the gradient of `score`, in its unit. Along",
            r"\mathrm{d}s = \bar s",
            rf"\mathtt{{ds}} = {c}\, \bar s" if task.unit != "-1" else r"\mathtt{ds} = -\bar s",
        ),
        "by-hand-text": (
            r"so $\mathrm{d}s = \frac12 + 0$: its shares add up.",
            rf"so $\bar s = \frac12 + 0$: its shares add up. For `score`, in its unit, that is ${c} \cdot \frac12$."
            if task.unit != "-1"
            else r"so $\bar s = \frac12 + 0$: its shares add up. For `score`, in its unit, that is $-\frac12$.",
        ),
        "value-kernel": (
            "# The lines, and the value in float32, added to a tile of zeros; function(...) makes the text. (roughly 4 lines)",
            "# The score in the mod's unit, the lines, and the value in float32, added to a tile of zeros; function(...) makes the text. (roughly 4 lines)",
            '    lines = [*statements(graph), f"return',
            f'    lines = ["score = {score}", *statements(graph), f"return',
        ),
        "gradient-kernel": (
            "# The mod's lines, the lines back, the return of a whole tile. (roughly 4 lines)",
            "# The score in the mod's unit, the mod's lines, the lines back, the return of a whole tile in the tile's unit. (roughly 4 lines)",
            '    lines = [*statements(graph), *lines, f"return tl.zeros(score.shape, tl.float32) + {ds}"]',
            f'    lines = ["score = {score}", *statements(graph), *lines, f"return tl.zeros(score.shape, tl.float32) + {ds}"]',
        ),
        "symptoms": (
            "* **`KeyError: 'rsub'`, or another name.**",
            f"* **Right for mods without a score only.** The unit: the mod sees ${c} \\cdot$ `score`, and `ds` is the gradient of `score`.\n"
            "* **`KeyError: 'rsub'`, or another name.**",
        ),
        "next": (
            "as its `SCORE_MOD` and `SCORE_GRADIENT`, and you have flex attention.",
            "as its `SCORE_MOD` and `SCORE_GRADIENT`, with scores in this unit, and you have flex attention.",
        ),
    }
