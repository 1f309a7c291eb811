"""Exercise 07: ``emit_value(mod)`` and ``emit_gradient(mod)`` give the text of a Triton function.

``score_mod(score, b, h, q_idx, kv_idx, tables)`` is the mod, ``score_gradient(score, b, h, q_idx, kv_idx, grad, tables)``
its derivative by the score times ``grad``, both [BLOCK, BLOCK]. The check writes mods as Python expressions, has them
emitted, runs the text on tiles that reach past the end, and compares with the mod in float64, and with autograd.
"""

import contextlib
import functools

import torch
from torch.overrides import TorchFunctionMode

from kernels.check.cases import ROUNDED
from kernels.check.emitted import Mod, run_gradient, run_value
from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Size, Tier, calls
from kernels.check.tensors import NAN

INF = float("inf")
# What a mod may capture: its axes; of those that hold no normal numbers, their values along the axis.
TABLES = {"slopes": "H", "bias": "HMN", "column": "N", "ring": "L", "pair": "SU"}
TABLES |= {"speaker": "M", "mood": "N", "seen": "N", "ids": "L"}  # L: as long as the longer of queries and keys
COUNTED = {
    "speaker": lambda i: i // 2 % 3,
    "mood": lambda i: i.int() // 3 % 5,
    "seen": lambda i: i % 3 != 1,
    "ids": lambda i: 2**24 + i // 2 % 3,  # float32 does not tell them apart
}


def answer(case: Case, mistake=None, grad: torch.Tensor | None = None) -> torch.Tensor:
    """The mod's value, or where the case has ``grad`` the score's gradient by autograd, with a mistake or without."""
    mod, score = case.launch["mod"], case.inputs[0].values.to(torch.float64, copy=True)
    tables = {name: tensor.values for name, tensor in zip(mod.names, case.inputs[1:])}
    positions = torch.meshgrid(*map(torch.arange, score.shape), indexing="ij")
    score.requires_grad_(gradient := case.inputs[-1].name == "grad")
    with mistake or contextlib.nullcontext():
        value = mod.function(tables)(score, *positions)
    value = torch.as_tensor(value).expand(score.shape)
    if not gradient:
        return value.double()
    grad = case.inputs[-1].values.double() if grad is None else grad
    return torch.autograd.grad(value, score, grad)[0] if value.requires_grad else torch.zeros_like(score)


def case(
    draw: Draw, text: str, *, gradient=False, magnitude=1.0, odd=(), orders=(), B=1, M: int, N: int, BLOCK=32
) -> Case:
    """One mod, on two heads of M queries and N keys.

    ``odd`` gives score, or grad, numbers that stand among the drawn ones. Where a score is 0, where abs has its corner, a
    gradient may be any up to grad.
    """
    mod, sizes = Mod(text), {"B": B, "H": 2, "M": M, "N": N, "S": 3, "U": 5, "L": max(M, N)}
    fence = {axis: 1 for axis in "BH"} | {axis: BLOCK for axis in "MN"}

    def fenced(name, axes, values):
        for i, number in enumerate(dict(odd).get(name, ())):
            values[..., i::5] = number
        return Fenced(name, axes, values, fence=fence, order=dict(orders).get(axes, ""))

    shape = [sizes[axis] for axis in "BHMN"]
    inputs = [fenced("score", "BHMN", draw.normal(*shape, scale=magnitude))]
    for i, name in enumerate(mod.names):
        along = [sizes[axis] for axis in TABLES[name]]
        values = COUNTED[name](torch.arange(*along)) if name in COUNTED else draw.normal(*along)
        inputs.append(fenced(f"tables[{i}]", TABLES[name], values))
    if gradient:
        inputs.append(fenced("grad", "BHMN", draw.normal(*shape)))
    call = Case(inputs, [], {"mod": mod, "BLOCK": BLOCK}, poison=())
    out = fenced("ds" if gradient else "t", "BHMN", torch.empty(shape))
    # 1 - y * y and y * (1 - y) cancel far from 0: beside a slope of 1, what is left of them is rounding.
    room = torch.where(inputs[0].values == 0, 2.0, 2 * ROUNDED)  # what is right has no more than half of it
    slack = room * inputs[-1].values.double().abs().nan_to_num(0.0, 0.0) if gradient else None
    call.outs.append(Output(out, answer(call), tolerance=1e-4, slack=slack))
    return call


def steps(case: Case) -> int:
    """In each tile one load of each input, and a store."""
    B, H, M, N = case.outs[0].tensor.shape
    block = case.launch["BLOCK"]
    return B * H * -(-M // block) * -(-N // block) * (len(case.inputs) + 1)


class Slip(TorchFunctionMode):
    """While a mod is evaluated functions of torch have other values, or other slopes, by name; what is indexed outside its
    bounds is folded into its axis."""

    def __init__(self, values=(), slopes=()):
        super().__init__()
        self.values = {"getitem": indexed(lambda i, size: torch.where(i < 0, i + size, i))} | dict(values)
        self.slopes = dict(slopes)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = function.__name__.strip("_")
        value = self.values.get(name, function)(*args, **(kwargs or {}))
        if name in self.slopes:
            value, slopes = value.detach(), self.slopes[name](*args)
            for x, slope in zip(args, slopes):
                if isinstance(x, torch.Tensor) and x.is_floating_point():
                    value = value + (slope.detach() if isinstance(slope, torch.Tensor) else slope) * (x - x.detach())
        return value


class LastShare(TorchFunctionMode):
    """Of all uses of a value only one hands a gradient back: the first in the graph, and its last operand."""

    def __init__(self):
        super().__init__()
        self.used = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kept = list(args)
        for i, x in enumerate(args):
            if isinstance(x, torch.Tensor) and x.requires_grad and any(x is y for y in (*args[i + 1 :], *self.used)):
                kept[i] = x.detach()
        self.used += [x for x in args if isinstance(x, torch.Tensor)]
        return function(*kept, **(kwargs or {}))


def truncated(a, b):
    return torch.div(torch.as_tensor(a), b, rounding_mode="trunc")


def indexed(change):
    """``table[index]`` where ``change(i, size)`` makes of an index what is then held inside its axis."""

    def getitem(table, index):
        indices = index if isinstance(index, tuple) else (index,)
        return table[tuple(change(i, size).clamp(0, size - 1) for i, size in zip(indices, table.shape))]

    return getitem


def compared(both):
    """Comparisons of what ``both`` makes of the two sides."""

    def of(compare):
        return lambda a, b: compare(*both(torch.as_tensor(a), torch.as_tensor(b)))

    return {name: of(getattr(torch, name)) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def whole_numbers(function):
    """Beside a tensor of integers a number is one, too."""

    def of(a, b):
        whole = isinstance(a, torch.Tensor) and not a.is_floating_point() and isinstance(b, float)
        return function(a, int(b) if whole else b)

    return of


# Cause -> what takes the place of torch's functions.
VALUE_MISTAKES = {
    "floor division is translated as Triton's //, which drops the fraction: -7 // 4 is -2": {
        "floordiv": truncated,
        "floor_divide": truncated,
        "rfloordiv": lambda a, b: truncated(b, a),
    },
    "the remainder has the sign of the dividend: -7 % 4 is 1": {"remainder": torch.fmod},
    "rsub(a, b) is b - a": {"rsub": lambda a, b: a - b},
    "a number takes the dtype of what it meets, and 0.5 beside an integer is 0: cast to the operation's dtype": {
        name: whole_numbers(getattr(torch, name)) for name in ("add", "sub", "mul", "div")
    },
    "the sides of a comparison are cast to its own dtype, bool: they need the dtype that holds both": (
        compared(lambda a, b: (a.bool(), b.bool()))
    ),
    "the sides of a comparison are cast to the dtype of one of them: they need the dtype that holds both": (
        compared(lambda a, b: (a, b.to(a.dtype)))
    ),
    "integers are compared as floats: they need the dtype that holds both sides": (
        compared(lambda a, b: (a.float(), b.float()))
    ),
    "a negative index counts from the end: -1 is the last": {"getitem": indexed(lambda i, size: i)},
    "the branches of where are exchanged": {"where": lambda c, a, b: torch.where(c, b, a)},
    "maximum and minimum are exchanged": {"maximum": torch.minimum, "minimum": torch.maximum},
    "tanh(x) is 1 - 2 / (1 + exp(2 x)): the 2 in the exponent is missing": {"tanh": lambda x: torch.tanh(x / 2)},
    "the function's value is negated": {"tanh": lambda x: -torch.tanh(x)},
}
# Cause -> function of torch -> its slopes by its operands.
GRADIENT_MISTAKES = {
    "sub's second operand has the wrong sign: its share is -g": {"sub": lambda a, b: (1, 1)},
    "rsub's operand has the wrong sign: b - a falls as a grows": {"rsub": lambda a, b: (1,)},
    "neg's share has the wrong sign: it is -g": {"neg": lambda a: (1,)},
    "mul's shares are exchanged: each factor gets g times the other one": {"mul": lambda a, b: (a, b)},
    "the other factor is left out of mul's shares": {"mul": lambda a, b: (1, 1)},
    "div's first share is g / b": {"div": lambda a, b: (1, -a / b / b)},
    "div's second share has the wrong sign: it is -g * y / b": {"div": lambda a, b: (1 / b, a / b / b)},
    "reciprocal's share is -g * y * y": {"rdiv": lambda a, b: (b / a / a,)},
    "exp's share is g * y, y its value": {"exp": lambda a: (1,)},
    "log's share is g / x": {"log": lambda a: (1 / a.log(),)},
    "tanh's share is g * (1 - y * y), y its value, not its operand": {"tanh": lambda a: (1 - a * a,)},
    "tanh's share has the wrong sign: it is g * (1 - y * y)": {"tanh": lambda a: (a.tanh() ** 2 - 1,)},
    "sigmoid's share is g * y * (1 - y), y its value": {"sigmoid": lambda a: (a.sigmoid(),)},
    "abs's share is g or -g, by the sign of its operand": {"abs": lambda a: (1,)},
    "the branches of where are exchanged: the one that was taken gets g": {"where": lambda c, a, b: (0, ~c, c)},
    "both branches of where get g: only the one that was taken, the other gets 0": {"where": lambda c, a, b: (0, 1, 1)},
    "both operands of maximum and minimum get g: only the one that was taken": (
        dict.fromkeys(("maximum", "minimum"), lambda a, b: (1, 1))
    ),
}
ONE_SHARE = "a value that is used twice gets the sum of its shares, here one replaces the other"


def value_suspects(case: Case, out: Output):
    """Known mistakes, and the values they give."""
    yield from ((cause, answer(case, Slip(values))) for cause, values in VALUE_MISTAKES.items())


def gradient_suspects(case: Case, out: Output):
    """Known mistakes, and the gradients they give."""
    no_share = "no share reaches the score: walk from the last operation to the first, and return what the score was handed"
    yield no_share, torch.zeros_like(out.expected)
    yield "the walk back starts with grad, the gradient of the mod's value", answer(case, grad=torch.ones_like(out.expected))
    yield from ((cause, answer(case, Slip(slopes=slopes))) for cause, slopes in GRADIENT_MISTAKES.items())
    yield ONE_SHARE, answer(case, LastShare())


def mods(*texts: str | dict, **how):
    """Cases of these mods' values: a mod is its text, or its text and what else its case is to have."""
    sizes = {"M": Size(13, 9, 15), "N": Size(19, 17, 23)}
    return calls(case, *({"text": text} if isinstance(text, str) else text for text in texts), **sizes | how)


gradients = functools.partial(mods, gradient=True)
NOT_FINITE = (INF, -INF, NAN)
UNSEEN = (
    "torch.where((kv_idx - q_idx) % 2 == 0, 8 * torch.tanh(score / 8), score - slopes[h] * (q_idx - kv_idx).abs())",
    "score * torch.sigmoid(score + ring[(kv_idx - q_idx) // 4]) + 1 / (1 + torch.exp(-score))",
    "torch.maximum(score, column[kv_idx]) * torch.log(score * score + 1) - torch.minimum(score, 0.5 * (q_idx % 3))",
)
EVERYTHING = (
    "score + bias[h, q_idx, kv_idx] * pair[speaker[q_idx], mood[kv_idx]]",
    "score * ring[kv_idx - q_idx] + column[kv_idx]",
)
CAPTURED = (
    "score + slopes[h] * (kv_idx - q_idx)",
    "score + bias[h, q_idx, kv_idx]",
    "score + pair[speaker[q_idx], mood[kv_idx]]",
    "torch.where(seen[kv_idx], score, -1.0)",
)
# What is counted depends on the sizes: how much of a tile lies outside. So these are the same for everybody.
COSTED = {"text": "score * bias[h, q_idx, kv_idx] + torch.sigmoid(score * slopes[h])", "M": 13, "N": 19}
MASKS = {(f"tables[{i}]", axis, "after"): "" for i in range(4) for axis in "HMNLSU"}
RECORD, EMIT, CHAIN = (f"Lesson 32, step {step}" for step in (1, 2, 4))
BOUNDS, SIGNS = "Lesson 31, step 3", "Lesson 31, step 4"
OUTSIDE = (
    "a captured tensor is read outside its bounds: fold every index into its axis, also where the result is thrown away"
)
EACH = "each operation must be right by itself"
TIMES_ZERO = "0 * inf and 0 * NaN are NaN, and {} may be either"
FILLED = f"{TIMES_ZERO}: what fills the tile is tl.zeros(score.shape, tl.float32)"

VALUE = Exercise(
    "emit_value",
    "no text yet. It needs a line for each operation of the graph, and a return.",
    (
        Property(
            "arithmetic", 1, EMIT, mods("2 * score - 1", "1 - score / 4", "-score * score + 3 / (score * score + 1)"),
            "a line for each operation, with its operands in their order",
        ),
        Property(
            "positions", 1, EMIT,
            mods(
                "score + 0.5 * (kv_idx - q_idx)",
                "score * (q_idx / 4) + h",
                "(q_idx >= kv_idx) * score - 0.25 * b",
                "torch.exp(-q_idx) * score",
                B=2, BLOCK=16,
            ),
            "operands are cast to their operation's dtype, which the graph knows",
        ),
        Property(
            "rounding down", 1, SIGNS,
            mods(
                "score + (kv_idx - q_idx) // 4",
                "score * ((kv_idx - q_idx) % 3)",
                "score + (q_idx - 7) // -3 + (kv_idx - 9) % -4",
                "score + (8388609 * kv_idx + q_idx) % 7",
            ),
            "floor division and remainder are Python's, in integers",
        ),
        Property(
            "choices", 1, EMIT,
            mods(
                "torch.where(q_idx >= kv_idx, score, -float('inf'))",
                "torch.where(ids[q_idx] == ids[kv_idx], score, -1.0)",
                "torch.where((q_idx - kv_idx < 5) & ~(kv_idx == 3) | (h == 1), score, 0.5 * score)",
                "torch.maximum(score, 0.1 * q_idx) - torch.minimum(score, 1 - 2 * score)",
                "torch.where(score > 0.5, 1.0, 2 * score)",
                "torch.where((q_idx >= 0.3 * kv_idx) & (0.7 * q_idx <= kv_idx), score, -1.0)",
            ),
            "a comparison takes both sides in the dtype that holds both, where its branches in its own",
        ),
        Property(  # of scores around 0, then far from it
            "functions", 1, EMIT,
            mods(
                "torch.exp(score) + torch.log(score.abs() + 1)",
                "3 * torch.tanh(score / 3)",
                "torch.sigmoid(score)",
                {"text": "torch.tanh(score) + torch.sigmoid(-score)", "magnitude": 1e4},
                {"text": "50 * torch.tanh(score / 50)", "magnitude": 1e4},
            ),
            "each function has its line in RULES",
            not_finite="inf / inf is NaN: write tanh(x) as 1 - 2 / (1 + exp(2 x)), which has one exponential",
        ),
        Property(
            "captured tensors", 1, EMIT,
            mods(*CAPTURED, *({"text": text, "orders": {"HMN": "NHM", "SU": "US"}} for text in CAPTURED)),
            "an element lies at the sum of index times stride, with the strides that the graph knows",
        ),
        Property(
            "negative indices", 1, EMIT, mods("score + ring[kv_idx - q_idx]", "score * column[-1 - kv_idx]"),
            "a negative index counts from the end: -1 is the last",
        ),
        Property(
            "whole tiles", 1, EMIT,
            mods(
                "slopes[h]", "column[kv_idx]", "0.5 * q_idx", "1.5", "score + mood[kv_idx]",
                {"text": "slopes[h]", "odd": {"score": NOT_FINITE}},
            ),
            "whatever it depends on, the result fills the tile: add tl.zeros(score.shape, tl.float32)",
            not_finite=FILLED.format("the score"),
        ),
        Property("mods you have not seen", 1, RECORD, mods(*UNSEEN), EACH),
        Property.stays_inside(BOUNDS, mods(*EVERYTHING), otherwise=OUTSIDE),
    ),
    value_suspects,
    MASKS,
    compiles=Compiles(mods(*UNSEEN), EMIT),
    cheap=Cheap(
        mods(COSTED), steps, (Tier(3, read=2.6, steps=1.1), Tier(1, read=5.2, steps=3.0)),
        "each line of the graph is written once, with the names of the lines before it: an element is loaded once",
        EMIT, sectors=4.0,
    ),
    launcher=run_value,
)  # fmt: skip

GRADIENT = Exercise(
    "emit_gradient",
    "no text yet. It needs the mod's lines, lines that walk back from grad to the score, and a return.",
    (
        Property(
            "sums and products", 1, CHAIN,
            gradients("2 * score - 1", "1 - score", "q_idx - score", "0.5 * -(2 * score + 1)", "score * (q_idx + 1)"),
            "add hands g on, sub -g to its second operand, mul g times the other factor",
        ),
        Property(
            "quotients", 1, CHAIN, gradients("score / 4", "1 / (score + 10)", "(q_idx + 1) / (score + 10)"),
            "y = a / b hands g / b to a, and -g * y / b to b",
        ),
        Property(
            "functions", 1, CHAIN,
            gradients(
                *(f"torch.{name}" for name in ("exp(score)", "log(score + 10)", "tanh(score)", "sigmoid(score)")),
                "score.abs()",
                {"text": "score.abs()", "odd": {"score": (0.0,)}},
            ),
            "each function hands back g times its derivative",
            not_finite="abs has a corner at 0, and 0 / 0 is NaN there: choose g or -g with tl.where",
        ),
        Property(
            "choices", 1, CHAIN,
            gradients(
                "torch.where(q_idx >= kv_idx, 2 * score, 3.0)",
                "torch.where(score > 0, 1.0, 2 * score)",
                "torch.maximum(score, 0.1 * q_idx)",
                "torch.minimum(0.1 * kv_idx, score)",
                {"text": "torch.where(q_idx >= kv_idx, 2 * score, 3.0)", "odd": {"grad": NOT_FINITE}},
            ),
            "the branch that was taken gets g, the other 0",
            not_finite=TIMES_ZERO.format("g")
            + " where the branch is not taken: multiply nothing with 0, choose with tl.where",
        ),
        Property(
            "values used twice", 1, CHAIN,
            gradients(
                "score * score",
                "score * torch.sigmoid(score) + score",
                "torch.tanh(score) * score - 1 / (score + 10)",
            ),
            ONE_SHARE,
        ),
        Property(
            "positions and tables", 1, CHAIN,
            gradients("score * slopes[h] + bias[h, q_idx, kv_idx]", "(score + column[kv_idx]) * ring[kv_idx - q_idx]"),
            "what does not depend on the score gets no gradient, but stands in the others' shares",
        ),
        Property(
            "without the score", 1, CHAIN,
            gradients(
                "column[kv_idx]", "0.5 * q_idx", "torch.where(score > 0, 1.0, slopes[h])",
                {"text": "column[kv_idx]", "odd": {"score": NOT_FINITE, "grad": NOT_FINITE}},
            ),
            "a mod that does not depend on the score has a gradient of 0, a whole tile of it",
            not_finite=FILLED.format("score and grad"),
        ),
        Property(
            "large scores", 1, CHAIN,
            gradients("50 * torch.tanh(score / 50)", "100 * torch.sigmoid(score / 100)", magnitude=1e4),
            "far from 0 the slope of tanh and sigmoid is 0",
            not_finite="the slope of tanh and sigmoid comes from the value, which is finite: 1 - y * y, y * (1 - y)",
        ),
        Property("mods you have not seen", 1, CHAIN, gradients(*UNSEEN), EACH),
        Property.stays_inside(BOUNDS, gradients(*EVERYTHING), otherwise=OUTSIDE),
    ),
    gradient_suspects,
    MASKS,
    compiles=Compiles(gradients(*UNSEEN), CHAIN),
    cheap=Cheap(
        gradients(COSTED), steps, (Tier(3, read=2.05, steps=1.1), Tier(1, read=4.1, steps=3.0)),
        "the way back uses the names that the way there has defined: an element is loaded once",
        CHAIN, sectors=4.0,
    ),
    launcher=run_gradient,
)  # fmt: skip
