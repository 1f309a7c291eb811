"""A program that uses the package says nothing of its own accord, not even when it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

ROOT = Path(__file__).parents[2]

EVERY_MODULE = """
import importlib, pkgutil, {name}, triton
gluon = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8)  # the model needs it
for module in pkgutil.walk_packages({name}.__path__, "{name}."):
    if (gluon or "gluon" not in module.name) and "__main__" not in module.name and not module.name.endswith("_child_main"):
        importlib.import_module(module.name)
"""
EVERY_OPERATOR = """
import torch
from {name} import runtime
from {name}.conv_wgrad import Conv2d, conv2d, conv2d_bias_grad, conv2d_wgrad
from {name}.dynamic_conv import dynamic_conv, dynamic_conv_step
from {name}.flex_attention import create_block_mask, flex_attention
from {name}.recurrent_attention import recurrent_attention, recurrent_attention_step
new = lambda *shape: torch.randn(*shape, device=runtime.device, requires_grad=True)
y = dynamic_conv(new(1, 4, 2), new(2, 3)).sum()
o, _ = recurrent_attention(new(1, 4, 1, 16), new(1, 4, 1, 16), new(1, 4, 1, 16))
mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 4, 4, device=runtime.device)
a = flex_attention(new(1, 1, 4, 16), new(1, 1, 4, 16), new(1, 1, 4, 16), block_mask=mask)
c = conv2d(new(1, 4, 4, 2), new(2, 3, 3, 2)).sum() + Conv2d(2, 2, 3, device=runtime.device)(new(1, 2, 4, 4)).sum()
(y + o.sum() + a.sum() + c).backward()
with torch.no_grad():
    dynamic_conv_step(new(1, 2), new(2, 3), new(1, 2, 2))
    recurrent_attention_step(new(1, 1, 4), new(1, 1, 4), new(1, 1, 4), new(1, 1, 4, 4))
    dy = new(1, 2, 2, 2)
    conv2d_wgrad(new(1, 4, 4, 2), dy, 3, 3), conv2d_bias_grad(dy)
    print(conv2d_wgrad.explain(new(1, 4, 4, 2), dy, 3, 3).count("Blackwell"))
"""
# Without the handler at exit of runtime.py, nanobind prints a page of "leaked" behind it.
GLUON_KERNEL = """
from kernels import gluon_model
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

@gluon.jit
def kernel(x_ptr):
    gl.store(x_ptr, 1)

def launch(run=gluon_model.run, kernel=kernel):
    return run(kernel, 1)
"""


def run(*arguments):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and not result.stderr, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", ["kernels", pytest.param("kernels_from_math", marks=pytest.mark.thorough)])
def test_every_operator_is_quiet(name):
    assert run("-c", EVERY_OPERATOR.format(name=name)) == "1\n"


def test_every_module_is_quiet():
    assert run("-c", EVERY_MODULE.format(name="kernels")) == ""


@pytest.mark.skipif(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8), reason="the model needs Triton 3.8")
def test_a_program_with_a_gluon_kernel_is_quiet(tmp_path):
    (tmp_path / "program.py").write_text(GLUON_KERNEL)  # a file: a kernel's source is read
    assert run(tmp_path / "program.py") == ""
