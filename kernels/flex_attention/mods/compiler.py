"""A mod as functions of Triton, and as what torch computes before and after the kernel.

The steps are ``trace.trace`` (Python to graph, and the graph's derivative), ``emit`` (graph to text) and ``store`` (text to
module).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernels.flex_attention.mods import emit
from kernels.flex_attention.mods.errors import ARGUMENTS, ModError
from kernels.flex_attention.mods.reach import Reach
from kernels.flex_attention.mods.store import load, module_text
from kernels.flex_attention.mods.trace import trace

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class CompiledMod:
    """What a trace became; it holds no captured tensor.

    value: ``score_mod(score, b, h, q_idx, kv_idx, tables)`` or ``mask_mod(b, h, q_idx, kv_idx, tables)`` in Triton; ``None``
    for a score mod that changes nothing and a mask mod that allows everything. gradient: ``score_gradient(..., grad,
    tables)``. sinks: ``sink_gradients(..., grad, live, tables, sinks, PASS)``, ``None`` if no captured tensor requires a
    gradient. bounds: for ``b``, ``h``, ``q_idx`` and ``kv_idx`` the smallest dimension that they index by themselves. before:
    tables from captured tensors, a torch function. after: gradients of captured tensors from sinks and
    captured tensors. sink_shapes: of each sink. inputs: for each input of the two whether it is a number, and not a captured
    tensor. numbers: for each table which number it is, or ``None``. sizes: strides and sizes of tables, the last arguments.
    learned: for each captured tensor whether it gets a gradient. reach: of a mask mod its ``Reach``.
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
    reach: Reach | None

    @cached_property
    def name(self):
        """A hash of all that the kernels and torch's parts are made of: the same for the same mod in every process."""
        parts = [self.text, self.before.code, self.after.code]
        parts += [self.bounds, self.sink_shapes, self.inputs, self.numbers, self.sizes, self.learned]
        for part in (self.before, self.after):  # constants that the mod makes itself
            parts += [value.tolist() for _, value in sorted(vars(part).items()) if isinstance(value, torch.Tensor)]
            parts += [value.tolist() for _, value in part.named_buffers()]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @cached_property
    def number_kinds(self):
        """``int`` or ``float``, of each number among the inputs."""
        nodes = [node for node in self.before.graph.nodes if node.op == "placeholder"]
        return tuple(
            float if node.meta["val"].dtype.is_floating_point else int
            for node, is_number in zip(nodes, self.inputs, strict=True)
            if is_number
        )

    @cached_property
    def strides(self):
        """Of each captured tensor, as its text was made for."""
        nodes = [node for node in self.before.graph.nodes if node.op == "placeholder"]
        return [node.meta["val"].stride() for node, is_number in zip(nodes, self.inputs, strict=True) if not is_number]

    @cached_property
    def direct(self):
        """For each table which captured tensor it is, or which number, ``(is_number, i)``; ``None`` where torch computes."""
        *inputs, result = self.before.graph.nodes
        if any(node.op != "placeholder" for node in inputs):
            return None
        captured = [node for node, is_number in zip(inputs, self.inputs, strict=True) if not is_number]
        made = iter(result.args[0])
        return tuple((True, i) if i is not None else (False, captured.index(next(made))) for i in self.numbers)

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
            made = iter(self.before.forward(*self._inputs(captured, numbers)))  # past hooks on all modules
        return *(next(made) if i is None else numbers[i] for i in self.numbers), *self.sizes

    @torch.no_grad()
    def gradients(self, captured, numbers, sums):
        """The gradients of the captured tensors from the sums that the kernel made, ``None`` for those that get none."""
        made = iter(self.after.forward(*self._inputs(captured, numbers), *sums))
        return [self._gradient(t, next(made)) if on else None for t, on in zip(captured, self.learned, strict=True)]

    @staticmethod
    def _gradient(t, gradient):
        """In its tensor's dtype and shape."""
        return torch.zeros_like(t) if gradient is None else gradient.to(t.dtype).expand(t.shape).reshape(t.shape)


def compile_mod(mod, kind, device="cpu", differentiate=False, stand_ins=()):
    """``(CompiledMod, captured tensors)`` of a mod, traced now; ``stand_ins`` among those stand for numbers."""
    with _disable_current_modes():  # a program that is being recorded holds the call, not what is computed on the way to it
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
    module = {name: load(module_text(title, text)) for name, text in functions.items()}
    changes_nothing = _always_true(t) if kind == "mask_mod" else _unchanged(t, differentiate)
    compiled = CompiledMod(
        kind,
        module_text(title, *functions.values()),
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
        Reach(t) if kind == "mask_mod" else None,
    )
    return compiled, tuple(t.captured)


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


# Torch's parts: before and after the kernel.

def _before(t):
    """The tables as a torch function of the captured tensors."""
    graph, copied = torch.fx.Graph(), {}
    for node in t.inputs:
        copied[node] = graph.placeholder(node.name)
        copied[node].meta = node.meta
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
