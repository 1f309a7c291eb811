"""Lesson 30's turns: a second sum that is rescaled otherwise, a sink in every row, two halves of a row."""

import torch

from kernels.check.lessons import Turn

NONE = -torch.inf  # the maximum of a row that has seen no key


def _row(draw, row):
    return {"row": torch.tensor(row, dtype=torch.float64)}


def _looked_through(with_squares, row):
    top, l, u = torch.full_like(row[0], NONE), 0 * row[0], 0 * row[0]
    for z in row:
        top, l, u = with_squares(top, l, u, z)
    return top, l, u


def _with_sink(draw, top):
    keys = 0.0 if top == NONE else 1.0
    acc = keys * draw.normal(3, 2)
    return {"top": torch.full((3,), top), "l": keys * draw.normal(3).abs(), "acc": acc, "sink": torch.tensor(0.25)}


def _halves(draw, **tops):
    def half(top):
        top = torch.tensor(top)
        seen = (top > NONE).float()
        return top, seen * draw.normal(len(top)).abs(), seen[:, None] * draw.normal(len(top), 2)

    return {name: half(top) for name, top in tops.items()}


SINK = "    l = alpha * l + (sink - new_top).exp()\n    return alpha[:, None] * acc / l[:, None], new_top + l.log()"
SINK_LATE = (
    "    lse, l = new_top + (alpha * l).log(), alpha * l + (sink - new_top).exp()\n"
    "    return alpha[:, None] * acc / l[:, None], lse"
)
ACC = "a[:, None] * acc1 + b[:, None] * acc2"
AS_THEY_ARE = "the sums are added as they are: each was taken against its own half's maximum"
TURNS = {
    "30-squares": Turn(
        "a sum of squares that moves with the maximum",
        arguments=_row,
        cases={
            "logits that rise": {"row": (0.0, 1.0, 2.5, 3.0)},
            "a first one that is largest": {"row": (2.0, 0.5, -1.0, 1.5)},
        },
        slips=(
            ("alpha**2 * u", "alpha * u", "alpha rescales a weight once, and here stand their squares"),
            ("alpha**2 * u", "u", "older terms were taken against an older maximum, and must be rescaled, too"),
            ("alpha**2 * u + p**2", "l**2", "that is the square of the sum, not the sum of squares"),
            ("p**2", "p", "each term is a weight squared, so both its factors are taken against the new maximum"),
            ("alpha * l", "alpha**2 * l", "alpha, p and l are step 2's"),
            ("torch.maximum(top, z)", "z", "the maximum so far is the larger of the two"),
        ),
        run=_looked_through,
    ),
    "30-sink": Turn(
        "a row that always has something to look at",
        arguments=_with_sink,
        cases={
            "a row and its sink": {"top": 0.5},
            "a row without any key": {"top": NONE},
            "logits far below the sink": {"top": -200.0},
            "logits far above it": {"top": 200.0},
        },
        slips=(
            (" + (sink - new_top).exp()", "", "the sink is a key, so its weight belongs into the sum l"),
            ("(sink - new_top).exp()", "sink", "what joins l is a weight, an exponential, not the logit itself"),
            ("(sink - new_top).exp()", "sink.exp()", "its weight is taken against the row's maximum, like all others"),
            (
                "torch.maximum(top, sink)",
                "top.masked_fill(top == -torch.inf, 0.0)",
                "exp(sink - top) overflows: the sink may be the largest logit, so let it join the maximum",
            ),
            ("torch.maximum(top, sink)", "top", "-inf - (-inf) is NaN: the sink joins the maximum, like any key"),
            (SINK, SINK_LATE, "the log-sum-exp leaves the sink out: it is of the whole row"),
            ("alpha[:, None] * acc", "acc", "acc was taken against the old maximum, and must be rescaled, too"),
            ("acc / l[:, None]", "acc", "o is what acc is, divided by the sum of all weights"),
        ),
    ),
    "30-halves": Turn(
        "two unfinished halves of a row in one",
        arguments=_halves,
        cases={
            "either may hold the maximum": {"one": (1.0, 3.0), "two": (2.5, 0.5)},
            "one saw no key": {"one": (NONE, 2.0), "two": (1.0, NONE)},
            "both saw none": {"one": (NONE,), "two": (NONE,)},
        },
        slips=(
            ("top.masked_fill(top == -torch.inf, 0.0)", "top", "-inf - (-inf) is NaN: subtract 0 where no key was"),
            ("return top", "return shift", "a row without keys has the maximum -inf still: 0 is only subtracted"),
            ("a * l1 + b * l2", "l1 + l2", AS_THEY_ARE),
            ("a * l1", "l1", "the first half is not rescaled: either of them may hold the smaller maximum"),
            ("b * l2", "l2", "the second half is not rescaled: either of them may hold the smaller maximum"),
            (ACC, "acc1 + acc2", AS_THEY_ARE),
            (ACC, f"({ACC}) / (a * l1 + b * l2)[:, None]", "only the finished row is divided, and more may come"),
        ),
    ),
}
