"""A check for a kernel that is in no exercise: fences, poison, strides and ragged sizes around a function of your own."""

import itertools
from collections.abc import Callable, Mapping

import torch

from kernels import runtime
from kernels.check.costs import cost
from kernels.check.framework import VERDICTS, Case, Cheap, Compiles, Exercise, Output, Property, Tier, asked
from kernels.check.framework import check as _check
from kernels.check.say import say
from kernels.check.submission import Submission
from kernels.check.tensors import Draw, Fenced
from kernels.lab import _triton_private

PAGE = "See docs/your_own_kernel.md"
RAGGED = (13, 1, 37, 7)  # below a block, one element, beyond a block; none divides another
WHOLE = (16, 32, 64)  # whole blocks, and axes that cannot be taken for one another
FEW = (8, 16, 32)  # the same of three axes or more: a program may have but one row along two of them
LONG = 256  # of whole blocks, too; sums in float16 lose digits that the other sizes leave
ODD = (37, 29, 23)  # no whole block, and more than one of most
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FENCE = 64  # elements kept free at both ends of every axis
ROUNDING = 2.0**-22  # the inputs' relative change that asks how much of it comes out: float32's rounding, and room
SHIFTS = 4  # such changes that are tried
ORDER = "a GPU runs programs in any order, and at once: let each element have one program, or use atomics"


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
        reference: the same as a formula, ``reference(*inputs, **launch)`` on float64 CPU tensors; returns the outputs: a
            tensor, a tuple or list in their order, or a dict by their names.
        inputs, outputs: name of each tensor → its axes, a letter each: ``{"x": "MN", "weight": "N"}``. A kernel that works
            in place gets a copy: ``def fn(x, out): out.copy_(x); kernel[grid](out, ...)``.
        launch: keyword arguments that both take, such as ``{"eps": 1e-6}``.
        blocks: keyword arguments of ``fn`` alone, with the values to try: ``{"BLOCK": (16, 64)}``.
        sizes: axes whose size is not free: ``{"K": 32}``.
        values: for an input that is no random floating-point tensor, ``f(*shape) -> tensor``.
        dtypes: of the floating-point tensors, the first where nothing else is asked for.
        tolerance: of an output, relative; what its dtype allows unless given. What the formula itself makes of its inputs'
            rounding is allowed on top.
        cheap: the most that loads may ask for and stores may write, as multiples of the inputs' and the outputs' bytes;
            without it both are told, and no verdict is given.
        tf32: whether products of float32 may be rounded to TF32.
        properties: more of them, made of cases of your own (docs/your_own_kernel.md).
        verdicts: which of "right", "compiles" and "cheap" are asked for.
        seed: of the random values; ``None`` draws fresh ones.

    Returns:
        whether every property that this machine can show holds.

    Raises:
        ValueError: the arguments do not fit each other, or the reference fails or gives something else than the outputs.
    """
    dtypes = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    if not dtypes or any(dtype not in DTYPES for dtype in dtypes):
        raise ValueError(f"dtypes is {dtypes}, needs some of {', '.join(map(str, DTYPES))}; others come from values={{...}}")
    axes = _axes(fn, inputs, outputs, sizes, values, blocks)
    whole_sizes = WHOLE if len(axes) < 3 else FEW
    first, made = {name: choices[0] for name, choices in blocks.items()}, {}

    def case(
        draw: Draw, shape: dict, *, block=first, dtype=dtypes[0], packed=False, turned=False, shared="", **more
    ) -> Case:
        shape = shape | dict(sizes)
        fence = None if packed else dict.fromkeys(axes, FENCE)
        fenced = []
        for name, own in inputs.items():
            wanted = [shape[axis] for axis in own]
            if name in values:  # drawn once: integers may say where others are
                x = made[name, *wanted] = made[name, *wanted] if (name, *wanted) in made else values[name](*wanted)
            else:
                x = draw.normal(*wanted)
            if not isinstance(x, torch.Tensor) or list(x.shape) != wanted:
                raise ValueError(f"values[{name!r}] gives {_what(x)} for {name} [{', '.join(own)}], needs {wanted}")
            x = x.to(dtype) if x.is_floating_point() else x
            once = shared if shared in own and len(own) > 1 else ""
            if once:
                x = x.narrow(own.index(once), 0, 1).expand(x.shape)
            fenced.append(Fenced(name, own, x, fence=fence, order=own[::-1] if turned else "", shared=once))
        wide = [x.values.double() if x.values.is_floating_point() else x.values for x in fenced]
        right = _answers(reference, wide, launch, outputs, shape)
        again = []
        for seed in range(0 if dtype == torch.float64 or values.keys() == inputs.keys() else SHIFTS):
            shifted = [_shifted(x, name in values, seed) for name, x in zip(inputs, wide)]
            again.append(_answers(reference, shifted, launch, outputs, shape))
        outs = []
        for (name, own), answer, *others in zip(outputs.items(), right, *again, strict=True):
            empty = torch.empty([shape[a] for a in own], dtype=dtype if answer.is_floating_point() else torch.int32)
            tensor = Fenced(name, own, empty, fence=fence)
            outs.append(Output(tensor, answer.double(), tolerance=tolerance, slack=_slack(answer, others)))
        return Case(fenced, outs, launch=dict(launch) | block, **more)

    def whole(draw: Draw):
        yield case(draw, dict.fromkeys(axes, 32 if len(axes) < 3 else 16), packed=True)

    def strides(draw: Draw):
        shape = {axis: whole_sizes[i % len(WHOLE)] for i, axis in enumerate(axes)}
        yield case(draw, shape, poison=())
        yield case(draw, shape, poison=(), turned=True)
        for axis in axes:
            if any(axis in own and len(own) > 1 for own in inputs.values()):
                yield case(draw, shape, poison=(), shared=axis)

    def ragged(draw: Draw):
        for turn in range(len(RAGGED)):
            yield case(draw, {axis: RAGGED[(turn + i) % len(RAGGED)] for i, axis in enumerate(axes)})

    def long(draw: Draw, dtype):
        for axis in axes:
            if axis not in sizes:
                yield case(draw, dict.fromkeys(axes, 16 if len(axes) < 3 else 4) | {axis: LONG}, dtype=dtype)

    def covered_all(draw: Draw):
        yield from ragged(draw)
        if dtypes[1:]:  # what is wrong at such a length in the first dtype, too, is not the other dtypes' fault
            yield from long(draw, dtypes[0])

    def sized(draw: Draw):
        shape = {axis: ODD[i % len(ODD)] for i, axis in enumerate(axes)}
        for chosen in itertools.product(*blocks.values()):
            yield case(draw, shape, block=dict(zip(blocks, chosen, strict=True)))

    def typed(draw: Draw):
        for dtype in dtypes[1:]:
            yield case(draw, dict.fromkeys(axes, 16), dtype=dtype)
            yield from long(draw, dtype)

    told = "each address is made of the strides of its own tensor"
    def usual(draw: Draw):
        size = 64 if len(axes) < 4 else 16
        for dtype in dtypes[:2]:
            yield case(draw, dict.fromkeys(axes, size), dtype=dtype, packed=True)

    def costed(draw: Draw):
        yield case(draw, {axis: whole_sizes[i % len(WHOLE)] for i, axis in enumerate(axes)}, packed=True)

    most = cheap or (float("inf"), float("inf"))
    limits = Cheap(
        costed,
        lambda case: 1,
        (Tier(1, *most, steps=float("inf")),),
        "each element is loaded as often as its scheme needs, and stored once",
        PAGE,
        sectors=float("inf"),
    )
    covered = "the grid and the loops must cover every element, and masked lanes (other=) must not count"
    held = [Property("whole blocks", 1, PAGE, whole, "the answer is not the formula's")]
    held += [Property("strides", 1, PAGE, strides, told)]
    held += [Property("ragged sizes", 1, PAGE, covered_all, covered)]
    if blocks:
        held.append(Property("block sizes", 1, PAGE, sized, f"the answer depends on {' or '.join(blocks)}"))
    if dtypes[1:]:
        words = "arithmetic in the tensors' dtype loses digits: convert to tl.float32 right after the load"
        held.append(Property("other dtypes", 1, PAGE, typed, words))
    shown = int(runtime.interpreted)  # what addresses show is seen in the interpreter alone
    inside = Property.stays_inside(PAGE, ragged, points=shown)
    order = Property("programs in any order", shown, PAGE, ragged, ORDER, needs="the interpreter", conflicts=True)
    exercise = Exercise(
        name=getattr(fn, "__name__", type(fn).__name__),
        missing="nothing is stored in the outputs yet.",
        properties=(*held, *properties, inside, order),
        suspects=lambda case, out: (),
        unit="properties",
        compiles=Compiles(usual, PAGE, exact=not tf32, points=1),
        cheap=limits if cheap else None,
    )
    verdicts = asked(verdicts)
    worth = sum(points for name, points in exercise.worth.items() if name in verdicts)
    good = _check(exercise, fn, seed=seed, grading=False, verdicts=verdicts) == worth
    if good and not cheap and "cheap" in verdicts:
        (call,) = costed(Draw(f"{seed}, cost", False))
        found = cost(limits, call, call.traced(Submission(fn)).launches)
        said = f"loads ask for {found.read:.3g} times the inputs' bytes, stores write {found.written:.3g} times the outputs'"
        say(f"not judged: cheap ({said}; cheap=({found.read:.3g}, {found.written:.3g}) holds it to that)")
    return good


def _axes(fn, inputs, outputs, sizes, values, blocks) -> list[str]:
    """The axes' letters, of arguments that fit each other; else ``ValueError``."""
    if _triton_private.is_kernel(fn):
        name = fn.fn.__name__
        raise ValueError(f"fn is the kernel {name}, needs a function that launches it: fn(*inputs, *outputs) -> None")
    if not outputs:
        raise ValueError("outputs names nothing: needs the tensors that fn stores, name → axes")
    for name, own in (*inputs.items(), *outputs.items()):
        if not isinstance(own, str) or len(set(own)) < len(own):
            raise ValueError(f"{name} has axes {own!r}, needs letters in a text, each once; sizes={{...}} makes two equal")
    if both := inputs.keys() & outputs.keys():
        name = min(both)
        raise ValueError(
            f"{name} is an input and an output, and fn gets each tensor once. Of a kernel that works in place check a copy: "
            f"def fn({name}, out): out.copy_({name}); ..."
        )
    axes = sorted(set("".join([*inputs.values(), *outputs.values()])))
    if unknown := [f"{name} = {size}" for name, size in sizes.items() if name not in axes]:
        raise ValueError(f"sizes names {', '.join(unknown)}, the tensors have the axes {', '.join(axes)}")
    if unknown := [name for name in values if name not in inputs]:
        raise ValueError(f"values names {', '.join(unknown)}, the inputs are {', '.join(inputs)}")
    for name, choices in blocks.items():
        if not isinstance(choices, (tuple, list, range)) or not choices:
            raise ValueError(f"blocks[{name!r}] is {choices!r}, needs the values to try, a tuple")
    return axes


def _answers(reference, inputs, launch, outputs, shape) -> list[torch.Tensor]:
    """What the reference gives, a tensor for each output; ``ValueError`` where it gives something else."""
    try:
        right = reference(*(x.clone() for x in inputs), **launch)
    except Exception as error:
        given = ", ".join(["float64 tensors"] + [f"{name}={value!r}" for name, value in launch.items()])
        raise ValueError(f"reference fails on {given}: {type(error).__name__}: {error}") from error
    if isinstance(right, Mapping):
        if right.keys() != outputs.keys():
            raise ValueError(f"reference gives {', '.join(map(str, right))}, the outputs are {', '.join(outputs)}")
        right = [right[name] for name in outputs]
    right = list(right) if isinstance(right, (tuple, list)) else [right]
    if len(right) != len(outputs):
        raise ValueError(f"reference gives {len(right)} outputs, needs {len(outputs)}: {', '.join(outputs)}")
    for (name, own), answer in zip(outputs.items(), right, strict=True):
        wanted = [shape[axis] for axis in own]
        if isinstance(answer, torch.Tensor) and answer.is_complex():
            raise ValueError(f"reference gives complex numbers for {name}, needs real ones (torch.view_as_real)")
        if not isinstance(answer, torch.Tensor) or list(answer.shape) != wanted:
            raise ValueError(
                f"reference gives {_what(answer)} for {name} [{', '.join(own)}], needs {wanted}; "
                "an axis that it fixes is pinned by sizes={...}"
            )
    return right


def _what(value) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:80]


def _shifted(x, given, seed) -> torch.Tensor:
    """An input that differs by what float32 rounds away, unless it was given."""
    if given:
        return x
    generator = torch.Generator().manual_seed(seed)
    return x * (1 + ROUNDING * torch.randn(x.shape, generator=generator, dtype=torch.float64, device="cpu"))


def _slack(answer, others) -> torch.Tensor:
    """What the inputs' rounding does to each element: of a number some times over, and never more than a thousandth of
    their size; of an integer where few are at a step, such as a rounded one, but not where all are, such as a maximum's place
    among equals."""
    answer = answer.double()
    spread = torch.stack([torch.zeros_like(answer), *((other.double() - answer).abs() for other in others)]).amax(0)
    if not others or not others[0].is_floating_point():
        return spread * ((spread != 0).sum() <= 1 + answer.numel() // 50)
    size = answer.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt().item() if answer.numel() else 0.0
    return (8 * spread).nan_to_num(0.0, 0.0, 0.0).clamp(max=1e-3 * max(1.0, size))
