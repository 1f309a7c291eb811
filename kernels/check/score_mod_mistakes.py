"""Known mistakes of a compiler of score mods, as functions that take the place of torch's while a mod is evaluated."""

import torch
from torch.overrides import TorchFunctionMode

from kernels.check.framework import Case, Output


def answer(case: Case, mistake=None, grad: torch.Tensor | None = None) -> torch.Tensor:
    """The mod's value, or where the case has ``grad`` the score's gradient by autograd, with a mistake or without."""
    mod, score = case.launch["mod"], case.inputs[0].values.to(torch.float64, copy=True)
    tables = {name: tensor.values for name, tensor in zip(mod.names, case.inputs[1:])}
    if case.inputs[-1].name != "grad":
        return mod.dense(score, tables, mistake).double()
    grad = case.inputs[-1].values.double() if grad is None else grad
    score.requires_grad_()
    value = mod.dense(score, tables, mistake)
    return torch.autograd.grad(value, score, grad)[0] if value.requires_grad else torch.zeros_like(score)


class _Instead(TorchFunctionMode):
    """Calls replacements, by the name of the function that they replace; what goes astray is folded into its axis."""

    def __init__(self, replacements):
        super().__init__()
        self.replacements = {"getitem": _index(lambda i, size: torch.where(i < 0, i + size, i))} | replacements

    def __torch_function__(self, function, types, args=(), kwargs=None):
        replacement = self.replacements.get(function.__name__.strip("_"))
        return replacement(*args) if replacement else function(*args, **(kwargs or {}))


def _number_as(cast):
    """Beside a tensor of integers a number is one, too."""

    def of(function):
        def replaced(a, b):
            whole = isinstance(a, torch.Tensor) and not a.is_floating_point() and isinstance(b, float)
            return function(a, cast(b) if whole else b)

        return replaced

    return {name: of(getattr(torch, name)) for name in ("add", "sub", "mul", "div")}


def _compared(cast):
    """Comparisons whose sides go through ``cast`` first."""
    return _each_compared(lambda a, b: (cast(a), cast(b)))


def _each_compared(both):
    """Comparisons of what ``both`` makes of the two sides."""
    names = ("lt", "le", "gt", "ge", "eq", "ne")
    return {
        name: lambda a, b, name=name: getattr(torch, name)(*both(torch.as_tensor(a), torch.as_tensor(b)))
        for name in names
    }


def _truncated(a, b):
    return torch.div(torch.as_tensor(a), b, rounding_mode="trunc")


def _index(change):
    def replaced(table, index):
        indices = index if isinstance(index, tuple) else (index,)
        return table[tuple(change(i, size).clamp(0, size - 1) for i, size in zip(indices, table.shape))]

    return replaced


VALUE_MISTAKES = {
    "floor division is translated as Triton's //, which drops the fraction: -7 // 4 is -2": {
        "floordiv": _truncated,
        "floor_divide": _truncated,
        "rfloordiv": lambda a, b: _truncated(b, a),
    },
    "the remainder has the sign of the dividend: -7 % 4 is 1": {"remainder": torch.fmod},
    "rsub(a, b) is b - a": {"rsub": lambda a, b: a - b},
    "a number takes the dtype of what it meets, and 0.5 beside an integer is 0: cast to the operation's dtype": (
        _number_as(int)
    ),
    "the sides of a comparison are cast to its own dtype, bool: they need the dtype that holds both": (
        _compared(lambda x: x.bool())
    ),
    "the sides of a comparison are cast to the dtype of one of them: they need the dtype that holds both": (
        _each_compared(lambda a, b: (a, b.to(a.dtype)))
    ),
    "integers are compared as floats: they need the dtype that holds both sides": _compared(lambda x: x.float()),
    "a negative index counts from the end: -1 is the last": {"getitem": _index(lambda i, size: i)},
    "the branches of where are exchanged": {"where": lambda c, a, b: torch.where(c, b, a)},
    "maximum and minimum are exchanged": {"maximum": torch.minimum, "minimum": torch.maximum},
    "tanh(x) is 1 - 2 / (1 + exp(2 x)): the 2 in the exponent is missing": {"tanh": lambda x: torch.tanh(x / 2)},
    "the function's value is negated": {"tanh": lambda x: -torch.tanh(x)},
}


def _sloped(value, *pairs):
    """``value``, whose derivative by each x of the pairs (x, slope) is ``slope``."""
    value = value.detach()
    for x, slope in pairs:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            slope = slope.detach() if isinstance(slope, torch.Tensor) else slope
            value = value + slope * (x - x.detach())
    return value


class _LastShare(TorchFunctionMode):
    """Of all uses of a value only one hands a gradient back: the first in the graph, and its last operand."""

    def __init__(self):
        super().__init__()
        self.used = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kept = []
        for i, x in enumerate(args):
            if isinstance(x, torch.Tensor) and x.requires_grad:
                again = any(x is y for y in args[i + 1 :]) or any(x is y for y in self.used)
                kept.append(x.detach() if again else x)
            else:
                kept.append(x)
        self.used += [x for x in args if isinstance(x, torch.Tensor)]
        return function(*kept, **(kwargs or {}))


GRADIENT_MISTAKES = {
    "sub's second operand has the wrong sign: its share is -g": {
        "sub": lambda a, b: _sloped(a - b, (a, 1.0), (b, 1.0))
    },
    "rsub's operand has the wrong sign: b - a falls as a grows": {"rsub": lambda a, b: _sloped(b - a, (a, 1.0))},
    "neg's share has the wrong sign: it is -g": {"neg": lambda a: _sloped(-a, (a, 1.0))},
    "mul's shares are exchanged: each factor gets g times the other one": {
        "mul": lambda a, b: _sloped(torch.mul(a, b), (a, a), (b, b))
    },
    "the other factor is left out of mul's shares": {"mul": lambda a, b: _sloped(torch.mul(a, b), (a, 1.0), (b, 1.0))},
    "div's first share is g / b": {"div": lambda a, b: _sloped(a / b, (a, 1.0), (b, -a / b / b))},
    "div's second share has the wrong sign: it is -g * y / b": {
        "div": lambda a, b: _sloped(a / b, (a, 1 / b), (b, a / b / b))
    },
    "reciprocal's share is -g * y * y": {"rdiv": lambda a, b: _sloped(b / a, (a, b / a / a))},
    "exp's share is g * y, y its value": {"exp": lambda a: _sloped(a.exp(), (a, 1.0))},
    "log's share is g / x": {"log": lambda a: _sloped(a.log(), (a, 1 / a.log()))},
    "tanh's share is g * (1 - y * y), y its value, not its operand": {
        "tanh": lambda a: _sloped(a.tanh(), (a, 1 - a * a))
    },
    "tanh's share has the wrong sign: it is g * (1 - y * y)": {
        "tanh": lambda a: _sloped(a.tanh(), (a, a.tanh() ** 2 - 1))
    },
    "sigmoid's share is g * y * (1 - y), y its value": {"sigmoid": lambda a: _sloped(a.sigmoid(), (a, a.sigmoid()))},
    "abs's share is g or -g, by the sign of its operand": {"abs": lambda a: _sloped(a.abs(), (a, 1.0))},
    "the branches of where are exchanged: the one that was taken gets g": {
        "where": lambda c, a, b: _sloped(torch.where(c, a, b), (a, (~c).double()), (b, c.double()))
    },
    "both branches of where get g: only the one that was taken, the other gets 0": {
        "where": lambda c, a, b: _sloped(torch.where(c, a, b), (a, 1.0), (b, 1.0))
    },
    "both operands of maximum and minimum get g: only the one that was taken": {
        "maximum": lambda a, b: _sloped(torch.maximum(a, b), (a, 1.0), (b, 1.0)),
        "minimum": lambda a, b: _sloped(torch.minimum(a, b), (a, 1.0), (b, 1.0)),
    },
}
NO_SHARE = "no share reaches the score: walk from the last operation to the first, and return what the score was handed"
ONE_SHARE = "a value that is used twice gets the sum of its shares, here one replaces the other"


def value_suspects(case: Case, out: Output):
    """Known mistakes, and the values they give."""
    for cause, replacements in VALUE_MISTAKES.items():
        yield cause, answer(case, _Instead(replacements))


def gradient_suspects(case: Case, out: Output):
    """Known mistakes, and the gradients they give."""
    yield NO_SHARE, torch.zeros_like(out.expected)
    yield "the walk back starts with grad, the gradient of the mod's value", answer(case, grad=torch.ones_like(out.expected))
    for cause, replacements in GRADIENT_MISTAKES.items():
        yield cause, answer(case, _Instead(replacements))
    yield ONE_SHARE, answer(case, _LastShare())
