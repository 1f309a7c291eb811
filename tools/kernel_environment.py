"""The environment every notebook kernel of the course starts in, for nbval and `make refresh` alike."""

import os
from collections.abc import Mapping
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
        **environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),  # this checkout's `kernels`, whatever else is installed
    }
    wanted.pop("MPLBACKEND", None)  # a backend chosen for scripts would keep figures out of the notebook
    return wanted
