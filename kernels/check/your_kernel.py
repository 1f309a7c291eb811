"""A check for a kernel that is in no exercise: fences, poison, strides and ragged sizes around a function of your own."""

import itertools
from collections.abc import Callable, Mapping

import torch

from kernels.check.contestant import Contestant
from kernels.check.costs import cost
from kernels.check.framework import (
    VERDICTS,
    Case,
    Cheap,
    Compiles,
    Draw,
    Exercise,
    Fenced,
    Output,
    Property,
    Tier,
)
from kernels.check.framework import check as _check

PAGE = "See docs/your_own_kernel.md"
RAGGED = (13, 1, 37, 7)  # below a block, one element, beyond a block; none divides another
WHOLE = (16, 32, 64)  # whole blocks, and axes that cannot be taken for one another
ODD = (37, 29, 23)  # no whole block, and more than one of most
FENCE = 64  # elements kept free at both ends of every axis


def your_kernel(
    fn: Callable,
    reference: Callable,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    *,
    launch: Mapping = {},
    blocks: Mapping[str, tuple] = {},
    sizes: Mapping[str, int] = {},
    values: Mapping[str, Callable] = {},
    dtypes: tuple = (torch.float32, torch.float16),
    tolerance: float | None = None,
    cheap: tuple[float, float] | None = None,
    tf32: bool = False,
    properties: tuple[Property, ...] = (),
    verdicts=VERDICTS,
    seed: int | None = 0,
) -> bool:
    """Hold ``fn(*inputs, *outputs, **launch, **block sizes)``, which stores its outputs, to what a kernel must stand.

    Three verdicts. Right: sizes that are whole blocks; gaps, a transpose and a stride of 0; ragged sizes amid poison;
    every block size; other dtypes; addresses inside their tensors (in the interpreter). Compiles: for Ampere and Hopper,
    without a GPU, nothing spilled, float32 products not rounded to TF32. Cheap: bytes asked for, beside each byte once. One
    line each, with a failure's likely cause.

    Args:
        fn: launches the kernel; its tensors are as ``inputs`` and then ``outputs`` name them, by position.
        reference: the same as a formula, ``reference(*inputs, **launch)`` on float64 CPU tensors; returns the outputs, a
            tensor or a tuple.
        inputs, outputs: name of each tensor → its axes, a letter each: ``{"x": "MN", "weight": "N"}``.
        launch: keyword arguments that both take, such as ``{"eps": 1e-6}``.
        blocks: keyword arguments of ``fn`` alone, with the values to try: ``{"BLOCK": (16, 64)}``.
        sizes: axes whose size is not free: ``{"K": 32}``.
        values: for an input that is no random floating-point tensor, ``f(*shape) -> tensor``.
        dtypes: of the floating-point tensors, the first where nothing else is asked for.
        tolerance: of an output, relative; what its dtype allows unless given.
        cheap: the most that loads may ask for and stores may write, as multiples of the inputs' and the outputs' bytes;
            without it both are told, and no verdict is given.
        tf32: whether products of float32 may be rounded to TF32.
        properties: more of them, made of cases of your own (docs/your_own_kernel.md).
        verdicts: which of "right", "compiles" and "cheap" are asked for.
        seed: of the random values; ``None`` draws fresh ones.

    Returns:
        whether every property that this machine can show holds.
    """
    axes = sorted(set("".join([*inputs.values(), *outputs.values()])))
    unknown = [f"{name} = {size}" for name, size in sizes.items() if name not in axes]
    if unknown:
        raise ValueError(f"sizes names {', '.join(unknown)}, the tensors have the axes {', '.join(axes)}")
    first = {name: choices[0] for name, choices in blocks.items()}

    def case(
        draw: Draw, shape: dict, *, block=first, dtype=dtypes[0], packed=False, turned=False, shared="", **more
    ) -> Case:
        shape = shape | dict(sizes)
        fence = None if packed else dict.fromkeys(axes, FENCE)
        fenced = []
        for name, own in inputs.items():
            x = (values[name] if name in values else draw.normal)(*(shape[axis] for axis in own))
            x = x.to(dtype) if x.is_floating_point() else x
            once = shared if shared in own and len(own) > 1 else ""
            if once:
                x = x.narrow(own.index(once), 0, 1).expand(x.shape)
            fenced.append(Fenced(name, own, x, fence=fence, order=own[::-1] if turned else "", shared=once))
        wide = (x.values.double() if x.values.is_floating_point() else x.values for x in fenced)
        right = reference(*wide, **launch)
        right = right if isinstance(right, tuple) else (right,)
        outs = []
        for (name, own), answer in zip(outputs.items(), right, strict=True):
            empty = torch.empty([shape[a] for a in own], dtype=dtype if answer.is_floating_point() else torch.int32)
            outs.append(Output(Fenced(name, own, empty, fence=fence), answer.double(), tolerance=tolerance))
        return Case(fenced, outs, launch=dict(launch) | block, **more)

    def whole(draw: Draw):
        yield case(draw, dict.fromkeys(axes, 32), packed=True)

    def strides(draw: Draw):
        shape = {axis: WHOLE[i % len(WHOLE)] for i, axis in enumerate(axes)}
        yield case(draw, shape, poison=())
        yield case(draw, shape, poison=(), turned=True)
        for axis in axes:
            if any(axis in own and len(own) > 1 for own in inputs.values()):
                yield case(draw, shape, poison=(), shared=axis)

    def ragged(draw: Draw):
        for turn in range(len(RAGGED)):
            yield case(draw, {axis: RAGGED[(turn + i) % len(RAGGED)] for i, axis in enumerate(axes)})

    def sized(draw: Draw):
        shape = {axis: ODD[i % len(ODD)] for i, axis in enumerate(axes)}
        for chosen in itertools.product(*blocks.values()):
            yield case(draw, shape, block=dict(zip(blocks, chosen, strict=True)))

    def typed(draw: Draw):
        for dtype in dtypes[1:]:
            yield case(draw, dict.fromkeys(axes, 16), dtype=dtype)

    told = "each address is made of the strides of its own tensor"
    def usual(draw: Draw):
        size = 64 if len(axes) < 4 else 16
        for dtype in dtypes[:2]:
            yield case(draw, dict.fromkeys(axes, size), dtype=dtype, packed=True)

    def costed(draw: Draw):
        yield case(draw, {axis: WHOLE[i % len(WHOLE)] for i, axis in enumerate(axes)}, packed=True)

    most = cheap or (float("inf"), float("inf"))
    limits = Cheap(
        costed,
        lambda case: 1,
        (Tier(1, *most, steps=float("inf")),),
        "each element is loaded as often as its scheme needs, and stored once",
        PAGE,
        sectors=float("inf"),
    )
    held = [Property("whole blocks", 1, PAGE, whole), Property("strides", 1, PAGE, strides, told)]
    held.append(Property("ragged sizes", 1, PAGE, ragged, "the grid and the loops must cover every element"))
    if blocks:
        held.append(Property("block sizes", 1, PAGE, sized, f"the answer depends on {' or '.join(blocks)}"))
    if dtypes[1:]:
        words = "arithmetic in the tensors' dtype loses digits: convert to tl.float32 right after the load"
        held.append(Property("other dtypes", 1, PAGE, typed, words))
    inside = Property.stays_inside(PAGE, ragged, points=0)
    exercise = Exercise(
        name=getattr(fn, "__name__", type(fn).__name__),
        missing="nothing is stored in the outputs yet.",
        properties=(*held, *properties, inside),
        suspects=lambda case, out: (),
        unit="properties",
        compiles=Compiles(usual, PAGE, exact=not tf32, points=1),
        cheap=limits if cheap else None,
    )
    verdicts = (verdicts,) if isinstance(verdicts, str) else tuple(verdicts)
    worth = sum(points for name, points in exercise.worth.items() if name in verdicts)
    good = _check(exercise, fn, seed=seed, grading=False, verdicts=verdicts) == worth
    if good and not cheap and "cheap" in verdicts:
        (call,) = costed(Draw(f"{seed}, cost", False))
        found = cost(limits, call, call.traced(Contestant(fn)).launches)
        said = f"loads ask for {found.read:.3g} times the inputs' bytes, stores write {found.written:.3g} times the outputs'"
        print(f"not judged: cheap ({said}; cheap=({found.read:.3g}, {found.written:.3g}) holds it to that)")
    return good
