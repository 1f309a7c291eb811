"""The calls that the checks of exercise 07 make: a mod, and tiles of scores for what is emitted for it."""

from collections.abc import Callable

import torch

from kernels.check.cases import ROUNDED
from kernels.check.emitted import TABLES, Mod
from kernels.check.framework import Case, Draw, Fenced, Output
from kernels.check.score_mod_mistakes import answer
from kernels.check.tensors import NAN

NOT_FINITE = (float("inf"), -float("inf"), NAN)


def case(
    draw: Draw, text: str, *, gradient=False, magnitude=1.0, odd=None, orders=None, B=1, M=None, N=None, BLOCK=32
) -> Case:
    """One mod, on two heads and a ragged number of queries M and keys N, drawn if not given.

    ``odd`` gives score, or grad, numbers that stand among the drawn ones. Where a score is 0, where abs has its corner, a
    gradient may be any up to grad.
    """
    mod = Mod(text)
    sizes = {"B": B, "H": 2, "M": M or draw.size(13, 9, 15), "N": N or draw.size(19, 17, 23), "S": 3, "U": 5}
    sizes["L"] = max(sizes["M"], sizes["N"])
    fence = {axis: 1 for axis in "BH"} | {axis: BLOCK for axis in "MN"}

    def fenced(name, axes, values):
        order = (orders or {}).get(axes, "")
        for i, number in enumerate((odd or {}).get(name, ())):
            values[..., i::5] = number
        return Fenced(name, axes, values, fence=fence, order=order)

    shape = [sizes[axis] for axis in "BHMN"]
    inputs = [fenced("score", "BHMN", draw.normal(*shape, scale=magnitude))]
    for i, name in enumerate(mod.names):
        axes, make = TABLES[name]
        inputs.append(fenced(f"tables[{i}]", axes, make(draw, *(sizes[axis] for axis in axes))))
    if gradient:
        inputs.append(fenced("grad", "BHMN", draw.normal(*shape)))
    call = Case(inputs, [], {"mod": mod, "BLOCK": BLOCK}, poison=())
    out = fenced("ds" if gradient else "t", "BHMN", torch.empty(shape))
    # 1 - y * y and y * (1 - y) cancel far from 0: beside a slope of 1, what is left of them is rounding.
    room = torch.where(inputs[0].values == 0, 2.0, 2 * ROUNDED)  # what is right has no more than half of it
    slack = room * inputs[-1].values.double().abs().nan_to_num(0.0, 0.0) if gradient else None
    call.outs.append(Output(out, answer(call), tolerance=1e-4, slack=slack))
    return call


def values(*texts, **how):
    """Cases of these mods' values."""
    return lambda draw: (case(draw, text, **how) for text in texts)


def gradients(*texts, **how):
    """Cases of these mods' gradients."""
    return values(*texts, gradient=True, **how)


def then(*several: Callable) -> Callable:
    """Cases of one kind, then of others."""
    return lambda draw: (call for cases in several for call in cases(draw))


def functions(draw):
    """Of scores around 0, then far from it."""
    for text in ("torch.exp(score) + torch.log(score.abs() + 1)", "3 * torch.tanh(score / 3)", "torch.sigmoid(score)"):
        yield case(draw, text)
    for text in ("torch.tanh(score) + torch.sigmoid(-score)", "50 * torch.tanh(score / 50)"):
        yield case(draw, text, magnitude=1e4)


# What is counted depends on the sizes: how much of a tile lies outside. So these are the same for everybody.
COSTED_SIZES = {"M": 13, "N": 19}
COSTED = ("score * bias[h, q_idx, kv_idx] + torch.sigmoid(score * slopes[h])",)


def steps(case: Case) -> int:
    """In each tile one load of each input, and a store."""
    B, H, M, N = case.outs[0].tensor.shape
    block = case.launch["BLOCK"]
    return B * H * -(-M // block) * -(-N // block) * (len(case.inputs) + 1)
