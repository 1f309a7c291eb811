"""The zoo, ``mods.causal`` and its like; and beside it, in modules of their own, how any mod becomes a kernel's function."""

from kernels.flex_attention.mods.zoo import *  # noqa: F403
from kernels.flex_attention.mods.zoo import __all__  # noqa: F401
