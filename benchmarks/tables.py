"""Which table of tiles a GPU takes: that of its name, else of its architecture, else that of any GPU."""

import json
import re
from pathlib import Path

KERNELS = Path(__file__).parent.parent / "kernels"
OPERATORS = ("dynamic_conv", "recurrent_attention", "flex_attention", "conv_wgrad")
ANY = "any GPU"
ARCHITECTURES = {  # that PyTorch's wheels are built for, and GPUs that have them
    "sm_80": ("Ampere", ("A100", "A800")),
    "sm_86": ("Ampere", ("A10", "GeForce RTX 3090")),
    "sm_89": ("Ada", ("L40S", "GeForce RTX 4090")),
    "sm_90": ("Hopper", ("H100", "H200", "GH200")),
    "sm_100": ("Blackwell", ("B200", "GB200")),
    "sm_120": ("Blackwell", ("GeForce RTX 5090", "RTX PRO 6000")),
}


def table_of(operator, *names):
    """``(by, whose)``: the first of a GPU's names that the operator's ``configs.json`` has a table for, and the GPU that it
    was made on, ``"any GPU"`` if it was made on none. ``kernels.common.configs`` looks in the same order."""
    tables = json.loads((KERNELS / operator / "configs.json").read_text())
    by = next(name for name in (*names, ANY) if name in tables)
    return by, tables[by] if isinstance(tables[by], str) else by


def short(gpu):
    """A GPU's name in a word: ``"H100"`` of ``"NVIDIA H100 80GB HBM3"``; a card's with a display is all but the maker's."""
    name = gpu.removeprefix("NVIDIA ")
    return name if name.startswith(("GeForce", "RTX")) else re.split("[ -]", name)[0]
