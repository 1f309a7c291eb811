"""Where kernels run is decided once: each case in a process of its own, because the decision cannot be taken twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels import runtime
from kernels.runtime import _MARK as MARK

ROOT = Path(__file__).parent.parent
# torch alone decides nothing, and takes most of the time: it is imported once, and each case is forked from there.
TORCH = """
import json, os, sys, traceback
import torch
for line in sys.stdin:
    code, environment, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(environment)
        for stream, name in (1, "stdout"), (2, "stderr"):
            os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        status = 0
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """``python(code, **environment)``: run it in a process without the decision this process has taken."""
    folder = tmp_path_factory.mktemp("runtime")
    clean = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "TRITON_DEFAULT_FP_FUSION", MARK)}
    clean["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-c", TORCH]
    with subprocess.Popen(command, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(code, **environment):
            process.stdin.write(json.dumps([code, clean | environment, str(folder)]) + "\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            said = {name: (folder / name).read_text() for name in ("stdout", "stderr")}
            return SimpleNamespace(returncode=status, **said)

        yield run
        process.stdin.close()


SHOW = "from kernels import runtime as r; print(r.device.type, r.interpreted, '|', r.describe())"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_kernels_are_interpreted(python):
    result = python(SHOW)
    assert result.stdout.startswith("cpu True | CPU (") and result.stdout.rstrip().endswith("interpreted, no GPU needed")


def test_another_checkout_is_told_of(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "not of" not in runtime.describe()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "runtime.py").touch()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert runtime.describe().endswith(f"kernels of {Path(runtime.__file__).parents[1]}, not of {tmp_path}")


@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_the_users_wish_for_the_interpreter_wins(python, value):
    result = python(SHOW + "; import os; print(os.environ['TRITON_INTERPRET'])", TRITON_INTERPRET=value)
    assert result.stdout.startswith("cpu True") and result.stdout.splitlines()[-1] == "1"


def test_the_users_wish_for_compiled_kernels_wins(python):
    result = python(SHOW, TRITON_INTERPRET="0")
    assert "False |" in result.stdout and "compiled" in result.stdout, result.stderr


RUN = """
import kernels, triton
from kernels.dynamic_conv import dynamic_conv
from kernels.dynamic_conv.reference import dynamic_conv_reference
from kernels.recurrent_attention import recurrent_attention
assert kernels.runtime.interpreted
x, weight = torch.randn(1, 9, 4, requires_grad=True), torch.randn(1, 9, 4, 3)
y = dynamic_conv(x, weight, activation="silu")
torch.testing.assert_close(y, dynamic_conv_reference(x, weight, activation="silu"))
y.sum().backward()
q, g = torch.randn(1, 17, 1, 16), -torch.rand(1, 17, 1)
chunk, recurrent = (recurrent_attention(q, q, q, g=g, mode=mode)[0] for mode in ("chunk", "recurrent"))
torch.testing.assert_close(chunk, recurrent, rtol=1e-4, atol=1e-4)
"""
FIRST = {  # what imports Triton before: once with what is done again afterwards
    "triton": ("import torch, triton", ""),
    "an optimizer": (
        "import torch; p = torch.nn.Parameter(torch.ones(3)); adam = torch.optim.AdamW([p])",
        "p.sum().backward(); adam.step()",
    ),
    "torch._dynamo": ("import torch, torch._dynamo", ""),
    "flop_counter": ("import torch, torch.utils.flop_counter", ""),
    "torch.compile": (
        "import torch; f = torch.compile(lambda x: x.sin() + 1, backend='aot_eager'); f(torch.ones(3))",
        "f(torch.ones(3)), f(torch.ones(4, 2)), torch.compile(lambda x: x.cos(), backend='aot_eager')(torch.ones(3))",
    ),
    "inductor": (
        "import torch, torch._inductor.compile_fx, torch._inductor.runtime.triton_heuristics, torch._library.triton",
        "",
    ),
}


@pytest.mark.share(2)
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("first", FIRST)
def test_without_a_gpu_it_does_not_matter_who_imported_triton(python, first):
    """A user never did: torch imports it, compiled."""
    before, after = FIRST[first]
    result = python(f"{before}\nimport sys; assert 'triton' in sys.modules{RUN}{after}\nprint('fine')")
    assert result.stdout.endswith("fine\n") and not result.stderr, result.stderr


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_what_inductor_compiled_before_runs_after(python):
    """In C++; and another function compiles."""
    before = "import torch; f = torch.compile(lambda x: x.sin() + 1); f(torch.ones(3))"
    after = "f(torch.ones(3)), f(torch.ones(4, 2)), torch.compile(lambda x: x.cos())(torch.ones(3))"
    assert python(f"{before}{RUN}{after}\nprint('fine')").stdout == "fine\n"


USERS = """
import sys; sys.path.insert(0, {folder!r})
import torch, users
import kernels
x, out = torch.randn(8), torch.empty(4)
users.kernel[1,](x, out, 8)
torch.testing.assert_close(out, torch.stack([x.sum() + 2, x.max(), x.sum(), x.sum()]))
print(users.kernel.arg_names, 'fine')
"""
USERS_KERNEL = """
import triton
import triton.language as tl
from triton.language import sum as total

@triton.jit
def add_two(x):
    return x + 2

@triton.jit(do_not_specialize=["N"])
def kernel(x, out, N: tl.constexpr):
    values = tl.load(x + tl.arange(0, N))
    tl.store(out, add_two(tl.sum(values, 0)))
    tl.store(out + 1, values.max(0))
    tl.store(out + 2, total(values, 0))
    tl.store(out + 3, values.sum(0))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_users_kernel_from_before_runs_interpreted(python, tmp_path):
    """Its functions, and what it imported of Triton's by name, are what they would have been."""
    (tmp_path / "users.py").write_text(USERS_KERNEL)
    result = python(USERS.format(folder=str(tmp_path)))
    assert result.stdout == "['x', 'out', 'N'] fine\n", result.stderr


def test_a_kernel_that_was_launched_in_the_wrong_mode_is_an_error_that_says_what_to_write_where(python, tmp_path):
    (tmp_path / "users.py").write_text(USERS_KERNEL)
    launched = "users.kernel.device_caches[0] = ()  # as a launch on a GPU leaves behind"
    result = python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport users\n{launched}\n"
        "import os; os.environ['TRITON_INTERPRET'] = '1'; import kernels"
    )
    assert result.returncode != 0
    assert "users.kernel was launched, compiled, before kernels was imported" in result.stderr
    assert "`import kernels` above the first launch, or set TRITON_INTERPRET before Python starts" in result.stderr


def test_triton_imported_first_in_the_interpreters_mode_is_an_error_that_says_what_to_do(python):
    result = python(
        "import os; os.environ['TRITON_INTERPRET'] = '1'; import triton; os.environ['TRITON_INTERPRET'] = '0'; import kernels"
    )
    assert "in interpreter mode, but here kernels need compiled mode" in result.stderr
    assert "`import kernels` before" in result.stderr


def test_triton_imported_first_in_the_right_mode_is_fine(python):
    assert python("import triton; import kernels; print('fine')", TRITON_INTERPRET="1").stdout == "fine\n"


def test_a_missing_triton_is_one_clear_line(python):
    result = python("import sys; sys.modules['triton'] = None; import kernels", TRITON_INTERPRET="1")
    assert "Triton is not installed: run `make lab`" in result.stderr
    result = python(
        "import torch, sys, platform; sys.modules['triton'] = None; platform.system = lambda: 'Darwin'; import kernels",
        TRITON_INTERPRET="1",
    )
    assert "no wheel for Darwin" in result.stderr and "devcontainer" in result.stderr


def test_fused_multiply_add_is_decided_unless_the_user_did(python):
    show = "import kernels, os; print(os.environ['TRITON_DEFAULT_FP_FUSION'])"
    assert python(show, TRITON_INTERPRET="1").stdout == "1\n"
    assert python(show, TRITON_INTERPRET="1", TRITON_DEFAULT_FP_FUSION="0").stdout == "0\n"


CHILD = """
import torch
torch.cuda.is_available = lambda: {parent}
import kernels, os, subprocess, sys
code = "import torch; torch.cuda.is_available = lambda: {child}; from kernels import runtime; print(runtime.interpreted)"
environment = dict(os.environ, **{more})
print(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.parametrize(
    ("child", "more", "interpreted"),
    [(True, {}, False), (False, {}, True), (False, {"TRITON_INTERPRET": "0"}, False)],
)
def test_a_child_process_decides_for_itself(python, child, more, interpreted):
    """What was chosen where no GPU is seen is not the user's wish in a process that sees one."""
    assert python(CHILD.format(parent=False, child=child, more=more)).stdout == f"{interpreted}\n"


def test_a_childs_child_inherits_the_users_wish(python):
    assert python(CHILD.format(parent=False, child=True, more={}), TRITON_INTERPRET="1").stdout == "True\n"
