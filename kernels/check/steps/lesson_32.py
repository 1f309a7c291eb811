"""Lesson 32's "Your turn" cells: a mod that can be recorded, a template for a quotient, what an index depends on."""

import torch

from kernels.check.steps import described, step
from kernels.check.steps.helpers import difference, values

aten = torch.ops.aten


@step("32-prefix", "a window with a prefix, as a function of one element")
def prefix(answer):
    """Two batch rows with different prefixes, one of them none; called on all positions at once."""
    T, size = 7, 3
    score = values(2, 1, T, T)
    lengths = torch.tensor([2, 0], device=score.device)
    at = torch.meshgrid(*(torch.arange(length, device=score.device) for length in score.shape), indexing="ij")
    b, _, m, n = at
    try:
        got = answer(lengths, size)(score.clone(), *at)
    except RuntimeError as raised:
        if "ambiguous" not in str(raised):
            raise
        return "`if`, `and` and `or` ask for one truth, and the mod is recorded once for all: use torch.where, & and |"
    if not isinstance(got, torch.Tensor) or got.shape != score.shape:
        return "The mod must return one changed score for the one that it is given"
    sees = got == score
    if not (sees | (got == -torch.inf)).all():
        at = tuple((~sees & (got != -torch.inf)).nonzero()[0].tolist())
        made = f"yours makes {float(got[at]):.3g} of {float(score[at]):.3g}"
        return f"A key that is seen keeps its score, any other gets -inf, and {made}"
    in_prefix, back = n < lengths[b], m - n
    window = (back >= 0) & (back < size)
    for mask, why in (
        (in_prefix & window, "A key is seen if it is in the prefix or in the window: not only if it is in both"),
        (in_prefix | (back < size), "Queries see later keys: the window ends with the query's own key"),
        (in_prefix | ((back >= 0) & (back <= size)), f"The window holds {size + 1} keys: its own is one of the {size}"),
        (in_prefix | ((back > 0) & (back <= size)), "No query sees its own key, which is the window's last"),
        ((n <= lengths[b]) | window, "The prefix is one key too long: prefix[b] keys are those before number prefix[b]"),
        ((m < lengths[b]) | window, "It is keys that make the prefix: those with kv_idx < prefix[b], for every query"),
        ((n < lengths[0]) | window, "Every batch row has the prefix of the first: take prefix[b]"),
        (window, "The prefix is never seen from behind the window"),
        (~(in_prefix | window), "Just the other keys are seen: torch.where takes its second argument where the first holds"),
    ):
        if torch.equal(sees, mask):
            return why
    wrong = (sees != (in_prefix | window)).nonzero()
    if not len(wrong):
        return ""
    row, _, query, key = wrong[0].tolist()
    seen = "sees" if sees[row, 0, query, key] else "does not see"
    return f"With a prefix of {int(lengths[row])} and a window of {size}, query {query} {seen} key {key}"


@step("32-divide", "a quotient, as a product where that is the same")
def divide(answer):
    """Each text is evaluated on float32 numbers whose quotients round; 0, 1 and negative divisors among the numbers."""
    x, y = values(64), values(64, seed=1)
    for b in (2.0, 3.0, 0.5, -8.0, 50.0, 1.0, 0.0, 6.0, "y"):
        case = f"For divide('x', {b!r})"
        try:
            text = answer("x", b)
        except ZeroDivisionError:
            return f"{case} Python divides by zero: x / 0.0 is for the kernel to compute, so it stays a quotient"
        except TypeError:
            return f"{case} your function fails. A divisor may also be a name, and that stays a quotient"
        if not isinstance(text, str):
            return f"{case} it must return a text, and returns {described(text)}"
        try:
            got = eval(text, {"x": x, "y": y})
        except Exception as error:
            return f"{case} the text {text!r} is not an expression of x: {error}"
        if not isinstance(got, torch.Tensor):
            return f"{case} the text {text!r} does not read x"
        exact = x / (y if b == "y" else b)
        off = (got != exact) & ~(got.isnan() & exact.isnan())
        if off.any() and torch.allclose(got, exact, rtol=1e-5):
            return (
                f"{case} the text {text!r} rounds twice, once for 1 / {b:g} and once for the product: {int(off.sum())} of 64 "
                "results differ in their last bit. A reciprocal is exact only for a power of two"
            )
        if said := difference("x / b", got, exact, tolerance=0.0) if off.any() else "":
            return f"{case} the text {text!r} gives another number: {said}"
        if b in (2.0, 0.5, -8.0, 1.0) and "/" in text:
            return f"{case} the text {text!r} divides, and 1 / {b:g} is exact: a product gives the same number, sooner"
    return ""


def _graph():
    """The arguments, and a gather at the bucket of a distance: an index within a list within the arguments."""
    graph = torch.fx.Graph()
    score, b, h, q_idx, kv_idx, table_0 = (
        graph.placeholder(name) for name in ("score", "b", "h", "q_idx", "kv_idx", "table_0")
    )
    distance = graph.call_function(aten.sub.Tensor, (kv_idx, q_idx))
    bucket = graph.call_function(aten.add.Tensor, (graph.call_function(aten.floor_divide.default, (distance, 4)), 12))
    bias = graph.call_function(aten.index.Tensor, (table_0, [h, bucket]))
    by_key = graph.call_function(aten.index.Tensor, (table_0, [b, graph.call_function(aten.neg.default, (kv_idx,))]))
    of = {"score", "h", "q_idx", "kv_idx", "table_0"}
    return {
        "the argument q_idx": (q_idx, {"q_idx"}),
        "the number 12": (12, set()),
        "kv_idx - q_idx": (distance, {"q_idx", "kv_idx"}),
        "(kv_idx - q_idx) // 4 + 12": (bucket, {"q_idx", "kv_idx"}),
        "table_0[h, (kv_idx - q_idx) // 4 + 12]": (bias, of - {"score"}),
        "score + table_0[h, (kv_idx - q_idx) // 4 + 12]": (graph.call_function(aten.add.Tensor, (score, bias)), of),
        "table_0[b, -kv_idx]": (by_key, {"b", "kv_idx", "table_0"}),
    }


@step("32-depends", "what a recorded value depends on")
def depends(answer):
    """Arguments, a number, one operation, several, and gathers, whose indices stand in a list."""
    for text, (value, of) in _graph().items():
        for name in ("q_idx", "kv_idx", "score", "h"):
            try:
                got = answer(value, name)
            except (AttributeError, TypeError) as error:
                if isinstance(value, torch.fx.Node):
                    raise
                return f"An operand may be a number, such as the 12 of x + 12, and depends on nothing; yours raises {error}"
            if not isinstance(got, (bool, type(None))):
                return f"It must return True or False, and for {text} and {name!r} returns {described(got)}"
            if bool(got) == (name in of):
                continue
            if text == f"the argument {name}":
                return f"Every argument depends on itself: node {name} on {name!r}"
            if got:
                return f"Yours says that {text} depends on {name}, which it does not read"
            if value.target is aten.index.Tensor and "[" in str(value.args[1]):
                return (
                    f"Yours says that {text} does not depend on {name}. The indices of a gather stand in a list inside args; "
                    "all_input_nodes looks into it"
                )
            return f"Yours says that {text} does not depend on {name}: what it reads has operands of its own"
    return ""
