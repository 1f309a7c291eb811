"""Bugs of exercise 07."""

import torch

from kernels.check.emitted import Mod, run_gradient, run_value
from tests.course.mutants import Mutant, Target

DOUBLED = Mod("2 * score + 1")


def scores():
    """One head of 16 queries and 16 keys."""
    return torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(1))


def naive_value(emit_value) -> bool:
    """A whole tile of 2 s + 1."""
    score, t = scores(), torch.zeros(1, 1, 16, 16)
    run_value(emit_value)(score, t, mod=DOUBLED, BLOCK=16)
    return torch.allclose(t, 2 * score + 1)


def naive_gradient(emit_gradient) -> bool:
    """The derivative of its sum, 2."""
    score, ds = scores(), torch.zeros(1, 1, 16, 16)
    run_gradient(emit_gradient)(score, torch.ones_like(ds), ds, mod=DOUBLED, BLOCK=16)
    return torch.allclose(ds, torch.full_like(ds, 2.0))


OUTSIDE = "a captured tensor is read outside its bounds: fold every index into its axis"
FILL = "return tl.zeros(score.shape, tl.float32) + "
UNFILLED = "a result has the shape of what it depends on: add it to tl.zeros(score.shape, tl.float32)"
PROMOTED = "dtypes = [torch.promote_types(*map(dtype_of, node.args))] * 2"
TANH = "y = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))"

GATHER = Mutant(
    "gather out of bounds",
    "indices of lanes past the end are used as they are",
    ("i = tl.minimum(tl.maximum(i, 0), size - 1)", "i = i"),
    "stays inside its tensors",
    OUTSIDE,
    "jit-kernel",
)

VALUE = Target(
    "07_score_mod_compiler",
    "emit_value",
    ("value-kernel", "jit-kernel", "rules-kernel", "operands-kernel"),
    naive_value,
    (
        Mutant(
            "floor division truncates",
            "// is Triton's, which drops the fraction",
            ("q = tl.where((q * b != a) & ((a < 0) != (b < 0)), q - 1, q)", "q = q"),
            "rounding down",
            "floor division is translated as Triton's //, which drops the fraction: -7 // 4 is -2",
            "jit-kernel",
        ),
        Mutant(
            "remainder of the dividend's sign",
            "% is Triton's",
            ("r = a - _floor_divide(a, b) * b", "r = a % b"),
            "rounding down",
            "the remainder has the sign of the dividend: -7 % 4 is 1",
            "jit-kernel",
        ),
        Mutant(
            "division in floats",
            "the quotient is rounded down as a float32, which holds 24 bits",
            ("q = a // b", "q = tl.floor(a / b).to(tl.int32)"),
            "rounding down",
            "floor division and remainder are Python's, in integers",
            "jit-kernel",
        ),
        Mutant(
            "dtype of the first operand",
            "operands are cast to the dtype of the first one, so that 0.5 beside an integer is 0",
            ("dtypes = [dtype_of(node)] *", "dtypes = [dtype_of(node.args[0])] *"),
            "positions",
            "a number takes the dtype of what it meets, and 0.5 beside an integer is 0: cast to the operation's dtype",
            "operands-kernel",
        ),
        Mutant(
            "comparisons of truths",
            "both sides of a comparison are cast to the dtype of its result",
            (PROMOTED, "pass"),
            "positions",
            "the sides of a comparison are cast to its own dtype, bool: they need the dtype that holds both",
            "operands-kernel",
        ),
        Mutant(
            "comparisons by the first side",
            "both sides of a comparison are cast to the dtype of the first one",
            (PROMOTED, "dtypes = [dtype_of(node.args[0])] * 2"),
            "choices",
            "the sides of a comparison are cast to the dtype of one of them",
            "operands-kernel",
        ),
        Mutant(
            "comparisons of floats",
            "both sides of a comparison are cast to float32: large document numbers are all alike",
            (PROMOTED, "dtypes = [torch.float32] * 2"),
            "choices",
            "integers are compared as floats: they need the dtype that holds both sides",
            "operands-kernel",
        ),
        Mutant(
            "rsub exchanged",
            "1 - score is translated as score - 1",
            ('"rsub": "{1} - {0}"', '"rsub": "{0} - {1}"'),
            "arithmetic",
            "rsub(a, b) is b - a",
            "rules-kernel",
        ),
        Mutant(
            "branches exchanged",
            "where gives the other one",
            ('"tl.where({}, {}, {})"', '"tl.where({0}, {2}, {1})"'),
            "choices",
            "the branches of where are exchanged",
            "rules-kernel",
        ),
        Mutant(
            "maximum for minimum",
            "the two are exchanged",
            ("tl.maximum", "tl.minimum", '"minimum": "tl.minimum', '"minimum": "tl.maximum'),
            "choices",
            "maximum and minimum are exchanged",
            "rules-kernel",
        ),
        Mutant(
            "tanh with two exponentials",
            "it overflows in numerator and denominator",
            (TANH, "y = (tl.exp(x) - tl.exp(-x)) / (tl.exp(x) + tl.exp(-x))"),
            "functions",
            "inf / inf is NaN: write tanh(x) as 1 - 2 / (1 + exp(2 x)), which has one exponential",
            "jit-kernel",
        ),
        Mutant(
            "tanh of half the argument",
            "the 2 in the exponent is missing",
            (TANH, "y = 1.0 - 2.0 / (1.0 + tl.exp(x))"),
            "functions",
            "tanh(x) is 1 - 2 / (1 + exp(2 x)): the 2 in the exponent is missing",
            "jit-kernel",
        ),
        Mutant(
            "packed tables assumed",
            "captured tensors are read as if they lay packed",
            ('table.meta["val"].stride()', 'torch.empty(table.meta["val"].shape, device="meta").stride()'),
            "captured tensors",
            "an element lies at the sum of index times stride, with the strides that the graph knows",
            "operands-kernel",
        ),
        Mutant(
            "negative index",
            "an index below 0 is folded to 0, it does not count from the end",
            ("i = tl.where(i < 0, i + size, i)", "i = i"),
            "negative indices",
            "a negative index counts from the end: -1 is the last",
            "jit-kernel",
        ),
        GATHER,
        Mutant(
            "tile not filled",
            "a mod that ignores the score returns one number, or a row",
            (FILL, "return "),
            "whole tiles",
            UNFILLED,
        ),
        Mutant(
            "tile filled with the score",
            "0 times the score fills the tile",
            ("tl.zeros(score.shape, tl.float32) +", "0 * score +"),
            "whole tiles",
            "0 * inf and 0 * NaN are NaN, and the score may be either",
        ),
        Mutant(
            "sum",
            "a difference is written as Python's sum",
            ('"sub": "{} - {}"', '"sub": "sum([{}, -{}])"'),
            "compiles",
            "Python's own `sum` does not exist in a kernel",
            "rules-kernel",
        ),
        Mutant(
            "lines twice",
            "every line is written twice",
            ('lines.append(f"{node.name} = {text}")', 'lines += [f"{node.name} = {text}"] * 2'),
            "cheap",
            "1 of 3 points: ",
            "value-kernel",
        ),
    ),
)

GRADIENT = Target(
    "07_score_mod_compiler",
    "emit_gradient",
    ("derivatives-kernel", "gradient-kernel"),
    naive_gradient,
    (
        Mutant(
            "wrong sign, sub",
            "what is subtracted hands on g, not -g",
            ('"sub": ["{g}", "-{g}"]', '"sub": ["{g}", "{g}"]'),
            "sums and products",
            "sub's second operand has the wrong sign: its share is -g",
        ),
        Mutant(
            "wrong sign, rsub",
            "1 - score grows with the score",
            ('"rsub": ["-{g}", "{g}"]', '"rsub": ["{g}", "{g}"]'),
            "sums and products",
            "rsub's operand has the wrong sign: b - a falls as a grows",
        ),
        Mutant(
            "wrong sign, neg",
            "the sign is lost on the way back",
            ('"neg": ["-{g}"]', '"neg": ["{g}"]'),
            "sums and products",
            "neg's share has the wrong sign: it is -g",
        ),
        Mutant(
            "wrong sign, div",
            "a larger divisor makes a larger quotient",
            ('"-{g} * {y} / {1}"', '"{g} * {y} / {1}"'),
            "quotients",
            "div's second share has the wrong sign: it is -g * y / b",
        ),
        Mutant(
            "log's value for its operand",
            "g is divided by the logarithm",
            ('"log": ["{g} / {0}"]', '"log": ["{g} / {y}"]'),
            "functions",
            "log's share is g / x",
        ),
        Mutant(
            "tanh's operand for its value",
            "the square is that of x",
            ('"tanh": ["{g} * (1.0 - {y} * {y})"]', '"tanh": ["{g} * (1.0 - {0} * {0})"]'),
            "functions",
            "tanh's share is g * (1 - y * y), y its value, not its operand",
        ),
        Mutant(
            "half of sigmoid's slope",
            "the factor 1 - y is missing",
            ('"{g} * {y} * (1.0 - {y})"', '"{g} * {y}"'),
            "functions",
            "sigmoid's share is g * y * (1 - y), y its value",
        ),
        Mutant(
            "corner divided",
            "the sign of abs's operand is its quotient with the value",
            ('"tl.where({0} > 0, {g}, -{g})"', '"{g} * {0} / {y}"'),
            "functions",
            "0 / 0 is NaN there",
        ),
        Mutant(
            "branches exchanged",
            "the branch that was not taken gets g",
            (
                '"tl.where({0}, {g}, 0.0)", "tl.where({0}, 0.0, {g})"',
                '"tl.where({0}, 0.0, {g})", "tl.where({0}, {g}, 0.0)"',
            ),
            "choices",
            "the branches of where are exchanged: the one that was taken gets g",
        ),
        Mutant(
            "both branches",
            "where hands g to both",
            ('"tl.where({0}, {g}, 0.0)", "tl.where({0}, 0.0, {g})"', '"{g}", "{g}"'),
            "choices",
            "both branches of where get g: only the one that was taken, the other gets 0",
        ),
        Mutant(
            "branches multiplied",
            "g is multiplied with the condition, 1 or 0",
            (
                '"tl.where({0}, {g}, 0.0)", "tl.where({0}, 0.0, {g})"',
                '"{g} * {0}.to(tl.float32)", "{g} * (1.0 - {0}.to(tl.float32))"',
            ),
            "choices",
            "multiply nothing with 0, choose with tl.where",
        ),
        Mutant(
            "both operands of maximum",
            "maximum hands g to both",
            ('"tl.where({0} > {1}, {g}, 0.0)", "tl.where({0} > {1}, 0.0, {g})"', '"{g}", "{g}"'),
            "choices",
            "both operands of maximum and minimum get g: only the one that was taken",
        ),
        Mutant(
            "share replaced",
            "of a value that is used twice only one share is kept",
            ("shares.setdefault(x, []).append(", "shares[x] = [", "g=g, y=node.name))", "g=g, y=node.name)]"),
            "values used twice",
            "a value that is used twice gets the sum of its shares, here one replaces the other",
            "gradient-kernel",
        ),
        Mutant(
            "grad left out",
            "the walk begins with 1, right for the derivative of a sum",
            ('["grad"]', '["1.0"]'),
            "sums and products",
            "the walk back starts with grad, the gradient of the mod's value",
            "gradient-kernel",
        ),
        Mutant(
            "slope of exponentials",
            "sigmoid's slope is computed from its operand and overflows",
            ('"{g} * {y} * (1.0 - {y})"', '"{g} * tl.exp({0}) / ((1.0 + tl.exp({0})) * (1.0 + tl.exp({0})))"'),
            "large scores",
            "the slope of tanh and sigmoid comes from the value, which is finite: 1 - y * y, y * (1 - y)",
        ),
        Mutant(
            "tile not filled",
            "the gradient of a mod without the score is one number",
            (FILL, "return "),
            "without the score",
            UNFILLED,
            "gradient-kernel",
        ),
        Mutant(
            "tile filled with the score",
            "0 times the score fills the tile",
            ("tl.zeros(score.shape, tl.float32) +", "0 * score +"),
            "without the score",
            "0 * inf and 0 * NaN are NaN, and score and grad may be either",
            "gradient-kernel",
        ),
        GATHER,
        Mutant(
            "sum",
            "the sum of shares is Python's",
            ("{' + '.join(shares[node])}\"", "sum([{', '.join(shares[node])}])\""),
            "compiles",
            "Python's own `sum` does not exist in a kernel",
            "gradient-kernel",
        ),
        Mutant(
            "lines again",
            "the mod's lines are written twice, before the lines back",
            ("*statements(graph), ", "*statements(graph), *statements(graph), "),
            "cheap",
            "1 of 3 points: ",
            "gradient-kernel",
        ),
    ),
)

TARGETS = (VALUE, GRADIENT)
