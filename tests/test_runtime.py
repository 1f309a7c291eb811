"""Where kernels run is decided once: each case in a process of its own, because the decision cannot be taken twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

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


@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_the_users_wish_for_the_interpreter_wins(python, value):
    result = python(SHOW + "; import os; print(os.environ['TRITON_INTERPRET'])", TRITON_INTERPRET=value)
    assert result.stdout.startswith("cpu True") and result.stdout.splitlines()[-1] == "1"


def test_the_users_wish_for_compiled_kernels_wins(python):
    result = python(SHOW, TRITON_INTERPRET="0")
    assert "False |" in result.stdout and "compiled" in result.stdout, result.stderr


def test_triton_imported_first_in_the_wrong_mode_is_an_error_that_says_what_to_do(python):
    result = python("import triton, os; os.environ['TRITON_INTERPRET'] = '1'; import kernels")
    assert result.returncode != 0
    assert "Triton was imported before kernels, in compiled mode" in result.stderr
    assert "`import kernels` before" in result.stderr
    result = python(
        "import os; os.environ['TRITON_INTERPRET'] = '1'; import triton; os.environ['TRITON_INTERPRET'] = '0'; import kernels"
    )
    assert "in interpreter mode, but here kernels need compiled mode" in result.stderr


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
