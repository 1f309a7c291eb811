"""A mod as functions of Triton, and as what torch computes before and after the kernel.

The steps are ``trace.trace`` (Python to graph, and the graph's derivative), ``emit`` (graph to text) and ``store`` (text to
module).
"""

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernels.flex_attention.mods import emit
from kernels.flex_attention.mods.errors import ARGUMENTS, ModError
from kernels.flex_attention.mods.extent import Reach
from kernels.flex_attention.mods.store import load, module_text
from kernels.flex_attention.mods.trace import trace
from kernels.flex_attention.mods.written import function_of, written

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class CompiledMod:
    """What a trace became; it holds no captured tensor.

    functions: ``(name, text)`` of the mod, ``score_gradient`` and ``sink_gradients``, in Triton; title: the mod's name and
    arguments. changes_nothing: whether a score mod returns its score, a mask mod allows everything. bounds: for ``b``, ``h``,
    ``q_idx`` and ``kv_idx`` the smallest dimension that they index by themselves. before: tables from captured tensors, the
    text of a torch function. after: gradients of captured tensors from sinks and captured tensors. target_shapes: of each.
    inputs: for each input of the two whether it is a number, and not a captured tensor. fractions: for each number whether it
    is a ``float``. strides: of each captured tensor, as the text was made for. numbers: for each table which number it is, or
    ``None``. direct: for each table which captured tensor it is, or which number, ``(is_number, i)``; ``None`` where torch
    computes. sizes: strides and sizes of tables, the last arguments. learned: for each captured tensor whether it gets a
    gradient. extent: of a mask mod its ``Reach``.
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
    fractions: tuple
    strides: tuple
    numbers: tuple
    direct: tuple | None
    sizes: tuple
    learned: tuple
    extent: Reach | None

    @cached_property
    def description(self):
        """All that it is, as text: ``described`` makes it of that again, in any process."""
        return repr(tuple(getattr(self, field.name) for field in fields(self)))

    @property
    def text(self):
        """A module of all its functions."""
        return module_text(self.title, *(text for _, text in self.functions))

    def _function(self, name):
        text = dict(self.functions).get(name)
        return None if text is None else getattr(load(module_text(self.title, text)), name)

    @cached_property
    def value(self):
        """``score_mod(score, b, h, q_idx, kv_idx, tables)`` or ``mask_mod(b, h, q_idx, kv_idx, tables)`` in Triton; ``None``
        for one that changes nothing."""
        return None if self.changes_nothing else self._function(self.kind)

    @cached_property
    def gradient(self):
        """``score_gradient(..., grad, tables)``."""
        return None if self.changes_nothing else self._function("score_gradient")

    @cached_property
    def scatter(self):
        """``sink_gradients(..., grad, live, tables, sinks, PASS)``, ``None`` if no captured tensor requires a gradient."""
        return self._function("sink_gradients")

    @cached_property
    def number_kinds(self):
        """``int`` or ``float``, of each number among the inputs."""
        return tuple(float if fraction else int for fraction in self.fractions)

    def _inputs(self, captured, numbers):
        """What torch's parts are called with: tensors, and numbers as tensors on the CPU, which torch lets meet any other."""
        captured, numbers = iter(captured), iter(numbers)
        for is_number in self.inputs:
            yield torch.tensor(next(numbers), device="cpu") if is_number else next(captured)

    def tables(self, captured, numbers=()):
        """What the kernel reads: tensors, numbers, and sizes of the tensors."""
        if (direct := self.direct) is not None:
            return *[numbers[i] if is_number else captured[i] for is_number, i in direct], *self.sizes
        with torch.no_grad():
            made = iter(function_of(self.before)(*self._inputs(captured, numbers)))
        return *(next(made) if i is None else numbers[i] for i in self.numbers), *self.sizes

    @torch.no_grad()
    def gradients(self, captured, numbers, sums):
        """The gradients of the captured tensors from the sums that the kernel made, ``None`` for those that get none."""
        made = iter(function_of(self.after)(*self._inputs(captured, numbers), *sums))
        return [self._gradient(t, next(made)) if on else None for t, on in zip(captured, self.learned, strict=True)]

    @staticmethod
    def _gradient(t, gradient):
        """In its tensor's dtype and shape."""
        return torch.zeros_like(t) if gradient is None else gradient.to(t.dtype).expand(t.shape).reshape(t.shape)


def described(description):
    """The ``CompiledMod`` of a ``CompiledMod.description``, evaluated."""
    return CompiledMod(*description)


def compile_mod(mod, kind, device="cpu", differentiate=False, stand_ins=()):
    """``(CompiledMod, captured tensors)`` of a mod, traced now; ``stand_ins`` among those stand for numbers."""
    with _disable_current_modes():  # what is being recorded holds the call, not what is computed on the way to it
        return _compiled(mod, kind, device, differentiate, stand_ins)


def _compiled(mod, kind, device, differentiate, stand_ins):
    t = trace(mod, kind, device, differentiate)
    inputs = [any(tensor is one for one in stand_ins) for tensor in t.captured]
    t.numbers = [node for node, is_number in zip(t.inputs, inputs, strict=True) if is_number]
    _check_numbers(t)
    functions = {kind: emit.emit_value(t)}
    if differentiate:
        functions["score_gradient"] = emit.emit_gradient(t)
        if t.sinks:
            functions["sink_gradients"] = emit.emit_sinks(t)
    title = f"{getattr(mod, '__name__', type(mod).__name__)}({', '.join(ARGUMENTS[kind])})"
    numbers = tuple(t.numbers.index(node) if node in t.numbers else None for node in t.tables)
    of_tensors = [node for node in t.inputs if node not in t.numbers]
    compiled = CompiledMod(
        kind,
        title,
        tuple(functions.items()),
        _always_true(t) if kind == "mask_mod" else _unchanged(t, differentiate),
        _bounds(t),
        _torch_part(t, [node for node in t.tables if node not in t.numbers]),
        _torch_part(t, [gradient for gradient in t.gradients if gradient is not None], t.sinks),
        tuple(tuple(node.meta["val"].shape) for node in t.sinks),
        tuple(inputs),
        tuple(node.meta["val"].dtype.is_floating_point for node in t.numbers),
        tuple(node.meta["val"].stride() for node in of_tensors),
        numbers,
        _direct(t, of_tensors, numbers),
        tuple(t.sizes.values()),
        tuple(gradient is not None for gradient, is_number in zip(t.gradients, inputs, strict=True) if not is_number),
        Reach(t) if kind == "mask_mod" else None,
    )
    return compiled, tuple(t.captured)


def _direct(t, captured, numbers):
    """``CompiledMod.direct``."""
    if any(node not in t.inputs for node in t.tables):
        return None
    pairs = zip(t.tables, numbers, strict=True)
    return tuple((False, captured.index(node)) if i is None else (True, i) for node, i in pairs)


def _check_numbers(t):
    """Raise ``ModError`` where arguments in the places of numbers are computed with as Python would not: its integers have no
    end and its fractions 64 bits, ``2 ** -n`` is a fraction, and beside a narrow tensor a number takes the tensor's dtype."""
    of_numbers = set(t.numbers)
    for node in t.graph.nodes:
        inputs = node.all_input_nodes
        if node.op != "call_function" or not of_numbers.intersection(inputs):
            continue
        if of_numbers.issuperset(inputs):
            of_numbers.add(node)
            if not _as_python_does(node, given=set(t.numbers).issuperset(inputs)):
                raise ModError(f"{node.target} of numbers alone is Python's, and so they must be known")
        elif any(one.meta["val"].dtype in _NARROW for one in inputs):
            raise ModError(f"{node.target} of a narrow tensor and a number, whose dtype is none, must know that")


def _as_python_does(node, given):
    """Whether an operation on numbers alone is right to float32's rounding; given: on numbers that the mod is given."""
    fractions = [one.meta["val"].is_floating_point() for one in node.all_input_nodes]
    if not any(fractions) and not node.meta["val"].is_floating_point():
        return node.target in _OF_INTEGERS
    if node.target in _OF_ANY or node.target is aten._to_copy.default:
        return True
    # One rounding more. A difference may leave nothing but that, and a product's intermediate result be out of range.
    return given and (node.target in _PRODUCTS or node.target in _SUMS and not any(fractions))


_OF_ANY = aten.neg.default, aten.abs.default
_PRODUCTS = aten.mul.Tensor, aten.div.Tensor
_SUMS = aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar
_OF_INTEGERS = (
    *_OF_ANY, *_SUMS, aten.floor_divide.default, aten.remainder.Tensor, aten.remainder.Scalar, aten._to_copy.default,
    *(getattr(getattr(aten, name), of) for name in ("eq", "ne", "lt", "le", "gt", "ge") for of in ("Tensor", "Scalar")),
    *(getattr(getattr(aten, f"bitwise_{name}"), of) for name in ("and", "or", "xor") for of in ("Tensor", "Scalar")),
    aten.bitwise_not.default,
)  # fmt: skip
_NARROW = (torch.int8, torch.uint8, torch.int16, torch.float16, torch.bfloat16)


def _unchanged(t, differentiate):
    """Whether a score mod returns its score; what it returns may also be detached."""
    value, gradient = (getattr(node, "name", None) for node in (t.value, t.score_gradient))
    return value == "score" and (not differentiate or gradient == "grad")


def _always_true(t):
    writer = emit._Function(t)
    return writer.is_constant(t.value) and bool(writer.constant(t.value))


def _bounds(t):
    """For each argument the smallest dimension of a captured tensor that it indexes by itself."""
    bounds = {}
    for node in t.graph.nodes:
        if node.target is torch.ops.aten.index.Tensor:
            table, indices = node.args
            for index, size in zip(indices, table.meta["val"].shape, strict=False):
                while index is not None and _is_widened(index):
                    index = index.args[0]
                if index is not None and index.op == "placeholder" and index.name in ARGUMENTS["mask_mod"]:
                    bounds[index.name] = min(size, bounds.get(index.name, size))
    return bounds


def _is_widened(node):
    """Whether a node is an integer as it was, such as ``q_idx.long()``: a bool or a narrow integer of it is another."""
    return node.target is torch.ops.aten._to_copy.default and node.meta["val"].dtype in (torch.int32, torch.int64)


def _torch_part(t, wanted, sinks=()):
    """The text of a torch function that gives these nodes of the captured tensors and the sums."""
    graph, copied = torch.fx.Graph(), {}
    for node in t.inputs:
        copied[node] = graph.placeholder(node.name)
    for i, node in enumerate(sinks):
        copied[node] = graph.placeholder(f"sink_{i}")
    graph.output([_copy(node, graph, copied) for node in wanted])
    return written(graph, t.graph.owning_module)


def _copy(node, graph, copied):
    if node not in copied:
        for i in node.all_input_nodes:
            _copy(i, graph, copied)
        copied[node] = graph.node_copy(node, copied.__getitem__)
    return copied[node]
