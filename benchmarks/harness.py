"""What every benchmark shares: the machine's ceilings, medians of event timings, and the record that is written."""

import datetime
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import queue
import statistics
import subprocess
import sys
from pathlib import Path

import torch
import torch._functorch.config
import triton
from tqdm import tqdm

from kernels import runtime
from kernels.common.lines import unbroken

RESULTS = Path(__file__).parent / "results"
CASE_S = 150  # a case that takes longer than this hangs


def require_gpu():
    """Exit with one line where there is nothing to measure: the interpreter is not a machine whose speed means anything."""
    if runtime.interpreted:
        raise SystemExit("Benchmarks need a CUDA GPU; here kernels run in the interpreter, whose speed says nothing.")


def milliseconds(fn, warmup=50, rep=200):
    """Median time of ``fn()`` on the GPU in ms, over ``rep`` ms: warm, with the L2 cache flushed before every call."""
    return triton.testing.do_bench(fn, warmup=warmup, rep=rep, return_mode="median")


def compiled(function, **options):
    """``torch.compile`` of a peer. Backward passes are timed with their graph kept, which a program refuses whose backward
    may overwrite what it was given: here none may, in any process that compiles one."""
    torch._functorch.config.donated_buffer = False
    return torch.compile(function, **options)


def captured(fn):
    """``fn()`` as a CUDA graph: replaying it times the GPU's work alone, without what Python adds to each launch.

    Call it inside ``torch.cuda.stream(...)`` of the stream on which the graph's autograd nodes, if any, were recorded.
    """
    fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        fn()
    return graph.replay


def alternately(fns, rounds=3):
    """Median time of each function on the GPU in ms, called in turn, with the L2 cache flushed before every call.

    Under load a GPU lowers its clock within milliseconds, by a tenth and more. Functions that take turns call by call run at
    the same clock, whatever it is; each is called for about ``rounds`` * 200 ms in all.
    """
    once = sum(milliseconds(fn, warmup=25, rep=25) for fn in fns.values())
    calls = max(10, round(rounds * 200 * len(fns) / once))
    return in_turn(fns, calls)


def in_turn(fns, calls):
    """The same of ``calls`` calls of each.

    The flush also gives the host time to launch: a short kernel is not measured by its launch.
    """
    events = {name: [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)] for name in fns}
    cache = torch.empty(2**28, dtype=torch.uint8, device=runtime.device)
    for i in range(calls):
        for name, fn in fns.items():
            before, after = events[name][i]
            cache.zero_()
            before.record()
            fn()
            after.record()
    torch.cuda.synchronize()
    return {name: statistics.median(before.elapsed_time(after) for before, after in events[name]) for name in fns}


def timed(calls, rounds):
    """``({name: ms}, how)``: replayed from CUDA graphs, or all of them launched, when one cannot be captured."""
    try:
        return alternately({name: captured(call) for name, call in calls.items()}, rounds), "graph"
    except RuntimeError as error:
        print(f"not captured, so launched: {str(error).splitlines()[0]}", file=sys.stderr)
        return alternately(calls, rounds), "launched"


def measure_all(benchmark, selected, machine, rounds):
    """``(case, rows, error or None)`` of every case, as ``benchmark.measure`` gives its rows in a child process.

    A case that fails, hangs or crashes costs itself and a new process.
    """
    context = multiprocessing.get_context("spawn")
    left = list(selected)
    while left:
        answers = context.Queue()
        child = context.Process(target=_measure_all, args=(benchmark, left, machine, rounds, answers))
        child.start()
        error = None
        try:
            while left and error is None:
                rows, error = _answer(child, answers)
                yield left.pop(0), rows, error
        finally:  # whoever asks for no more cases has closed this generator
            child.kill()
            child.join()


def _measure_all(benchmark, selected, machine, rounds, answers):
    """Child process: the rows of every case, in order; it ends with the first case that fails, its GPU in doubt."""
    measure = importlib.import_module(benchmark).measure
    for case in selected:
        try:
            answers.put((measure(case, machine, rounds), None))
        except Exception as error:
            answers.put(([], f"{type(error).__name__}: {str(error)[:500]}"))
            return
        torch.cuda.empty_cache()


def _answer(child, answers):
    for _ in range(CASE_S):
        try:
            return answers.get(timeout=1)
        except queue.Empty:
            if not child.is_alive():
                return [], f"the process ended with code {child.exitcode}"
    return [], f"no answer in {CASE_S} s"


def copy_rate(elements):
    """Device-to-device copy in TB/s, bytes read plus bytes written: the ceiling of a kernel that only moves data."""
    source = torch.empty(elements, dtype=torch.float32, device=runtime.device).normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) / 1e9


def matmul_rate(n=8192):
    """bf16 matrix product of n x n random matrices through torch, in TFLOP/s."""
    a, b = (torch.randn(n, n, dtype=torch.bfloat16, device=runtime.device) for _ in range(2))
    return 2 * n**3 / milliseconds(lambda: a @ b) / 1e9


def relative_error(ours, reference):
    """Root-mean-square error over root-mean-square of the reference, in float64."""
    ours, reference = ours.double(), reference.double()
    return ((ours - reference).norm() / reference.norm()).item()


def explained(operator, *args, **kwargs):
    """What an operator's ``explain`` says, each of its lines whole."""
    with unbroken():
        return operator.explain(*args, **kwargs)


def about():
    """Where and with what numbers are taken."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[0]
    return {
        "gpu": torch.cuda.get_device_name(),
        "multiprocessors": torch.cuda.get_device_properties(runtime.device).multi_processor_count,
        "driver": driver,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }


def rates(elements=2**30):
    """The two ceilings of this machine, measured now."""
    return {"copy_tb_per_s": round(copy_rate(elements), 3), "matmul_tflop_per_s": round(matmul_rate(), 1)}


def machine():
    """Where and with what the numbers were taken, and the two ceilings measured in this run."""
    return about() | rates()


def commit():
    """The commit measured: of this checkout, or what the environment variable ``COMMIT`` says where git is absent."""
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    git = ["git", "-C", str(RESULTS.parent)]
    name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "status", "--porcelain", "kernels"], capture_output=True, text=True, check=True)
    return name.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def version(distribution):
    """Installed version of a peer."""
    return importlib.metadata.version(distribution)


def progress(items, total=None, **options):
    """A progress bar over ``items``."""
    return tqdm(items, total=total, **options)


def beside_peers(ms, errors, version):
    """What a row says of errors and peers.

    Args:
        ms: time of ``"ours"`` and of each peer, by name.
        errors: ``{name: {tensor: relative error}}``.
        version: function that gives the version of the peers' library, asked only where there are peers.
    """
    peers = [
        {
            "name": name,
            "version": version(),
            "ms": round(time, 4),
            "relative_error": max(errors[name].values()),
            "errors": errors[name],
        }
        for name, time in ms.items()
        if name != "ours"
    ]
    return {"relative_error": max(errors["ours"].values()), "errors": errors["ours"], "peers": peers}


def write(name, record, folder=RESULTS):
    """Write a record as ``<folder>/<name>.json``, a row of its lists a line; return the path."""
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(record))
    return path


def read(name, folder=RESULTS):
    """The record ``name``; ``None`` if there is none."""
    path = Path(folder) / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def renewed(record, newer, which):
    """A record with rows in place of its own that were measured later, on the same kind of machine: each says when, and at
    which commit, in ``renewed``. What the machine gave at its best stays that of the record, and fractions are of that.

    Raises:
        ValueError: the machines or their libraries differ, a new row is not among the record's, or a case failed.
    """
    same = "gpu", "torch", "triton"
    old, new = ([record["machine"][name] for name in same] for record in (record, newer))
    if old != new:
        raise ValueError(f"newer was measured with {new}, needs the record's {old}")
    if newer.get("failed"):
        raise ValueError(f"newer has failed cases, needs none: {newer['failed']}")
    when = {"renewed": {of: newer["machine"][of] for of in ("commit", "date")}}
    rows = {which(row): row | fractions(row, record["machine"]) | when for row in newer["rows"]}
    if missing := rows.keys() - set(map(which, record["rows"])):
        raise ValueError(f"newer has rows that the record has not: {sorted(missing)}")
    return record | {"rows": [rows.get(which(row), row) for row in record["rows"]]}


CEILINGS = {"fraction_of_copy": ("bytes", "copy_tb_per_s"), "fraction_of_matmul": ("flops", "matmul_tflop_per_s")}


def fraction(work, ms, best):
    """Of the ``best`` rate, 1e12 a second, that ``work`` in so many milliseconds is."""
    return float(f"{work / ms / 1e9 / best:.4g}")


def fractions(row, machine):
    """``{name: fraction}`` of those that a row has, of what the machine gave at its best."""
    names = CEILINGS.keys() & row.keys()
    return {name: fraction(row[CEILINGS[name][0]], row["ours_ms"], machine[CEILINGS[name][1]]) for name in names}


def text_of(record):
    """A record as JSON text: each of its entries, and each row of an entry that is a list, on a line of its own."""

    def entry(value):
        if not isinstance(value, list) or not value:
            return json.dumps(value)
        return "[\n" + ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in value) + "\n ]"

    return "{\n" + ",\n".join(f" {json.dumps(name)}: {entry(value)}" for name, value in record.items()) + "\n}\n"


def table_text(table):
    """A table of launch configurations as text, one line a configuration."""

    def block(items, depth):
        pad = " " * (depth + 1)
        whole = lambda value: depth == 2 or isinstance(value, str)
        lines = [
            f"{pad}{json.dumps(name)}: {json.dumps(value) if whole(value) else block(value, depth + 1)}"
            for name, value in items.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"

    return block(table, 0) + "\n"
