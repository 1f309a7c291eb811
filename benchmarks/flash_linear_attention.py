"""flash-linear-attention as a peer: its functions, with autotuners that choose for the length they are timed at."""

import functools
import importlib
import importlib.util
import sys

import triton
from triton.runtime.autotuner import Autotuner

from benchmarks import harness
from kernels import runtime

FUNCTIONS = {
    "fused_recurrent_simple_gla": "fla.ops.simple_gla",
    "fused_recurrent_gla": "fla.ops.gla",
    "chunk_linear_attn": "fla.ops.linear_attn",
    "chunk_simple_gla": "fla.ops.simple_gla",
    "chunk_gla": "fla.ops.gla",
}


def available():
    """Whether it can run here: it is installed (``pip install fla-core``) and there is a GPU."""
    return not runtime.interpreted and importlib.util.find_spec("fla") is not None


def version():
    """Its installed version."""
    return harness.version("fla-core")


@functools.cache
def function(name):
    """One of ``FUNCTIONS``: ``f(q, k, v, **gates) -> (o, final state)``, [B, T, H, D] throughout."""
    found = getattr(importlib.import_module(FUNCTIONS[name]), name)
    for tuner in autotuners():
        _choose_per_length(tuner)
    return found


def autotuners():
    """Every autotuner in the modules imported so far; they sit under other decorators, several to a module."""
    found = {}
    for module in [module for name, module in sorted(sys.modules.items()) if name.startswith("fla.ops.")]:
        for value in vars(module).values():
            while value is not None and not isinstance(value, Autotuner):
                value = value.fn if isinstance(value, triton.runtime.KernelInterface) and hasattr(value, "fn") else None
            if value is not None:
                found[id(value)] = value
    return list(found.values())


def _choose_per_length(tuner):
    """Make a tuner choose anew for every T, and time each choice for 12 ms.

    Its own keys leave T out, so what the first shape preferred would be used for all: with 16 heads of 32768 tokens as
    with 128 of 2048. 100 ms a configuration, Triton's default, would be minutes for each of its functions.
    """
    if "T" in tuner.arg_names and "T" not in tuner.keys:
        tuner.keys = [*tuner.keys, "T"]
    tuner.do_bench = functools.partial(triton.testing.do_bench, warmup=3, rep=12)
