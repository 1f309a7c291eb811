"""Importing an instrument stays quick: no matplotlib, no checks, and names keep meaning the function."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
    ).stdout


def test_instruments_do_not_load_what_they_do_not_need():
    out = run(
        "import sys; from kernels.lab import compare, trace\n"
        "heavy = ('matplotlib', 'kernels.check', 'kernels.gluon_model', 'kernels.dynamic_conv')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert out == "[]\n"


def test_names_stay_functions_whatever_is_imported_first():
    out = run(
        "import kernels.lab.trace, kernels.lab.compare, kernels.lab.roofline, kernels.lab.compile_report\n"
        "from kernels.lab import compare, compile_report, roofline, trace\n"
        "print(all(map(callable, (compare, compile_report, roofline, trace.recording, trace))))\n"
        "import kernels.lab; print(hasattr(kernels.lab, 'chekc'))"
    )
    assert out == "True\nFalse\n"
