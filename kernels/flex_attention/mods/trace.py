"""Python to graph: run a mod once on tensors without values, record torch's operations, and differentiate what was recorded.

``trace(mod, kind)`` gives a ``Trace``: an fx graph over one (score, b, h, q_idx, kv_idx) and the tensors that the mod
captures. With ``differentiate`` the graph also holds, for an incoming gradient ``grad`` of the mod's value, the gradient of
the score and of each captured tensor that requires one.

The graph's operations fall into four parts:

* *position*: one number for one query and key; these become Triton (score_mod_emit.py);
* *before*: whole tensors computed from captured tensors alone, such as ``slopes.exp()``; torch computes them once a call;
* *sinks*: where the gradient of a captured tensor is summed over all queries and keys, ``index_put(zeros, index, value)``;
* *after*: whole tensors computed from the sinks, such as the chain through ``exp``; torch computes them once a call.
"""

import contextlib
import functools
import linecache
import sys
import traceback
from dataclasses import dataclass, field

import torch
import torch.fx.traceback as fx_traceback
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from kernels.flex_attention.mods import vectors as score_mod_vectors
from kernels.flex_attention.mods.vectors import LONGEST, Vector

aten = torch.ops.aten

#: What a mod is given, by kind. The names are those of the generated Triton functions.
ARGUMENTS = {"score_mod": ("score", "b", "h", "q_idx", "kv_idx"), "mask_mod": ("b", "h", "q_idx", "kv_idx")}

_TORCH_FOLDER = torch.__path__[0]


class ModError(ValueError):
    """A mod that cannot become a kernel; the message shows the user's line and says what to write instead."""


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


def trace(mod, kind, device="cpu", differentiate=False):
    """Record ``mod``.

    Args:
        mod: the function; ``kind``: ``"score_mod"`` (score, b, h, q_idx, kv_idx) or ``"mask_mod"`` (b, h, q_idx, kv_idx).
        device: where its arguments claim to lie.
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

    captures = _Captures(fake)
    with torch.no_grad(), fake, captures, _explained(mod, kind):
        mod(*arguments)
    captured = list(captures.stand_ins.values())
    learned = [differentiate and real.requires_grad and real.is_floating_point() for real, _ in captured]

    def record(grad, *inputs):
        score = None
        inputs, stand_ins = list(inputs[: len(arguments)]), list(inputs[len(arguments) :])
        if differentiate:
            score = inputs[0].detach().requires_grad_()
            inputs[0] = score.clone()  # a mod may write `score += ...`, which is not allowed on a leaf
            stand_ins = [
                stand_in.detach().requires_grad_() if is_learned else stand_in.detach()
                for stand_in, is_learned in zip(stand_ins, learned)
            ]
        captures.stand_ins = {id(real): (real, stand_in) for (real, _), stand_in in zip(captured, stand_ins)}
        with captures:
            value = mod(*inputs)
        if not isinstance(value, torch.Tensor | Vector):
            value = torch.full((), value)
        if isinstance(value, Vector) or value.numel() != 1:
            raise ModError(
                f"{_name(mod)} returns shape {list(value.shape)} for one query and one key:{_at(captures.line)}"
                "index every dimension of the tensors it captures, so that a single number is left"
            )
        leaves = [t for t, on in zip(stand_ins, learned) if on]
        leaves = [score, *leaves] if differentiate else leaves
        if not value.requires_grad:
            return value, *[None] * len(leaves)
        return value, *torch.autograd.grad(value, leaves, grad.to(value.dtype).reshape(value.shape), allow_unused=True)

    with fake, torch.set_grad_enabled(differentiate), fx_traceback.preserve_node_meta(), _explained(mod, kind):
        grad = torch.empty((), dtype=torch.float32, device=device)
        inputs = (grad, *arguments, *(stand_in for _, stand_in in captured))
        graph = make_fx(record, tracing_mode="fake", decomposition_table=_decompositions())(*inputs).graph

    return _take_apart(graph, kind, [real for real, _ in captured], learned, differentiate)


class _Captures(TorchFunctionMode):
    """Shows a mod a stand-in for each real tensor it uses, turns its indexing into ``aten.index``, notes the user's lines."""

    def __init__(self, fake):
        super().__init__()
        self.fake = fake
        self.stand_ins = {}  # id of the real tensor -> (real tensor, stand-in)
        self.line = None  # the user's line that runs
        self.parts = {}  # id of a partly indexed tensor -> (itself, what was indexed, its index)

    def stand_in(self, tensor):
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self.stand_ins:
            self.stand_ins[id(tensor)] = tensor, self.fake.from_tensor(tensor)
        return self.stand_ins[id(tensor)][1]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(torch.Tensor, self.stand_in, (args, kwargs or {}))
        self.line = _user_line()
        with fx_traceback.annotate({"line": self.line}):
            if function is torch.Tensor.__getitem__:
                return self.index(*args)
            return function(*args, **kwargs)

    def index(self, tensor, index):
        """``tensor[index]``, complete at once: ``bias[q][k]`` reads one element, not a row first."""
        index = list(index) if isinstance(index, tuple) else [index]
        if id(tensor) in self.parts:
            _, tensor, before = self.parts[id(tensor)]
            index = before + index
        elif not any(isinstance(i, torch.Tensor) for i in index):
            return tensor[tuple(index)]
        if Ellipsis in [i for i in index if not isinstance(i, torch.Tensor)]:
            at = next(i for i, one in enumerate(index) if one is Ellipsis)
            index[at : at + 1] = [slice(None)] * (tensor.ndim - len(index) + 1)
        # What is not a tensor is taken first, as a view; the tensors' dimensions stay whole until all are known.
        base = tensor[tuple(slice(None) if isinstance(i, torch.Tensor) else i for i in index)]
        tensors = [i if isinstance(i, torch.Tensor) else None for i in index if not isinstance(i, int)]
        if any(t is not None and t.dtype == torch.bool for t in tensors):
            raise ModError(f"a captured tensor is indexed with a bool{_at(_user_line())}: use torch.where")
        part = aten.index.Tensor(base, tensors)
        if part.ndim and all(i is None or i.ndim == 0 for i in tensors):
            if part.ndim == 1 and 0 < part.numel() <= LONGEST:
                return self.vector(base, [*tensors, *[None] * (base.ndim - len(tensors))], part.numel())
            self.parts[id(part)] = part, tensor, index
        return part

    def vector(self, tensor, index, length):
        """The one dimension of a tensor that ``index`` leaves, in single numbers."""
        further = lambda last: self.index(tensor, tuple(last if i is None else i for i in index))  # noqa: E731
        return Vector([further(i) for i in range(length)], lambda text: ModError(f"{text}:{_at(self.line)}"), further)


@functools.cache
def _decompositions():
    from torch._decomp import get_decompositions

    return get_decompositions([getattr(aten, name) for name in _DECOMPOSED if hasattr(aten, name)])


# Operations that torch's own decompositions turn into ones that have a rule, and their gradients.
_DECOMPOSED = """
    addcdiv addcmul celu copysign deg2rad elu elu_backward fmax fmin frac gelu gelu_backward hardshrink hardshrink_backward
    hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward heaviside leaky_relu
    leaky_relu_backward lerp log_sigmoid_forward log_sigmoid_backward logaddexp logaddexp2 logit logit_backward mish
    mish_backward nan_to_num rad2deg rrelu_with_noise_backward sigmoid_backward silu silu_backward sinc softplus
    softplus_backward softshrink softshrink_backward special_entr special_erfcx tanh_backward threshold threshold_backward
    xlogy
""".split()


_OTHER_NAMES = (aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.clone.default)
_FILLED = {
    aten.new_zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.empty_like.default: 0,
    aten.new_ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_full.default: None,
    aten.full_like.default: None,
}
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.expand.default)


def _without_writing(graph):
    """Turn each operation that overwrites its first argument into one that makes a new value, used from there on."""
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
            continue
        packet, _, overload = str(node.target).removeprefix("aten.").partition("_.")
        written = node.args[0]
        after = set()
        later = node.next
        while later.op != "root":
            after.add(later)
            later = later.next
        node.target = getattr(getattr(aten, packet), overload)
        written.replace_all_uses_with(node, delete_user_cb=lambda user, after=after: user in after)


def _merge_equal(graph):
    """Let equal operations on equal inputs be one node: the gradient recomputes parts of the value."""
    first = {}
    for node in list(graph.nodes):
        if node.op == "call_function":
            same = first.setdefault((node.target, str(node.args), str(node.kwargs)), node)
            if same is not node:
                node.replace_all_uses_with(same)
                graph.erase_node(node)


def _take_apart(graph, kind, captured, learned, differentiate):
    """The ``Trace`` of a recording whose inputs are grad, the mod's arguments, and the captured tensors."""
    last = {(node.meta.get("custom") or {}).get("line"): node for node in graph.nodes if "val" in node.meta}
    _without_writing(graph)
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
        elif node.target in _RESHAPES and _shape(node) == _shape(node.args[0]):
            node.replace_all_uses_with(node.args[0])
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
    return t


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
                f"{_at(t.lines.get(node))}: index every dimension, so that each step is a single number"
            )
        return "position"
    if node in t.inputs or node.op == "get_attr":
        return "before"
    # Single numbers from single numbers are computed where they are used; whatever has dimensions, by torch.
    whole = any(len(_shape(i) or ()) > 0 for i in (node, *inputs))
    return "before" if whole else "position"


def _shape(node):
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _numel(node):
    return node.meta["val"].numel()


# Errors that show the user's own line.


def _user_line():
    """``(file, line number)`` of the innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None


def _is_ours(file):
    """Whether a file is this one, the vectors', or torch's."""
    return file in (__file__, score_mod_vectors.__file__) or file.startswith(_TORCH_FOLDER)


def source_line(line):
    """The text of a ``(file, line number)``."""
    return linecache.getline(*line).strip()


def _at(line):
    return f"\n    {source_line(line)}\n    ({line[0]}, line {line[1]})\n" if line else " "


def _name(mod):
    return getattr(mod, "__name__", type(mod).__name__)


@contextlib.contextmanager
def _explained(mod, kind):
    """Turn what torch raises while it records a mod into a ``ModError`` about the user's line."""
    try:
        yield
    except ModError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        mine = [f for f in frames if not _is_ours(f.filename)]
        at = _at((mine[-1].filename, mine[-1].lineno)) if mine else " "
        text = type(error).__name__
        if "DataDependent" in text or "data-dependent" in str(error).lower():
            raise ModError(
                f"{_name(mod)} needs the value of a tensor while it is compiled:{at}"
                "A mod is compiled once for all queries and keys, so Python cannot branch on an index or a score, nor read "
                "it as a number. Write torch.where(condition, a, b) instead of `a if condition else b`, and & | ~ instead "
                "of `and or not`."
            ) from error
        if isinstance(error, TypeError) and not mine:
            raise ModError(f"{kind} must take {', '.join(ARGUMENTS[kind])}; {_name(mod)} does not: {error}") from error
        raise ModError(f"{_name(mod)} cannot be compiled:{at}{text}: {error}") from error
