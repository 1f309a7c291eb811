"""A mod as functions of Triton, and as what torch computes before and after the kernel.

The steps are ``trace`` (Python to graph, and the graph's derivative), ``emit`` (graph to text) and ``load`` (text to module).
"""

import functools
import hashlib
import importlib.util
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernels.common.operator import lock_over_forks
from kernels.flex_attention.mods import device as device_functions
from kernels.flex_attention.mods.emit import Function, function_of, part_of
from kernels.flex_attention.mods.errors import ARGUMENTS, ModError, name_of
from kernels.flex_attention.mods.extent import INTEGERS, MaskExtent, extent_of_trace
from kernels.flex_attention.mods.trace import trace

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class CompiledMod:
    """What a trace became; it holds no captured tensor, and its ``repr`` makes the same again, in any process.

    functions: ``(name, text)`` of the mod, ``score_gradient`` and ``sink_gradients``, in Triton; title: the mod's name and
    arguments. changes_nothing: whether a score mod returns its score, a mask mod allows everything. bounds: for ``b``, ``h``,
    ``q_idx`` and ``kv_idx`` the smallest dimension that they index by themselves. before: tables from captured tensors, the
    text of a torch function. after: gradients of captured tensors from the scatter targets' sums and captured tensors.
    target_shapes: of each scatter target. inputs: of the two functions, ``"int"`` or ``"float"`` for a number, ``None`` for a
    captured tensor. strides: of each captured tensor, as the text was made for. sources: of each table, ``(is_number, i)``
    for the i-th captured tensor or number, ``None`` for what torch computes before. sizes: strides and sizes of tables, the
    last arguments. needs_grad: for each captured tensor whether it gets a gradient. extent: of a mask mod its ``MaskExtent``.
    """

    kind: str
    title: str
    functions: tuple
    changes_nothing: bool
    bounds: dict
    before: str
    after: str
    target_shapes: tuple
    inputs: tuple
    strides: tuple
    sources: tuple
    sizes: tuple
    needs_grad: tuple
    extent: MaskExtent | None

    @property
    def text(self):
        """A module of all its functions."""
        return module_text(self.title, *(text for _, text in self.functions))

    def _function(self, name):
        text = None if self.changes_nothing else dict(self.functions).get(name)
        return text and getattr(load(module_text(self.title, text)), name)

    @cached_property
    def value(self):
        """``score_mod(score, b, h, q_idx, kv_idx, tables)`` or ``mask_mod(b, h, q_idx, kv_idx, tables)`` in Triton; ``None``
        for one that changes nothing."""
        return self._function(self.kind)

    @cached_property
    def gradient(self):
        """``score_gradient(..., grad, tables)``."""
        return self._function("score_gradient")

    @cached_property
    def scatter(self):
        """``sink_gradients(..., grad, live, tables, targets, PASS)``, ``None`` if no captured tensor requires a gradient."""
        return self._function("sink_gradients")

    @cached_property
    def number_kinds(self):
        """``int`` or ``float``, of each number among the inputs."""
        return tuple(float if kind == "float" else int for kind in self.inputs if kind)

    @cached_property
    def direct(self):
        """``sources`` if torch computes none of them, else ``None``."""
        return None if None in self.sources else self.sources

    def _torch(self, text, captured, numbers, *sums):
        """What a function of torch's gives, one value after another: numbers are tensors on the CPU, which go with others on
        any device."""
        captured, numbers = iter(captured), iter(numbers)
        inputs = [torch.tensor(next(numbers), device="cpu") if kind else next(captured) for kind in self.inputs]
        return iter(function_of(text)(*inputs, *sums))

    @torch.no_grad()
    def tables(self, captured, numbers=()):
        """What the kernel reads: tensors, numbers, and sizes of the tensors."""
        made = self._torch(self.before, captured, numbers) if self.direct is None else None
        read = [next(made) if source is None else (captured, numbers)[source[0]][source[1]] for source in self.sources]
        return *read, *self.sizes

    @torch.no_grad()
    def gradients(self, captured, numbers, sums):
        """The gradients of the captured tensors from the sums that the kernel made, ``None`` for those that get none; each in
        its tensor's dtype and shape."""
        made = self._torch(self.after, captured, numbers, *sums)
        grads = [next(made) if on else None for on in self.needs_grad]
        pairs = zip(captured, grads, strict=True)
        return [None if g is None else g.to(t.dtype).expand(t.shape).reshape(t.shape) for t, g in pairs]


def compile_mod(mod, kind, device="cpu", differentiate=False, stand_ins=()):
    """``(CompiledMod, captured tensors)`` of a mod, traced now; ``stand_ins`` among those replace numbers."""
    with _disable_current_modes():  # what is being recorded holds the call, not what is computed on the way to it
        t = trace(mod, kind, device, differentiate)
        is_number = [any(tensor is one for one in stand_ins) for tensor in t.captured]
        t.numbers = [node for node, number in zip(t.inputs, is_number, strict=True) if number]
        _check_numbers(t)
        tensors = [node for node in t.inputs if node not in t.numbers]
        places = {node: (of is t.numbers, i) for of in (t.numbers, tensors) for i, node in enumerate(of)}
        functions = {kind: Function(t).value()}
        if differentiate:
            functions["score_gradient"] = Function(t).gradient()
            if t.targets:
                functions["sink_gradients"] = Function(t).scatter()
        type_of = lambda node: "float" if node.meta["val"].dtype.is_floating_point else "int"  # noqa: E731
        inputs, root = [(node.name, [node]) for node in t.inputs], t.graph.owning_module
        gradients = [gradient for gradient in t.gradients if gradient is not None]
        compiled = CompiledMod(
            kind=kind,
            title=f"{name_of(mod)}({', '.join(ARGUMENTS[kind])})",
            functions=tuple(functions.items()),
            changes_nothing=_changes_nothing(t, differentiate),
            bounds=_bounds(t),
            before=part_of(root, [node for node in t.tables if node not in places], inputs),
            after=part_of(root, gradients, [*inputs, *((f"sink_{i}", [node]) for i, node in enumerate(t.targets))]),
            target_shapes=tuple(tuple(node.meta["val"].shape) for node in t.targets),
            inputs=tuple(type_of(node) if node in t.numbers else None for node in t.inputs),
            strides=tuple(node.meta["val"].stride() for node in tensors),
            sources=tuple(places.get(node) for node in t.tables),
            sizes=tuple(t.sizes.values()),
            needs_grad=tuple(g is not None for g, number in zip(t.gradients, is_number, strict=True) if not number),
            extent=extent_of_trace(t) if kind == "mask_mod" else None,
        )
        return compiled, tuple(t.captured)


def _changes_nothing(t, differentiate):
    """Whether a score mod returns its score, which may also be detached; whether a mask mod is always true."""
    if t.kind == "score_mod":
        value, gradient = (getattr(node, "name", None) for node in (t.value, t.score_gradient))
        return value == "score" and (not differentiate or gradient == "grad")
    writer = Function(t)
    return writer.is_constant(t.value) and bool(writer.constant(t.value))


def _bounds(t):
    """For each argument the smallest dimension of a captured tensor that it indexes by itself."""
    bounds = {}
    for node in t.graph.nodes:
        if node.target is aten.index.Tensor:
            table, indices = node.args
            for index, size in zip(indices, table.meta["val"].shape, strict=False):
                # an integer as it was, such as ``q_idx.long()``: a bool or a narrow integer of it is another
                while index and index.target is aten._to_copy.default and index.meta["val"].dtype in INTEGERS:
                    index = index.args[0]
                if index is not None and index.op == "placeholder" and index.name in ARGUMENTS["mask_mod"]:
                    bounds[index.name] = min(size, bounds.get(index.name, size))
    return bounds


def _check_numbers(t):
    """Raise ``ModError`` where arguments in the places of numbers are computed with as Python would not: its integers have no
    end and its fractions 64 bits, ``2 ** -n`` is a fraction, and beside a narrow tensor a number takes the tensor's dtype."""
    of_numbers, captured = set(t.numbers), set(t.numbers)
    for node in t.graph.nodes:
        inputs = node.all_input_nodes
        if node.op != "call_function" or not of_numbers.intersection(inputs):
            continue
        if of_numbers.issuperset(inputs):
            of_numbers.add(node)
            if not _as_python_does(node, captured.issuperset(inputs)):
                raise ModError(f"{node.target} of numbers alone is Python's, and so they must be known")
        elif any(one.meta["val"].dtype in _NARROW for one in inputs):
            raise ModError(f"{node.target} of a narrow tensor and a number, whose dtype is none, must know that")


def _as_python_does(node, captured):
    """Whether an operation on numbers alone is right to float32's rounding; captured: on captured ones."""
    fractions = [one.meta["val"].is_floating_point() for one in (node, *node.all_input_nodes)]
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", None)
    if not any(fractions) or name in ("neg", "abs", "_to_copy"):
        return name in _OF_INTEGERS
    # One rounding more. A difference may leave nothing but that, and a product's intermediate result be out of range.
    once = name in ("mul", "div") or name in ("add", "sub") and not any(fractions[1:])
    return captured and once and not node.kwargs


_OF_INTEGERS = """
    neg abs _to_copy add sub div remainder eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor bitwise_not
""".split()
_NARROW = (torch.int8, torch.uint8, torch.int16, torch.float16, torch.bfloat16)


# Text to module: written to a file named after its content, imported, and kept while it is in use.

lock = lock_over_forks()


def module_text(title, *functions):
    """A module that holds these functions' texts and imports what they call."""
    body = "\n\n".join(functions)
    called = sorted({*vars(device_functions)}.intersection(re.findall(r"(?<![.\w])([a-z]\w*)\(", body)))
    imports = f"\nfrom kernels.flex_attention.mods.device import {', '.join(called)}\n" if called else ""
    return f'"""Generated from {title}."""\n\nimport triton\nimport triton.language as tl\n{imports}\n\n{body}'


def cache_folder():
    """Where generated modules are kept: ``$KERNELS_CACHE_DIR``, or ``~/.cache/kernels_from_math``."""
    return Path(os.environ.get("KERNELS_CACHE_DIR") or Path.home() / ".cache" / "kernels_from_math")


def load(text):
    """Write ``text`` to a file named after its content, import it; the same text is the same module."""
    with lock:
        return _loaded(text)


@functools.lru_cache(2048)
def _loaded(text):
    name = f"flex_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = cache_folder() / f"{name}.py"
    try:
        _write(path, text)
    except OSError:  # a home that cannot be written to
        path = Path(_own_folder()) / path.name
        _write(path, text)
    spec = importlib.util.spec_from_file_location(f"kernels_generated_{name}", path)
    module = importlib.util.module_from_spec(spec)
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
