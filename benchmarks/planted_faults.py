"""What Hopper's weight gradient does on this GPU with a fault in its source: ``python -m benchmarks.planted_faults``.

Each fault is planted in two child processes. One runs the kernel several times and holds every result against cuDNN's; a
child that is not done in time hangs. The other runs it once under Triton's concurrency sanitizer. The tests show that the
CPU model finds each of these faults; what it says is recorded beside what the GPU and the sanitizer do.
"""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys

import pytest
import torch

from benchmarks import conv_wgrad, harness
from kernels.conv_wgrad import hopper
from tests.conv_wgrad.faults import FAULTS

CASE = (64, 256, 256, 56, 3, 1, 1, 1)
SANITIZED = (2, 256, 256, 28, 3, 1, 1, 1)  # every ring turns eight times
NONE = "none"
RUNS = 20
ALARM_S = 60  # compiling included, many of them at once
RIGHT = 5e-3  # two roundings to bfloat16 of sums in another order


def errors(name, case, runs):
    """The relative error of each run with this fault; the alarm ends a process whose kernel hangs."""
    from tests.conv_wgrad import on_model  # needs Triton 3.8, as the kernel does

    signal.alarm(ALARM_S)
    torch.manual_seed(0)
    x, dy, g = conv_wgrad.problem(case)
    given = x, dy, g.R, g.S, g.stride, g.padding
    right = conv_wgrad.by_torch(x, dy, g, torch.channels_last)().double()
    with pytest.MonkeyPatch.context() as patch:
        if name != NONE:
            on_model.plant(patch, hopper, "wgrad_hopper_kernel", *FAULTS[name][0])
        gradient = lambda: conv_wgrad.conv2d_wgrad(*given, backend="hopper", split_k=1)  # noqa: E731
        return [harness.relative_error(gradient(), right) for _ in range(runs)]


def start(name, mode):
    """A child process that prints the errors with this fault, ``mode`` being what Triton's compiler adds."""
    command = [sys.executable, "-m", "benchmarks.planted_faults", "--child", name]
    environment = os.environ | {"TRITON_INSTRUMENTATION_MODE": mode}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def row(name, plain, sanitized):
    """What is recorded of one fault.

    Args:
        name: of the fault.
        plain, sanitized: ``(exit code, output)`` of its two processes.
    """
    found = re.findall(r"Assertion `(.*?)` failed", sanitized[1])
    return {
        "fault": name,
        "model": FAULTS[name][1][0] if name != NONE else None,
        "sanitizer": found[0] if found else outcome(*sanitized)["gpu"],
    } | outcome(*plain)


def outcome(code, output):
    """How a process ended: ``"right"``, ``"wrong"``, ``"hangs"`` or its exit code."""
    if code == -signal.SIGALRM:
        return {"gpu": "hangs"}
    if code != 0:
        return {"gpu": f"ends with code {code}"}
    each = json.loads(output[output.index("errors: ") :].splitlines()[0].removeprefix("errors: "))
    wrong = sum(not error < RIGHT for error in each)
    worst = math.nan if any(map(math.isnan, each)) else max(each)
    worst = float(f"{worst:.3g}") if math.isfinite(worst) else str(worst)
    return {"gpu": "wrong" if wrong else "right", "runs": len(each), "wrong_runs": wrong, "largest_error": worst}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.RESULTS, help="folder for planted_faults.json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    harness.require_gpu()
    if given.child:
        sanitized = bool(os.environ.get("TRITON_INSTRUMENTATION_MODE"))
        print("errors:", json.dumps(errors(given.child, *((SANITIZED, 1) if sanitized else (CASE, RUNS)))), flush=True)
        return
    started = {name: [start(name, mode) for mode in ("", "consan")] for name in (NONE, *FAULTS)}
    rows = []
    for name, children in harness.progress(started.items(), desc="planted_faults"):
        outputs = [child.communicate()[0] for child in children]
        rows.append(row(name, *zip([child.returncode for child in children], outputs, strict=True)))
        print(rows[-1], flush=True)
    shapes = {"shape": dict(zip(conv_wgrad.NAMES, CASE, strict=True))}
    shapes["sanitized_shape"] = dict(zip(conv_wgrad.NAMES, SANITIZED, strict=True))
    print(harness.write("planted_faults", {"machine": harness.machine(), **shapes, "rows": rows}, given.out))


if __name__ == "__main__":
    main()
