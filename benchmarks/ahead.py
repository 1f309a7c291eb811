"""Compile in many processes, before anything is timed, what a benchmark will launch; Triton keeps it on disk.

A kernel takes a second or two to compile, a peer that tunes itself asks for hundreds, and a process that is timing
compiles one after another.
"""

import concurrent.futures
import importlib
import itertools
import multiprocessing
import sys

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from benchmarks import harness


def compile_ahead(module, jobs):
    """Call ``module.launches(*arguments)`` for every job, in processes where kernels are compiled and nothing is launched.

    Args:
        module: name of the benchmark, such as ``"benchmarks.recurrent_attention"``.
        jobs: list of ``(arguments, share, shares)``: of the configurations its autotuners would try, every
            ``shares``-th is compiled, from ``share``; so a call that takes long to compile is given several times.
    """
    processes = min(14, multiprocessing.cpu_count())
    with concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        working = {pool.submit(_compile, module, *job): job for job in jobs}
        done = concurrent.futures.as_completed(working)
        for future in harness.progress(done, total=len(jobs), desc="compile"):
            error = future.exception()
            if error:  # the case fails again where it is measured, and is recorded as failed there
                print(f"compiling ahead {working[future]}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)


def _compile(module, arguments, share, shares):
    launch_nothing(share, shares)
    importlib.import_module(module).launches(*arguments)
    torch.cuda.empty_cache()  # many of these processes share one GPU


def launch_nothing(share, shares):
    """From here on this process compiles where it would launch, and tuners compile their share where they would time."""
    numbers = itertools.count()

    def compile_share(tuner, *args, config, **meta):
        if next(numbers) % shares != share:
            return [float("inf")]
        try:
            tuner.fn.run(*args, **{**meta, **config.all_kwargs()})
        except Exception:  # it does not compile: the tuner will find that out itself, and leave it out
            return [float("inf")]
        return [0.0]

    def on_disk_or_compile(tuner, key, configs, benchmark):
        try:
            return _check_disk_cache(tuner, key, configs, _stop)
        except _NotOnDisk:  # nothing was timed, so nothing may be written as the winner
            benchmark()
            return False

    def tune(tuner, *args, **meta):
        tuner.cache.clear()  # what an earlier share in this process went on with
        return _tune(tuner, *args, **meta)

    JITFunction.run = lambda kernel, *args, grid, warmup, **meta: _run(kernel, *args, grid=grid, warmup=True, **meta)
    Autotuner.run = tune
    Autotuner._bench = compile_share
    Autotuner.check_disk_cache = on_disk_or_compile


class _NotOnDisk(Exception):
    pass


def _stop():
    raise _NotOnDisk


_run, _tune, _check_disk_cache = JITFunction.run, Autotuner.run, Autotuner.check_disk_cache
