"""A recorded mod taken apart: what becomes Triton, and what torch computes before and after the kernel."""

from collections import Counter
from dataclasses import dataclass, field

import torch

from kernels.flex_attention.mods.errors import ARGUMENTS, ModError, at_line
from kernels.flex_attention.mods.vectors import LONGEST, MOST_SUMS, WIDEST

aten = torch.ops.aten


@dataclass
class Trace:
    """A mod as a graph.

    kind: ``"score_mod"`` or ``"mask_mod"``. graph: the whole recording; ``print(trace.graph)`` shows it. value: the node
    of the mod's value. score_gradient: the node of the score's gradient, ``None`` if it is zero or was not asked for.
    captured: the tensors the mod uses from outside, in the order in which it meets them. tables: nodes whose tensors the
    kernel reads. sinks: nodes whose sums the kernel makes. gradients: for each captured tensor the node of its gradient or
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
    sinks: list[torch.fx.Node] = field(default_factory=list)
    where: dict[torch.fx.Node, str] = field(default_factory=dict)
    numbers: list[torch.fx.Node] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


_OTHER_NAMES = (aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.clone.default)

_FILLED = {
    aten.new_zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.empty_like.default: 0,
    aten.new_ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_full.default: None,
    aten.full_like.default: None,
    aten.zero.default: 0,
    aten.fill.Scalar: None,
}

_OVERWRITES = aten.copy.default, aten.fill.Tensor

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.expand.default)

# What a tensor of one element, such as a learned ``nn.Parameter(torch.ones(1))``, and its gradient go through unchanged.
_OF_ONE_ELEMENT = (
    aten.select.int, aten.slice.Tensor, aten.permute.default, aten.transpose.int, aten.t.default, aten.squeeze.dims,
    aten.select_backward.default, aten.slice_backward.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default,
    aten.mean.dim, aten.prod.default, aten.prod.dim_int, aten.amax.default, aten.amin.default, aten.max.default,
    aten.min.default, aten.all.default, aten.all.dim, aten.any.default, aten.any.dim,
)  # fmt: skip


def take_apart(graph, kind, captured, learned, differentiate):
    """The ``Trace`` of a recording whose inputs are grad, the mod's arguments, and the captured tensors."""
    last = {(node.meta.get("custom") or {}).get("line"): node for node in graph.nodes if "val" in node.meta}
    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise ModError(
                f"a mod draws random numbers ({node.target}){at_line((node.meta.get('custom') or {}).get('line'))}: "
                "it is called in the backward pass again; draw a tensor of them before, capture it and index it"
            )
    _without_writing(graph, given=1 + len(ARGUMENTS[kind]))
    for node in list(graph.nodes):
        if node.target in _OTHER_NAMES:
            node.replace_all_uses_with(node.args[0])
        elif node.target in _FILLED:  # constants, although they are made in the likeness of a tensor
            with graph.inserting_before(node):
                fill = _FILLED[node.target]
                fill = node.args[-1] if fill is None else fill
                val = node.meta["val"]
                kwargs = {"dtype": val.dtype, "device": val.device}
                constant = graph.call_function(aten.full.default, (list(val.shape), fill), kwargs)
            constant.meta = node.meta
            node.replace_all_uses_with(constant)
        elif node.target in _OVERWRITES and _numel(node) == _numel(node.args[1]) == 1:
            _make(node, node.args[1])
        elif node.target in _RESHAPES and _shape(node) == _shape(node.args[0]):
            node.replace_all_uses_with(node.args[0])
        elif node.target in _OF_ONE_ELEMENT and _numel(node) == _numel(node.args[0]) == 1:
            _make(node, node.args[0])
    _merge_equal(graph)
    graph.eliminate_dead_code()
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    names = ("grad", *ARGUMENTS[kind])
    for node, name in zip(placeholders, (*names, *(f"captured_{i}" for i in range(len(captured))))):
        node.name = name
    (result,) = [node for node in graph.nodes if node.op == "output"]
    value, *gradients = result.args[0]
    gradients = iter(gradients)
    score_gradient = next(gradients, None) if differentiate else None
    gradients = [next(gradients, None) if on else None for on in learned]
    t = Trace(kind, graph, value, score_gradient, captured, placeholders[len(names) :], gradients, last=last)

    for node in graph.nodes:
        custom = node.meta.get("custom") or {}
        if custom.get("line"):
            t.lines[node] = custom["line"]
        if node.op == "output":
            continue
        inputs = node.all_input_nodes
        t.depends[node] = frozenset().union(*(t.depends[i] for i in inputs))
        if node.op == "placeholder":
            t.depends[node] = frozenset([node.name]) & frozenset(names)
        t.where[node] = _part(t, node, inputs)
        if custom.get("width", 0) > WIDEST and _fills_tile(t.depends[node]):
            raise ModError(
                f"a mod computes with vectors of {custom['width']} numbers for each query and key together:"
                f"{at_line(t.lines.get(node))}at most {WIDEST} can be compiled; {_INSTEAD_OF_VECTORS}"
            )
    for node in graph.nodes:
        if node.op == "output":
            continue
        if t.where[node] == "position":
            t.tables += [i for i in node.all_input_nodes if t.where[i] == "before" and i not in t.tables]
        # A single number that is, or goes into, the gradient of a captured tensor is summed over all positions.
        summed = t.where[node] == "position" and "grad" in t.depends[node]
        if t.where[node] == "sink" or (
            summed and (node in gradients or any(t.where.get(user) == "after" for user in node.users))
        ):
            t.sinks.append(node)
    if len(t.sinks) > MOST_SUMS:
        read = Counter(t.lines.get(node) for node in graph.nodes if node.target is aten.index.Tensor)
        raise ModError(
            f"a mod needs {len(t.sinks)} sums for the gradients of what it captures:"
            f"{at_line(max(read, key=read.get, default=None))}"
            f"at most {MOST_SUMS} can be compiled, one for each number of a vector that is used; {_INSTEAD_OF_VECTORS}"
        )
    return t


_INSTEAD_OF_VECTORS = (
    "a dot product of what belongs to queries and what belongs to keys is attention's own: torch.cat([query, x], -1) and "
    "torch.cat([key, y], -1); a squared distance is x @ x + y @ y - 2 x @ y; all else may be computed before, as a [M, N]"
)


def _fills_tile(depends):
    """Whether it is computed for each query and key together."""
    return bool(depends & {"score", "grad"}) or {"q_idx", "kv_idx"} <= depends


def _without_writing(graph, given):
    """Turn each operation that overwrites its first argument into one that makes a new value, used from there on. given: how
    many of the inputs are grad and the mod's arguments; the others are captured.

    Raises:
        ModError: it overwrites a captured tensor, or, through a view, what is known by another name, too.
    """
    captured = [node for node in graph.nodes if node.op == "placeholder"][given:]
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
            continue
        written, instead = node.args[0], _instead_of(node.target)
        after = set()
        later = node.next
        while later.op != "root":
            after.add(later)
            later = later.next
        seen = [user for user in written.users if _is_view(user) and user not in after and not after.isdisjoint(user.users)]
        if not instead or written in captured or seen or _is_view(written):
            there = "into a captured tensor" if _base(written) in captured else "what a view sees"
            what = there if instead else "with out="
            raise ModError(
                f"a mod writes {what} ({node.target}):{at_line((node.meta.get('custom') or {}).get('line'))}"
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


def _merge_equal(graph):
    """Let equal operations on equal inputs be one node: the gradient recomputes parts of the value."""
    first = {}
    for node in list(graph.nodes):
        if node.op == "call_function":
            same = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)


def _part(t, node, inputs):
    """Which of the four parts a node belongs to."""
    many = _shape(node) is not None and _numel(node) != 1
    if node.target is aten.index_put.default or node.target is aten._unsafe_index_put.default:
        return "sink"
    # Gradients are linear in ``grad``: what is whole and comes from grad alone can follow the sum over positions.
    late = any(t.where[i] in ("sink", "after") for i in inputs) or (many and "grad" in t.depends[node])
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


def _make(node, of):
    """Let ``node`` be the one element of another node, in its own shape and dtype."""
    if node.meta["val"].dtype == of.meta["val"].dtype:
        node.target, node.args, node.kwargs = aten.view.default, (of, list(_shape(node))), {}
    else:
        node.target, node.args, node.kwargs = aten._to_copy.default, (of,), {"dtype": node.meta["val"].dtype}


def _numel(node):
    return node.meta["val"].numel()
