"""The instruments where kernels are compiled: ``trace`` works in a child that interprets, launches stay real."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.lab import compile_report, trace


@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0) * factor, mask=i < n)


SCRIPT = """
import kernels
import torch, triton
from kernels import runtime
from kernels.lab import trace
from tests.lab.test_compiled_mode import scale

x, y = torch.arange(50.0), torch.zeros(50)
t = trace(scale, lambda args: (triton.cdiv(args["n"], args["BLOCK"]),), x, y, 50, 3.0, BLOCK=16, num_warps=2)
print(runtime.interpreted, type(scale).__name__, torch.equal(y, 3 * x), t.requested_bytes, t.launches[0].grid)
t = trace(scale, (4,), x, y, 64, factor=3.0, BLOCK=16)
print([(a.kind, a.program[0], a.outside.tolist()) for a in t.outside()])
y.zero_()
with trace.recording() as t:
    scale[(4,)](x, y, 64, 3.0, BLOCK=16)  # reaches outside: is not made on a device, so none is missed here
print(len(t.launches), len(t.outside()), torch.equal(y, 3 * x))
"""


@pytest.mark.thorough
def test_trace_where_kernels_are_compiled():
    environment = os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    root = Path(__file__).parents[2]
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=root, capture_output=True, text=True, timeout=120
    )
    beyond = list(range(50, 64))
    assert child.stdout.splitlines() == [
        "False JITFunction True {'x': 200, 'y': 200} (4,)",
        str([("load", 3, beyond), ("store", 3, beyond)]),
        "1 2 True",
    ], child.stderr


@pytest.mark.gpu
def test_trace_on_a_gpu_writes_back():
    x, y = torch.arange(50.0, device=runtime.device), torch.zeros(60, device=runtime.device)
    t = trace(scale, (4,), x, y[5:55], 50, 3.0, BLOCK=16)
    assert torch.equal(y[5:55], 3 * x) and not y[:5].any() and not y[55:].any()
    assert t.requested_bytes == {"x": 200, "y": 200} and t.outside() == []


@pytest.mark.gpu
def test_recorded_launches_on_a_gpu_are_real():
    x, y, z = torch.arange(50.0, device=runtime.device), *torch.zeros(2, 50, device=runtime.device)
    with trace.recording() as t:
        scale[(4,)](x, y, 50, 3.0, BLOCK=16)
        scale[(2,)](y, z, 50, 2.0, BLOCK=32, num_warps=2)
    assert torch.equal(z, 6 * x)
    assert [launch.grid for launch in t.launches] == [(4,), (2,)] and t.sectors == {"x": 7, "y": 7}


@pytest.mark.gpu
def test_the_report_is_what_the_launch_compiled():
    x, y = torch.zeros(2, 4096, device=runtime.device)
    compiled = scale[(4,)](x, y, 4096, 3.0, BLOCK=1024)
    major, minor = torch.cuda.get_device_capability()
    report = compile_report(scale, x, y, 4096, 3.0, BLOCK=1024, arch=10 * major + minor)
    assert (report.registers, report.shared_bytes) == (compiled.n_regs, compiled.metadata.shared)
