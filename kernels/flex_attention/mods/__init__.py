"""The zoo, ``mods.causal`` and its like (zoo.py); beside it the compiler from any such function to Triton, in reading order:

* trace.py: Python to graph, with autograd's derivative, and what of it is the kernel's, what torch's; scalars.py:
  short vectors and special functions as single numbers in elementary operations;
* rules.py, emit.py: graph to text; device.py: the functions that the text calls;
* compiler.py: all of it in order, text to module; bind.py, fingerprint.py: a compiled mod found again;
* extent.py: between which values integers lie, and how far a mask lets a query look.
"""

from kernels.flex_attention.mods.zoo import *  # noqa: F403
from kernels.flex_attention.mods.zoo import __all__  # noqa: F401
