"""Wrong answers to lesson 30's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def squares(u="alpha**2 * u + p**2", l="alpha * l + p", top="torch.maximum(top, z)"):
    return f"""def with_squares(top, l, u, z):
    new_top = {top}
    alpha, p = (top - new_top).exp(), (z - new_top).exp()
    return new_top, {l}, {u}
"""


def sink(lines, result="acc / l[:, None], top + l.log()"):
    return f"def finish_with_sink(top, l, acc, sink):\n    {lines}\n    return {result}\n"


def halves(
    shift="top.masked_fill(top == -torch.inf, 0.0)",
    l="a * l1 + b * l2",
    acc="a[:, None] * acc1 + b[:, None] * acc2",
    top="top",
):
    return f"""def both(one, two):
    (top1, l1, acc1), (top2, l2, acc2) = one, two
    top = torch.maximum(top1, top2)
    shift = {shift}
    a, b = (top1 - shift).exp(), (top2 - shift).exp()
    return {top}, {l}, {acc}
"""


MOVED = """new_top = torch.maximum(top, sink)
    alpha = (top - new_top).exp()
    l, acc, old, top = l * alpha + (sink - new_top).exp(), acc * alpha[:, None], top + l.log(), new_top"""
SHIFTED = "shift = top.masked_fill(top == -torch.inf, 0.0)\n    l = l + (sink - shift).exp()"
WRONG = {
    "30-squares": [
        (squares(u="alpha * u + p**2"), "here stand their squares"),
        (squares(u="u + p**2"), "must be rescaled, too"),
        (squares(u="(alpha * l + p) ** 2"), "the square of the sum"),
        (squares(u="alpha**2 * u + p"), "both its factors"),
        (squares(l="alpha**2 * l + p"), "alpha, p and l are step 2's"),
        (squares(top="z + 0 * top.clamp(min=0)"), "the maximum so far is 2"),
    ],
    "30-sink": [
        (sink("pass"), "The sink has no effect"),
        (sink("l = l + sink"), "not the logit itself"),
        (sink("l = l + sink.exp()"), "not exp(sink) as it is"),
        (sink(SHIFTED, "acc / l[:, None], shift + l.log()"), "exp(sink - top) overflows"),
        (sink("l = l + (sink - top).exp()"), "A row without any key comes out NaN"),
        (sink(MOVED, "acc / l[:, None], old"), "leaves the sink out"),
        (sink(MOVED, "acc, top + l.log()"), "Of the two results, o"),
    ],
    "30-halves": [
        (halves(shift="top"), "comes out NaN"),
        (halves(top="shift"), "has the maximum -inf still"),
        (halves(l="l1 + l2"), "are added as they are"),
        (halves(l="a * l1 + l2"), "The second half is not rescaled"),
        (halves(l="l1 + b * l2"), "The first half is not rescaled"),
        (halves(acc="(a[:, None] * acc1 + b[:, None] * acc2) / (a * l1 + b * l2)[:, None]"), "is divided already"),
        (halves(acc="acc1 + acc2"), "The third of the three[0, 0] is"),
    ],
}
