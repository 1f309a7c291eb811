"""Kernels from Math: GPU kernels derived from their equations.

Importing this package decides where kernels run (see ``kernels.runtime``); each operator is imported from its own room,
for example ``from kernels.dynamic_conv import dynamic_conv``.
"""

from kernels import runtime

__all__ = ["runtime"]
