"""Lesson 24's "Your turn" cells: a chunk that is read backwards, one that is not full, two runs joined into one."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, growing, values


@step("24-reverse", "the decays of a chunk that is walked backwards")
def reverse(answer):
    """Gates that differ; then strong ones, whose exponential above 0 is infinite."""
    g = -values(5, dtype=torch.float64).abs()

    def decays(start, end):
        rows = [[g[t + start : s + end].sum().exp() if s >= t else 0.0 for s in range(5)] for t in range(5)]
        return torch.tensor(rows, dtype=g.dtype)

    wanted, got = decays(0, 0), answer(g.clone())
    if tuple(getattr(got, "shape", ())) == (5, 5):
        if (got.tril(-1) != 0).any():
            return "Below the diagonal something is not 0: walking back, token t has met the tokens s >= t alone"
        for start, end, why in (
            (1, 1, "the gates of t + 1 to s: but s wrote after its own gate, and t reads after its own"),
            (0, 1, "the gate of s, too: walking back, that has acted before s writes"),
            (1, 0, "one gate too few: that of t acts before t reads"),
        ):
            if not difference("", got, decays(start, end)):
                return f"Between s and t you count {why}. They are those of t to s - 1"
        if said := growing(got):
            return said
    if said := difference("The matrix", got, wanted):
        return said
    got = answer(torch.full((40,), -30.0, device=g.device))
    if not torch.isfinite(got).all():
        return (
            "With gates of -30 some entries are not finite: where s < t the exponent is above 0 and overflows, and infinity "
            "times 0 is NaN. Put -inf there before the exponential"
        )
    return ""


@step("24-ragged", "the state that leaves a chunk that is not full")
def ragged(answer):
    """Chunks of 8 with 8, 5 and 1 tokens; then a gate so strong that a decay of fewer than no tokens overflows."""
    for length in (8, 5, 1):
        S, k, v = (values(*shape, seed=i, dtype=torch.float64) for i, shape in enumerate([(3, 4), (8, 3), (8, 4)]))
        k[length:], gamma = 0, torch.tensor(-0.3, dtype=S.dtype, device=S.device)
        new = [torch.outer(k[s], v[s]) for s in range(length)]

        def leaving(through, behind, S=S, new=new, gamma=gamma):
            return (gamma * through).exp() * S + sum((gamma * (behind - s)).exp() * one for s, one in enumerate(new))

        got = answer(S.clone(), k.clone(), v.clone(), gamma, length)
        case = f"With {length} tokens in a chunk of 8"
        for through, behind, why in (
            (8, 7, "both parts decay through the filling, too, which is no token"),
            (8, length - 1, "the old state decays through the filling, too, which is no token"),
            (length, 7, "what was written decays through the filling, too, which is no token"),
            (length, length, "what a token writes decays by its own gate, too: behind place s there are length - 1 - s"),
            (length - 1, length - 1, "the old state decays through one token too few"),
        ):
            if (through, behind) != (length, length - 1) and not difference("", got, leaving(through, behind)):
                return f"{case}, {why}"
        if difference("", got, leaving(length, length - 1)):
            return f"{case}: {difference('The state', got, leaving(length, length - 1))}"
    got = answer(S.float(), k.float(), v.float(), 100 * gamma.float(), 1)
    if not torch.isfinite(got).all():
        return (
            "With gamma = -30 and one token the state is not finite: behind the last token the exponent is above 0, and "
            "infinity times a key of 0 is NaN. Clamp how many tokens are left at 0"
        )
    return ""


@step("24-join", "two runs joined into one")
def join(answer):
    """K = V, so that a row may pass for a column; then three runs, in either grouping."""
    runs = []
    for i in range(3):
        Gamma = -values(4, seed=i, dtype=torch.float64).abs()
        runs.append((Gamma, values(4, 4, seed=10 + i, dtype=torch.float64)))
    (first, own), (second, later) = runs[:2]
    pair = answer(*((x.clone(), y.clone()) for x, y in runs[:2]))
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return "It must return two things, the decays of the whole in logarithms, and the state that its tokens leave"
    Gamma, S = pair
    if not difference("", Gamma, first * second):
        return "Logarithms of decays are added, not multiplied"
    if not difference("", Gamma, first.exp() * second.exp()):
        return "The first result is a decay, and should be its logarithm, which the next join can add"
    if said := difference("Of the two results, the first", Gamma, first + second):
        return said
    for other, why in (
        (own + later, "The earlier run's state does not decay, though the later run's tokens come after it"),
        (own + first.exp()[:, None] * later, "The later run's state decays: it is what stands at the end"),
        (first.exp()[:, None] * own + later, "The earlier state decays by its own run's gates, not by the later run's"),
        (second.exp() * own + later, "Columns decay: the gates are by key channel, so by row"),
        ((first + second).exp()[:, None] * own + later, "The earlier state decays by both runs' gates: its own are in it"),
    ):
        if not difference("", S, other):
            return why
    return difference("Of the two results, the second", S, second.exp()[:, None] * own + later)
