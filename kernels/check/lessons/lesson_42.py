"""Lesson 42's turns: pieces of even length, a second pass that accumulates, a schedule's length."""

from itertools import product

from kernels.check.lessons import Turn, as_given, listed


def _pieces(even_piece, steps, pieces):
    bounds = [even_piece(z, steps, pieces) for z in range(pieces)]
    steps_in_order = [i for first, last in bounds for i in range(first, last)]
    lengths = [last - first for first, last in bounds]
    lengths_are_even = max(lengths) - min(lengths) <= 1
    return steps_in_order, lengths_are_even


def _slots(draw):
    """Five slots, one of them so large that float32 rounds what is added to it; it is taken away again."""
    partial = draw.normal(5, 21)
    partial[1] = 2e7 * partial[1].sign()
    partial[3] -= partial[1]
    return {"partial": partial, "out": (4 * draw.normal(21).mul(4).round()).half()}  # added first or last, all the same


def _summed(add_kernel, partial, out):
    add_kernel[(3,)](partial, out, 21, len(partial), BLOCK=8)
    return out


def _bounds(first, last):
    return f"first = {first}\n    last = {last}"


BOUNDS = _bounds("z * steps // pieces", "(z + 1) * steps // pieces")
SHARE = "everybody waits for the longest piece, so share what is left, a step each"
SLOT = "tl.load(partial_ptr + z * numel + offs, mask=offs < numel, other=0.0)"
SIZES = ((5, 1, 24), (5, 3, 8), (5, 8, 3), (4, 2, 12), (9, 6, 4))
WAVES = "-(-tiles * pieces // processors)"
TURNS = {
    "42-even": Turn(
        "pieces whose lengths differ by one at most",
        arguments=as_given,
        cases=listed("steps pieces", *((n, z) for n, z in product((10, 7, 24, 5, 1, 97), (1, 2, 3, 5, 9)) if z <= n)),
        slips=(
            (BOUNDS, _bounds("z * (steps // pieces)", "(z + 1) * (steps // pieces)"), "a rest is left"),
            (BOUNDS, _bounds("z * -(-steps // pieces)", "(z + 1) * -(-steps // pieces)"), "there are `steps` steps"),
            (
                BOUNDS,
                _bounds("min(z * -(-steps // pieces), steps)", "min((z + 1) * -(-steps // pieces), steps)"),
                SHARE,
            ),
            (
                BOUNDS,
                _bounds("z * (steps // pieces)", "steps if z == pieces - 1 else (z + 1) * (steps // pieces)"),
                SHARE,
            ),
            (
                BOUNDS,
                _bounds("z * steps // pieces", "min((z + 1) * steps // pieces + 1, steps)"),
                "a step in two pieces is added twice: a piece ends where the next begins",
            ),
            (
                BOUNDS,
                _bounds("(pieces - 1 - z) * steps // pieces", "(pieces - z) * steps // pieces"),
                "pieces must follow one another, so that the second pass adds the steps in order",
            ),
            (BOUNDS, BOUNDS.replace("//", "/"), "steps are whole: divide with `//`"),
        ),
        run=_pieces,
    ),
    "42-accumulate": Turn(
        "a second pass that adds to a float16 gradient",
        arguments=_slots,
        cases={"21 elements in blocks of 8, five slots": {}},
        slips=(
            ("(old + total)", "total", "what was there is gone: this is added to the sum of earlier batches"),
            (
                f"total += {SLOT}",
                f"total = (total + {SLOT}).to(tl.float16).to(tl.float32)",
                "the sum is rounded to float16 after every slot: keep it in float32, and round once, at the store",
            ),
            ("z * numel", "(pieces - 1 - z) * numel", "slots are added from the last to the first: other bits"),
            ("z * numel + ", "", "slot 0 is added each time: slot z begins z · numel elements behind the first"),
            ("range(pieces)", "range(pieces - 1)", "not all slots are added"),
            ("tl.store(out_ptr + offs, (old + total).to(tl.float16), mask=offs < numel)", "pass", ""),
            (f"{SLOT}\n", f"{SLOT.partition(',')[0]})\n", ""),
        ),
        run=_summed,
    ),
    "42-time": Turn(
        "when a schedule's first pass ends",
        arguments=lambda draw, **case: {**case, "processors": 8, "start": 2.0},
        cases=listed(
            "tiles pieces per persistent",
            *((*sizes, False) for sizes in SIZES),
            *((*sizes, True) for sizes in SIZES),
        ),
        slips=(
            ("start + waves * per if persistent else ", "", "a program that stays pays for its start once"),
            (" if persistent else waves * (start + per)", "", "each program pays for its start, wave after wave"),
            ("start + waves * per if persistent else waves * (start + per)", "waves * per", "a start takes time"),
            (WAVES, "tiles * pieces / processors", "a wave that is not full takes as long as a full one: round up"),
            (WAVES, "tiles * pieces // processors", "what is left over after whole waves takes a wave, too: round up"),
            (WAVES, "pieces", "there are tiles · pieces programs, and a wave has as many as there are multiprocessors"),
        ),
    ),
}
