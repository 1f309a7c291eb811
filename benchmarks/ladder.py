"""The lessons' own kernels on this GPU, one rung for each idea: ``python -m benchmarks.ladder 05 11 12``.

A ladder runs what the cells of its notebooks that are tagged ``ladder`` define, so what is timed is what the reader has
read. Every rung is held to a reference before it is timed, its outputs filled with NaN first; rungs and peers take turns
call by call. A rung that hangs or crashes is left out, and named.
"""

import argparse
import functools
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import harness
from tools.cells import execute
from tools.lesson_kernels import with_answers

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
RUNNING = "LADDER_RUNNING"  # environment variable: a file in which a child says what it is running


@dataclass(frozen=True)
class Rung:
    """One launch of a lesson's function, or of the finished operator, and the idea that it adds.

    run(names, tensors): names is the namespace of the tagged cells; tensors what the ladder made.
    outputs: names of the tensors it writes; for a function that returns them, ``run`` returns a dict of them instead.
    finished: it is the package's operator, not the lesson's.
    """

    label: str
    idea: str
    run: Callable
    outputs: tuple[str, ...] = ("out",)
    tolerance: float = 2e-2
    finished: bool = False


@dataclass(frozen=True)
class Peer:
    """Somebody else's kernel for the same problem: ``run(tensors)``, which returns a dict of outputs or writes them."""

    label: str
    run: Callable
    outputs: tuple[str, ...] = ("out",)
    tolerance: float = 2e-2
    version: Callable[[], str] = lambda: f"torch {torch.__version__}"


@dataclass(frozen=True)
class Sweep:
    """One of the lesson's functions with a parameter turned: ``run(names, tensors, value)``."""

    name: str
    idea: str
    values: tuple
    run: Callable
    outputs: tuple[str, ...] = ("out",)
    tolerance: float = 2e-2


@dataclass(frozen=True)
class Ladder:
    """One problem, and the rungs that climb to its limit.

    tensors(device): a dict of named tensors. reference(tensors): the answers, by the outputs' names.
    flops, bytes: the least that the problem asks for. limit: "copy" or "matmul", the ceiling of the last line: the rate of
        torch's largest copy or matrix product in this run, or of the fastest rung or peer where that is faster.
    notebooks: numbers of the lessons whose tagged cells are run; the lesson's own unless told.
    scratch: names of tensors that rungs write besides their outputs.
    seconds: what a rung may take with its compilation, and a round of timing; then its process is ended.
    tiny: the same ladder, small enough for the interpreter; ``None`` if its kernels cannot run there.
    """

    lesson: str
    kernel: str
    shape: dict
    dtype: str
    tensors: Callable
    reference: Callable
    flops: int
    bytes: int
    limit: str
    rungs: list[Rung]
    peers: list[Peer] = ()
    sweeps: list[Sweep] = ()
    notebooks: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
    seconds: int = 60
    tiny: Callable[[], "Ladder"] | None = None


def find(lesson: str) -> Ladder:
    """The ladder that ``benchmarks/ladders/lesson_NN.py`` declares."""
    return importlib.import_module(f"benchmarks.ladders.lesson_{lesson}").LADDER


def namespace(numbers) -> dict:
    """What the setup cells run, and what the cells tagged ``ladder`` of these lessons define, answers in their places."""
    names = {"__name__": "__main__"}
    for number in numbers:
        (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
        for cell in with_answers(path).cells:
            whole = cell.id == "setup"
            if whole or "ladder" in cell.metadata.get("tags", []):
                execute(cell.source, names, whole=whole, name=f"<{path.stem}, cell {cell.id}>")
    return names


def differentiated(operator, inputs, outputs, gradient, few=slice(None)):
    """A rung's or a peer's call: the gradients of ``operator(*names, *inputs)`` by autograd, ``few`` of each.

    The forward pass runs once on each stream, outside of what is timed. inputs, outputs, gradient: names of tensors.
    """
    kept = {}

    def run(*given):
        *names, t = given
        there = t[gradient]
        stream = torch.cuda.current_stream() if there.is_cuda else None
        if stream not in kept:
            leaves = [t[name].detach().requires_grad_() for name in inputs]
            kept[stream] = leaves, operator(*names, *leaves)
        leaves, out = kept[stream]
        found = torch.autograd.grad(out, leaves, there, retain_graph=True)
        return {name: x[few] for name, x in zip(outputs, found, strict=True)}

    return run


def calls_of(ladder: Ladder, names: dict, tensors: dict) -> dict:
    """``{(kind, label): (step, function of nothing)}`` of every rung, peer and value of a sweep."""
    calls = {}
    for rung in ladder.rungs:
        kind = "finished" if rung.finished else "lesson"
        calls[kind, rung.label] = rung, functools.partial(rung.run, names, tensors)
    for peer in ladder.peers:
        calls["peer", peer.label] = peer, functools.partial(peer.run, tensors)
    for sweep in ladder.sweeps:
        for value in sweep.values:
            calls[sweep.name, value] = sweep, functools.partial(sweep.run, names, tensors, value)
    return calls


def errors_of(step, call, tensors, answers, scratch=()) -> dict[str, float]:
    """The relative error of each output of one call, written over NaN; a wrong one is an error."""
    for name in (*step.outputs, *scratch):
        if name in tensors:
            tensors[name].fill_(float("nan"))
    returned = call()
    if next(iter(tensors.values())).is_cuda:
        torch.cuda.synchronize()
    got = returned if isinstance(returned, dict) else {name: tensors[name] for name in step.outputs}
    errors = {name: float(f"{harness.relative_error(got[name], answers[name]):.3g}") for name in step.outputs}
    if not all(error <= step.tolerance for error in errors.values()):  # NaN is not
        raise ValueError(f"relative errors {errors}, at most {step.tolerance} is right")
    return errors


def _running(what: str, seconds: int) -> None:
    """Say what runs from now on, and end this process if it is still at it in so many seconds: a kernel that hangs is
    waited for inside the driver, where no exception gets."""
    if RUNNING in os.environ:
        Path(os.environ[RUNNING]).write_text(what)
    signal.alarm(seconds)


def measure(case: str, machine: dict, rounds: int) -> list[dict]:
    """The one record of a lesson's ladder, as a list, for ``harness.measure_all``.

    case: the lesson's number, and behind it, each after a bar, rungs to leave out: "50|lesson: two workers".
    """
    lesson, *without = case.split("|")
    with torch.cuda.stream(torch.cuda.Stream()):  # graphs are not captured on the default one
        try:
            return _measure(lesson, without, machine, rounds)
        finally:
            signal.alarm(0)


def _measure(lesson: str, without: list[str], machine: dict, rounds: int) -> list[dict]:
    ladder = find(lesson)
    _running("before the first rung", 2 * ladder.seconds)
    names = namespace(ladder.notebooks or (lesson,))
    tensors = ladder.tensors(torch.device("cuda"))
    answers = ladder.reference(tensors)
    calls, errors, left_out = calls_of(ladder, names, tensors), {}, []
    for key, (step, call) in list(calls.items()):
        name = f"{key[0]}: {key[1]}"
        try:
            if name in without:
                raise TimeoutError(f"hung or crashed; it has {ladder.seconds} s")
            _running(name, ladder.seconds)
            errors[key] = errors_of(step, call, tensors, answers, ladder.scratch)
        except Exception as error:
            left_out.append({"rung": name, "error": f"{type(error).__name__}: {str(error)[:300]}"})
            del calls[key]
            torch.cuda.synchronize()  # raises where the kernel crashed, and with it all that this process would run
    del answers
    torch.cuda.empty_cache()
    _running("timing", 2 * ladder.seconds)
    main = {key: call for key, (_, call) in calls.items() if key[0] in ("lesson", "finished", "peer")}
    ms, how = harness.timed(main, rounds)
    seconds = {
        "copy": ladder.bytes / machine["copy_tb_per_s"] / 1e12, "matmul": ladder.flops / machine["matmul_tflop_per_s"] / 1e12
    }[ladder.limit]  # fmt: skip
    seconds = min(seconds, *(time / 1e3 for time in ms.values()))  # the ceiling was timed apart: who beats it is the limit
    rows = [
        {
            "rung": label,
            "kind": kind,
            "idea": getattr(calls[kind, label][0], "idea", ""),
            "version": calls[kind, label][0].version() if kind == "peer" else "",
            "ms": float(f"{time:.4g}"),
            "fraction_of_limit": round(seconds * 1e3 / time, 4),
            "errors": errors[kind, label],
        }
        for (kind, label), time in ms.items()
    ]
    sweeps = []
    for sweep in ladder.sweeps:
        turned = {key[1]: call for key, (_, call) in calls.items() if key[0] == sweep.name}
        times, _ = harness.timed(turned, rounds) if turned else ({}, "")
        found = [{"value": value, "ms": float(f"{time:.4g}")} for value, time in times.items()]
        sweeps.append({"name": sweep.name, "idea": sweep.idea, "rows": found})
    return [
        {
            "lesson": lesson, "kernel": ladder.kernel, "shape": ladder.shape, "dtype": ladder.dtype, "flops": ladder.flops,
            "bytes": ladder.bytes, "limit": ladder.limit, "limit_ms": float(f"{seconds * 1e3:.4g}"), "timed": how,
            "rungs": rows, "sweeps": sweeps, "failed": left_out,
        }
    ]  # fmt: skip


def _report(lesson: str, record: dict, machine: dict, folder) -> int:
    """Write and print the record of one ladder; returns how many of its rungs failed."""
    harness.write(f"ladder_{lesson}", {"machine": machine, **record}, folder)
    for row in record["rungs"]:
        share = f"{row['fraction_of_limit']:7.3f} of the limit"
        print(f"{lesson} {row['kind']:8} {row['rung']:28} {row['ms']:10.4f} ms {share} {row['errors']}")
    for sweep in record["sweeps"]:
        print(f"{lesson} sweep {sweep['name']}:", *(f"{row['value']}: {row['ms']}" for row in sweep["rows"]))
    for failure in record["failed"]:
        print(f"{lesson} FAILED {failure['rung']}: {failure['error']}")
    return len(record["failed"])


def reword(lesson: str, folder) -> None:
    """Give the record of a ladder the ideas that are declared now: they are words, and what was measured stays."""
    record, ideas = harness.read(f"ladder_{lesson}", folder), ideas_of(find(lesson))
    for row in record["rungs"]:
        row["idea"] = ideas.get(row["rung"], "")
    for row in record["sweeps"]:
        row["idea"] = ideas[row["name"]]
    harness.write(f"ladder_{lesson}", record, folder)


def ideas_of(ladder: Ladder) -> dict[str, str]:
    """What each rung, by its label, and each sweep, by its name, is there for."""
    return {rung.label: rung.idea for rung in ladder.rungs} | {sweep.name: sweep.idea for sweep in ladder.sweeps}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers, as 03; all that have a ladder unless told")
    parser.add_argument("--out", default=harness.RESULTS, help="folder for ladder_NN.json")
    parser.add_argument("--quick", action="store_true", help="a third of the calls")
    parser.add_argument("--reword", action="store_true", help="measure nothing: records take the ideas declared now")
    given = parser.parse_args()
    folder = Path(__file__).parent / "ladders"
    lessons = given.lessons or sorted(path.stem.removeprefix("lesson_") for path in folder.glob("lesson_*.py"))
    if given.reword:
        for lesson in lessons:
            reword(lesson, given.out)
        return
    harness.require_gpu()
    machine = harness.machine()
    torch.cuda.empty_cache()
    bad, began, again = 0, time.perf_counter(), lessons
    with tempfile.TemporaryDirectory() as temporary:
        running = Path(temporary) / "running"
        os.environ[RUNNING] = str(running)  # children inherit it
        while again:
            measured, again = again, []
            for case, records, error in harness.measure_all("benchmarks.ladder", measured, machine, 1 if given.quick else 3):
                lesson = case.partition("|")[0]
                for record in records:
                    bad += _report(lesson, record, machine, given.out)
                hung = running.read_text() if error and running.exists() else ""
                if ": " in hung and hung not in case:
                    again.append(f"{case}|{hung}")  # once more, without it
                elif error:
                    bad += 1
                    print(f"{lesson} FAILED at {hung or 'its start'}: {error}")
                print(f"{lesson} after {time.perf_counter() - began:.0f} s", file=sys.stderr)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
