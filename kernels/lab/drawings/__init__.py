"""The course's drawings: one function a figure, each made for an idea, all in one visual language.

>>> from kernels.lab import drawings
>>> drawings.machine(lit="shared memory")   # the last line of a cell: one line in the notebook, the code here

A drawing is a figure with ``alt`` (what it looks like, stored beside the image for whoever cannot see it). One that
shows a process is a filmstrip: its ``slider()`` steps through the same frames where a kernel runs.
"""

from kernels.lab.drawings.conv1d_backward import (  # noqa: F401
    conv_partial_sums,
    conv_passes,
    conv_sums,
    conv_who_saw,
)
