"""Find launch configurations offline and write them to the committed table: ``python -m benchmarks.tune dynamic_conv``.

Candidates are compiled in parallel on a small problem, then timed one after another on a large one, each kernel and
size class in a child process with a time limit, so that a configuration that hangs or fails costs itself alone.
"""

import argparse
import importlib
import json
import multiprocessing
import signal
import sys
from pathlib import Path

import torch

from benchmarks import harness
from kernels import runtime
from kernels.common import configs

SHAPE = (8, 4096, 2048)
SMALL = (1, 256, 2048)
ALARM_S = 15


def _compile(job):
    room, kernel, key, options = job
    signal.alarm(60)
    bench = importlib.import_module(f"benchmarks.{room}")
    try:
        bench.tuned_call(kernel, *key, SMALL)(options)
        torch.cuda.synchronize()
    except Exception as error:  # reported with its configuration; the candidate is left out
        return job, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    finally:
        signal.alarm(0)
    return job, None


def _time(room, kernel, key, candidates, queue):
    bench = importlib.import_module(f"benchmarks.{room}")
    call = bench.tuned_call(kernel, *key, SHAPE)
    for options in candidates:
        signal.alarm(ALARM_S)
        queue.put((options, harness.milliseconds(lambda options=options: call(options))))
        signal.alarm(0)
    queue.put(None)


def tune(room, kernel, key, candidates, context):
    """Times of every candidate, fastest first: ``[(ms, options)]``; a child that dies ends the list where it died."""
    queue = context.Queue()
    child = context.Process(target=_time, args=(room, kernel, key, candidates, queue))
    child.start()
    timed = []
    while True:
        try:
            item = queue.get(timeout=ALARM_S + 30)
        except Exception:
            print(f"{kernel} {key}: the child stopped after {len(timed)} of {len(candidates)} candidates", file=sys.stderr)
            child.kill()
            break
        if item is None:
            break
        timed.append((item[1], item[0]))
    child.join()
    return sorted(timed, key=lambda pair: pair[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", choices=["dynamic_conv"])
    parser.add_argument("--only", default="", help="only kernels and keys whose text contains this")
    parser.add_argument("--report", help="file for every timing, as JSON")
    parser.add_argument("--table", help="the table to update; default: the room's configs.json")
    given = parser.parse_args()
    harness.require_gpu()
    bench = importlib.import_module(f"benchmarks.{given.room}")
    context = multiprocessing.get_context("spawn")
    work = [(k, key) for k, keys in bench.KEYS.items() for key in keys if given.only in f"{k} W{key[0]} {key[1]}-bit"]

    jobs = [(given.room, kernel, key, options) for kernel, key in work for options in bench.candidates(kernel)]
    failed = []
    with context.Pool(min(12, multiprocessing.cpu_count())) as pool:
        for job, error in harness.progress(pool.imap_unordered(_compile, jobs, chunksize=4), total=len(jobs), desc="compile"):
            if error:
                failed.append((job, error))
    for job, error in failed:
        print(f"left out {job[1:]}: {error}", file=sys.stderr)
    bad = {json.dumps(job[1:], sort_keys=True) for job, _ in failed}

    path = Path(given.table or Path(__file__).parent.parent / "kernels" / given.room / "configs.json")
    table = json.loads(path.read_text())
    mine = table.setdefault(torch.cuda.get_device_name(), {})
    report = {}
    for kernel, key in harness.progress(work, desc="time"):
        usable = [o for o in bench.candidates(kernel) if json.dumps((kernel, key, o), sort_keys=True) not in bad]
        timed = tune(given.room, kernel, key, usable, context)
        name = f"W{key[0]} {key[1]}-bit"
        report[f"{kernel} {name}"] = timed
        if timed:
            mine.setdefault(kernel, {})[name] = timed[0][1]
            print(f"{kernel} {name}: {timed[0][0]:.4f} ms {timed[0][1]}; next {[(round(t, 4), list(o.values())) for t, o in timed[1:6]]}")
    path.write_text(configs.dump(table))
    if given.report:
        Path(given.report).write_text(json.dumps(report))
    print(runtime.describe())


if __name__ == "__main__":
    main()
