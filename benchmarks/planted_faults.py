"""What Hopper's weight gradient does on this GPU with a fault in its source: ``python -m benchmarks.planted_faults``.

Each fault is planted in a child process, which runs the kernel several times and holds every result against the portable
kernel's. A child that is not done in time hangs. The tests show that the CPU model finds each of these faults; what it says
is recorded beside what the GPU does.
"""

import argparse
import math
import multiprocessing
import queue
import signal

import pytest
import torch

from benchmarks import conv_wgrad, harness
from kernels.conv_wgrad import hopper
from tests.conv_wgrad import on_model
from tests.conv_wgrad.faults import FAULTS

CASE = (64, 256, 256, 56, 3, 1, 1, 1)
NONE = "none"
RUNS = 20
ALARM_S = 20  # compiling included
RIGHT = 1e-3  # float32 sums of the same products in another order


def _run(name, answers):
    """Child process: the relative error of each run; the alarm ends a process whose kernel hangs."""
    signal.alarm(ALARM_S)
    torch.manual_seed(0)
    x, dy, g = conv_wgrad.problem(CASE)
    gradient = lambda backend: conv_wgrad.conv2d_wgrad(  # noqa: E731
        x, dy, g.R, g.S, g.stride, g.padding, backend=backend, out_dtype=torch.float32
    )
    right = gradient("triton")
    with pytest.MonkeyPatch.context() as patch:
        if name != NONE:
            on_model.plant(patch, hopper, "wgrad_hopper_kernel", *FAULTS[name][0])
        answers.put([harness.relative_error(gradient("hopper"), right) for _ in range(RUNS)])


def outcome(name, context):
    """The row of one fault."""
    answers = context.Queue()
    child = context.Process(target=_run, args=(name, answers))
    child.start()
    errors, alive = None, True
    while errors is None and alive:
        alive = child.is_alive()  # asked first: what a dead child has answered is there
        try:
            errors = answers.get(timeout=1)
        except queue.Empty:
            continue
    child.join(10)
    child.kill()
    row = {"fault": name, "model": FAULTS[name][1][0] if name != NONE else None}
    if errors is None:
        return row | {"gpu": "hangs" if child.exitcode == -signal.SIGALRM else f"ends with code {child.exitcode}"}
    wrong = sum(not error < RIGHT for error in errors)
    worst = math.nan if any(map(math.isnan, errors)) else max(errors)
    worst = float(f"{worst:.3g}") if math.isfinite(worst) else str(worst)
    return row | {"gpu": "wrong" if wrong else "right", "runs": RUNS, "wrong_runs": wrong, "largest_error": worst}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.RESULTS, help="folder for planted_faults.json")
    given = parser.parse_args()
    harness.require_gpu()
    context = multiprocessing.get_context("spawn")
    rows = []
    for name in harness.progress([NONE, *FAULTS], desc="planted_faults"):
        rows.append(outcome(name, context))
        print(rows[-1], flush=True)
    machine = harness.machine()
    shape = dict(zip(conv_wgrad.NAMES, CASE, strict=True))
    print(harness.write("planted_faults", {"machine": machine, "shape": shape, "rows": rows}, given.out))


if __name__ == "__main__":
    main()
