"""A derivation's check: the learner's formula in plain PyTorch, beside autograd's gradient, before a kernel is written."""

from collections.abc import Callable

import torch

from kernels.check.cases import Case, Output
from kernels.check.explanations import explain
from kernels.check.framework import Draw, Exercise
from kernels.check.say import say


def derivation(exercise: Exercise, fn: Callable, seed: int | None = 0) -> bool:
    """Hold ``fn(*inputs, **launch)``, which returns the output in float64, to every case of ``exercise``; print one line.

    Block sizes are no part of a formula and are not passed. Autograd is off: the formula is to be derived. Returns whether it
    is right; a wrong one is explained, never raised.
    """
    said, cases = "", 0
    for item in exercise.properties:
        for case in item.cases(Draw(f"{seed}, {exercise.name}, {item.name}", False)):
            if item.addresses or item.needs or case.inputs[0].values.dtype != torch.float32:
                continue  # what memory holds, and how it is rounded, is the kernel's business
            said, cases = _wrong(exercise, fn, case), cases + 1
            if said:
                say(f"{'missing' if said.startswith('the function returns nothing') else 'not yet'}: {said}")
                return False
    say(f"right: the formula gives autograd's {case.outs[0].name} in all of {cases} cases.")
    return True


def _wrong(exercise: Exercise, fn: Callable, case: Case) -> str:
    launch = {name: value for name, value in case.launch.items() if not name.startswith("BLOCK")}
    (out,) = case.outs
    sizes = f"with {case.sizes}"
    try:
        with torch.inference_mode():
            got = fn(*(tensor.values.double() for tensor in case.inputs), **launch)
    except Exception as raised:
        said, means = explain(raised)
        return f"{said} ({sizes}): {means}."
    if got is None:
        return "the function returns nothing yet."
    if not isinstance(got, torch.Tensor) or got.shape != out.answer.shape:
        shape = list(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
        return f"the result is {shape}, it must be {list(out.answer.shape)} ({sizes})."
    bad = out.wrong(out.array(got))
    if not bad.any():
        return ""
    first = tuple(torch.from_numpy(bad).nonzero()[0].tolist())
    place = ", ".join(map(str, first))
    cause = _cause(exercise, case, out, got)
    return f"{out.name}[{place}] is {got[first]:.3g}, autograd has {out.answer[first]:.3g} ({sizes}): {cause}."


def _cause(exercise: Exercise, case: Case, out: Output, got: torch.Tensor) -> str:
    for cause, answer in exercise.suspects(case, out):
        if not out.wrong(out.array(got), out.array(answer)).any():
            return cause
    factor = (got.sum() / out.answer.sum()).item() if out.answer.sum() else 0.0
    if abs(factor) > 1e-6 and not out.wrong(out.array(got), factor * out.answer).any():
        return f"every element is {factor:.3g} times what it should be"
    return "follow one element of the input forward: into which outputs does it go, and with which weight"
