"""How ``torch.compile`` sees a call: its mods as a graph of their own, traced by dynamo, and from then on as its text.

A Python function cannot be an argument of an operator. Dynamo, which traces the program, does know functions that are
arguments of *higher-order operators*: it traces them into a graph, and what they capture, tensors and sizes, becomes
operands. ``attend`` is such an operator. It lives as long as dynamo's graph does: when that graph runs, or is traced further,
it takes the mods out of their graph, writes them down, and calls the operator that everybody calls.

Both names of dynamo's used here are private to PyTorch; they are the same in torch 2.11 to 2.13.
"""

import inspect
import operator
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
from kernels.flex_attention.mods.errors import ARGUMENTS
from kernels.flex_attention.mods.store import lock
from kernels.flex_attention.mods.trace import onwards
from kernels.flex_attention.mods.written import written
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


def traced(query, key, value, score_mod, block_mask, scale, enable_gqa, options, want_top, lists):
    """``(o, lse, top)``: what dynamo traces of a call. lists: the names of the mask's lists that there are."""
    B, Hq, M, _ = query.shape
    Dv = value.shape[-1]
    score = query.new_zeros((), dtype=torch.float32)
    positions = [query.new_zeros((), dtype=torch.int32) for _ in range(4)]
    operands = [query, key, value, score, *positions, *(getattr(block_mask, name) for name in lists)]

    def graph(*operands):
        """The values of both mods for one query and one key; and what the call gives, in shape, dtype and dependence."""
        marks = sum(_operand(x, i).float() for i, x in enumerate(operands))
        query, key, value, score, *positions = operands[:LISTS]
        x = score if score_mod is None else score_mod(score, *positions)
        y = positions[0] >= 0 if block_mask is None else block_mask.mask_mod(*positions)
        x = x.clone() if isinstance(x, Tensor) else torch.full((), x, device=query.device)
        y = y.clone() if isinstance(y, Tensor) else torch.full((), y, device=query.device)
        depends = (marks + query.sum() + key.sum() + value.sum() + x.sum()) * 0
        lse = torch.empty((B, Hq, M), dtype=torch.float32, device=query.device)
        o = like_strided(query, (B, Hq, M, Dv))
        return x, y, o + depends.to(o.dtype), lse + depends, torch.empty_like(lse) if want_top else lse.new_empty(0)

    BLOCK_SIZE = None if block_mask is None else tuple(block_mask.BLOCK_SIZE)
    seq_lengths = None if block_mask is None else tuple(block_mask.seq_lengths)
    names = (score_mod is not None, block_mask is not None)
    _, _, o, lse, top = attend(
        graph, *operands, scale=scale, BLOCK_SIZE=BLOCK_SIZE, seq_lengths=seq_lengths, lists=lists, options=options,
        enable_gqa=enable_gqa, want_top=want_top, names=names,
    )  # fmt: skip
    return o, lse, top


class _Attend(BaseHOP):
    """``attend(graph, *operands, ...)``, where ``graph`` is ``traced``'s, as dynamo has recorded it."""

    def __init__(self):
        super().__init__("flex_attention_with_mods")
        # Both are set in operator.py: what makes the call where nothing was recorded, and the operator.
        self.unrecorded = self.operator = None

    def __call__(
        self, graph, *operands, scale, BLOCK_SIZE, seq_lengths, lists, options, enable_gqa, want_top, names
    ):  # fmt: skip
        """What ``graph`` says that it returns; of its first two values, the mods', nobody asks."""
        if not isinstance(
            graph, torch.nn.Module
        ):  # dynamo gave up on this call and runs it: the mods are functions still
            given = inspect.getclosurevars(graph).nonlocals
            asked = given["score_mod"], given["block_mask"], scale, enable_gqa, dict(options), want_top
            return None, None, *self.unrecorded(*operands[:SCORE], *asked)
        recipe = _recipe(graph)
        given = {i: operands[at] for i, at in recipe.operands.items()}
        values = [operands[at] for at in recipe.captured]
        tensors = [given[LISTS + i] for i in range(len(lists))]
        qkv = given[QUERY], given[KEY], given[VALUE]
        sizes = BLOCK_SIZE, seq_lengths
        return (
            None,
            None,
            *_attend(recipe, values, qkv, names, tensors, scale, *sizes, lists, options, enable_gqa, want_top),
        )


def _attend(recipe, values, qkv, names, tensors, scale, BLOCK_SIZE, seq_lengths, lists, options, enable_gqa, want_top):
    """The operator's outputs for mods whose graphs capture ``values``."""
    BLOCK_SIZE = BLOCK_SIZE and tuple(
        map(int, BLOCK_SIZE)
    )  # with dynamic=True, symbols; tiles are for one value of them
    kinds = [next((kind for kind, those in _KINDS.items() if isinstance(x, those)), "float") for x in values]
    captured, ints, floats = (
        [x for x, k in zip(values, kinds, strict=True) if k == kind] for kind in (*_KINDS, "float")
    )
    score, mask = (mod if there else None for mod, there in zip((recipe.score, recipe.mask), names, strict=True))
    spec = specs.recorded(score, mask, kinds, recipe.read, BLOCK_SIZE, lists, checked(dict(options)))
    named = None if BLOCK_SIZE is None else dict(zip(lists, tensors, strict=True))
    check_tensors(*qkv, enable_gqa, BLOCK_SIZE, seq_lengths, named)
    return attend.operator(*qkv, captured, tensors, ints, list(map(float, floats)), scale, want_top, spec)


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

    supports_aliasing = (
        True  # query, key and value may be views of one tensor: nothing is written, and what comes out is new
    )

    def _call_function(self, tx, args, kwargs):
        with _Indexing():
            return super()._call_function(tx, args, kwargs)


higher_order_ops._hop_name_to_variable_class[attend._name] = _AttendVariable


class Recipe:
    """A graph of mods taken apart. operands: place of each of ``traced``'s operands. captured: places of all others. read:
    which of those are numbers that dynamo hands over as tensors, of which the mods read ``item()`` alone. score, mask: the
    mods, as text."""

    def __init__(self, graph):
        self.root = graph
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.operands, self.mine = {}, {}
        for node in graph.graph.nodes:
            if node.target is _operand:
                x, i = node.args
                self.operands[i], self.mine[i] = inputs.index(x), x
        (result,) = [node for node in graph.graph.nodes if node.op == "output"]
        given = {self.mine[i] for i in range(SCORE, LISTS) if i in self.mine}
        taken = {inputs[at] for at in self.operands.values()} - (_needed(result.args[0][:2]) - given)
        self.free = [node for node in inputs if node not in taken]  # a mod may capture the query, too
        self.captured = [inputs.index(node) for node in self.free]
        self.read = frozenset(i for i, node in enumerate(self.free) if _is_number(node))
        self.score, self.mask = (self.part(node) for node in result.args[0][:2])
        del self.root, self.mine, self.free  # remembered with its graph, it must not hold that

    @classmethod
    def by_hand(cls, *mods):
        """``(Recipe, what the mods capture)`` of a score mod and a mask mod that run with proxies in place of numbers."""
        recipe = cls.__new__(cls)
        recipe.read = frozenset()
        recipe.root, tracer = torch.nn.Module(), _Lifting()
        arguments = [torch.fx.Proxy(tracer.graph.placeholder(name), tracer) for name in ARGUMENTS["score_mod"]]
        recipe.mine = {i: proxy.node for i, proxy in enumerate(arguments, SCORE)}
        results = []
        with _Recording(tracer):
            for mod, given in zip(mods, (arguments, arguments[1:]), strict=True):
                value = arguments[0] if mod is None else mod(*given)
                if not isinstance(value, torch.fx.Proxy):
                    value = tracer.create_proxy("call_function", torch.as_tensor, (value,), {})
                results.append(value.node)
        recipe.free = list(tracer.lifted.values())
        recipe.score, recipe.mask = map(recipe.part, results)
        del recipe.root, recipe.mine, recipe.free
        return recipe, tracer.values

    def part(self, result):
        """The mod whose value is this node, as text: a function of score, positions and all that is captured."""
        graph, copied = torch.fx.Graph(), {}
        for i, name in enumerate(ARGUMENTS["score_mod"], SCORE):
            node = graph.placeholder(name)
            if i in self.mine:
                copied[self.mine[i]] = node
        for i, node in enumerate(self.free):
            copied[node] = graph.placeholder(f"captured_{i}")
            if i in self.read:
                copied |= dict.fromkeys(node.users, copied[node])

        def copy(node):
            if node not in copied:
                for one in node.all_input_nodes:
                    copy(one)
                copied[node] = graph.node_copy(node, copied.__getitem__)
            return copied[node]

        graph.output(copy(result))
        return written(graph, self.root)


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
    there = isinstance(like, Tensor) and like.ndim == 0 and like.device.type == "cpu"
    return (
        there
        and node.users
        and all(getattr(user.target, "__name__", user.target) in ("item", "wrapped_item") for user in node.users)
    )


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


def recorded(query, key, value, score_mod, block_mask, scale, enable_gqa, options, want_top, lists):
    """``traced`` for every other tracer: its tensors have no values, so that no kernel can be compiled for them yet."""
    recipe, values = Recipe.by_hand(score_mod, None if block_mask is None else block_mask.mask_mod)
    names = score_mod is not None, block_mask is not None
    sizes = (None, None) if block_mask is None else (tuple(block_mask.BLOCK_SIZE), block_mask.seq_lengths)
    tensors = [getattr(block_mask, name) for name in lists]
    qkv = query, key, value
    return _attend(recipe, values, qkv, names, tensors, scale, *sizes, lists, options, enable_gqa, want_top)


def without_values(*tensors):
    """Whether a tracer's tensors are among these."""
    return any(type(t) is not Tensor and isinstance(t, FakeTensor | FunctionalTensor) for t in tensors)


_recipes = WeakKeyDictionary()  # graph -> Recipe


def _recipe(graph):
    with lock:
        if graph not in _recipes:
            _recipes[graph] = Recipe(graph)
        return _recipes[graph]
