"""The committed populations, read: layers of a half, and sizes that a GPU takes a reasonable time for."""

import json
import statistics
from pathlib import Path

import torch

from benchmarks import harness
from kernels import runtime

DATA = Path(__file__).parent / "data"
HALVES = ("tuning", "held_out")


def record(room):
    """The room's record: ``made_by``, ``date``, ``versions``, ``rule``, ``models``, ``layers``."""
    return json.loads((DATA / f"{room}.json").read_text())


def layers(room, half):
    """The distinct layers of a half, ``[{"layer": ..., "half": ..., "models": ...}]``, the most mixed sample first."""
    return [row for row in record(room)["layers"] if half in ("both", row["half"])]


def in_turn(calls, times=30):
    """Median time of each function on the GPU in ms, called in turn, with the L2 cache flushed before every call.

    What ``harness.alternately`` does, for as many calls as a population can afford. The flush also gives the host time
    to launch: a short kernel is not measured by its launch.
    """
    for call in calls.values():
        call()
    events = {name: [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)] for name in calls}
    cache = torch.empty(2**28, dtype=torch.uint8, device=runtime.device)
    for i in range(times):
        for name, call in calls.items():
            before, after = events[name][i]
            cache.zero_()
            before.record()
            call()
            after.record()
    torch.cuda.synchronize()
    return {name: statistics.median(before.elapsed_time(after) for before, after in events[name]) for name in calls}


def timed(calls, times=30):
    """``({name: ms}, {name: "graph" or "launched"})``: replayed from CUDA graphs where a call can be captured."""
    replays, how = {}, {}
    for name, call in calls.items():
        try:
            replays[name], how[name] = harness.captured(call), "graph"
        except RuntimeError:
            torch.cuda.synchronize()
            replays[name], how[name] = call, "launched"
    return in_turn(replays, times), how


def peer(name, version, ms, how, errors, reason=None):
    """What a row says of one peer; one that cannot run says why."""
    if reason:
        return {"name": name, "version": version, "reason": reason}
    return {"name": name, "version": version, "ms": round(ms, 5), "timed": how, "relative_error": errors}


def short(x):
    """A number with three digits."""
    return float(f"{x:.3g}")


def best_peer(row):
    """The fastest peer that ran, or ``None``."""
    ran = [peer for peer in row["peers"] if "ms" in peer]
    return min(ran, key=lambda peer: peer["ms"], default=None)
