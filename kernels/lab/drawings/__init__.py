"""The course's drawings: one function a figure, each made for an idea, all in one visual language.

>>> from kernels.lab import drawings
>>> drawings.machine(lit="shared memory")   # the last line of a cell: one line in the notebook, the code here

A drawing is a figure with ``alt`` (what it looks like, stored beside the image for whoever cannot see it). One that
shows a process is a filmstrip: its ``slider()`` steps through the same frames where a kernel runs.
"""

from kernels.lab.drawings.machine import (
    latency_hiding,
    launch,
    machine,
    occupancy,
    pipe,
    program_on_threads,
    warp_load,
    waves,
)  # fmt: skip

__all__ = ["latency_hiding", "launch", "machine", "occupancy", "pipe", "program_on_threads", "warp_load", "waves"]
