"""Lesson 30's "Your turn" cells: a second sum that is rescaled otherwise, a sink in every row, two halves of a row."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, values


@step("30-squares", "a sum of squares that moves with the maximum")
def squares(answer):
    """A row that rises, so that every key rescales; then one whose first key is the largest."""
    rows = (([0.0, 1.0, 2.5, 3.0], "that rise from key to key"), ([2.0, 0.5, -1.0, 1.5], "of which the first is largest"))
    for z, case in rows:
        z = torch.tensor(z, dtype=torch.float64)
        states = {"right": (0.0, 0.0), "alpha": (0.0, 0.0), "none": (0.0, 0.0)}
        top, l, r = torch.tensor(-torch.inf, dtype=z.dtype), *torch.zeros(2, dtype=z.dtype)
        old = -torch.inf
        for n, z_n in enumerate(z, start=1):
            top, l, r = answer(top, l, r, z_n)
            new = max(old, float(z_n))
            alpha, p = float(torch.tensor(old - new).exp()), float((z_n - new).exp())
            for name, factor in {"right": alpha**2, "alpha": alpha, "none": 1.0}.items():
                states[name] = (alpha * states[name][0] + p, factor * states[name][1] + p * p)
            old, (wanted_l, wanted_r) = new, states["right"]
            at = f"After key {n} of a row with logits {case}"
            if difference("", top, new):
                return f"{at}, the first of the three is {float(top):.3g}, and the maximum so far is {new:.3g}"
            if difference("", l, wanted_l):
                return f"{at}, the sum of weights is {float(l):.3g}, not {wanted_l:.3g}: alpha, p and l are step 2's"
            if difference("", r, wanted_r):
                why = "each term is a weight squared, so both its factors are taken against the new maximum"
                if not difference("", r, states["alpha"][1]):
                    why = "alpha rescales a weight once, and here stand their squares"
                elif not difference("", r, states["none"][1]):
                    why = "older terms were taken against an older maximum, and must be rescaled, too"
                elif not difference("", r, wanted_l**2):
                    why = "that is the square of the sum, not the sum of squares"
                return f"{at}, the sum of squares is {float(r):.3g}, and should be {wanted_r:.3g}: {why}"
    return ""


@step("30-sink", "a row that always has something to look at")
def sink(answer):
    """Rows of which one has seen nothing, one lies far below the sink, and one far above it."""
    top = torch.tensor([0.5, -torch.inf, -200.0, 200.0])
    l, acc, sink = torch.tensor([2.0, 0.0, 3.0, 2.0]), torch.arange(1.0, 9.0).view(4, 2), torch.tensor(0.25)
    acc[1] = 0.0
    o, lse = answer(top.clone(), l.clone(), acc.clone(), sink.clone())
    whole = torch.logaddexp(top.double() + l.double().log(), sink.double())
    right = (top.double() - whole).exp()[:, None] * acc
    if not difference("", o[0], acc[0] / l[0]):
        return "The sink has no effect on o: it is a key, so its weight belongs into the sum l"
    if not difference("", o[0], acc[0] / (l[0] + sink)):
        return "What joins l is a weight, an exponential of the logit: not the logit itself"
    if not difference("", o[0], acc[0] / (l[0] + sink.exp())):
        return "The sink's weight must be taken against the row's maximum, like all others in l: not exp(sink) as it is"
    if not difference("", lse[0], top[0] + l[0].log()):
        return "The log-sum-exp leaves the sink out: it is of the whole row"
    if torch.isnan(o[1]).any() or torch.isnan(lse[1]):
        return (
            "A row without any key comes out NaN: its maximum is -inf. Let the sink join the maximum first, and rescale, as "
            "with any key; then there is always one"
        )
    if not torch.isfinite(o).all() or not torch.isfinite(lse).all():
        return (
            "Row 2, whose logits are 200 below the sink, is not finite: exp(sink - top) overflows. The sink may be the "
            "largest logit: let it join the maximum, and rescale l and acc"
        )
    return difference("Of the two results, o", o, right, tolerance=1e-4) or difference(
        "Of the two results, lse", lse, whole, tolerance=1e-4
    )


@step("30-halves", "two unfinished halves of a row in one")
def halves(answer):
    """Rows whose left or right half has the larger maximum, whose one half is empty, or both are."""
    infinite = -torch.inf
    top = [torch.tensor([1.0, 3.0, infinite, 2.0, infinite]), torch.tensor([2.5, 0.5, 1.0, infinite, infinite])]
    l, acc = ([values(5, *last, seed=i).abs().cpu() for i in seeds] for last, seeds in (((), (0, 1)), ((2,), (2, 3))))
    for i in range(2):
        l[i][top[i] == infinite], acc[i][top[i] == infinite] = 0.0, 0.0
    parts = tuple((top[i], l[i], acc[i]) for i in range(2))
    got = answer(*(tuple(x.clone() for x in part) for part in parts))
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        return "It must return three things, the maximum, the sum of weights and the sum of weights times values"
    new = torch.maximum(*top)
    if said := difference("The first of the three", got[0], new):
        if not difference("", got[0], new.masked_fill(new == infinite, 0.0)):
            return "A row without keys has the maximum -inf still: 0 is what is subtracted there, and more keys may come"
        return said
    factors = [(t - new.masked_fill(new == infinite, 0.0)).exp() for t in top]
    wanted = [sum(f * x for f, x in zip(factors, l)), sum(f[:, None] * x for f, x in zip(factors, acc))]
    if not difference("", got[2][:2], (wanted[1] / wanted[0][:, None])[:2]):
        return "The third result is divided already: more may come, and only the finished row is divided"
    if torch.isnan(got[1]).any() or torch.isnan(got[2]).any():
        return "A row that is empty in both halves comes out NaN: subtract 0 where there is no maximum, as in step 4"
    if not difference("", got[1][:4], (l[0] + l[1])[:4]):
        return "The sums are added as they are: each was taken against its own half's maximum"
    for one, which in ((0, "second"), (1, "first")):
        other = 1 - one
        if not difference("", got[1][:4], (factors[one] * l[one] + l[other])[:4]):
            return f"The {which} half is not rescaled: either of them may hold the smaller maximum"
    return difference("The second of the three", got[1], wanted[0]) or difference("The third of the three", got[2], wanted[1])
