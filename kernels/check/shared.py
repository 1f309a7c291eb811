"""What several exercises share: tensors that lie in memory as a row of a property says, strides left out, last properties."""

import functools
from collections.abc import Callable, Iterable

import torch

from kernels.check.framework import Case, Draw, Fenced, Output, Property, calls

READ_STRIDES = "Lesson 01, step 4"
STRIDES = "each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x"


def made(
    names: tuple[Iterable[str], Iterable[str]], axes: dict[str, str], sizes: dict[str, int], values: Callable,
    launch: dict, answers: Callable, *, fence: dict[str, int], more=(), packed=False, orders={}, out_orders={},  # noqa: B006
    shared={}, far={}, poison=(), judge=None, tolerance=5e-3,  # noqa: B006
) -> Case:  # fmt: skip
    """One call.

    ``names`` are its inputs' and its outputs', which lie in memory as ``axes``, ``sizes`` and ``fence`` say;
    ``values(name, *shape)`` gives an input, ``more`` are inputs that are made already, and ``answers(case)`` what is known
    of each output: ``expected``, perhaps ``groups`` or ``slack``. Only the precision property asks for more than 5e-3.
    A row may also say: ``orders`` and ``out_orders``, axes -> their order in memory; ``shared``, name -> the axes along
    which a tensor stands still; ``far``, name -> the axis whose strides need 64 bits; ``packed``, nothing lies around the
    tensors; ``poison``, at which ends of axes; ``judge``, which outputs are looked at, all unless told.
    """
    fence = None if packed else fence

    def fenced(name, make, orders, still=""):
        order = orders.get(axes[name], "")
        return Fenced.of(name, axes[name], sizes, make, fence=fence, order=order, shared=still)

    inputs, outs = names
    inputs = [fenced(name, functools.partial(values, name), orders, shared.get(name, "")) for name in inputs]
    case = Case([*inputs, *more], [], launch, poison=poison)
    known = answers(case)
    for name in outs:
        unjudged = {"expected": None} if judge and name not in judge else {}
        tensor = fenced(name, torch.empty, out_orders)
        case.outs.append(Output(tensor, **known[name] | unjudged, tolerance=tolerance))
    return case.stretched(**far)


def firsts(x: dict[str, torch.Tensor], axes: dict[str, str], **named: tuple[str, str]):
    """A stride left out: (cause, inputs) where the first index along an axis stands for all of one input.

    ``named``: axis -> what lies along it, and its index.
    """
    for name, value in x.items():
        for axis, (who, index) in named.items():
            if axis in axes[name]:
                first = value.narrow(axes[name].index(axis), 0, 1).expand_as(value)
                yield f"every {who} reads the first one's {name}: {index} moves by its stride", x | {name: first}


def rounded_and_inside(call: Callable, lesson: str, f16: str, ragged: dict, large=({"magnitude": 300.0}, {})):
    """The last properties of an exercise.

    float16 values, ``large`` ones whose products float16 cannot hold and then some whose last digits it cannot; everything
    ``ragged`` at once, for the addresses; bfloat16 values.
    """
    return (
        Property("float16", 1, lesson, calls(call, *large, half=torch.float16, tolerance=2e-5), f16),
        Property.stays_inside(lesson, calls(call, **ragged)),
        Property.in_bfloat16(lesson, calls(call, half=torch.bfloat16)),
    )


def gate_values(draw: Draw, shape: tuple[int, ...], base: float | None, *places: tuple) -> torch.Tensor:
    """Gates of ``base``, of anything down to -25 where it is None; and at each of ``places``, (index, gate), that gate."""
    made = -25 * torch.distributions.Normal(0, 1).cdf(draw.normal(*shape)) if base is None else torch.full(shape, base)
    for index, gate in places:
        made[index] = gate
    return made
