"""Wrong answers to lesson 42's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def even(begin, end):
    return f"""def even_piece(z, steps, pieces):
    return {begin}, {end}
"""


def accumulate(start="tl.load(out_ptr + offs, mask=offs < numel, other=0.0).to(tl.float32)", step="total += slot", z="z"):
    return f"""@triton.jit
def add_kernel(partial_ptr, out_ptr, numel, pieces, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = {start}
    for z in range(pieces):
        slot = tl.load(partial_ptr + ({z}) * numel + offs, mask=offs < numel, other=0.0)
        {step}
    tl.store(out_ptr + offs, total.to(out_ptr.dtype.element_ty), mask=offs < numel)
"""


def time(value):
    return f"""import math


def first_pass(tiles, pieces, per, processors, start, persistent):
    waves = math.ceil(tiles * pieces / processors)
    return {value}
"""


WRONG = {
    "42-even": [
        (even("z * (steps // pieces)", "(z + 1) * (steps // pieces)"), "is in no piece"),
        (even("z * -(-steps // pieces)", "(z + 1) * -(-steps // pieces)"), "There is no step"),
        (even("min(z * -(-steps // pieces), steps)", "min((z + 1) * -(-steps // pieces), steps)"), "everybody waits"),
        (
            even("z * (steps // pieces)", "steps if z == pieces - 1 else (z + 1) * (steps // pieces)"),
            "everybody waits for the longest",
        ),
        (even("z * steps // pieces", "min((z + 1) * steps // pieces + 1, steps)"), "is in two pieces"),
        (even("z * steps / pieces", "(z + 1) * steps / pieces"), "two integers"),
        (even("(pieces - 1 - z) * steps // pieces", "(pieces - z) * steps // pieces"), "must follow one another"),
    ],
    "42-accumulate": [
        (accumulate("tl.zeros((BLOCK,), tl.float32)"), "The gradient that was there is gone"),
        (accumulate(step="total = (total + slot).to(tl.float16).to(tl.float32)"), "rounded to float16 after every slot"),
        (accumulate(z="pieces - 1 - z"), "from the last to the first"),
        (accumulate(z="0"), "Slot 0 is added 5 times"),
        (accumulate().replace("range(pieces)", "range(pieces - 1)"), "Not all 5 slots"),
        (accumulate().replace("    tl.store", "    return\n    tl.store"), "Nothing was stored"),
        (accumulate().replace(", mask=offs < numel)\n", ")\n"), "outside"),
    ],
    "42-time": [
        (time("waves * (start + per)"), "pays for its start once"),
        (time("start + waves * per"), "wave after wave"),
        (time("waves * per"), "Every program starts"),
        (time("tiles * pieces / processors * (start + per)"), "round up"),
        (time("tiles * pieces // processors * (start + per)"), "What is left over"),
        (time("pieces * (start + per)"), "and the schedule ends after"),
        (time("None"), "must return a number"),
    ],
}
