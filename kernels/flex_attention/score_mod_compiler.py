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
import types
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.flex_attention import mod_ops, score_mod_emit
from kernels.flex_attention.mods import Mod
from kernels.flex_attention.score_mod_trace import ARGUMENTS, ModError, trace

__all__ = ["ModError", "BoundMod", "bind", "source"]


@dataclass(frozen=True)
class CompiledMod:
    """What a trace became; it holds no captured tensor.

    value: ``score_mod(score, b, h, q_idx, kv_idx, tables)`` or ``mask_mod(b, h, q_idx, kv_idx, tables)`` in Triton; ``None``
    for a score mod that changes nothing and a mask mod that allows everything. gradient: ``score_gradient(..., grad,
    tables)``. sinks: ``sink_gradients(..., grad, live, tables, sinks, PASS)``, ``None`` if no captured tensor requires a
    gradient. bounds: for ``b``, ``h``, ``q_idx`` and ``kv_idx`` the smallest dimension that they index by themselves. before:
    tables from captured tensors, a torch function. after: gradients of captured tensors from sinks and
    captured tensors. sink_shapes: of each sink. learned: for each captured tensor whether it gets a gradient.
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
    learned: tuple


@dataclass(frozen=True)
class BoundMod:
    """A compiled mod and the tensors it captures in this call."""

    compiled: CompiledMod
    captured: tuple

    @property
    def learned(self):
        """The captured tensors that get a gradient."""
        return [t for t, on in zip(self.captured, self.compiled.learned) if on]

    @torch.no_grad()
    def tables(self):
        """The tensors that the kernel reads."""
        return tuple(self.compiled.before(*self.captured))

    @torch.no_grad()
    def gradients(self, sums):
        """The gradients of ``learned``, from the sums that the kernel made, each in its tensor's dtype and shape."""
        made = self.compiled.after(*self.captured, *sums)
        return [
            torch.zeros_like(t) if gradient is None else gradient.to(t.dtype).expand(t.shape).reshape(t.shape)
            for t, gradient in zip(self.learned, made)
        ]


def compile_mod(mod, kind, device="cpu", differentiate=False):
    """``(CompiledMod, captured tensors)`` of a mod, traced now."""
    t = trace(mod, kind, device, differentiate)
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
        tuple(gradient is not None for gradient in t.gradients),
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
    graph.output([_copy(node, graph, copied) for node in t.tables])
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


def _module_text(title, *functions):
    body = "\n\n".join(functions)
    helpers = sorted(name for name in vars(mod_ops) if re.search(rf"(?<![.\w]){name}\(", body) and name[0] != "_")
    imports = f"\nfrom kernels.flex_attention.mod_ops import {', '.join(helpers)}\n" if helpers else ""
    return f'"""Generated from {title}."""\n\nimport triton\nimport triton.language as tl\n{imports}\n\n{body}'


def cache_folder():
    """Where generated modules are kept: ``$KERNELS_CACHE_DIR``, or ``~/.cache/kernels_from_math``."""
    named = os.environ.get("KERNELS_CACHE_DIR")
    return Path(named) if named else Path.home() / ".cache" / "kernels_from_math"


@functools.cache
def _import(text):
    """Write ``text`` to a file named after its content, import it; the same text is the same module."""
    name = f"flex_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
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
    return module


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

_compiled: OrderedDict = OrderedDict()
_MOST = 512


def _check_devices(kind, mod, captured, device):
    for tensor in captured:
        if tensor.device != device:
            name = getattr(mod, "__name__", type(mod).__name__)
            raise ValueError(
                f"{kind} {name} captures a tensor {list(tensor.shape)} on {tensor.device}, needs {device}, query's device"
            )


def bind(mod, kind, device, differentiate=False):
    """``mod`` compiled, with the tensors that it captures now.

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
    look = _Fingerprint()
    known = look.of(mod)
    key = (kind, device.type, differentiate, known) if look.complete else None
    if key in _compiled:
        _compiled.move_to_end(key)
        compiled, places = _compiled[key]
        return BoundMod(compiled, tuple(look.tensors[i] for i in places))
    try:
        compiled, captured = compile_mod(mod, kind, device, differentiate)
    except ModError:
        _check_devices(kind, mod, look.tensors, device)  # tracing fails where devices meet; say so rather than how
        raise
    _check_devices(kind, mod, captured, device)
    places = [next((i for i, t in enumerate(look.tensors) if t is tensor), None) for tensor in captured]
    if key is not None and None not in places:
        _compiled[key] = compiled, places
        if len(_compiled) > _MOST:
            _compiled.popitem(last=False)
    return BoundMod(compiled, captured)


class _Fingerprint:
    """What decides how a function would be traced: code, constants, and the layouts of captured tensors.

    ``complete`` turns False where something is captured whose state cannot be told; such a mod is traced at every call.
    """

    _SAFE_MODULES = ("torch", "math", "builtins", "operator", "functools", "kernels")

    def __init__(self):
        self.complete = True
        self.tensors = []
        self.inside = set()

    def of(self, x):
        """A hashable description of ``x``; tensors are noted in ``tensors``."""
        if isinstance(x, torch.Tensor):
            i = next((i for i, t in enumerate(self.tensors) if t is x), len(self.tensors))
            if i == len(self.tensors):
                self.tensors.append(x)
            return "tensor", i, tuple(x.shape), x.stride(), x.dtype, x.requires_grad, x.device.type
        if x is None or isinstance(x, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
            return type(x), repr(x)
        if isinstance(x, tuple | list | torch.Size):
            return type(x), *map(self.of, x)
        if isinstance(x, dict):
            return dict, *((self.of(k), self.of(v)) for k, v in x.items())
        if isinstance(x, functools.partial):
            return functools.partial, self.of(x.func), self.of(x.args), self.of(x.keywords)
        if isinstance(x, types.FunctionType):
            return self.function(x)
        if isinstance(x, Mod):
            return self.of(x.__wrapped__)
        if isinstance(x, types.ModuleType):
            self.complete &= x.__name__.split(".")[0] in self._SAFE_MODULES
            return "module", x.__name__
        if isinstance(x, types.BuiltinFunctionType) and isinstance(getattr(x, "__self__", None), type):
            return "builtin", x  # such as the apply of an autograd.Function
        package = (getattr(x, "__module__", None) or type(x).__module__).split(".")[0]
        self.complete &= package in self._SAFE_MODULES and not isinstance(x, torch.nn.Module)
        try:
            hash(x)
        except TypeError:
            self.complete = False
            return type(x)
        return x

    def function(self, f):
        if f in self.inside:
            return "itself"
        self.inside.add(f)
        try:
            cells = tuple(self.of(cell.cell_contents) for cell in f.__closure__ or ())
        except ValueError:  # a variable that is not set yet
            self.complete = False
            cells = ()
        defaults = self.of(f.__defaults__), self.of(f.__kwdefaults__)
        if f.__module__.split(".")[0] == "torch":
            globals_used = ()
        else:
            globals_used = tuple(self.of(f.__globals__[name]) for name in _names(f.__code__) if name in f.__globals__)
        self.inside.discard(f)
        return f.__code__, f.__code__.co_filename, cells, defaults, globals_used


def _names(code):
    """Global names that a function's code, and the functions defined in it, refer to."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= dict.fromkeys(_names(constant))
    return names


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
    look = _Fingerprint()
    look.of(mod)
    return look.tensors[0].device if look.tensors else "cpu"
