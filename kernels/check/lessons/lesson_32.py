"""Lesson 32's turns: a mod that can be recorded, a template for a quotient, what an index depends on."""

import torch

from kernels.check.lessons import Turn

aten = torch.ops.aten


def _changed(prefix_window, prefix, size, score):
    at = torch.meshgrid(*(torch.arange(length, device=score.device) for length in score.shape), indexing="ij")
    changed_score = prefix_window(prefix, size)(score, *at)
    return changed_score


def _quotients(draw, b):
    return {"b": b, "x": draw.normal(64), "y": draw.normal(64)}


def _divided(divide, b, x, y):
    text = divide("x", b)
    got, exact = eval(text, {"x": x, "y": y}), x / (y if b == "y" else b)
    wrong = int(((got != exact) & ~(got.isnan() & exact.isnan())).sum())
    divisions = text.count("/")
    return wrong, divisions


def _recorded(draw, x):
    """A node of a graph with a gather at the bucket of a distance: an index within a list within the arguments."""
    graph = torch.fx.Graph()
    _, b, h, q_idx, kv_idx, table = map(graph.placeholder, ("score", "b", "h", "q_idx", "kv_idx", "table"))
    distance = graph.call_function(aten.sub.Tensor, (kv_idx, q_idx))
    bucket = graph.call_function(aten.add.Tensor, (graph.call_function(aten.floor_divide.default, (distance, 4)), 12))
    back = graph.call_function(aten.neg.default, (kv_idx,))
    return {
        "x": {
            "q_idx": q_idx,
            "12": 12,
            "kv_idx - q_idx": distance,
            "(kv_idx - q_idx) // 4 + 12": bucket,
            "table[h, (kv_idx - q_idx) // 4 + 12]": graph.call_function(aten.index.Tensor, (table, [h, bucket])),
            "table[b, -kv_idx]": graph.call_function(aten.index.Tensor, (table, [b, back])),
        }[x]
    }


WINDOW = "(kv_idx <= q_idx) & (q_idx - kv_idx < size)"
POWER = "abs(math.frexp(b)[0]) == 0.5"
INPUTS = "any(depends(i, name) for i in x.all_input_nodes)"
TURNS = {
    "32-prefix": Turn(
        "a window with a prefix, as a function of one element",
        arguments=lambda draw: {"prefix": torch.tensor([2, 0]), "size": 3, "score": draw.normal(2, 1, 7, 7)},
        cases={"prefixes of 2 and of no keys, a window of 3": {}},
        slips=(
            (f"| {WINDOW}", f"or {WINDOW}", "`if`, `and` and `or` ask for one truth: use torch.where, & and |"),
            (f"| {WINDOW}", f"& {WINDOW}", "a key is seen if it is in the prefix or in the window, not only in both"),
            ("(kv_idx <= q_idx) & ", "", "queries see later keys: the window ends with the query's own key"),
            ("< size", "<= size", "the window holds a key too many: the query's own is one of the `size`"),
            (WINDOW, "(kv_idx < q_idx) & (q_idx - kv_idx <= size)", "no query sees its own key, the window's last"),
            ("kv_idx < p", "kv_idx <= p", "the prefix is one key too long: its keys are those before number prefix[b]"),
            ("kv_idx < p", "q_idx < p", "it is keys that make the prefix, kv_idx < prefix[b], for every query"),
            ("prefix[b]", "prefix[0]", "every batch row has the prefix of the first: take prefix[b]"),
            ("(kv_idx < prefix[b]) | ", "", "the prefix is never seen from behind the window"),
            ("score, -torch.inf", "-torch.inf, score", "just the other keys are seen: exchange the two"),
            ("sees, score", "sees, 0.0 * score", "a key that is seen keeps its score"),
            ("-torch.inf", "-1e9", "a key that is not seen gets -inf"),
        ),
        run=_changed,
    ),
    "32-divide": Turn(
        "a quotient, as a product where that is the same",
        arguments=_quotients,
        cases={f"divide('x', {b!r})": {"b": b} for b in (2.0, 3.0, 0.5, -8.0, 50.0, 1.0, 0.0, 6.0, "y")},
        slips=(
            ("abs(math.frexp(b)[0])", "math.frexp(b)[0]", "-8 is a power of two, but for its sign, which is exact"),
            ("{a} * {1 / b}", "{a} / {b}", "for a power of two 1 / b is exact: a product gives the same number"),
            (f" and {POWER}", f" and (b == 0 or {POWER})", "Python divides by zero: x / 0.0 is for the kernel"),
            (f" and {POWER}", "", "1 / b is rounded, and the product again: only that of a power of two is exact"),
            ("not isinstance(b, str) and ", "", "a divisor may also be a name, and that stays a quotient"),
            ("{1 / b}", "{b}", "that multiplies by b: take its reciprocal"),
            ('return f"{a} / {b}"', "return 1 / 2", "it must return a text"),
        ),
        run=_divided,
    ),
    "32-depends": Turn(
        "what a recorded value depends on",
        arguments=_recorded,
        cases={
            "an argument": {"x": "q_idx"},
            "a number": {"x": "12"},
            "an operation": {"x": "kv_idx - q_idx"},
            "several": {"x": "(kv_idx - q_idx) // 4 + 12"},
            "a gather": {"x": "table[h, (kv_idx - q_idx) // 4 + 12]"},
            "another gather": {"x": "table[b, -kv_idx]"},
        },
        slips=(
            ("isinstance(x, torch.fx.Node) and ", "", "an operand may be a number, which depends on nothing"),
            (INPUTS, "name in str(x.args)", "what it reads has operands of its own"),
            ("x.all_input_nodes", "x.args", "a gather's indices are a list in args: all_input_nodes looks into it"),
            ("x.name == name or ", "", "every argument depends on itself"),
            (f" and (x.name == name or {INPUTS})", "", "yours depends on what it does not read, too"),
        ),
        run=lambda depends, x: {name: depends(x, name) for name in ("q_idx", "kv_idx", "score", "h")},
    ),
}
