"""Lessons 03 and 04's measured curves, each drawn over what arithmetic predicts: points are recorded, dashed lines predicted.

Everything here reads the record of ``python -m benchmarks.machine``, so it is the same on every computer.
"""

from kernels.lab.machine_record import numbers, rows
from kernels.lab.measured.memory import bytes_in_flight, latency, puzzle, strides
from kernels.lab.measured.programs import hiding, smallest_and_largest, waves

__all__ = [
    "bytes_in_flight",
    "hiding",
    "latency",
    "numbers",
    "puzzle",
    "rows",
    "smallest_and_largest",
    "strides",
    "waves",
]
