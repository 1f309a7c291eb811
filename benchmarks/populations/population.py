"""The committed populations, read: layers of a half, and sizes that a GPU takes a reasonable time for."""

from pathlib import Path

import torch

from benchmarks import harness
from kernels import runtime

DATA = Path(__file__).parent / "data"
HALVES = ("tuning", "held_out")
DRAWN = "drawn"  # from models that are in neither half, after the choices had been made
WRONG = 0.1  # relative error from which on a peer's result is none


def record(operator, half="both"):
    """The operator's record: ``made_by``, ``date``, ``rule``, ``layers``; of the two halves ``versions`` and ``models``, too.

    The layers drawn later are data written by hand, each with its source.
    """
    return harness.read(operator, DATA / "drawn" if half == DRAWN else DATA)


def layers(operator, half):
    """The distinct layers of a half, ``[{"layer": ..., "half": ..., "models": ...}]``, the most mixed sample first."""
    return [row for row in record(operator, half)["layers"] if half in ("both", row["half"])]


def cases(operator, half, fitted):
    """``(layer, half, models)`` of every row; those of the halves ``fitted`` to what a GPU does in a reasonable time."""
    rows = layers(operator, half)
    return [(row["layer"] if half == DRAWN else fitted(row["layer"]), row["half"], row["models"]) for row in rows]


def stream():
    """Within: on a stream of its own, on which graphs are captured whose autograd nodes they replay; where there is one."""
    return torch.cuda.stream(None if runtime.interpreted else torch.cuda.Stream())


def timed(calls, times=30):
    """``({name: ms}, {name: "graph" or "launched"})``: replayed from CUDA graphs where a call can be captured.

    As ``harness.timed``, in as many calls as a population can afford, and each call for itself. The interpreter's time says
    nothing: there each call is said to take a millisecond.
    """
    if runtime.interpreted:
        return dict.fromkeys(calls, 1.0), dict.fromkeys(calls, "interpreted")
    replays, how = {}, {}
    for name, call in calls.items():
        try:
            replays[name], how[name] = harness.captured(call), "graph"
        except RuntimeError:
            torch.cuda.synchronize()
            replays[name], how[name] = call, "launched"
    for call in replays.values():
        call()
    return harness.in_turn(replays, times), how


def peer(name, version, ms, how, errors, reason=None):
    """What a row says of one peer; one that cannot run says why."""
    if reason:
        return {"name": name, "version": version, "reason": reason}
    return {"name": name, "version": version, "ms": round(ms, 5), "timed": how, "relative_error": errors}


def short(x):
    """A number with three digits."""
    return float(f"{x:.3g}")


def ran(row, wrong=False):
    """The peers that ran and were right, or those that were wrong: their time is of something else."""
    return [peer for peer in row["peers"] if "ms" in peer and ((peer["relative_error"] or 0) > WRONG) == wrong]


def best_peer(row):
    """The fastest peer that ran and was right, or ``None``."""
    return min(ran(row), key=lambda peer: peer["ms"], default=None)


def renewed(record, newer):
    """``harness.renewed`` of a population's records."""
    return harness.renewed(record, newer, _which)


def _which(row):
    """What tells a row from the others: models that do not agree on a layer have rows of the same sizes."""
    return row.get("pass", ""), str(sorted(row["shape"].items())), *row["models"]
