"""Find launch configurations offline and write them to the committed table: ``python -m benchmarks.tune dynamic_conv``.

Candidates are compiled in parallel, then timed one after another, each kernel and size class in a child process with a
time limit, so that a configuration that hangs or fails costs itself alone. The winner has the smallest product of its
times over the shapes. Compiling runs the same shapes as timing, because a kernel is compiled anew for integers that are
divisible by 16.

A benchmark says what there is to tune: ``CLASSES`` holds each kernel's size classes, ``candidates(kernel)`` its
configurations, ``tuning_shapes(kernel)`` the problems; ``tuned_call(kernel, shape, *key)`` runs one with a configuration.
"""

import argparse
import functools
import importlib
import json
import math
import multiprocessing
import queue
import signal
import sys
from pathlib import Path

import torch

from benchmarks import harness
from kernels import runtime
from kernels.common import configs

OPERATORS = ["dynamic_conv", "recurrent_attention", "conv_wgrad"]
ALARM_S = 15


def _compile(job):
    """Compile one candidate by running it on every shape; returns the error as text, or ``None``."""
    operator, kernel, key, options = job
    signal.alarm(120)
    bench = importlib.import_module(f"benchmarks.{operator}")
    try:
        for shape in bench.tuning_shapes(kernel):
            bench.tuned_call(kernel, shape, *key)[1](options)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # many of these processes share one GPU
    except Exception as error:  # listed with its configuration; the candidate is left out
        return job, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    finally:
        signal.alarm(0)
    return job, None


def _time(operator, kernel, key, candidates, answers):
    """Child process: the times in ms of every candidate on every shape, one answer a candidate, ``None`` at the end.

    They are times of the GPU alone, replayed from CUDA graphs, as the benchmark takes them.
    """
    bench = importlib.import_module(f"benchmarks.{operator}")
    calls = [bench.tuned_call(kernel, shape, *key) for shape in bench.tuning_shapes(kernel)]
    answers.put(calls[0][0])
    for options in candidates:
        signal.alarm(ALARM_S)
        times = []
        for _, call in calls:
            with torch.cuda.stream(torch.cuda.Stream()):
                replay = harness.captured(functools.partial(call, options))
            times.append(harness.milliseconds(replay, warmup=20, rep=80))
            del replay
            torch.cuda.empty_cache()  # a graph's memory is its own
        answers.put((times, options))
        signal.alarm(0)
    answers.put(None)


def launched_with(kernel, options):
    """Within, ``kernel`` is launched with these options, and the others as the table says."""
    return configs.instead(
        lambda operator, name, *rest: options if name == kernel else configs.table_says(operator, name, *rest)
    )


def tune(operator, kernel, key, candidates, context):
    """``(class name, [(times, options), fastest first])``; a child that dies ends the list where it died."""
    answers = context.Queue()
    child = context.Process(target=_time, args=(operator, kernel, key, candidates, answers))
    child.start()
    got = []
    try:
        while (item := answers.get(timeout=ALARM_S + 45)) is not None:
            got.append(item)
    except queue.Empty:
        print(
            f"{kernel} {key}: the child stopped after {len(got) - 1} of {len(candidates)} candidates", file=sys.stderr
        )
        child.kill()
    child.join()
    return (got[0] if got else None), sorted(got[1:], key=lambda pair: math.prod(pair[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operator", choices=OPERATORS)
    parser.add_argument(
        "--only", default="", help="only kernels and classes whose text contains this, as 'forward (4, 16)'"
    )
    parser.add_argument("--report", help="file for every timing, as JSON")
    given = parser.parse_args()
    harness.require_gpu()
    bench = importlib.import_module(f"benchmarks.{given.operator}")
    context = multiprocessing.get_context("spawn")
    work = [(kernel, key) for kernel, keys in bench.CLASSES.items() for key in keys if given.only in f"{kernel} {key}"]

    jobs = [(given.operator, kernel, key, options) for kernel, key in work for options in bench.candidates(kernel)]
    with context.Pool(min(14, multiprocessing.cpu_count())) as pool:
        done = harness.progress(pool.imap_unordered(_compile, jobs, chunksize=4), total=len(jobs), desc="compile")
        failed = [(job, error) for job, error in done if error]
    for job, error in failed:
        print(f"left out {job[1:]}: {error}", file=sys.stderr)
    left_out = {json.dumps(job[1:]) for job, _ in failed}

    path = Path(__file__).parent.parent / "kernels" / given.operator / "configs.json"
    table = json.loads(path.read_text())
    mine = table.setdefault(torch.cuda.get_device_name(), {})
    report = {}
    for kernel, key in harness.progress(work, desc="time"):
        usable = [o for o in bench.candidates(kernel) if json.dumps((kernel, key, o)) not in left_out]
        name, timed = tune(given.operator, kernel, key, usable, context)
        report[f"{kernel} {name}"] = timed
        lines = mine.setdefault(kernel, {})
        if timed and "COSTS" not in lines.get(name, lines.get("default", {})):  # a model of cost chooses there
            lines[name] = timed[0][1]
            path.write_text(harness.table_text(table))
        if given.report:
            Path(given.report).write_text(json.dumps(report))
    print(runtime.describe())


if __name__ == "__main__":
    main()
