"""The lessons' own kernels on this GPU, one rung for each idea: ``python -m benchmarks.ladder 03 11 12``.

A ladder runs the cells of its notebooks that are tagged ``ladder``, so what is timed is what the reader has read. Every
rung is held to a reference before it is timed, its outputs filled with NaN first; rungs and peers take turns call by call.
"""

import argparse
import functools
import importlib
import json
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import harness

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


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


def find(lesson: str) -> Ladder:
    """The ladder that ``benchmarks/ladders/lesson_NN.py`` declares."""
    return importlib.import_module(f"benchmarks.ladders.lesson_{lesson}").LADDER


def namespace(numbers) -> dict:
    """What the setup cells and the cells tagged ``ladder`` of these lessons define."""
    names = {"__name__": "__main__"}
    for number in numbers:
        (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
        for cell in json.loads(path.read_text())["cells"]:
            if cell["id"] == "setup" or "ladder" in cell["metadata"].get("tags", []):
                source = "".join(cell["source"])
                file = f"<{path.stem}, cell {cell['id']}>"
                linecache.cache[file] = (len(source), None, source.splitlines(True), file)  # Triton reads the source
                exec(compile(source, file, "exec"), names)
    return names


def _calls(ladder: Ladder, names: dict, tensors: dict) -> dict:
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


def _errors(step, call, tensors, answers) -> dict[str, float]:
    """The relative error of each output of one call, written over NaN; a wrong one is an error."""
    for name in step.outputs:
        if name in tensors:
            tensors[name].fill_(float("nan"))
    returned = call()
    torch.cuda.synchronize()
    got = returned if isinstance(returned, dict) else {name: tensors[name] for name in step.outputs}
    errors = {name: float(f"{harness.relative_error(got[name], answers[name]):.3g}") for name in step.outputs}
    if not all(error <= step.tolerance for error in errors.values()):  # NaN is not
        raise ValueError(f"relative errors {errors}, at most {step.tolerance} is right")
    return errors


def measure(lesson: str, machine: dict, rounds: int) -> list[dict]:
    """The one record of a lesson's ladder, as a list, for ``harness.measure_all``."""
    with torch.cuda.stream(torch.cuda.Stream()):  # graphs are not captured on the default one
        return _measure(lesson, machine, rounds)


def _measure(lesson: str, machine: dict, rounds: int) -> list[dict]:
    ladder = find(lesson)
    names = namespace(ladder.notebooks or (lesson,))
    tensors = ladder.tensors(torch.device("cuda"))
    answers = ladder.reference(tensors)
    calls, errors, left_out = _calls(ladder, names, tensors), {}, []
    for key, (step, call) in list(calls.items()):
        try:
            errors[key] = _errors(step, call, tensors, answers)
        except Exception as error:
            left_out.append({"rung": f"{key[0]}: {key[1]}", "error": f"{type(error).__name__}: {str(error)[:300]}"})
            del calls[key]
    del answers
    torch.cuda.empty_cache()
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers, as 03; all that have a ladder unless told")
    parser.add_argument("--out", default=harness.RESULTS, help="folder for ladder_NN.json")
    parser.add_argument("--quick", action="store_true", help="a third of the calls")
    given = parser.parse_args()
    harness.require_gpu()
    folder = Path(__file__).parent / "ladders"
    lessons = given.lessons or sorted(path.stem.removeprefix("lesson_") for path in folder.glob("lesson_*.py"))
    machine = harness.machine()
    torch.cuda.empty_cache()
    bad = 0
    for lesson, records, error in harness.measure_all("benchmarks.ladder", lessons, machine, 1 if given.quick else 3):
        for record in records:
            harness.write(f"ladder_{lesson}", {"machine": machine, **record}, given.out)
            for row in record["rungs"]:
                share = f"{row['fraction_of_limit']:7.3f} of the limit"
                print(f"{lesson} {row['kind']:8} {row['rung']:28} {row['ms']:10.4f} ms {share} {row['errors']}")
            for sweep in record["sweeps"]:
                print(f"{lesson} sweep {sweep['name']}:", *(f"{row['value']}: {row['ms']}" for row in sweep["rows"]))
            for failure in record["failed"]:
                bad += 1
                print(f"{lesson} FAILED {failure['rung']}: {failure['error']}")
        if error:
            bad += 1
            print(f"{lesson} FAILED: {error}")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
