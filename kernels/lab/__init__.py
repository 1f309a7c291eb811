"""The course's instruments: compare numbers, trace a kernel's memory accesses, read what it compiles to, place it on
a roofline.

``compare``, ``trace``, ``compile_report``, ``compile_only``, ``roofline``, ``bars``, ``measure``, and ``check``, the
module that grades the exercises. Importing this package draws nothing: matplotlib is loaded by the first picture.
"""

import importlib

# Functions share their file's name, so they are bound here at once: a later `import kernels.lab.trace` cannot rebind
# them.
from kernels.lab.compare import compare
from kernels.lab.compile_report import CompileError, CompileReport, compile_report
from kernels.lab.trace import Trace, trace

__all__ = ["CompileError", "CompileReport", "Trace", "check", "compare", "compile_report", "trace"]


def __getattr__(name: str):
    """Load ``check`` when it is first asked for: it needs the rooms' references, the instruments do not."""
    if name == "check":
        return importlib.import_module("kernels.lab.check")
    raise AttributeError(f"module 'kernels.lab' has no attribute {name!r}")
