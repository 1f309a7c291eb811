"""Importing an instrument stays quick: no matplotlib, no checks, and names keep meaning the function."""

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_instruments_do_not_load_what_they_do_not_need():
    out = run(
        "import sys; from kernels.lab import compare, trace\n"
        "print([m for m in ('matplotlib', 'kernels.lab.check', 'kernels.dynamic_conv') if m in sys.modules])"
    )
    assert out == "[]\n"


def test_names_stay_functions_whatever_is_imported_first():
    out = run(
        "import kernels.lab.trace, kernels.lab.compare\nfrom kernels.lab import trace, compare\n"
        "print(callable(trace), callable(trace.recording), callable(compare))"
    )
    assert out == "True True True\n"


def test_unknown_name():
    assert run("import kernels.lab\nprint(hasattr(kernels.lab, 'chekc'))") == "False\n"
