"""Gluon kernels on the CPU: the kernel's own source, partition by partition, and the deadlocks and races in it.

``run(kernel, grid, *args, ...)`` executes a ``@gluon.jit`` kernel: warp-specialised partitions take turns, copies and
matrix products land later, as the schedule says. What is wrong is found from what is ordered before what (vector
clocks), not from what happened to go wrong in the run; ``check_all_schedules`` runs several schedules, ``executing``
lets a host function's own launches run here.

Needs Triton 3.8 or newer, and no GPU.
"""

import triton

if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 8):
    raise ImportError(
        f"kernels.gluon_model needs Triton 3.8 or newer (for Gluon's im2col copies); this is {triton.__version__}."
    )

from kernels.gluon_model.findings import KINDS, Finding
from kernels.gluon_model.runner import Result, Sweep, check_all_schedules, executing, run
from kernels.gluon_model.schedule import SCHEDULES
from kernels.gluon_model.values import ModelError

__all__ = [
    "KINDS",
    "SCHEDULES",
    "Finding",
    "ModelError",
    "Result",
    "Sweep",
    "check_all_schedules",
    "executing",
    "run",
]
