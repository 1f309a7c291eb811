"""Bugs of exercise 07."""

import torch

from kernels.check.emitted import Mod, run_gradient, run_value
from tests.course.mutants import Target, planted

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


GATHER = r"""
gather out of bounds: indices of lanes past the end are used as they are
@ jit-kernel
- i = tl.minimum(tl.maximum(i, 0), size - 1)
+ i = i
stays inside its tensors: a captured tensor is read outside its bounds: fold every index into its axis
"""

VALUE = Target(
    "07_score_mod_compiler",
    "emit_value",
    ("value-kernel", "jit-kernel", "rules-kernel", "operands-kernel"),
    naive_value,
    planted(
        r"""
floor division truncates: // is Triton's, which drops the fraction
@ jit-kernel
- q = tl.where((q * b != a) & ((a < 0) != (b < 0)), q - 1, q)
+ q = q
rounding down: floor division is translated as Triton's //, which drops the fraction: -7 // 4 is -2

remainder of the dividend's sign: % is Triton's
@ jit-kernel
- r = a - _floor_divide(a, b) * b
+ r = a % b
rounding down: the remainder has the sign of the dividend: -7 % 4 is 1

division in floats: the quotient is rounded down as a float32, which holds 24 bits
@ jit-kernel
- q = a // b
+ q = tl.floor(a / b).to(tl.int32)
rounding down: floor division and remainder are Python's, in integers

dtype of the first operand: operands are cast to the dtype of the first one, so that 0.5 beside an integer is 0
@ operands-kernel
- dtypes = [dtype_of(node)] *
+ dtypes = [dtype_of(node.args[0])] *
positions: a number takes the dtype of what it meets, and 0.5 beside an integer is 0: cast to the operation's dtype

comparisons of truths: both sides of a comparison are cast to the dtype of its result
@ operands-kernel
- dtypes = [torch.promote_types(*map(dtype_of, node.args))] * 2
+ pass
positions: the sides of a comparison are cast to its own dtype, bool: they need the dtype that holds both

comparisons by the first side: both sides of a comparison are cast to the dtype of the first one
@ operands-kernel
- dtypes = [torch.promote_types(*map(dtype_of, node.args))] * 2
+ dtypes = [dtype_of(node.args[0])] * 2
choices: the sides of a comparison are cast to the dtype of one of them

comparisons of floats: both sides of a comparison are cast to float32: large document numbers are all alike
@ operands-kernel
- dtypes = [torch.promote_types(*map(dtype_of, node.args))] * 2
+ dtypes = [torch.float32] * 2
choices: integers are compared as floats: they need the dtype that holds both sides

rsub exchanged: 1 - score is translated as score - 1
@ rules-kernel
- "rsub": "{1} - {0}"
+ "rsub": "{0} - {1}"
arithmetic: rsub(a, b) is b - a

branches exchanged: where gives the other one
@ rules-kernel
- "tl.where({}, {}, {})"
+ "tl.where({0}, {2}, {1})"
choices: the branches of where are exchanged

maximum for minimum: the two are exchanged
@ rules-kernel
- tl.maximum
+ tl.minimum
- "minimum": "tl.minimum
+ "minimum": "tl.maximum
choices: maximum and minimum are exchanged

tanh with two exponentials: it overflows in numerator and denominator
@ jit-kernel
- y = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
+ y = (tl.exp(x) - tl.exp(-x)) / (tl.exp(x) + tl.exp(-x))
functions: inf / inf is NaN: write tanh(x) as 1 - 2 / (1 + exp(2 x)), which has one exponential

tanh of half the argument: the 2 in the exponent is missing
@ jit-kernel
- y = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
+ y = 1.0 - 2.0 / (1.0 + tl.exp(x))
functions: tanh(x) is 1 - 2 / (1 + exp(2 x)): the 2 in the exponent is missing

packed tables assumed: captured tensors are read as if they lay packed
@ operands-kernel
- table.meta["val"].stride()
+ torch.empty(table.meta["val"].shape, device="meta").stride()
captured tensors: an element lies at the sum of index times stride, with the strides that the graph knows

negative index: an index below 0 is folded to 0, it does not count from the end
@ jit-kernel
- i = tl.where(i < 0, i + size, i)
+ i = i
negative indices: a negative index counts from the end: -1 is the last
""",
        GATHER,
        r"""
tile not filled: a mod that ignores the score returns one number, or a row
- return tl.zeros(score.shape, tl.float32) +
+ return
whole tiles: a result has the shape of what it depends on: add it to tl.zeros(score.shape, tl.float32)

tile filled with the score: 0 times the score fills the tile
- tl.zeros(score.shape, tl.float32) +
+ 0 * score +
whole tiles: 0 * inf and 0 * NaN are NaN, and the score may be either

sum: a difference is written as Python's sum
@ rules-kernel
- "sub": "{} - {}"
+ "sub": "sum([{}, -{}])"
compiles: Python's own `sum` does not exist in a kernel

lines twice: every line is written twice
@ value-kernel
- lines.append(f"{node.name} = {text}")
+ lines += [f"{node.name} = {text}"] * 2
cheap: 1 of 3 points:
""",
    ),
)

GRADIENT = Target(
    "07_score_mod_compiler",
    "emit_gradient",
    ("derivatives-kernel", "gradient-kernel"),
    naive_gradient,
    planted(
        r"""
wrong sign, sub: what is subtracted hands on g, not -g
- "sub": ["{g}", "-{g}"]
+ "sub": ["{g}", "{g}"]
sums and products: sub's second operand has the wrong sign: its share is -g

wrong sign, rsub: 1 - score grows with the score
- "rsub": ["-{g}", "{g}"]
+ "rsub": ["{g}", "{g}"]
sums and products: rsub's operand has the wrong sign: b - a falls as a grows

wrong sign, neg: the sign is lost on the way back
- "neg": ["-{g}"]
+ "neg": ["{g}"]
sums and products: neg's share has the wrong sign: it is -g

wrong sign, div: a larger divisor makes a larger quotient
- "-{g} * {y} / {1}"
+ "{g} * {y} / {1}"
quotients: div's second share has the wrong sign: it is -g * y / b

log's value for its operand: g is divided by the logarithm
- "log": ["{g} / {0}"]
+ "log": ["{g} / {y}"]
functions: log's share is g / x

tanh's operand for its value: the square is that of x
- "tanh": ["{g} * (1.0 - {y} * {y})"]
+ "tanh": ["{g} * (1.0 - {0} * {0})"]
functions: tanh's share is g * (1 - y * y), y its value, not its operand

half of sigmoid's slope: the factor 1 - y is missing
- "{g} * {y} * (1.0 - {y})"
+ "{g} * {y}"
functions: sigmoid's share is g * y * (1 - y), y its value

corner divided: the sign of abs's operand is its quotient with the value
- "tl.where({0} > 0, {g}, -{g})"
+ "{g} * {0} / {y}"
functions: 0 / 0 is NaN there

branches exchanged: the branch that was not taken gets g
- "tl.where({0}, {g}, 0.0)", "tl.where({0}, 0.0, {g})"
+ "tl.where({0}, 0.0, {g})", "tl.where({0}, {g}, 0.0)"
choices: the branches of where are exchanged: the one that was taken gets g

both branches: where hands g to both
- "tl.where({0}, {g}, 0.0)", "tl.where({0}, 0.0, {g})"
+ "{g}", "{g}"
choices: both branches of where get g: only the one that was taken, the other gets 0

branches multiplied: g is multiplied with the condition, 1 or 0
- "tl.where({0}, {g}, 0.0)", "tl.where({0}, 0.0, {g})"
+ "{g} * {0}.to(tl.float32)", "{g} * (1.0 - {0}.to(tl.float32))"
choices: multiply nothing with 0, choose with tl.where

both operands of maximum: maximum hands g to both
- "tl.where({0} > {1}, {g}, 0.0)", "tl.where({0} > {1}, 0.0, {g})"
+ "{g}", "{g}"
choices: both operands of maximum and minimum get g: only the one that was taken

share replaced: of a value that is used twice only one share is kept
@ gradient-kernel
- shares.setdefault(x, []).append(
+ shares[x] = [
- g=g, y=node.name))
+ g=g, y=node.name)]
values used twice: a value that is used twice gets the sum of its shares, here one replaces the other

grad left out: the walk begins with 1, right for the derivative of a sum
@ gradient-kernel
- ["grad"]
+ ["1.0"]
sums and products: the walk back starts with grad, the gradient of the mod's value

slope of exponentials: sigmoid's slope is computed from its operand and overflows
- "{g} * {y} * (1.0 - {y})"
+ "{g} * tl.exp({0}) / ((1.0 + tl.exp({0})) * (1.0 + tl.exp({0})))"
large scores: the slope of tanh and sigmoid comes from the value, which is finite: 1 - y * y, y * (1 - y)

tile not filled: the gradient of a mod without the score is one number
@ gradient-kernel
- return tl.zeros(score.shape, tl.float32) +
+ return
without the score: a result has the shape of what it depends on: add it to tl.zeros(score.shape, tl.float32)

tile filled with the score: 0 times the score fills the tile
@ gradient-kernel
- tl.zeros(score.shape, tl.float32) +
+ 0 * score +
without the score: 0 * inf and 0 * NaN are NaN, and score and grad may be either
""",
        GATHER,
        r"""
sum: the sum of shares is Python's
@ gradient-kernel
- {' + '.join(shares[node])}"
+ sum([{', '.join(shares[node])}])"
compiles: Python's own `sum` does not exist in a kernel

lines again: the mod's lines are written twice, before the lines back
@ gradient-kernel
- *statements(graph),
+ *statements(graph), *statements(graph),
cheap: 1 of 3 points:
""",
    ),
)

TARGETS = (VALUE, GRADIENT)
