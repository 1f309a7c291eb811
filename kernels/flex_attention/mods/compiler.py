"""Python mods as Triton functions: traced, differentiated, emitted, written to a file named after its content, imported.

The steps are ``score_mod_trace.trace`` (Python to graph, and the graph's derivative) and ``score_mod_emit`` (graph to text).
This file keeps what they made: ``bind(mod, kind, ...)`` finds a compiled mod again by what the function *is* (its code, and
what it captures), so that a mod that is defined anew in every forward pass is traced once.
"""

import functools
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.common.validate import same_device
from kernels.flex_attention.mods import device as mod_ops
from kernels.flex_attention.mods import emit as score_mod_emit
from kernels.flex_attention.mods.fingerprint import Fingerprint, replaced
from kernels.flex_attention.mods.trace import ARGUMENTS, ModError, trace

__all__ = ["ModError", "BoundMod", "bind", "source"]


@dataclass(frozen=True)
class CompiledMod:
    """What a trace became; it holds no captured tensor.

    value: ``score_mod(score, b, h, q_idx, kv_idx, tables)`` or ``mask_mod(b, h, q_idx, kv_idx, tables)`` in Triton; ``None``
    for a score mod that changes nothing and a mask mod that allows everything. gradient: ``score_gradient(..., grad,
    tables)``. sinks: ``sink_gradients(..., grad, live, tables, sinks, PASS)``, ``None`` if no captured tensor requires a
    gradient. bounds: for ``b``, ``h``, ``q_idx`` and ``kv_idx`` the smallest dimension that they index by themselves. before:
    tables from captured tensors, a torch function. after: gradients of captured tensors from sinks and
    captured tensors. sink_shapes: of each sink. inputs: for each input of the two whether it is a number, and not a captured
    tensor. numbers: for each table which number it is, or ``None``. sizes: strides and sizes of tables, the last arguments.
    learned: for each captured tensor whether it gets a gradient.
    """

    kind: str
    text: str
    value: object
    gradient: object
    sinks: object
    bounds: dict
    before: object
    after: object
    sink_shapes: tuple
    inputs: tuple
    numbers: tuple
    sizes: tuple
    learned: tuple


@dataclass(frozen=True)
class BoundMod:
    """A compiled mod, and the tensors and numbers that it captures in this call."""

    compiled: CompiledMod
    captured: tuple
    numbers: tuple = ()

    @property
    def learned(self):
        """The captured tensors that get a gradient."""
        return [t for t, on in zip(self.captured, self.compiled.learned) if on]

    def _inputs(self):
        """What torch's parts are called with: tensors, and numbers as tensors on the CPU, which torch lets meet any other."""
        captured, numbers = iter(self.captured), iter(self.numbers)
        for is_number in self.compiled.inputs:
            yield torch.tensor(next(numbers), device="cpu") if is_number else next(captured)

    @torch.no_grad()
    def tables(self):
        """What the kernel reads: tensors, numbers, and sizes of the tensors."""
        made, numbers = iter(self.compiled.before(*self._inputs())), self.compiled.numbers
        return *(next(made) if i is None else self.numbers[i] for i in numbers), *self.compiled.sizes

    @torch.no_grad()
    def gradients(self, sums):
        """The gradients of ``learned``, from the sums that the kernel made, each in its tensor's dtype and shape."""
        made = self.compiled.after(*self._inputs(), *sums)
        return [
            torch.zeros_like(t) if gradient is None else gradient.to(t.dtype).expand(t.shape).reshape(t.shape)
            for t, gradient in zip(self.learned, made)
        ]


def compile_mod(mod, kind, device="cpu", differentiate=False, stand_ins=()):
    """``(CompiledMod, captured tensors)`` of a mod, traced now; ``stand_ins`` among those stand for numbers."""
    t = trace(mod, kind, device, differentiate)
    inputs = [any(tensor is one for one in stand_ins) for tensor in t.captured]
    t.numbers = [node for node, is_number in zip(t.inputs, inputs, strict=True) if is_number]
    functions = {kind: score_mod_emit.emit_value(t)}
    if differentiate:
        functions["score_gradient"] = score_mod_emit.emit_gradient(t)
        if t.sinks:
            functions["sink_gradients"] = score_mod_emit.emit_sinks(t)
    title = f"{getattr(mod, '__name__', type(mod).__name__)}({', '.join(ARGUMENTS[kind])})"
    module = {name: _import(_module_text(title, text)) for name, text in functions.items()}
    changes_nothing = (kind == "score_mod" and t.value in t.graph.nodes and t.value.name == "score") or (
        kind == "mask_mod" and _always_true(t)
    )
    compiled = CompiledMod(
        kind,
        _module_text(title, *functions.values()),
        None if changes_nothing else getattr(module[kind], kind),
        module["score_gradient"].score_gradient if differentiate and not changes_nothing else None,
        module["sink_gradients"].sink_gradients if "sink_gradients" in functions else None,
        _bounds(t),
        _before(t),
        _after(t),
        tuple(tuple(node.meta["val"].shape) for node in t.sinks),
        tuple(inputs),
        tuple(t.numbers.index(node) if node in t.numbers else None for node in t.tables),
        tuple(t.sizes.values()),
        tuple(gradient is not None for gradient, is_number in zip(t.gradients, inputs, strict=True) if not is_number),
    )
    return compiled, tuple(t.captured)


def _always_true(t):
    writer = score_mod_emit._Function(t)
    return writer.is_constant(t.value) and bool(writer.constant(t.value))


def _bounds(t):
    """For each argument the smallest dimension of a captured tensor that it indexes by itself."""
    bounds = {}
    for node in t.graph.nodes:
        if node.target is torch.ops.aten.index.Tensor:
            table, indices = node.args
            for index, size in zip(indices, table.meta["val"].shape, strict=False):
                if index is not None and index.op == "placeholder" and index.name in ARGUMENTS["mask_mod"]:
                    bounds[index.name] = min(size, bounds.get(index.name, size))
    return bounds


# Torch's parts: before and after the kernel.


def _before(t):
    """The tables as a torch function of the captured tensors."""
    graph, copied = torch.fx.Graph(), {}
    for node in t.inputs:
        copied[node] = graph.placeholder(node.name)
    graph.output([_copy(node, graph, copied) for node in t.tables if node not in t.numbers])
    return torch.fx.GraphModule(t.graph.owning_module or {}, graph)


def _after(t):
    """The gradients as a torch function of the captured tensors and the sinks."""
    graph, copied = torch.fx.Graph(), {}
    for node in t.inputs:
        copied[node] = graph.placeholder(node.name)
    for i, node in enumerate(t.sinks):
        copied[node] = graph.placeholder(f"sink_{i}")
    wanted = [gradient for gradient in t.gradients if gradient is not None]
    graph.output([_copy(node, graph, copied) for node in wanted])
    return torch.fx.GraphModule(t.graph.owning_module or {}, graph)


def _copy(node, graph, copied):
    if node not in copied:
        for i in node.all_input_nodes:
            _copy(i, graph, copied)
        copied[node] = graph.node_copy(node, copied.__getitem__)
    return copied[node]


# Generated modules.

_lock = threading.RLock()


class _Bounded(OrderedDict):
    """The entries used last; a module that goes leaves ``sys.modules``, too."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def find(self, key):
        """What is kept, or ``None``."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def keep(self, key, value):
        """``value``, kept."""
        self[key] = value
        if len(self) > self.most:
            _, gone = self.popitem(last=False)
            sys.modules.pop(getattr(gone, "__name__", None), None)
        return value


_modules = _Bounded(2048)


def _module_text(title, *functions):
    body = "\n\n".join(functions)
    helpers = sorted(name for name in vars(mod_ops) if re.search(rf"(?<![.\w]){name}\(", body) and name[0] != "_")
    imports = f"\nfrom kernels.flex_attention.mods.device import {', '.join(helpers)}\n" if helpers else ""
    return f'"""Generated from {title}."""\n\nimport triton\nimport triton.language as tl\n{imports}\n\n{body}'


def cache_folder():
    """Where generated modules are kept: ``$KERNELS_CACHE_DIR``, or ``~/.cache/kernels_from_math``."""
    named = os.environ.get("KERNELS_CACHE_DIR")
    return Path(named) if named else Path.home() / ".cache" / "kernels_from_math"


def _import(text):
    """Write ``text`` to a file named after its content, import it; the same text is the same module."""
    name = f"flex_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with _lock:
        if (module := _modules.find(name)) is not None:
            return module
        path = cache_folder() / f"{name}.py"
        try:
            _write(path, text)
        except OSError:  # a home that cannot be written to
            path = Path(_own_folder()) / path.name
            _write(path, text)
        spec = importlib.util.spec_from_file_location(f"kernels_generated_{name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return _modules.keep(name, module)


def _write(path, text):
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".py", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)  # whole or not at all, for processes that import it at the same time


@functools.cache
def _own_folder():
    return tempfile.mkdtemp(prefix="kernels_from_math_")


# Finding a compiled mod again.


@dataclass
class _Family:
    """Mods that differ in numbers alone: the first one's numbers, and which of them have differed since."""

    first: tuple
    varying: tuple = ()
    refused: bool = False  # something in the code needs the numbers themselves


_compiled = _Bounded(512)  # (structure, numbers) -> (compiled mod, places of what it captures)
_families = _Bounded(512)


def _check_devices(kind, mod, captured, device):
    for tensor in captured:
        if not same_device(tensor.device, device):
            name = getattr(mod, "__name__", type(mod).__name__)
            raise ValueError(
                f"{kind} {name} captures a tensor {list(tensor.shape)} on {tensor.device}, needs {device}, query's device"
            )


def bind(mod, kind, device, differentiate=False):
    """``mod`` compiled, with the tensors and numbers that it captures now.

    A mod that differs from one that is known in numbers alone (the offset of a cache, a window) gets them as arguments of
    its kernel, so that the next numbers compile nothing. Where its code needs a number itself, for a branch or as a size, it
    is compiled for each.

    Args:
        mod: a score mod or mask mod.
        kind: ``"score_mod"`` or ``"mask_mod"``.
        device: torch.device of the attention's tensors.
        differentiate: whether gradients will be needed.

    Returns:
        a ``BoundMod``.

    Raises:
        ModError: see ``trace``. ValueError: a captured tensor is on another device.
    """
    look = Fingerprint(mod)
    key = (kind, device.type, differentiate, look.structure)
    if not look.complete:
        compiled, captured = _compile(look, mod, kind, device, differentiate)
        return BoundMod(compiled, tuple(captured))
    with _lock:
        known = _compiled.find((key, look.values)) or _of_family(look, key, mod, kind, device, differentiate)
        if known is None:
            compiled, captured = _compile(look, mod, kind, device, differentiate)
            places = [next((i for i, t in enumerate(look.tensors) if t is tensor), None) for tensor in captured]
            if None in places:  # made while it was traced
                return BoundMod(compiled, tuple(captured))
            known = _compiled.keep((key, look.values), (compiled, places, ()))
    compiled, places, numbers = known
    captured = tuple(look.tensors[i] for i in places)
    _check_devices(kind, mod, captured, device)  # of the same type they may still be two
    return BoundMod(compiled, captured, tuple(look.numbers[i] for i in numbers))


def _of_family(look, key, mod, kind, device, differentiate):
    """What ``_compiled`` keeps for all mods that differ in the numbers in which this one differs, or ``None``."""
    family = _families.find(key)
    if family is None:
        _families.keep(key, _Family(look.values))
        return None
    differ = {i for i, (a, b) in enumerate(zip(look.values, family.first, strict=True)) if a != b}
    family.varying = tuple(sorted(differ.union(family.varying)))
    if family.refused or not look.open:
        return None
    own_key = (key, family.varying)
    if known := _compiled.find(own_key):
        return known
    numbers = [look.numbers[i] for i in family.varying]
    dtypes = [torch.float32 if isinstance(n, float) else torch.int32 for n in numbers]  # those of a score, of an index
    stand_ins = [torch.empty((), dtype=dtype, device="cpu") for dtype in dtypes]  # as ``BoundMod`` gives them to torch
    try:
        other = replaced(mod, dict(zip((look.places[i] for i in family.varying), stand_ins, strict=True)))
        compiled, captured = compile_mod(other, kind, device, differentiate, stand_ins)
    except (
        Exception
    ):  # whatever a tensor without a value cannot do; with the numbers themselves the mod may be all right
        family.refused = True
        return None
    varying = {id(stand_in): i for i, stand_in in zip(family.varying, stand_ins, strict=True)}
    numbers = [
        varying[id(tensor)] for tensor in captured if id(tensor) in varying
    ]  # in the order in which they were met
    captured = [tensor for tensor in captured if id(tensor) not in varying]
    places = [next((i for i, t in enumerate(look.tensors) if t is tensor), None) for tensor in captured]
    if None in places:
        family.refused = True
        return None
    return _compiled.keep(own_key, (compiled, places, numbers))


def _compile(look, mod, kind, device, differentiate):
    try:
        compiled, captured = compile_mod(mod, kind, device, differentiate)
    except ModError:
        _check_devices(kind, mod, look.tensors, device)  # tracing fails where devices meet; say so rather than how
        raise
    _check_devices(kind, mod, captured, device)
    return compiled, captured


def source(score_mod=None, mask_mod=None, *, device=None):
    """The Triton text generated for a score mod with its gradients, and for a mask mod.

    Args:
        score_mod: ``(score, b, h, q_idx, kv_idx)``, or ``None``.
        mask_mod: ``(b, h, q_idx, kv_idx)``, or ``None``.
        device: the torch.device of the attention's tensors; ``None``: that of the tensors a mod captures, or the CPU.
    """
    texts = []
    for mod, kind in ((score_mod, "score_mod"), (mask_mod, "mask_mod")):
        if mod is not None:
            there = torch.device(device or _device_of(mod))
            texts.append(bind(mod, kind, there, differentiate=kind == "score_mod").compiled.text)
    return "\n\n".join(texts)


def _device_of(mod):
    """Of the first tensor that ``mod`` captures."""
    tensors = Fingerprint(mod).tensors
    return tensors[0].device if tensors else "cpu"
