"""What is wrong with a call, and why: its answer, the surroundings of its tensors, and its addresses are looked at."""

from typing import NamedTuple

# Functions, not modules: what a later cell of the notebook assigns to `numpy.isnan` or `torch.equal` changes no check.
from numpy import argwhere, array_equal, intersect1d, isfinite, union1d

from kernels import runtime
from kernels.check.explanations import explain_race
from kernels.check.replay import NO_KERNEL
from kernels.check.tensors import NAN, UNTOUCHED
from kernels.lab.trace import Undefined

NOTHING = "nothing is stored"
TOO_NARROW = "an index times its stride passes 2**31 there, and wraps around in 32 bits: tl.cast(index, tl.int64) * stride"
NOT_CLEARED = "nobody has cleared the output, and garbage plus a number is garbage"


class Finding(NamedTuple):
    """One failure: where, how much, and the likely cause."""

    where: str
    amount: str
    cause: str


def judge(exercise, item, submission, case) -> Finding | None:
    """Compare one call with its answers, and look for the cause of a difference."""
    out_of_bounds, bare = [], []
    if runtime.interpreted:
        seen = case.traced(submission, poison=0.0)
        run, out_of_bounds = seen.run, seen.out_of_bounds
        bare = [] if out_of_bounds else seen.undefined
        if run.stored and not seen.stored:
            return Finding(NO_KERNEL, f"with {case.sizes}", "something else filled the output")
        for beyond in out_of_bounds:
            if beyond.far:  # performing it could end the process
                where = f"a {beyond.kind} reaches far outside {beyond.tensor}"
                narrow = Finding(where, f"`{beyond.source}` (with {case.sizes})", TOO_NARROW)
                if not any(tensor.far for tensor in case.tensors):
                    return narrow._replace(cause=item.otherwise)
                with case.near():  # a mask may be missing, too
                    return judge(exercise, item, submission, case) or touches(exercise, item, submission, case) or narrow
    if out_of_bounds or not runtime.interpreted:
        run = case.run(submission)
    if run.changed:
        names = " and ".join(run.changed)
        return Finding(f"{names} changed", f"with {case.sizes}", f"the kernel stores into {names}, which is an input")
    judged = [out for out in case.outs if out.expected is not None]
    empty = [out for out in judged if out.answer.size and not run.seen[out.name].stored.any()]
    garbage = [*empty, *(out for out in judged if _on_garbage(out, run))]
    lines = _lines(case, seen.launches) if garbage and runtime.interpreted else {}
    for out in garbage:
        updated, stored, loaded = (lines.get(out.name, {}).get(kind) for kind in ("atomic", "store", "load"))
        if updated and not stored:
            where, amount = f"{out.name} is only updated, never stored", f"`{updated}` (with {case.sizes})"
            return Finding(where, amount, f"{NOT_CLEARED}: each program stores its own elements")
        if loaded and stored:
            where = f"{out.name} is loaded before anything is stored there"
            return Finding(where, f"`{loaded}` (with {case.sizes})", NOT_CLEARED)
    if any(out.answer.size for out in judged) and not run.stored and not any(s.spilled for s in run.seen.values()):
        return Finding(NOTHING, f"with {case.sizes}", _idle(seen.launches) if runtime.interpreted else _UNREACHED)
    findings = (_judge_output(exercise, item, submission, case, out, run.seen[out.name], out_of_bounds) for out in judged)
    found = next(filter(None, findings), None)
    if found and bare and _enter(submission, case, judged, run):
        guess = found.cause == item.otherwise
        return found._replace(cause=without_other(bare) + (f". And {found.cause}" if not guess else ""))
    return (
        found
        or (_undefined(submission, case, judged, bare) if bare else None)
        or (_exponents(item, case, seen.launches) if item.exponents and runtime.interpreted else None)
        or (_races_inside(case, seen.launches) if runtime.interpreted else None)
    )


_UNREACHED = "no tl.store reaches the output"


def _awaited(case) -> bool:
    """Whether there is anything to store."""
    return any(out.tensor.view.numel() for out in case.outs)


def _idle(launches) -> str:
    """Why nothing is stored: the grid may have no programs."""
    grid = next((launch.grid for launch in launches if 0 in launch.grid), None)
    return f"the grid {tuple(grid)} has no programs: triton.cdiv rounds up, // rounds down" if grid else _UNREACHED


def _lines(case, launches) -> dict[str, dict[str, str]]:
    """Tensor -> "load", "store", "atomic" -> the first line that does it."""
    lines = {}
    for launch in launches:
        for access in launch.accesses:
            if tensor := case.tensor_of(launch.operands.get(access.tensor)):
                lines.setdefault(tensor.name, {}).setdefault(access.kind, access.source)
    return lines


def _on_garbage(out, run) -> bool:
    """Whether integers stand in an output that are what stood there before, and a little."""
    seen = run.seen[out.name]
    return not out.tensor.flat.is_floating_point() and bool((seen.stored & (abs(seen.got - UNTOUCHED) < 1 << 20)).any())


def _exponents(item, case, launches) -> Finding | None:
    """Look for an exponential of a number above 0, whatever becomes of it."""
    largest = max((launch.largest_exponent for launch in launches), default=0.0)
    if largest <= 1e-3:
        return None
    where = f"the exponential of {largest:.3g} is taken"
    hidden = "a tl.where around an exponential comes too late, since inf · 0 is NaN in every gradient: cut the exponent"
    return Finding(where, f"with {case.sizes}", f"{item.not_finite}; {hidden}")


def _races_inside(case, launches) -> Finding | None:
    """Look for races between lanes of one program: the interpreter runs all lanes at once, so no answer shows them."""
    for launch in launches:
        for race in launch.races_inside:
            operand = launch.operands[race.tensor]
            tensor = case.tensor_of(operand)
            where, lines, why = explain_race(race, operand, tensor.name if tensor else "")
            return Finding(where, f"{lines} (with {case.sizes})", why)
    return None


def _undefined(submission, case, judged, bare) -> Finding | None:
    """Look for outputs that are right only as long as the masked lanes of the ``bare`` loads hold the interpreter's 0."""
    for poison in Undefined.POISONS:
        seen = case.traced(submission, poison).run.seen
        for out in judged:
            bad = out.wrong(seen[out.name].got)
            if bad.any():
                amount = amount_wrong(case, out, seen[out.name], bad)
                return Finding(where_wrong(out, bad), amount, without_other(bare))
    return None


def _enter(submission, case, judged, run) -> bool:
    """Whether what undefined lanes hold enters an answer, which held 0 in ``run``."""
    for poison in Undefined.POISONS:
        seen = case.traced(submission, poison).run.seen
        if any(not array_equal(seen[out.name].got, run.seen[out.name].got, equal_nan=True) for out in judged):
            return True
    return False


def without_other(lines: list[str]) -> str:
    """The cause of an answer that is right only as long as masked lanes happen to hold 0."""
    name = f"`{lines[0]}`" + f" (and {len(lines) - 1} more)" * (len(lines) > 1)
    return f"{name}: `other` is missing. What a masked lane holds is undefined on a GPU, and poison here"


def _judge_output(exercise, item, submission, case, out, seen, out_of_bounds) -> Finding | None:
    """Compare one output with its answer, and look for the cause of a difference."""
    bad = out.wrong(seen.got)
    if not bad.any() and not out.unstored(seen).any() and not seen.spilled:
        return None
    if out.answer.size and not seen.stored.any() and not seen.spilled:
        return Finding(f"nothing is stored in {out.name}", f"with {case.sizes}", f"no tl.store reaches {out.name}")

    where, amount = where_wrong(out, bad), amount_wrong(case, out, seen, bad)
    clean = case.run(submission, only={}).seen[out.name]
    if not out.wrong(clean.got).any():
        reached = {(beyond.tensor, beyond.axis, beyond.side) for beyond in out_of_bounds}
        causes = [
            exercise.unmasked("load", tensor.name, axis, side)
            for tensor in case.inputs
            for axis, side in tensor.ends()
            if bad.any() and (case.poison is None or (axis, side) in case.poison)
            if not reached or (tensor.name, axis, side) in reached
            if exercise.mask(tensor.name, axis, side)
            if out.wrong(case.run(submission, only={tensor.name: [(axis, side)]}).seen[out.name].got).any()
        ]
        if bad.any() and not causes:
            causes = ["a load reads outside its tensor, and what it finds there enters the answer"]
        causes += [
            exercise.unmasked("store", out.name, axis, side)
            for axis, side in seen.spilled
            if exercise.mask(out.name, axis, side)
        ] or ["a store reaches outside its tensor"] * bool(seen.spilled)
        if not bad.any():
            where, amount = f"elements outside {out.name} were overwritten", f"with {case.sizes}"
        return Finding(where, amount, "; ".join(dict.fromkeys(causes)))

    for cause, answer in exercise.suspects(case, out):
        if not out.wrong(clean.got, out.array(answer)).any():
            return Finding(where, amount, cause)
    masked = any(exercise.mask(out.name, *end) for end in seen.spilled if end[0])
    if out.unstored(seen).any() and not masked:  # with a mask missing, that is it
        elsewhere = "they are stored past an end of the tensor" if seen.spilled else "no program stores them"
        return _never_stored(case, out, out.unstored(seen), elsewhere)
    if item.not_finite and not isfinite(clean.got[isfinite(out.answer)]).all():
        return Finding(where, amount, item.not_finite)
    if 0.02 < bad.mean() < 0.98 and _fractions_cut(case, out, clean.got, bad):
        return Finding(where, amount, "each is one nearer to 0: .to(an integer) cuts the fraction off, floor(x + 0.5) rounds")
    factor = clean.got.sum() / out.answer.sum() if out.answer.sum() else NAN
    if not clean.got.any():
        return Finding(where, amount, "every element is 0: is what is added up ever loaded, and stored in the end?")
    if 0.01 < abs(factor - 1) < float("inf") and not out.wrong(clean.got, factor * out.answer).any():
        return Finding(where, amount, f"every element is {factor:.3g} times what it should be")
    return Finding(where, amount, item.otherwise)


def _fractions_cut(case, out, got, bad) -> bool:
    """Whether integers are made of numbers with fractions, and each wrong one is one nearer to zero than it should be."""
    if out.tensor.flat.is_floating_point() or not any(t.flat.is_floating_point() for t in case.inputs):
        return False
    answer = out.answer
    return bool((abs(answer[bad]) - abs(got[bad]) == 1).all() and (got[bad] * answer[bad] >= 0).all())


def touches(exercise, item, submission, case) -> Finding | None:
    """Look at the addresses that one call touches: all must lie inside their tensors."""
    seen = case.traced(submission)
    run, out_of_bounds = seen.run, seen.out_of_bounds
    if not run.stored and _awaited(case):
        return Finding(NOTHING, f"with {case.sizes}", _UNREACHED)
    if not out_of_bounds:
        return None
    causes = {}
    for kind, tensor, axis, side, _, _ in out_of_bounds:
        causes[exercise.unmasked(kind, tensor, axis, side) or item.otherwise] = None
    first = out_of_bounds[0]
    where = f"a {first.kind} reaches outside {first.tensor}"
    cause = item.otherwise if item.otherwise in causes else "; ".join(causes)
    return Finding(where, f"`{first.source}` (with {case.sizes})", cause)


def conflicts(exercise, item, submission, case) -> Finding | None:
    """Look for elements that one program of a launch stores and another reads: the answer hangs on their order.

    Not judged: what several only store, which is all the same or a wrong answer; and launches with atomics on another
    tensor, by which programs may agree on an order (a lock, the last one to arrive) that no trace shows.
    """
    traced = case.traced(submission)
    if not traced.run.stored and _awaited(case):
        return Finding(NOTHING, f"with {case.sizes}", _UNREACHED)
    for launch in traced.launches:
        for name in launch.operands:
            read = union1d(launch.elements(name, "load"), launch.elements(name, "atomic"))
            found = intersect1d(launch.conflicts(name), read, assume_unique=True)
            if not len(found) or any(len(launch.elements(other, "atomic")) for other in launch.operands if other != name):
                continue
            tensor = case.tensor_of(launch.operands[name])
            name = tensor.name if tensor else name.removesuffix("_ptr")
            some = f"{len(found)} element{'s' * (len(found) > 1)} of {name}"
            where = f"one program stores {some} and another touches {'them' if len(found) > 1 else 'it'}"
            return Finding(where, f"with {case.sizes}", item.otherwise)
    return None


def shares(exercise, item, submission, case) -> Finding | None:
    """Look for elements of an output that several programs of one launch update, atomically or by load and store."""
    traced = case.traced(submission)
    if not traced.run.stored:
        return Finding(NOTHING, f"with {case.sizes}", _UNREACHED)
    written = set()
    for launch in traced.launches:
        for name, operand in launch.operands.items():
            out = next((out for out in case.outs if out.tensor is case.tensor_of(operand)), None)
            if out is None:
                continue
            if len(launch.elements(name, "store")) or len(launch.elements(name, "atomic")):
                written.add(out.name)
            shared = union1d(launch.elements(name, "atomic", programs=2), launch.conflicts(name))
            if len(shared):
                where = f"{len(shared)} of {out.answer.size} elements of {out.name} are updated by several programs"
                return Finding(where, f"with {case.sizes}", item.otherwise)
    unwritten = [out.name for out in case.outs if out.answer.size and out.name not in written]
    where = f"no Triton kernel stores {' and '.join(unwritten)}"
    return Finding(where, f"with {case.sizes}", "something else filled it") if unwritten else None


def _never_stored(case, out, missing, why) -> Finding:
    places = argwhere(missing)
    extent, axes = (places.max(axis=0) - places.min(axis=0) + 1).tolist(), out.tensor.axes
    axes = [axis for axis, n, size in zip(axes, extent, missing.shape) if n < size] or list(axes)
    cause = f"{why}: look at grid, offsets, strides and mask along {' and '.join(axes)}"
    return Finding(f"{_box(out, missing)} {_is(missing)} never stored", f"with {case.sizes}", cause)


def where_wrong(out, bad) -> str:
    """Which elements of an output are wrong."""
    return f"{_box(out, bad)} {_is(bad)} wrong"


def _is(bad) -> str:
    return "is" if int(bad.sum()) == 1 else "are"


def _box(out, bad) -> str:
    """The wrong elements as one block of indices where they fill it, else their number and the first of them."""
    places = argwhere(bad)
    if not len(places):
        return f"{out.name}[]"
    low, high = places.min(axis=0).tolist(), places.max(axis=0).tolist()
    volume = 1
    for first, last in zip(low, high):
        volume *= last - first + 1
    if volume == len(places):
        inside = ", ".join(str(first) if first == last else f"{first}..{last}" for first, last in zip(low, high))
        return f"{out.name}[{inside}]"
    first = ", ".join(str(i) for i in places[0].tolist())
    return f"{len(places)} of {bad.size} elements, the first {out.name}[{first}],"


def amount_wrong(case, out, seen, bad) -> str:
    """What the first of them is, what it should be, and the call's sizes."""
    places = argwhere(bad)
    if not len(places):
        return f"with {case.sizes}"
    first = tuple(places[0].tolist())
    value, answer = float(seen.got[first]), float(out.answer[first])
    got, expected = f"{value:.3g}" if seen.stored[first] else "nothing stored", f"{answer:.3g}"
    error = f", a relative error of {abs(value / answer - 1):.0e}" if got == expected != "0" else ""
    return f"got {got}, expected {expected}{error} (with {case.sizes})"
