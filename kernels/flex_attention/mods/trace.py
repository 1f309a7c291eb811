"""Python to graph: run a mod once on tensors without values, record torch's operations, and differentiate what was recorded.

``trace(mod, kind)`` gives a ``Trace``: an fx graph over one (score, b, h, q_idx, kv_idx) and the tensors that the mod
captures. With ``differentiate`` the graph also holds, for an incoming gradient ``grad`` of the mod's value, the gradient of
the score and of each captured tensor that requires one.

The graph's operations fall into four parts:

* *position*: one number for one query and key; these become Triton (emit.py);
* *before*: whole tensors computed from captured tensors alone, such as ``slopes.exp()``; torch computes them once a call;
* *targets* of the scatter: the gradient of a captured tensor, summed over all queries and keys, ``index_put(zeros, index,
  value)``;
* *after*: whole tensors computed from the targets, such as the chain through ``exp``; torch computes them once a call.
"""

import contextlib
import functools
import operator
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate, preserve_node_meta
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from kernels.common.checks import default, shown
from kernels.flex_attention.mods import scalars
from kernels.flex_attention.mods.errors import ARGUMENTS, ModError, at_line, explained, name_of, user_line
from kernels.flex_attention.mods.scalars import LONGEST, LOOKS, MOST_SUMS, WIDEST, Vector, aten_name, pointwise

aten = torch.ops.aten


def trace(mod, kind, device="cpu", differentiate=False):
    """Record ``mod``.

    Args:
        mod: the function; ``kind``: ``"score_mod"`` (score, b, h, q_idx, kv_idx) or ``"mask_mod"`` (b, h, q_idx, kv_idx).
        device: the device of its arguments, which hold no values.
        differentiate: also record the gradients; those captured tensors that require a gradient get one.

    Returns:
        a ``Trace``.

    Raises:
        ModError: the mod branches on a value, draws random numbers, or does something else that has no kernel.
    """
    fake = FakeTensorMode()
    with fake:
        score = torch.empty((), dtype=torch.float32, device=device)
        positions = [torch.empty((), dtype=torch.int32, device=device) for _ in range(4)]
    arguments = [score, *positions] if kind == "score_mod" else positions

    captures = _Captures(fake, arguments)
    graded = torch.is_grad_enabled()  # a mod may ask for it
    makes = default.device or contextlib.nullcontext()
    with _undisturbed(), fake, captures, explained(mod, kind), makes:
        mod(*arguments)
    captured = list(captures.stand_ins.values())
    needs_grad = [differentiate and real.requires_grad and real.is_floating_point() for real, _ in captured]

    def record(grad, *inputs):
        inputs, stand_ins, leaves = list(inputs[: len(arguments)]), inputs[len(arguments) :], []
        if differentiate:
            leaves = [inputs[0].detach().requires_grad_()]
            inputs[0] = leaves[0].clone()  # a mod may write `score += ...`, which is not allowed on a leaf
        stand_ins = [t.detach().requires_grad_(on) for t, on in zip(stand_ins, needs_grad)]
        leaves += [t for t, on in zip(stand_ins, needs_grad) if on]
        captures.stand_ins = {id(real): (real, stand_in) for (real, _), stand_in in zip(captured, stand_ins)}
        captures.begin(inputs)
        with torch.set_grad_enabled(graded or differentiate), captures, makes:
            value = mod(*inputs)
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, int | float):
            value = torch.full((), value)
        if not isinstance(value, torch.Tensor | Vector):
            raise ModError(f"{name_of(mod)} returns {shown(value)}, needs a number for one query and one key")
        if isinstance(value, Vector) or value.numel() != 1:
            raise ModError(
                f"{name_of(mod)} returns shape {list(value.shape)} for one query and one key:{at_line(captures.line)}"
                "index every dimension of the tensors it captures, so that a single number is left"
            )
        if value.is_complex():
            raise ModError(f"{name_of(mod)} returns {value.dtype}, needs a real number")
        if kind == "mask_mod" and value.is_floating_point():  # 0 and minus infinity, to be added: the opposite
            raise ModError(f"{name_of(mod)} returns {value.dtype}, needs torch.bool: whether the query sees the key")
        if not value.requires_grad:
            return value, *[None] * len(leaves)
        try:
            made = torch.autograd.grad(value, leaves, grad.to(value.dtype).reshape(value.shape), allow_unused=True)
        except (NotImplementedError, RuntimeError) as error:  # of an operation whose derivative torch does not have
            at = at_line(captures.line_of(str(error)))
            raise ModError(f"{name_of(mod)} has no derivative:{at}{error}; or call it under torch.no_grad()") from error
        return value, *made

    with _undisturbed(), fake, torch.set_grad_enabled(differentiate), preserve_node_meta(), explained(mod, kind):
        grad = torch.empty((), dtype=torch.float32, device=device)
        inputs = (grad, *arguments, *(stand_in for _, stand_in in captured))
        graph = make_fx(record, tracing_mode="fake", decomposition_table=_decompositions())(*inputs).graph

    return _partitioned(graph, kind, [real for real, _ in captured], needs_grad, differentiate)


@contextlib.contextmanager
def _undisturbed():
    """Hooks on saved tensors are for those of the call: a checkpoint's would run all of it again, while its mod is traced.
    Nor is there a NaN to be found, or a backward pass for autograd's own compiler."""
    with torch.autograd.set_detect_anomaly(False), contextlib.ExitStack() as stack:
        if compiled_autograd.compiled_autograd_enabled:
            stack.enter_context(compiled_autograd._disable())
        if torch._C._autograd._saved_tensors_hooks_is_enabled():
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
        yield


class _Captures(TorchFunctionMode):
    """Shows a mod a stand-in for each real tensor it uses, turns its indexing into ``aten.index``, notes the user's lines."""

    def __init__(self, fake, arguments):
        super().__init__()
        self.fake = fake
        self.stand_ins = {}  # id of the real tensor -> (real tensor, stand-in)
        self.line = None  # the user's line that runs
        self.begin(arguments)

    def begin(self, arguments):
        """What follows is computed from these."""
        self.parts = {}  # id of a partly indexed tensor -> (itself, what was indexed, its index)
        self.placed = {id(t): t for t in arguments}  # what depends on the score or a position
        self.lines = {}  # name of a function of torch's -> the user's line that calls it last

    def stand_in(self, tensor):
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self.stand_ins:
            with _disable_current_modes():  # fake tensors leave weak references, torch swaps no tensor with such
                alias = tensor.detach().requires_grad_(tensor.requires_grad)
            self.stand_ins[id(tensor)] = tensor, self.fake.from_tensor(alias)
        return self.stand_ins[id(tensor)][1]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(torch.Tensor, self.stand_in, (args, kwargs or {}))
        self.line = self.lines[aten_name(function)] = user_line()
        placed = any(isinstance(x, Vector) or id(x) in self.placed for x in tree_leaves((args, kwargs)))
        with annotate({"line": self.line}):
            result = self.call(function, args, kwargs, placed)
        if placed:
            self.placed |= {id(x): x for x in tree_leaves(result) if isinstance(x, torch.Tensor)}
        return result

    def call(self, function, args, kwargs, placed):
        """What a function gives; placed: it depends on the score or a position."""
        if function is torch.Tensor.__getitem__:
            return self.index(*args)
        if function is torch.nn.functional.embedding and kwargs.get("padding_idx") is kwargs.get("max_norm") is None:
            return self.index(args[1], args[0])
        if placed and (index := _INDEXING.get(function)) and (indexed := index(*args, **kwargs)):
            return self.index(*indexed)
        if placed and function in LOOKS:
            at, look = LOOKS[function]
            others = [x for i, x in enumerate(args) if i != at]
            among = args[at].reshape(-1) if len(args) > 1 and isinstance(args[at], torch.Tensor) else None
            if among := self.apart(among):
                return look(self.error, among, *others, **kwargs)
        if placed and function is torch.stack and all(isinstance(x, torch.Tensor) and x.ndim == 0 for x in args[0]):
            return Vector(list(args[0]), self.error)
        if placed and pointwise(function):
            apart = [self.apart(x) for x in args]
            if any(apart):
                args = [x if one is None else one for x, one in zip(args, apart, strict=True)]
                return Vector.__torch_function__(function, (), args, kwargs)
        return _INSTEAD.get(function, function)(*args, **kwargs)

    def line_of(self, text):
        """The user's line of the operation that a message of torch's names."""
        named = re.findall(r"\w+", text)
        return next((self.lines[name] for name in self.lines if name in named), None)

    def apart(self, x):
        """A captured tensor of a few numbers as a ``Vector``; ``None`` for anything else."""
        if isinstance(x, torch.Tensor) and x.ndim == 1 and 1 < len(x) <= LONGEST and id(x) not in self.placed:
            return Vector([x[i] for i in range(len(x))], self.error)
        return None

    def error(self, text):
        """The exception for what cannot be done with a short vector."""
        return ModError(f"{text}:{at_line(self.line)}")

    def index(self, tensor, index):
        """``tensor[index]``, complete at once: ``bias[q][k]`` reads one element, not a row first."""
        index = list(index) if isinstance(index, tuple) else [index]
        placed = [None] * tensor.ndim  # of each dimension the tensor that it is indexed with
        if id(tensor) in self.parts:
            _, tensor, placed = self.parts[id(tensor)]
        elif not any(isinstance(i, torch.Tensor) for i in index):
            return tensor[tuple(index)]
        view, placed = onwards(placed, index)
        # What is not a tensor is taken first, as a view; the tensors' dimensions stay whole until all are known.
        tensor = tensor[view]
        if any(t is not None and t.dtype == torch.bool for t in placed):
            raise ModError(f"a captured tensor is indexed with a bool{at_line(user_line())}: use torch.where")
        part = aten.index.Tensor(tensor, placed)
        if part.ndim and all(i is None or i.ndim == 0 for i in placed):
            if part.ndim == 1 and 0 < part.numel() <= LONGEST:
                return self.vector(tensor, placed, part.numel())
            self.parts[id(part)] = part, tensor, placed
        return part

    def vector(self, tensor, index, length):
        """The one dimension of a tensor that ``index`` leaves, in single numbers."""
        further = lambda last: self.index(tensor, tuple(last if i is None else i for i in index))  # noqa: E731
        return Vector([further(i) for i in range(length)], self.error, further)


def onwards(placed, index):
    """``(view, placed)``: ``index`` goes on where ``placed`` has ``None``; what of it is no tensor is taken by the view."""
    if (at := next((i for i, one in enumerate(index) if one is Ellipsis), None)) is not None:
        rest = placed.count(None) - sum(one is not None for one in index) + 1
        index[at : at + 1] = [slice(None)] * rest
    view, after, index = [], [], iter(index)
    for tensor in placed:
        one = slice(None) if tensor is not None else next(index, slice(None))
        while one is None:  # a dimension more
            view.append(None)
            after.append(None)
            one = next(index, slice(None))
        view.append(slice(None) if isinstance(one, torch.Tensor) else one)
        if not isinstance(one, int | torch.SymInt | np.integer):
            after.append(one if isinstance(one, torch.Tensor) else tensor)
    rest = list(index)
    if any(one is not None for one in rest):
        raise IndexError("too many indices")
    return (*view, *rest), [*after, *rest]


def _one(input, dim, index):
    return input, (*[slice(None)] * (dim % input.ndim), index)


# Other ways to index; each gives a tensor and its index, if it can. What ``index_select`` selects stays a dimension.
_INDEXING = {
    getattr(of, name): index
    for name, index in {
        "take": lambda input, index: (input.reshape(-1), index),
        "index_select": lambda input, dim, index: _one(input, dim, index.reshape(-1)),
        "select": _one,
        "gather": lambda input, dim, index, **kwargs: (input, index) if input.ndim == 1 else None,
    }.items()
    for of in (torch, torch.Tensor)
}
# What torch differentiates as if it had no whole numbers below zero.
_INSTEAD = dict.fromkeys((torch.ldexp, torch.Tensor.ldexp), lambda x, by: x * torch.exp2(by)) | scalars.INSTEAD


@functools.cache
def _decompositions():
    from torch._decomp import core_aten_decompositions, get_decompositions

    made = {**core_aten_decompositions(), **get_decompositions([getattr(aten, name) for name in _DECOMPOSED])}
    for operation, decomposition in list(made.items()):  # and where it overwrites its argument
        packet, _, overload = str(operation).removeprefix("aten.").partition(".")
        over = getattr(getattr(aten, f"{packet}_", None), overload, None)
        if over is not None:
            made[over] = functools.partial(_overwritten, decomposition)
    return {op: made[op] for op in made if op not in _OF_ONE_ELEMENT} | scalars.DECOMPOSITIONS


def _overwritten(decomposition, x, *args, **kwargs):
    return x.copy_(decomposition(x, *args, **kwargs))


# Operations that torch decomposes, but not for every compiler.
_DECOMPOSED = "copysign elu gelu hardtanh lcm leaky_relu".split()


# The recording, partitioned.


@dataclass
class Trace:
    """A mod as a graph.

    kind: ``"score_mod"`` or ``"mask_mod"``. graph: the whole recording; ``print(trace.graph)`` shows it. value: the node
    of the mod's value. score_gradient: the node of the score's gradient, ``None`` if it is zero or not wanted.
    captured: the tensors the mod uses from outside, in the order in which it uses them. tables: nodes whose tensors the
    kernel reads. targets: nodes whose sums the kernel scatters. gradients: of each captured tensor the node or
    ``None``. depends: for each node the arguments it depends on. lines: for each node the user's line, ``(file, number)``.
    numbers: inputs that stand for numbers. sizes: strides and sizes of tables that the text names, by name.
    """

    kind: str
    graph: torch.fx.Graph
    value: object
    score_gradient: torch.fx.Node | None
    captured: list[torch.Tensor]
    inputs: list[torch.fx.Node]
    gradients: list[torch.fx.Node | None]
    depends: dict[torch.fx.Node, frozenset] = field(default_factory=dict)
    lines: dict[torch.fx.Node, tuple[str, int]] = field(default_factory=dict)
    last: dict[tuple[str, int], torch.fx.Node] = field(default_factory=dict)
    tables: list[torch.fx.Node] = field(default_factory=list)
    targets: list[torch.fx.Node] = field(default_factory=list)
    where: dict[torch.fx.Node, str] = field(default_factory=dict)
    numbers: list[torch.fx.Node] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


def overloads(names):
    """Operations by their names in ``aten``."""
    return [operator.attrgetter(name)(aten) for name in names.split()]


_OTHER_NAMES = overloads("alias.default lift_fresh_copy.default clone.default")
_RESHAPES = overloads("view.default expand.default")
_UNCHANGED = """
    select.int slice.Tensor permute.default transpose.int t.default squeeze.dims select_backward.default
    slice_backward.default sum.default sum.dim_IntList mean.default mean.dim prod.default prod.dim_int amax.default
    amin.default max.default min.default all.default all.dim any.default any.dim
"""
# Through these an argument of one element goes unchanged: the first, as a ``nn.Parameter(torch.ones(1))`` and its gradient.
_OF_ONE_ELEMENT = dict.fromkeys(overloads(_UNCHANGED), 0) | dict.fromkeys(overloads("copy.default"), 1)


def _partitioned(graph, kind, captured, needs_grad, differentiate):
    """The ``Trace`` of a recording whose inputs are grad, the mod's arguments, and the captured tensors."""
    last = {_noted(node, "line"): node for node in graph.nodes if "val" in node.meta}
    names = ("grad", *ARGUMENTS[kind])
    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise ModError(
                f"a mod draws random numbers ({node.target}){at_line(_noted(node, 'line'))}: "
                "it is called in the backward pass again; draw a tensor of them before, capture it and index it"
            )
    _without_writing(graph, len(names))
    _simplify(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, name in zip(placeholders, (*names, *(f"captured_{i}" for i in range(len(captured))))):
        node.name = name
    *nodes, result = graph.nodes
    value, *gradients = result.args[0]
    gradients = iter(gradients)
    score_gradient = next(gradients, None) if differentiate else None
    gradients = [next(gradients, None) if on else None for on in needs_grad]
    t = Trace(kind, graph, value, score_gradient, captured, placeholders[len(names) :], gradients, last=last)

    for node in nodes:
        if line := _noted(node, "line"):
            t.lines[node] = line
        inputs = node.all_input_nodes
        t.depends[node] = frozenset().union(*(t.depends[i] for i in inputs))
        if node.op == "placeholder":
            t.depends[node] = frozenset([node.name]) & frozenset(names)
        t.where[node] = _part(t, node, inputs)
        fills_tile = t.depends[node] & {"score", "grad"} or {"q_idx", "kv_idx"} <= t.depends[node]
        if fills_tile and (width := _noted(node, "width") or 0) > WIDEST:
            raise ModError(
                f"a mod computes with vectors of {width} numbers for each query and key together:"
                f"{at_line(line)}at most {WIDEST} can be compiled; {_INSTEAD_OF_VECTORS}"
            )
    for node in nodes:
        if t.where[node] == "position":
            t.tables += [i for i in node.all_input_nodes if t.where[i] == "before" and i not in t.tables]
        # A single number that is, or goes into, the gradient of a captured tensor is summed over all positions.
        summed = t.where[node] == "position" and "grad" in t.depends[node]
        summed = summed and (node in gradients or any(t.where.get(user) == "after" for user in node.users))
        if summed or t.where[node] == "target":
            t.targets.append(node)
    if len(t.targets) > MOST_SUMS:
        read = Counter(t.lines.get(node) for node in nodes if node.target is aten.index.Tensor)
        raise ModError(
            f"a mod needs {len(t.targets)} sums for the gradients of what it captures:"
            f"{at_line(max(read, key=read.get, default=None))}"
            f"at most {MOST_SUMS} can be compiled, one for each number of a vector that is used; {_INSTEAD_OF_VECTORS}"
        )
    return t


_INSTEAD_OF_VECTORS = (
    "a dot product of what belongs to queries and what belongs to keys is attention's own: torch.cat([query, x], -1) and "
    "torch.cat([key, y], -1); a squared distance is x @ x + y @ y - 2 x @ y; all else may be computed before, as a [M, N]"
)


def _noted(node, what):
    """What was noted of the user's function where it asked for a node: its ``"line"``, a vector's ``"width"``."""
    return (node.meta.get("custom") or {}).get(what)


def _without_writing(graph, arguments):
    """Turn each operation that overwrites its first argument into one that makes a new value, used from there on. arguments:
    how many of the inputs are grad and the mod's arguments; the others are captured.

    Raises:
        ModError: it overwrites a captured tensor, or, through a view, what is known by another name, too.
    """
    captured = [node for node in graph.nodes if node.op == "placeholder"][arguments:]
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
            continue
        written, instead, nodes = node.args[0], _instead_of(node.target), list(graph.nodes)
        after = set(nodes[nodes.index(node) + 1 :])
        views = filter(_is_view, written.users)
        seen = any(view not in after and not after.isdisjoint(view.users) for view in views)
        if not instead or written in captured or seen or _is_view(written):
            there = "into a captured tensor" if _base(written) in captured else "what a view sees"
            what = there if instead else "with out="
            raise ModError(
                f"a mod writes {what} ({node.target}):{at_line(_noted(node, 'line'))}"
                "it runs for all queries and keys at once and leaves nothing behind; make a new value, by torch.where, say"
            )
        node.target = instead
        written.replace_all_uses_with(node, delete_user_cb=lambda user, after=after: user in after)


def _instead_of(target):
    """The operation that makes a new value where ``target`` overwrites its first argument; ``None`` for another place."""
    packet, overload = target._schema.name.removeprefix("aten::"), target._overloadname
    if packet.startswith("__i"):  # x |= y
        packet = packet.replace("__i", "__")
    elif packet.endswith("_"):
        packet = packet[:-1]
    else:
        return None
    packet = getattr(aten, packet)
    return next(getattr(packet, o) for o in (overload, f"Tensor_{overload}", "default") if o in packet.overloads())


def _is_view(node):
    return node.op == "call_function" and getattr(node.target, "is_view", False)


def _base(node):
    return _base(node.args[0]) if _is_view(node) else node


def _simplify(graph):
    """Leave out what changes nothing, and let equal operations on equal inputs be one node: the gradient recomputes parts of
    the value."""
    for node in list(graph.nodes):
        if node.target in _OTHER_NAMES:
            node.replace_all_uses_with(node.args[0])
        elif node.op == "get_attr" and _shape(node) == ():  # a number that the mod made, of torch.tensor(6) or numpy
            number = functools.reduce(getattr, node.target.split("."), graph.owning_module)
            with graph.inserting_before(node):
                full = graph.call_function(aten.full.default, ([], number.item()), {"dtype": number.dtype})
            full.meta = node.meta
            node.replace_all_uses_with(full)
        elif node.target is aten.full_like.default:  # a constant, although it is made in the likeness of a tensor
            val = node.meta["val"]
            node.args = list(val.shape), node.args[-1]
            node.target, node.kwargs = aten.full.default, {"dtype": val.dtype, "device": val.device}
        elif node.target in _RESHAPES and _shape(node) == _shape(node.args[0]):
            node.replace_all_uses_with(node.args[0])
        elif node.target in _OF_ONE_ELEMENT:
            source, val = node.args[_OF_ONE_ELEMENT[node.target]], node.meta["val"]
            if val.numel() == source.meta["val"].numel() == 1 and val.dtype == source.meta["val"].dtype:
                node.target, node.args, node.kwargs = aten.view.default, (source, list(val.shape)), {}
            elif val.numel() == source.meta["val"].numel() == 1:
                node.target, node.args, node.kwargs = aten._to_copy.default, (source,), {"dtype": val.dtype}
    first = {}
    for node in list(graph.nodes):
        if node.op == "call_function":
            same = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)
    graph.eliminate_dead_code()


def _part(t, node, inputs):
    """Which of the four parts a node belongs to."""
    many = _shape(node) is not None and node.meta["val"].numel() != 1
    if node.target is aten.index_put.default or node.target is aten._unsafe_index_put.default:
        return "target"
    # Gradients are linear in ``grad``: what is whole and comes from grad alone can follow the sum over positions.
    late = any(t.where[i] in ("target", "after") for i in inputs) or (many and "grad" in t.depends[node])
    if late and all("grad" in t.depends[i] or not t.depends[i] for i in inputs):
        return "after"
    if t.depends[node]:
        if late or many:
            raise ModError(
                f"a mod makes a tensor of shape {list(_shape(node))} for one query and one key ({node.target})"
                f"{at_line(t.lines.get(node))}: index every dimension, so that each step is a single number, or leave one of "
                f"at most {LONGEST} numbers to be summed, not {list(_shape(node))}"
            )
        return "position"
    if node in t.inputs or node.op == "get_attr":
        return "before"
    # Single numbers from single numbers are computed where they are used; what has dimensions, or is many tensors, by torch.
    whole = any(_shape(i) or isinstance(i.meta.get("val"), tuple | list) for i in (node, *inputs))
    return "before" if whole else "position"


def _shape(node):
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
