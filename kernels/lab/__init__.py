"""The course's instruments: compare numbers, trace a kernel's accesses, read what it compiles to, see how fast it
may be.

``compare``, ``trace``, ``compile_report`` and ``loop_parts`` of one; ``predict``, the law of time; ``recorded`` with
``roofline`` and ``bars``, which draw records, and ``measure``; ``ladder`` and ``sweep``, a lesson's own kernels as a GPU
ran them; ``bytes_of_calls`` of plain PyTorch; ``source``, a finished kernel's text; ``drawings``, the lessons' figures.
Importing this package draws nothing and compiles nothing: matplotlib is loaded by the first picture.
"""

# Functions share their file's name, so they are bound at once: a later `import kernels.lab.trace` cannot rebind them.
from kernels.lab.accesses import Trace
from kernels.lab.compare import compare
from kernels.lab.compile_report import CompileError, CompileReport, compile_report
from kernels.lab.ladder import ladder, sweep
from kernels.lab.law import predict
from kernels.lab.loop_parts import loop_parts
from kernels.lab.roofline import bars, measure, recorded, roofline
from kernels.lab.source import source
from kernels.lab.trace import trace
from kernels.lab.traffic import bytes_of_calls

__all__ = [
    "CompileError",
    "CompileReport",
    "Trace",
    "bars",
    "bytes_of_calls",
    "compare",
    "compile_report",
    "ladder",
    "loop_parts",
    "measure",
    "predict",
    "recorded",
    "roofline",
    "source",
    "sweep",
    "trace",
]

