"""Launch configurations: tile sizes and warps, a pure function of shape, dtype and GPU name.

Each room has a ``configs.json`` that ``python -m benchmarks.tune`` writes: ``{gpu name: {kernel: {key: {option: value}}}}``.
Nothing is timed here, so the same call always gives the same bits.
"""

import functools
import json
from pathlib import Path

import torch

from kernels import runtime


@functools.cache
def _table(room):
    return json.loads((Path(__file__).parent.parent / room / "configs.json").read_text())


@functools.cache
def _gpu_name(index):
    return torch.cuda.get_device_name(index)


def configuration(room, kernel, key, device):
    """The options of ``kernel`` for the shape class ``key`` on ``device``.

    Args:
        room: the folder under ``kernels`` that holds ``configs.json``.
        kernel: name of the kernel in the table.
        key: shape and dtype class, such as ``"W4 16-bit"``; a key that is absent takes the kernel's ``"default"``.
        device: torch.device of the tensors; what its GPU's table has neither key nor default for is taken from ``"any GPU"``.

    Returns:
        dict of constexpr arguments and ``num_warps``.
    """
    on_cpu = runtime.interpreted or device.type == "cpu"  # or the model of Gluon, which runs beside any GPU
    return of_gpu("interpreter" if on_cpu else _gpu_name(device.index or 0), room, kernel, key)


def of_gpu(name, room, kernel, key):
    """The same on the GPU of this name, or on the ``"interpreter"``."""
    table = _table(room)
    own, rest = table.get(name, {}).get(kernel, {}), table["any GPU"][kernel]
    return dict(own.get(key) or own.get("default") or rest.get(key) or rest["default"])


def dump(table):
    """A table as text, one line a configuration."""

    def block(items, depth):
        pad = " " * (depth + 1)
        lines = [
            f"{pad}{json.dumps(name)}: {json.dumps(value) if depth == 2 else block(value, depth + 1)}"
            for name, value in items.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"

    return block(table, 0) + "\n"
