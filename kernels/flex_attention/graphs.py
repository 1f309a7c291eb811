"""How ``torch.compile`` sees a call: its mods as a graph of their own, traced by dynamo, and from then on as its text.

A Python function cannot be an argument of an operator. Dynamo, which traces the program, does know functions that are
arguments of *higher-order operators*: it traces them into a graph, and what they capture, tensors and sizes, becomes
operands. ``attend`` is such an operator. It lives as long as dynamo's graph does: when that graph runs, or is traced further,
it takes the mods out of their graph, writes them down, and calls the operator that everybody calls.

Both names of dynamo's used here are private to PyTorch; they are the same in torch 2.11 to 2.13.
"""

import inspect
import operator
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._dynamo.variables import higher_order_ops
from torch._higher_order_ops.base_hop import BaseHOP
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kernels.flex_attention import specs
from kernels.flex_attention.checks import check_tensors
from kernels.flex_attention.mods.emit import part_of
from kernels.flex_attention.mods.errors import ARGUMENTS
from kernels.flex_attention.mods.trace import onwards
from kernels.flex_attention.options import checked
from kernels.flex_attention.problem import like_strided

_LIBRARY = torch.library.Library("kernels_from_math", "FRAGMENT")
_LIBRARY.define("flex_operand(Tensor x, int i) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("flex_operand", lambda x, i: x.new_empty(()), _key)
torch.library.register_fake("kernels_from_math::flex_operand", lambda x, i: x.new_empty(()), lib=_LIBRARY)
_operand = torch.ops.kernels_from_math.flex_operand.default

_KINDS = {"Tensor": Tensor, "int": int | torch.SymInt}  # of what a mod captures; all else is float
QUERY, KEY, VALUE, SCORE, POSITIONS, LISTS = 0, 1, 2, 3, 4, 8  # an operand's number; the lists are the last


class Call(NamedTuple):
    """What a call has beside tensors and mods. lists: the names of the mask's lists that there are; has_mods: of a score mod
    and a mask whether there is one."""

    scale: float
    enable_gqa: bool
    options: tuple
    want_top: bool
    BLOCK_SIZE: tuple | None
    seq_lengths: tuple | None
    lists: tuple
    has_mods: tuple


def traced(qkv, score_mod, block_mask, call):
    """``(o, lse, top)``: what dynamo traces of a ``Call``; qkv: query, key and value."""
    query, _, value = qkv
    B, Hq, M, _ = query.shape
    Dv = value.shape[-1]
    score = query.new_zeros((), dtype=torch.float32)
    positions = [query.new_zeros((), dtype=torch.int32) for _ in range(4)]
    operands = [*qkv, score, *positions, *(getattr(block_mask, name) for name in call.lists)]

    def graph(*operands):
        """The values of both mods for one query and one key; and what the call gives, in shape, dtype and dependence."""
        marks = sum(_operand(x, i).float() for i, x in enumerate(operands))
        query, key, value, score, *positions = operands[:LISTS]
        x = score if score_mod is None else score_mod(score, *positions)
        y = positions[0] >= 0 if block_mask is None else block_mask.mask_mod(*positions)
        x, y = (t.clone() if isinstance(t, Tensor) else torch.full((), t, device=query.device) for t in (x, y))
        depends = (marks + query.sum() + key.sum() + value.sum() + x.sum()) * 0
        lse = torch.empty((B, Hq, M), dtype=torch.float32, device=query.device)
        o = like_strided(query, (B, Hq, M, Dv))
        top = torch.empty_like(lse) if call.want_top else lse.new_empty(0)
        return x, y, o + depends.to(o.dtype), lse + depends, top

    return attend(graph, *operands, call=tuple(call))[2:]


class _Attend(BaseHOP):
    """``attend(graph, *operands, call=...)``, where ``graph`` is ``traced``'s, as dynamo has recorded it."""

    def __init__(self):
        super().__init__("flex_attention_with_mods")
        # Both are set in operator.py: what makes the call where nothing was recorded, and the operator.
        self.unrecorded = self.operator = None

    def __call__(self, graph, *operands, call):
        """What ``graph`` says that it returns; its first two values, the mods', are not used."""
        call = Call(*call)
        if not isinstance(graph, torch.nn.Module):  # dynamo gave up on this call and runs it: the mods are functions still
            mods = inspect.getclosurevars(graph).nonlocals
            settings = call.scale, call.enable_gqa, dict(call.options), call.want_top
            return None, None, *self.unrecorded(*operands[:SCORE], mods["score_mod"], mods["block_mask"], *settings)
        recipe = _recipe(graph)
        by_number = {i: operands[at] for i, at in recipe.operands.items()}
        lists = [by_number[LISTS + i] for i in range(len(call.lists))]
        values = [operands[at] for at in recipe.captured]
        return None, None, *_attend(recipe, values, [by_number[i] for i in (QUERY, KEY, VALUE)], lists, call)


def _attend(recipe, values, qkv, lists, call):
    """The operator's outputs for mods whose graphs capture ``values``."""
    # With dynamic=True these are symbols; tiles are for one value of them.
    BLOCK_SIZE = call.BLOCK_SIZE and tuple(map(int, call.BLOCK_SIZE))
    kinds = [next((kind for kind, types in _KINDS.items() if isinstance(x, types)), "float") for x in values]
    given = {name: [x for x, kind in zip(values, kinds, strict=True) if kind == name] for name in (*_KINDS, "float")}
    texts = [mod if there else None for mod, there in zip((recipe.score, recipe.mask), call.has_mods, strict=True)]
    spec = specs.recorded(*texts, kinds, recipe.read, BLOCK_SIZE, call.lists, checked(dict(call.options)))
    named = None if BLOCK_SIZE is None else dict(zip(call.lists, lists, strict=True))
    check_tensors(*qkv, call.enable_gqa, BLOCK_SIZE, call.seq_lengths, named)
    floats = list(map(float, given["float"]))
    return attend.operator(*qkv, given["Tensor"], lists, given["int"], floats, call.scale, call.want_top, spec)


attend = _Attend()


class _Indexing(TransformGetItemToIndex):
    """A tensor indexed with a position is not indexed with a Python number; torch's leaves that out beside slices."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.__getitem__ and isinstance(args[1], tuple) and any(isinstance(i, Tensor) for i in args[1]):
            if not all(isinstance(i, Tensor | int) for i in args[1]):
                view, placed = onwards([None] * args[0].ndim, list(args[1]))
                return torch.ops.aten.index.Tensor(args[0][view], placed)
        return super().__torch_function__(func, types, args, kwargs)


class _AttendVariable(higher_order_ops.BaseHOPVariable):
    """``attend`` while dynamo traces it."""

    supports_aliasing = True  # query, key and value may be views of one tensor: nothing is written, and o is new

    def _call_function(self, tx, args, kwargs):
        with _Indexing():
            return super()._call_function(tx, args, kwargs)


higher_order_ops._hop_name_to_variable_class[attend._name] = _AttendVariable


class Recipe(NamedTuple):
    """The mods of a graph. score, mask: as text. captured: places of what they capture among the graph's inputs. operands:
    of ``traced``'s operands. read: which of those captured are numbers that dynamo hands over as tensors, of which the mods
    read ``item()`` alone."""

    score: str
    mask: str
    captured: list
    operands: dict
    read: frozenset


def _mods(root, results, arguments, captured, read=()):
    """The mods whose values are these nodes, as text: functions of score, positions and all that is captured."""
    names = enumerate(ARGUMENTS["score_mod"], SCORE)
    inputs = [(name, [arguments[i]] if i in arguments else []) for i, name in names]
    inputs += [(f"captured_{i}", [node, *(node.users if i in read else ())]) for i, node in enumerate(captured)]
    return [part_of(root, result, inputs) for result in results]


def _of_graph(graph):
    """The ``Recipe`` of a graph that dynamo has recorded of ``traced``'s."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    operands = {node.args[1]: node.args[0] for node in graph.graph.nodes if node.target is _operand}
    arguments = {i: node for i, node in operands.items() if SCORE <= i < LISTS}
    *_, result = graph.graph.nodes
    results = result.args[0][:2]
    taken = {*operands.values()} - (_needed(results) - {*arguments.values()})  # a mod may capture the query, too
    captured = [node for node in inputs if node not in taken]
    read = frozenset(i for i, node in enumerate(captured) if _is_number(node))
    places = [inputs.index(node) for node in captured]
    operands = {i: inputs.index(node) for i, node in operands.items()}
    return Recipe(*_mods(graph, results, arguments, captured, read), places, operands, read)


def _by_hand(*mods):
    """``(Recipe, what the mods capture)`` of a score mod and a mask mod that run with proxies in place of numbers."""
    tracer, results = _Lifting(), []
    arguments = [torch.fx.Proxy(tracer.graph.placeholder(name), tracer) for name in ARGUMENTS["score_mod"]]
    with _Recording(tracer):
        for mod, its in zip(mods, (arguments, arguments[1:]), strict=True):
            value = arguments[0] if mod is None else mod(*its)
            if not isinstance(value, torch.fx.Proxy):
                value = tracer.create_proxy("call_function", torch.as_tensor, (value,), {})
            results.append(value.node)
    by_number = {i: proxy.node for i, proxy in enumerate(arguments, SCORE)}
    captured = list(tracer.lifted.values())
    score, mask = _mods(torch.nn.Module(), results, by_number, captured)
    return Recipe(score, mask, [], {}, frozenset()), tracer.values


def _needed(nodes):
    """These, and all that they are computed from."""
    seen, todo = set(), list(nodes)
    while todo:
        if (node := todo.pop()) not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return seen


def _is_number(node):
    """Whether an input is a number that dynamo has made a tensor of, so that its other values need no other graph: a float,
    or one of numpy's that the mod makes Python's of."""
    like = node.meta.get("example_value")
    if not isinstance(like, Tensor) or like.ndim or like.device.type != "cpu" or not node.users:
        return False
    return all(getattr(user.target, "__name__", user.target) in ("item", "wrapped_item") for user in node.users)


class _Lifting(torch.fx.proxy.GraphAppendingTracer):
    """Records with tensors and sizes from outside as inputs."""

    record_stack_traces = True

    def __init__(self):
        super().__init__(torch.fx.Graph())
        self.lifted, self.values = {}, []  # id of a value -> its input

    def create_arg(self, a):
        """An argument's node."""
        if not isinstance(a, Tensor | torch.SymInt | torch.SymFloat):
            return super().create_arg(a)
        if id(a) not in self.lifted:
            self.values.append(a)
            self.lifted[id(a)] = self.graph.placeholder(f"captured_{len(self.lifted)}")
        return self.lifted[id(a)]


class _Recording(TorchFunctionMode):
    """Whatever a proxy takes part in is recorded; the rest is computed, and is captured where it is used."""

    def __init__(self, tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not any(isinstance(x, torch.fx.Proxy) for x in tree_leaves((args, kwargs))):
            return function(*args, **kwargs)
        if function is Tensor.__getitem__:
            return self.tracer.create_proxy("call_function", operator.getitem, args, kwargs)
        return torch.fx.Proxy.__torch_function__(function, types, args, kwargs)


def recorded(qkv, score_mod, block_mask, call):
    """``traced`` for every other tracer: its tensors have no values, so that no kernel can be compiled for them yet."""
    recipe, values = _by_hand(score_mod, None if block_mask is None else block_mask.mask_mod)
    return _attend(recipe, values, qkv, [getattr(block_mask, name) for name in call.lists], call)


def without_values(*tensors):
    """Whether a tracer's tensors are among these."""
    return any(type(t) is not Tensor and isinstance(t, FakeTensor | FunctionalTensor) for t in tensors)


_recipes = WeakKeyDictionary()  # graph -> Recipe


def _recipe(graph):
    if graph not in _recipes:
        _recipes[graph] = _of_graph(graph)
    return _recipes[graph]
