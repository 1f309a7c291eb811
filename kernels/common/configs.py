"""Launch configurations: tile sizes and warps, a pure function of shape, dtype and GPU name.

Each operator has a ``configs.json`` that ``python -m benchmarks.tune`` writes, ``{gpu: {kernel: {key: {option: value}}}}``. A
gpu is a name, such as ``"NVIDIA H200"``, an architecture, such as ``"sm_90"``, or ``"any GPU"``; instead of a table of its
own it may name another one's. Nothing is timed here, so the same call always gives the same bits.
"""

import contextlib
import functools
import json
from pathlib import Path

import torch

from kernels import runtime
from kernels.common.operator import clear_caches

_classes = {}  # {operator: {kernel: shape classes}}


def declare(operator, classes):
    """The shape classes of an operator's kernels, ``{kernel: names}``: to ask for another is an error."""
    _classes[operator] = {kernel: frozenset(names) for kernel, names in classes.items()}


def declared(operator):
    """What an operator declared, ``{}`` where it has not."""
    return _classes.get(operator, {})


@functools.cache
def _table(operator):
    return json.loads((Path(__file__).parent.parent / operator / "configs.json").read_text())


@functools.cache
def _gpu(index):
    """``(name, architecture)``."""
    major, minor = torch.cuda.get_device_capability(index)
    return torch.cuda.get_device_name(index), f"{'gfx' if torch.version.hip else 'sm_'}{major}{minor}"


def configuration(operator, kernel, key, device):
    """The options of ``kernel`` for the shape class ``key`` on ``device``.

    Args:
        operator: the folder under ``kernels`` that holds ``configs.json``.
        kernel: name of the kernel in the table.
        key: shape and dtype class, one that the operator declares, such as ``"W4 16-bit"``; one that a table has no line for
            takes the kernel's ``"default"``.
        device: torch.device of the tensors. What the table of its GPU's name has no line for is taken from that of its
            architecture, and what that has none for from ``"any GPU"``.

    Returns:
        dict of constexpr arguments and ``num_warps``.

    Raises:
        ValueError: the operator declares its shape classes, and this is none of them.
    """
    classes = declared(operator)
    if classes and key not in classes.get(kernel, ()):
        raise ValueError(f"{key!r} is no shape class that kernels.{operator} declares for {kernel!r}")
    return dict(_says(operator, kernel, key, device))


def table_says(operator, kernel, key, device):
    """``configuration`` by the committed tables, whatever ``instead`` says."""
    on_cpu = runtime.interpreted or device.type == "cpu"  # or the model of Gluon, which runs beside any GPU
    gpus = ("interpreter",) if on_cpu else _gpu(device.index or 0)
    return of_gpu(gpus, operator, kernel, key)


_says = table_says


@contextlib.contextmanager
def instead(says):
    """Within, ``configuration`` gives what ``says(operator, kernel, key, device)`` gives."""
    global _says
    before, _says = _says, says
    clear_caches()
    try:
        yield
    finally:
        _says = before
        clear_caches()


def of_gpu(gpus, operator, kernel, key):
    """The same on a GPU that goes by these names, the one that says most first, or on the ``"interpreter"``."""
    table = _table(operator)
    for name in (*((gpus,) if isinstance(gpus, str) else gpus), "any GPU"):
        own = table.get(name, {})
        own = (table[own] if isinstance(own, str) else own).get(kernel, {})
        if found := own.get(key) or own.get("default"):
            return dict(found)
    raise ValueError(f"the table of kernels.{operator} has nothing for {kernel!r} on any GPU")
