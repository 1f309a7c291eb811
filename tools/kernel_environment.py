"""The environment every notebook kernel of the course starts in, for nbval and `make refresh` alike."""

import importlib.metadata
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def kernel_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` as a notebook kernel needs it. What the user has set stays."""
    paths = [str(ROOT), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    wanted = {
        "TRITON_DEFAULT_FP_FUSION": "1",  # today's default; Triton warns until it is chosen
        "PYTHONHASHSEED": "0",  # a printed set keeps its order
        "OMP_NUM_THREADS": "1",  # sums in one order on every machine; two notebooks share two cores
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else the debugger's warning lands in a cell's output
        "KERNELS_PROGRESS": "0",  # a check's line of progress depends on the machine
        **environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),  # this checkout's `kernels`, whatever else is installed
    }
    wanted.pop("MPLBACKEND", None)  # a backend chosen for scripts would keep figures out of the notebook
    return wanted


@cache
def too_old_for(notebook: Path) -> str:
    """Why the installed Triton cannot run a notebook, as text: the model of Gluon needs 3.8. Empty if it can."""
    installed = importlib.metadata.version("triton")
    if "gluon_model" in notebook.read_text() and tuple(map(int, installed.split(".")[:2])) < (3, 8):
        return f"{notebook.stem} needs Triton 3.8 for the model of Gluon, this is {installed}"
    return ""
