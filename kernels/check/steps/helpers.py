"""What several steps need: run an answer where no address can do harm, and say in a sentence what came out wrong.

A step reads, for example,

    @step("01-guard", "which lanes exist")
    def guard(answer):
        mask = block(answer, torch.arange(8), 5)                        # a Triton helper fn(offs, N)
        return difference("mask", mask, torch.arange(8) < 5)

    @step("01-reverse", "a copy that runs backwards")
    def reverse(kernel):
        x, out = strided(values(13)), empty(13)
        launch(kernel, (4,), x, out, 13, x.stride(0), BLOCK=4)          # a wild address is a sentence, no dead process
        return difference("out", out, x.flip(0))

``block``, ``launch`` and ``call`` raise :class:`Diagnosis` where there is nothing to return; ``check.step`` prints it.
On a GPU, ``launch`` and ``call`` start a process for each launch: two or three a step are enough.
"""

import ast
import inspect
import linecache
import textwrap
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.check.explanations import CHECKS_OWN
from kernels.check.guard import races
from kernels.check.steps import Diagnosis, described, note_launch
from kernels.lab.accesses import Trace
from kernels.lab.source import readable
from kernels.lab.trace import trace

__all__ = [
    "Diagnosis",
    "block",
    "call",
    "calls_of",
    "described",
    "difference",
    "empty",
    "growing",
    "launch",
    "outside",
    "said_by_model",
    "strided",
    "values",
]


def values(*shape: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    """Normal values on the device where kernels run, the same each time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(runtime.device)


def empty(*shape: int, dtype=torch.float32) -> torch.Tensor:
    """An output to be filled, full of NaN (of −7 where it holds integers), so that what was never stored shows."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -7, dtype=dtype, device=runtime.device)


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values in a larger memory, each stride unlike a packed tensor's; what lies between is NaN (or −7)."""
    room = empty(*(2 * n + 1 for n in x.shape), dtype=x.dtype)
    view = room[tuple(slice(0, 2 * n, 2) for n in x.shape)]
    return view.copy_(x)


def block(helper, *arguments, shape: Sequence[int] | None = None, results: int = 1):
    """Call a Triton helper inside a kernel of one program, and return the block that it returns.

    helper: the learner's ``@triton.jit`` function.
    arguments: a tensor becomes a block of its shape (each length a power of two; int64 becomes int32, as ``tl.arange``
        is), a number stays a number, and ``tl.constexpr(8)`` is known at compile time.
    shape: of the result, where it is not the one that the tensors broadcast to.
    results: how many blocks the helper returns, all of this shape; several come back as a tuple.

    Returns float64 on the CPU, in which booleans are 0 and 1 and integers exact. Raises ``Diagnosis`` if ``helper`` is no
    Triton function; what it raises itself comes through, for ``check.step`` to explain.
    """
    _require_kernel(helper)
    parameters, lines, call, given = [], [], [], []
    namespace = {"__name__": "kernels.check.steps.generated", "tl": tl, "triton": triton, "HELPER": helper}
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            tensor = argument.to(torch.int32) if argument.dtype == torch.int64 else argument
            given.append(tensor.contiguous().to(runtime.device))
            parameters.append(f"input_{i}")
            lines.append(f"    block_{i} = tl.load(input_{i} + {_offsets(tensor.shape)})")
            call.append(f"block_{i}")
        elif isinstance(argument, tl.constexpr) or argument is None:
            namespace[f"CONSTANT_{i}"] = tl.constexpr(getattr(argument, "value", argument))
            call.append(f"CONSTANT_{i}")
        else:
            given.append(argument)
            parameters.append(f"number_{i}")
            call.append(f"number_{i}")
    blocks = [tuple(argument.shape) for argument in arguments if isinstance(argument, torch.Tensor)]
    shape = tuple(torch.broadcast_shapes(*blocks)) if shape is None else tuple(shape)
    names = [f"result_{i}" for i in range(results)]
    outs = [torch.full(shape, float("nan"), dtype=torch.float64, device=runtime.device) for _ in names]
    offsets = _offsets(shape)
    lines.append(f"    {', '.join(names)} = HELPER({', '.join(call)})")
    # What a helper returns may be a number or one row: adding it to zeros gives it the shape that is asked for.
    lines += [f"    tl.store(out_{name} + {offsets}, tl.zeros({list(shape)}, tl.float64) + {name})" for name in names]
    header = f"def run({', '.join([*parameters, *(f'out_{name}' for name in names)])}):"
    kernel = _kernel("\n".join(["@triton.jit", header, *lines, ""]), namespace)
    try:
        kernel[(1,)](*given, *outs)
        note_launch(kernel, *given, *outs)
    except Exception as raised:
        root = raised
        while root.__cause__ is not None:
            root = root.__cause__
        name = described(helper).removeprefix("the function ")
        if "NoneType" in str(root) and not _inside(raised, helper):
            raise Diagnosis(f"{name} returns nothing: its last line must be `return …`.") from None
        raise
    answers = tuple(out.cpu() for out in outs)
    return answers[0] if results == 1 else answers


def launch(kernel, grid, *arguments, out_of_bounds: bool = False, **constants) -> Trace:
    """Launch a learner's kernel with every access looked at before it happens; returns the ``Trace`` of it.

    The tensors are written as by any launch, but what lies outside a tensor is neither read nor written. Unless
    ``out_of_bounds``, such an access raises the ``Diagnosis`` that names it. Put tensors on ``kernels.runtime.device``.
    """
    _require_kernel(kernel)
    recorded = trace(kernel, grid, *arguments, **constants)
    note_launch(kernel, *arguments, **constants)
    _hold(recorded, out_of_bounds)
    return recorded


def call(function, *arguments, out_of_bounds: bool = False, **keywords):
    """Call a learner's Python function that launches kernels, looked at like ``launch``; (what it returns, the ``Trace``)."""
    if not callable(function):
        raise Diagnosis(f"A function is asked for here, and this is {described(function)}.")
    with trace.recording() as recorded:
        returned = function(*arguments, **keywords)
    _hold(recorded, out_of_bounds)
    return returned, recorded


def _hold(recorded: Trace, out_of_bounds: bool) -> None:
    """Raise the ``Diagnosis`` of an access outside its tensor, unless ``out_of_bounds``, or of a race inside a program."""
    if said := ("" if out_of_bounds else outside(recorded)) or next(iter(races(recorded)), ""):
        raise Diagnosis(said)


def outside(recorded: Trace) -> str:
    """A sentence on the first access outside its tensor, and how many there are; empty if there is none."""
    out_of_bounds = recorded.outside()
    if not out_of_bounds:
        return ""
    first = out_of_bounds[0]
    program = first.program[: max(len(recorded.launches[0].grid), 1)]
    program = program[0] if len(program) == 1 else tuple(program)
    verb = {"load": "reads", "store": "writes", "atomic": "updates"}[first.kind]
    if first.tensor is None:
        what = f"{verb} at an address that no tensor leads to"
    else:
        size = next(launch.operands[first.tensor] for launch in recorded.launches if first.tensor in launch.operands)
        at = int(first.outside[0])
        where = f"{-at} before its first" if at < 0 else f"{at} after its first"
        lanes = f"{first.outside.size} lane{'s' * (first.outside.size > 1)}"
        name = first.tensor.removesuffix("_ptr")
        what = f"{verb} outside {name} {list(size.shape)}, with {lanes}, the first at the element {where}"
    more = f" ({len(out_of_bounds)} accesses do so)" if len(out_of_bounds) > 1 else ""
    return f"Program {program} {what}{more}: `{first.source}`."


def difference(name: str, got, expected, *, tolerance: float = 1e-5) -> str:
    """What is wrong with ``got``, in a sentence that names the first wrong element; empty if nothing is.

    got, expected: tensors, lists or numbers. An element is wrong where it is further from ``expected`` than ``tolerance``
    times its size and the root mean square of all. NaN is wrong, except where it is expected.
    """
    if got is None:
        return f"{name} is None: the function returns nothing."
    try:
        got = torch.as_tensor(got).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        return f"{name} is {described(got)}, and numbers are asked for."
    expected = torch.as_tensor(expected).detach().cpu().double()
    if got.shape != expected.shape:
        return f"{name} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}."
    finite = expected[expected.isfinite()]
    scale = finite.square().mean().sqrt() if finite.numel() else 0.0
    near = (got - expected).abs() <= tolerance * (expected.abs() + scale)
    near = (near & expected.isfinite()) | (got == expected)
    wrong = ~(near | (got.isnan() & expected.isnan()))
    if not wrong.any():
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    element = f"{name}[{', '.join(map(str, place))}]" if place else name
    ours, theirs = _number(got[place], expected[place])
    said = f"{element} is {ours}, expected {theirs}"
    if int(wrong.sum()) == 1 or not place:
        return f"{said}."
    return f"{said} ({int(wrong.sum())} of {wrong.numel()} elements are wrong, this one first)."


def growing(decays) -> str:
    """A sentence on the first entry of a matrix of decays that is above 1, by more than rounding; empty if none is."""
    above = (decays > 1 + 1e-5).nonzero().tolist()
    if not above:
        return ""
    t, s = above[0]
    return f"Entry [{t}, {s}] is {float(decays[t, s]):.3g}, and no decay is above 1: its exponent is no sum of gates"


def calls_of(helper, *names: str):
    """Calls of ``tl.name`` and of ``name`` in a helper's source, each with its text; none where there is no source."""
    try:
        source = textwrap.dedent(inspect.getsource(getattr(helper, "fn", helper)))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) in names:
            yield node, ast.get_source_segment(source, node)


def _number(*numbers) -> list[str]:
    """Numbers in few digits, in more where few would make two of them the same; integers in all of theirs."""
    if all(float(number).is_integer() for number in numbers):
        return [f"{number.item():.0f}" for number in numbers]
    for digits in (3, 6, 9, 17):
        texts = [f"{number.item():.{digits}g}" for number in numbers]
        if len(set(texts)) == len(texts):
            break
    return texts


def _require_kernel(kernel) -> None:
    if not hasattr(kernel, "run") or not hasattr(kernel, "fn"):
        name = described(kernel)
        raise Diagnosis(f"A Triton function is asked for here, and this is {name}: is it decorated with @triton.jit?")


def _offsets(shape) -> str:
    """The text of the row-major offsets of a block of this shape."""
    shape = tuple(shape)
    if any(n & (n - 1) or not n for n in shape):
        raise ValueError(f"a block of shape {shape}: each length must be a power of two")
    parts = []
    for i, n in enumerate(shape):
        index = ", ".join(":" if j == i else "None" for j in range(len(shape)))
        step = 1
        for later in shape[i + 1 :]:
            step *= later
        parts.append(f"tl.arange(0, {n}){f'[{index}]' if len(shape) > 1 else ''} * {step}")
    return "(" + (" + ".join(parts) or "0") + ")"


def _kernel(source: str, namespace: dict):
    filename = f"{CHECKS_OWN} {len(linecache.cache)}>"
    exec(readable(source, filename), namespace)
    return namespace["run"]


def _inside(raised: BaseException, helper) -> bool:
    """Whether an error comes from a line of the helper itself."""
    filename = helper.fn.__code__.co_filename
    while raised is not None:
        at = raised.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename == filename:
                return True
            at = at.tb_next
        raised = raised.__cause__
    return False


def said_by_model(result, right: bool, causes: dict[str, str], case: str) -> str:
    """What a run on the model of Gluon says against an answer, as a sentence, or an empty string.

    Args:
        result: of ``gluon_model.run``.
        right: whether its numbers are.
        causes: kind of finding -> what in the answer leads to it; the first that was found is named.
        case: what was run, as "3 buffers".
    """
    kinds = [finding.kind for finding in result.findings]
    if kinds:
        first = next((kind for kind in causes if kind in kinds), kinds[0])
        finding = next(finding for finding in result.findings if finding.kind == first)
        said = " ".join(str(finding).split("\n")[0].split())
        cause = f"{causes[first]}. " if first in causes else ""
        return f"{cause}The model's finding, with {case}: {said}"
    if not result.completed or not right:
        return f"With {case} the model finds nothing, and the numbers are wrong"
    return ""
