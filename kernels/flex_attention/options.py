"""``kernel_options``: ours, and torch's, which people bring along."""

import warnings
from collections.abc import Mapping

import torch

from kernels.common.checks import is_whole, shown

#: Tiles and launch options: as they are for the forward pass (with ``fwd_``, too), with ``bwd_`` for the other.
OPTIONS = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
_PASSES = (f"{of}{name}" for of in ("", "bwd_", "fwd_") for name in OPTIONS)
OURS = (*_PASSES, "DETERMINISTIC", "WORKSPACE")

#: torch's ``FlexKernelOptions`` of torch 2.11 to 2.15, and what its kernels read beside them, that mean nothing to these
#: kernels: tiles of passes that are not cut this way, promises that are not needed, AMD's instructions, backends of its own.
THEIRS = """
    BLOCK_M1 BLOCK_N1 BLOCK_M2 BLOCK_N2 PRESCALE_QK ROWS_GUARANTEED_SAFE BLOCKS_ARE_CONTIGUOUS WRITE_DQ
    FORCE_USE_FLEX_ATTENTION USE_TMA BACKEND SPLIT_KV num_consumer_groups num_buffers_warp_spec kpack matrix_instr_nonkdim
    waves_per_eu
""".split()

_ignored = set()  # what was warned of


def checked(kernel_options):
    """Our options among ``kernel_options``, by their shortest names; those of torch's that mean nothing here warn once.

    Raises:
        ValueError: an option that is nobody's, or a value that does not fit.
    """
    options = {}
    if kernel_options is not None and not isinstance(kernel_options, Mapping):
        raise ValueError(f"kernel_options is {shown(kernel_options)}, needs a dict of options, or None")
    for name, value in (kernel_options or {}).items():
        if name in OURS:
            _check(name, value)
            options[name.removeprefix("fwd_")] = value if isinstance(value, bool) else int(value)  # of numpy, say
        elif name.removeprefix("fwd_").removeprefix("bwd_") in THEIRS:
            if name not in _ignored:
                _ignored.add(name)
                warnings.warn(
                    f"kernel_options[{name!r}] is an option of torch's flex_attention that means nothing here; it is ignored",
                    stacklevel=5,
                )
        else:
            raise ValueError(f"kernel_options has {shown(name)}, knows {', '.join(OURS)}, and ignores torch's others")
    options.setdefault("DETERMINISTIC", torch.are_deterministic_algorithms_enabled())
    return options


def _check(name, value):
    whole = is_whole(value)
    if name == "DETERMINISTIC":
        fits, needs = isinstance(value, bool), "True or False"
    elif name == "WORKSPACE":
        fits, needs = whole and value >= 0, "a number of bytes, 0 for none"
    elif name.endswith("num_stages"):
        fits, needs = whole and value >= 1, "an integer of at least 1"
    else:
        least = 1 if name.endswith("num_warps") else 16
        fits, needs = whole and value >= least and value & (value - 1) == 0, f"a power of two of at least {least}"
    if not fits:
        raise ValueError(f"kernel_options[{name!r}] is {shown(value)}, needs {needs}")
