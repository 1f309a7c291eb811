"""The checks of exercise 07: ``emit_value(mod)`` and ``emit_gradient(mod)`` give the text of a Triton function.

``score_mod(score, b, h, q_idx, kv_idx, tables)`` is the mod, ``score_gradient(score, b, h, q_idx, kv_idx, grad, tables)``
its derivative by the score times ``grad``, both [BLOCK, BLOCK]. The check writes mods as Python expressions, has them
emitted, runs the text on tiles that reach past the end, and compares with the mod in float64, and with autograd.
"""

import contextlib
import functools
import itertools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode

from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Tier
from kernels.lab.source import readable

# What a mod may capture: its axes, and its values.
TABLES = {
    "slopes": ("H", lambda draw, *shape: draw.normal(*shape)),
    "bias": ("HMN", lambda draw, *shape: draw.normal(*shape)),
    "column": ("N", lambda draw, *shape: draw.normal(*shape)),
    "ring": ("L", lambda draw, *shape: draw.normal(*shape)),  # as long as the longer of queries and keys
    "pair": ("SU", lambda draw, *shape: draw.normal(*shape)),
    "speaker": ("M", lambda draw, *shape: torch.arange(shape[0]) // 2 % 3),
    "mood": ("N", lambda draw, *shape: torch.arange(shape[0], dtype=torch.int32) // 3 % 5),
    "seen": ("N", lambda draw, *shape: torch.arange(shape[0]) % 3 != 1),
    "ids": ("L", lambda draw, *shape: 2**24 + torch.arange(shape[0]) // 2 % 3),  # float32 does not tell them apart
}


@dataclass(frozen=True)
class Mod:
    """A score mod as a Python expression of its arguments and of captured tensors."""

    text: str

    def __str__(self):
        return self.text

    @property
    def names(self) -> list[str]:
        """Captured tensors, in the order in which the mod first indexes them."""
        stand_ins = {name: make(Draw(0, False), *(1 for _ in axes)) for name, (axes, make) in TABLES.items()}
        with _Indexed() as indexed:
            self.function(stand_ins)(torch.zeros(()), *(torch.zeros((), dtype=torch.int64) for _ in range(4)))
        return [name for table in indexed.seen for name in TABLES if stand_ins[name] is table]

    def function(self, tables: dict[str, torch.Tensor]):
        """The mod with these tensors captured."""
        return eval(f"lambda score, b, h, q_idx, kv_idx: {self.text}", {"torch": torch} | tables)

    def dense(self, score: torch.Tensor, tables: dict[str, torch.Tensor], mistake=None) -> torch.Tensor:
        """Its value at every position of score [B, H, M, N], with a mistake or without."""
        positions = torch.meshgrid(*map(torch.arange, score.shape), indexing="ij")
        with mistake or contextlib.nullcontext():
            value = self.function(tables)(score, *positions)
        return torch.as_tensor(value).expand(score.shape)


class _Indexed(TorchFunctionMode):
    """Notes which tensors are indexed."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__getitem__ and not any(args[0] is known for known in self.seen):
            self.seen.append(args[0])
        return function(*args, **(kwargs or {}))


# Running what was emitted.


@triton.jit
def value_kernel(
    score_ptr, out_ptr, tables, stride_score, stride_out, H, M, N, SCORE_MOD: tl.constexpr, BLOCK: tl.constexpr
):
    """One tile of a score mod's values."""
    b, h = tl.program_id(2) // H, tl.program_id(2) % H
    m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    n = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (m < M) & (n < N)
    at = b * stride_score[0] + h * stride_score[1] + m * stride_score[2] + n * stride_score[3]
    score = tl.load(score_ptr + at, mask=live, other=0.0)
    t = SCORE_MOD(score, b, h, m, n, tables) + tl.zeros((1, 1), tl.float32)
    tl.static_assert(t.shape == score.shape, "the result does not fill the tile")
    at = b * stride_out[0] + h * stride_out[1] + m * stride_out[2] + n * stride_out[3]
    tl.store(out_ptr + at, t, mask=live)


@triton.jit
def gradient_kernel(
    score_ptr, grad_ptr, out_ptr, tables, stride_score, stride_grad, stride_out, H, M, N,
    SCORE_GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of a score's gradients."""
    b, h = tl.program_id(2) // H, tl.program_id(2) % H
    m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    n = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (m < M) & (n < N)
    at = b * stride_score[0] + h * stride_score[1] + m * stride_score[2] + n * stride_score[3]
    score = tl.load(score_ptr + at, mask=live, other=0.0)
    at = b * stride_grad[0] + h * stride_grad[1] + m * stride_grad[2] + n * stride_grad[3]
    grad = tl.load(grad_ptr + at, mask=live, other=0.0)
    ds = SCORE_GRADIENT(score, b, h, m, n, grad, tables) + tl.zeros((1, 1), tl.float32)
    tl.static_assert(ds.shape == score.shape, "the result does not fill the tile")
    at = b * stride_out[0] + h * stride_out[1] + m * stride_out[2] + n * stride_out[3]
    tl.store(out_ptr + at, ds, mask=live)


_SERIAL = itertools.count()


def defined(write, text: str, name: str):
    """The function ``name`` that ``text`` defines; it sees what the cell of ``write`` sees, its jit functions too."""
    if not isinstance(text, str):
        raise TypeError(f"{write.__name__} gave {text!r}, it must give the text of a function")
    filename = f"<generated {next(_SERIAL)}>"  # Triton reads a kernel's source back by this name
    namespace = dict(write.__globals__)
    try:
        code = readable(text, filename)
    except SyntaxError as error:
        raise SyntaxError(f"line {error.lineno} of your text is no Python, `{(error.text or '').strip()}`") from None
    exec(code, namespace)
    if name not in namespace or namespace[name] is write.__globals__.get(name):
        raise NameError(f"{name}: your text defines no function of this name")
    return namespace[name]


def run_value(write):
    """A launcher ``(score, *tables, out, mod, BLOCK)`` of what ``write(mod)`` emits."""

    if not callable(write):
        return write

    @functools.wraps(write)
    def launch(score, *rest, mod, BLOCK):
        (*tables, out), (B, H, M, N) = rest, score.shape
        text = write(mod.function(dict(zip(mod.names, tables))))
        if text is None:
            return
        grid = (triton.cdiv(M, BLOCK), triton.cdiv(N, BLOCK), B * H)
        strides = score.stride(), out.stride()
        value_kernel[grid](score, out, tuple(tables), *strides, H, M, N, defined(write, text, "score_mod"), BLOCK)

    return launch


def run_gradient(write):
    """A launcher ``(score, *tables, grad, out, mod, BLOCK)`` of what ``write(mod)`` emits."""

    if not callable(write):
        return write

    @functools.wraps(write)
    def launch(score, *rest, mod, BLOCK):
        (*tables, grad, out), (B, H, M, N) = rest, score.shape
        text = write(mod.function(dict(zip(mod.names, tables))))
        if text is None:
            return
        grid = (triton.cdiv(M, BLOCK), triton.cdiv(N, BLOCK), B * H)
        strides = score.stride(), grad.stride(), out.stride()
        function = defined(write, text, "score_gradient")
        gradient_kernel[grid](score, grad, out, tuple(tables), *strides, H, M, N, function, BLOCK)

    return launch


# Known mistakes, as functions that take the place of torch's while a mod is evaluated.


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
    names = ("lt", "le", "gt", "ge", "eq", "ne")
    return {
        name: lambda a, b, name=name: getattr(torch, name)(cast(torch.as_tensor(a)), cast(torch.as_tensor(b)))
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
ONE_SHARE = "a value that is used twice gets the sum of its shares, here one replaces the other"
NO_GRAD = "the walk back starts with grad, the gradient of the mod's value"


def _tables(case):
    mod = case.launch["mod"]
    return {name: tensor.values for name, tensor in zip(mod.names, case.inputs[1:])}


def _gradients(mod, score, tables, grad, mistake=None):
    score = score.clone().requires_grad_()
    value = mod.dense(score, tables, mistake)
    return torch.autograd.grad(value, score, grad)[0] if value.requires_grad else torch.zeros_like(score)


def value_suspects(case: Case, out: Output):
    """Known mistakes, and the values they give."""
    score, mod = case.inputs[0].values.double(), case.launch["mod"]
    for cause, replacements in VALUE_MISTAKES.items():
        yield cause, mod.dense(score, _tables(case), _Instead(replacements)).double()


def gradient_suspects(case: Case, out: Output):
    """Known mistakes, and the gradients they give."""
    score, grad, mod = case.inputs[0].values.double(), case.inputs[-1].values.double(), case.launch["mod"]
    yield NO_GRAD, _gradients(mod, score, _tables(case), torch.ones_like(grad))
    for cause, replacements in GRADIENT_MISTAKES.items():
        yield cause, _gradients(mod, score, _tables(case), grad, _Instead(replacements))
    yield ONE_SHARE, _gradients(mod, score, _tables(case), grad, _LastShare())


# Cases and properties.


def case(draw: Draw, text: str, *, gradient=False, magnitude=1.0, orders=None, B=1, M=None, N=None, BLOCK=32) -> Case:
    """One mod, on two heads and a ragged number of queries M and keys N, drawn if not given."""
    mod = Mod(text)
    sizes = {"B": B, "H": 2, "M": M or draw.size(13, 9, 15), "N": N or draw.size(19, 17, 23), "S": 3, "U": 5}
    sizes["L"] = max(sizes["M"], sizes["N"])
    fence = {axis: 1 for axis in "BH"} | {axis: BLOCK for axis in "MN"}

    def fenced(name, axes, values):
        order = (orders or {}).get(axes, "")
        return Fenced(name, axes, values, fence=fence, order=order)

    shape = [sizes[axis] for axis in "BHMN"]
    inputs = [fenced("score", "BHMN", draw.normal(*shape, scale=magnitude))]
    for i, name in enumerate(mod.names):
        axes, make = TABLES[name]
        inputs.append(fenced(f"tables[{i}]", axes, make(draw, *(sizes[axis] for axis in axes))))
    tables = {name: tensor.values for name, tensor in zip(mod.names, inputs[1:])}
    score = inputs[0].values.double()
    if gradient:
        inputs.append(fenced("grad", "BHMN", draw.normal(*shape)))
        expected = _gradients(mod, score, tables, inputs[-1].values.double())
    else:
        expected = mod.dense(score, tables).double()
    out = Output(fenced("ds" if gradient else "t", "BHMN", torch.empty(shape)), expected, tolerance=1e-4)
    return Case(inputs, [out], {"mod": mod, "BLOCK": BLOCK}, poison=())


def values(*texts, **how):
    """Cases of these mods' values."""
    return lambda draw: (case(draw, text, **how) for text in texts)


def gradients(*texts, **how):
    """Cases of these mods' gradients."""
    return values(*texts, gradient=True, **how)


UNSEEN = (
    "torch.where((kv_idx - q_idx) % 2 == 0, 8 * torch.tanh(score / 8), score - slopes[h] * (q_idx - kv_idx).abs())",
    "score * torch.sigmoid(score + ring[(kv_idx - q_idx) // 4]) + 1 / (1 + torch.exp(-score))",
    "torch.maximum(score, column[kv_idx]) * torch.log(score * score + 1) - torch.minimum(score, 0.5 * (q_idx % 3))",
)
EVERYTHING = (
    "score + bias[h, q_idx, kv_idx] * pair[speaker[q_idx], mood[kv_idx]]",
    "score * ring[kv_idx - q_idx] + column[kv_idx]",
)
RECORD, EMIT, BOUNDS, SIGNS, CHAIN = (f"Lesson 31, step {step}" for step in (2, 3, 4, 5, 6))
OUTSIDE = (
    "a captured tensor is read outside its bounds: fold every index into its axis, also where the result is thrown away"
)

ONE_EXPONENTIAL = "inf / inf is NaN: write tanh(x) as 1 - 2 / (1 + exp(2 x)), which has one exponential"


def _functions(draw):
    """Of scores around 0, then far from it."""
    for text in ("torch.exp(score) + torch.log(score.abs() + 1)", "3 * torch.tanh(score / 3)", "torch.sigmoid(score)"):
        yield case(draw, text)
    for text in ("torch.tanh(score) + torch.sigmoid(-score)", "50 * torch.tanh(score / 50)"):
        yield case(draw, text, magnitude=1e4)


# What is counted depends on the sizes: how much of a tile lies outside. So these are the same for everybody.
COSTED_SIZES = {"M": 13, "N": 19}
COSTED = ("score * bias[h, q_idx, kv_idx] + torch.sigmoid(score * slopes[h])",)


def _steps(case: Case) -> int:
    """In each tile one load of each input, and a store."""
    B, H, M, N = case.outs[0].tensor.shape
    block = case.launch["BLOCK"]
    return B * H * -(-M // block) * -(-N // block) * (len(case.inputs) + 1)


VALUE = Exercise(
    "emit_value",
    "no text yet. It needs a line for each operation of the graph, and a return.",
    (
        Property(
            "arithmetic",
            1,
            EMIT,
            values("2 * score - 1", "1 - score / 4", "-score * score + 3 / (score * score + 1)"),
            "a line for each operation, with its operands in their order",
        ),
        Property(
            "positions",
            1,
            EMIT,
            values(
                "score + 0.5 * (kv_idx - q_idx)",
                "score * (q_idx / 4) + h",
                "(q_idx >= kv_idx) * score - 0.25 * b",
                "torch.exp(-q_idx) * score",
                B=2,
                BLOCK=16,
            ),
            "operands are cast to their operation's dtype, which the graph knows",
        ),
        Property(
            "rounding down",
            1,
            SIGNS,
            values(
                "score + (kv_idx - q_idx) // 4",
                "score * ((kv_idx - q_idx) % 3)",
                "score + (q_idx - 7) // -3 + (kv_idx - 9) % -4",
                "score + (8388609 * kv_idx + q_idx) % 7",
            ),
            "floor division and remainder are Python's, in integers",
        ),
        Property(
            "choices",
            1,
            EMIT,
            values(
                "torch.where(q_idx >= kv_idx, score, -float('inf'))",
                "torch.where(ids[q_idx] == ids[kv_idx], score, -1.0)",
                "torch.where((q_idx - kv_idx < 5) & ~(kv_idx == 3) | (h == 1), score, 0.5 * score)",
                "torch.maximum(score, 0.1 * q_idx) - torch.minimum(score, 1 - 2 * score)",
                "torch.where(score > 0.5, 1.0, 2 * score)",
            ),
            "a comparison takes both sides in the dtype that holds both, where its branches in its own",
        ),
        Property("functions", 1, EMIT, _functions, "each function has its line in RULES", not_finite=ONE_EXPONENTIAL),
        Property(
            "captured tensors",
            1,
            EMIT,
            lambda draw: (
                case(draw, text, orders=orders)
                for orders in ({}, {"HMN": "NHM", "SU": "US"})
                for text in (
                    "score + slopes[h] * (kv_idx - q_idx)",
                    "score + bias[h, q_idx, kv_idx]",
                    "score + pair[speaker[q_idx], mood[kv_idx]]",
                    "torch.where(seen[kv_idx], score, -1.0)",
                )
            ),
            "an element lies at the sum of index times stride, with the strides that the graph knows",
        ),
        Property(
            "negative indices",
            1,
            EMIT,
            values("score + ring[kv_idx - q_idx]", "score * column[-1 - kv_idx]"),
            "a negative index counts from the end: -1 is the last",
        ),
        Property(
            "whole tiles",
            1,
            EMIT,
            values("slopes[h]", "column[kv_idx]", "0.5 * q_idx", "1.5", "score + mood[kv_idx]"),
            "whatever it depends on, the result fills the tile: add tl.zeros(score.shape, tl.float32)",
        ),
        Property("mods you have not seen", 1, RECORD, values(*UNSEEN), "each operation must be right by itself"),
        Property(
            "stays inside its tensors", 1, BOUNDS, values(*EVERYTHING), OUTSIDE, needs="the interpreter", addresses=True
        ),
    ),
    value_suspects,
    {(f"tables[{i}]", axis, "after"): "" for i in range(4) for axis in "HMNLSU"},
    compiles=Compiles(values(*UNSEEN), EMIT),
    cheap=Cheap(
        values(*COSTED, **COSTED_SIZES),
        _steps,
        (Tier(3, read=2.6, steps=1.1), Tier(1, read=5.2, steps=3.0)),
        "each line of the graph is written once, with the names of the lines before it: an element is loaded once",
        EMIT,
        sectors=4.0,
    ),
)

GRADIENT = Exercise(
    "emit_gradient",
    "no text yet. It needs the mod's lines, lines that walk back from grad to the score, and a return.",
    (
        Property(
            "sums and products",
            1,
            CHAIN,
            gradients("2 * score - 1", "1 - score", "q_idx - score", "0.5 * -(2 * score + 1)", "score * (q_idx + 1)"),
            "add hands g on, sub -g to its second operand, mul g times the other factor",
        ),
        Property(
            "quotients",
            1,
            CHAIN,
            gradients("score / 4", "1 / (score + 10)", "(q_idx + 1) / (score + 10)"),
            "y = a / b hands g / b to a, and -g * y / b to b",
        ),
        Property(
            "functions",
            1,
            CHAIN,
            gradients(
                "torch.exp(score)", "torch.log(score + 10)", "torch.tanh(score)", "torch.sigmoid(score)", "score.abs()"
            ),
            "each function hands back g times its derivative",
        ),
        Property(
            "choices",
            1,
            CHAIN,
            gradients(
                "torch.where(q_idx >= kv_idx, 2 * score, 3.0)",
                "torch.where(score > 0, 1.0, 2 * score)",
                "torch.maximum(score, 0.1 * q_idx)",
                "torch.minimum(0.1 * kv_idx, score)",
            ),
            "the branch that was taken gets g, the other 0",
        ),
        Property(
            "values used twice",
            1,
            CHAIN,
            gradients(
                "score * score", "score * torch.sigmoid(score) + score", "torch.tanh(score) * score - 1 / (score + 10)"
            ),
            ONE_SHARE,
        ),
        Property(
            "positions and tables",
            1,
            CHAIN,
            gradients("score * slopes[h] + bias[h, q_idx, kv_idx]", "(score + column[kv_idx]) * ring[kv_idx - q_idx]"),
            "what does not depend on the score gets no gradient, but stands in the others' shares",
        ),
        Property(
            "without the score",
            1,
            CHAIN,
            gradients("column[kv_idx]", "0.5 * q_idx", "torch.where(score > 0, 1.0, slopes[h])"),
            "a mod that does not depend on the score has a gradient of 0, a whole tile of it",
        ),
        Property(
            "large scores",
            1,
            CHAIN,
            gradients("50 * torch.tanh(score / 50)", "100 * torch.sigmoid(score / 100)", magnitude=1e4),
            "far from 0 the slope of tanh and sigmoid is 0",
            not_finite="the slope of tanh and sigmoid comes from the value, which is finite: 1 - y * y, y * (1 - y)",
        ),
        Property("mods you have not seen", 1, CHAIN, gradients(*UNSEEN), "each operation must be right by itself"),
        Property(
            "stays inside its tensors",
            1,
            BOUNDS,
            gradients(*EVERYTHING),
            OUTSIDE,
            needs="the interpreter",
            addresses=True,
        ),
    ),
    gradient_suspects,
    {(f"tables[{i}]", axis, "after"): "" for i in range(4) for axis in "HMNLSU"},
    compiles=Compiles(gradients(*UNSEEN), CHAIN),
    cheap=Cheap(
        gradients(*COSTED, **COSTED_SIZES),
        _steps,
        (Tier(3, read=2.05, steps=1.1), Tier(1, read=4.1, steps=3.0)),
        "the way back uses the names that the way there has defined: an element is loaded once",
        CHAIN,
        sectors=4.0,
    ),
)
