"""Python to graph: run a mod once on tensors without values, record torch's operations, and differentiate what was recorded.

``trace(mod, kind)`` gives a ``Trace``: an fx graph over one (score, b, h, q_idx, kv_idx) and the tensors that the mod
captures. With ``differentiate`` the graph also holds, for an incoming gradient ``grad`` of the mod's value, the gradient of
the score and of each captured tensor that requires one.

The graph's operations fall into four parts:

* *position*: one number for one query and key; these become Triton (emit.py);
* *before*: whole tensors computed from captured tensors alone, such as ``slopes.exp()``; torch computes them once a call;
* *sinks*: where the gradient of a captured tensor is summed over all queries and keys, ``index_put(zeros, index, value)``;
* *after*: whole tensors computed from the sinks, such as the chain through ``exp``; torch computes them once a call.
"""

import contextlib
import functools
import re

import numpy as np
import torch
import torch.fx.traceback as fx_traceback
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from kernels.common.checks import default_device, shown
from kernels.flex_attention.mods import special
from kernels.flex_attention.mods.errors import ModError, at_line, explained, name_of, user_line
from kernels.flex_attention.mods.parts import take_apart
from kernels.flex_attention.mods.vectors import LONGEST, LOOKS, Vector, aten_name, pointwise

aten = torch.ops.aten


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

    captures = _Captures(fake, arguments)
    graded = torch.is_grad_enabled()  # a mod may ask for it
    makes = default_device() or contextlib.nullcontext()
    with _undisturbed(), fake, captures, explained(mod, kind), makes:
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
        else:
            stand_ins = [stand_in.detach() for stand_in in stand_ins]
        captures.stand_ins = {id(real): (real, stand_in) for (real, _), stand_in in zip(captured, stand_ins)}
        captures.begin(inputs)
        with torch.set_grad_enabled(graded or differentiate), captures, makes:
            value = mod(*inputs)
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(value, torch.Tensor | Vector | int | float):
            raise ModError(f"{name_of(mod)} returns {shown(value)}, needs a number for one query and one key")
        if not isinstance(value, torch.Tensor | Vector):
            value = torch.full((), value)
        if isinstance(value, Vector) or value.numel() != 1:
            raise ModError(
                f"{name_of(mod)} returns shape {list(value.shape)} for one query and one key:{at_line(captures.line)}"
                "index every dimension of the tensors it captures, so that a single number is left"
            )
        if value.is_complex():
            raise ModError(f"{name_of(mod)} returns {value.dtype}, needs a real number")
        if kind == "mask_mod" and value.is_floating_point():  # 0 and minus infinity, to be added, would mean the opposite
            raise ModError(f"{name_of(mod)} returns {value.dtype}, needs torch.bool: whether the query sees the key")
        leaves = [t for t, on in zip(stand_ins, learned) if on]
        leaves = [score, *leaves] if differentiate else leaves
        if not value.requires_grad:
            return value, *[None] * len(leaves)
        try:
            made = torch.autograd.grad(value, leaves, grad.to(value.dtype).reshape(value.shape), allow_unused=True)
        except (NotImplementedError, RuntimeError) as error:  # of an operation whose derivative torch does not have
            at = at_line(captures.line_of(str(error)))
            raise ModError(f"{name_of(mod)} has no derivative:{at}{error}; or call it under torch.no_grad()") from error
        return value, *made

    with _undisturbed(), fake, torch.set_grad_enabled(differentiate), fx_traceback.preserve_node_meta(), explained(mod, kind):
        grad = torch.empty((), dtype=torch.float32, device=device)
        inputs = (grad, *arguments, *(stand_in for _, stand_in in captured))
        graph = make_fx(record, tracing_mode="fake", decomposition_table=_decompositions())(*inputs).graph

    return take_apart(graph, kind, [real for real, _ in captured], learned, differentiate)


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
            with _disable_current_modes():  # an alias: fake tensors leave weak references, torch swaps no tensor with such
                alias = tensor.detach().requires_grad_(tensor.requires_grad)
            self.stand_ins[id(tensor)] = tensor, self.fake.from_tensor(alias)
        return self.stand_ins[id(tensor)][1]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(torch.Tensor, self.stand_in, (args, kwargs or {}))
        self.line = self.lines[aten_name(function)] = user_line()
        placed = any(isinstance(x, Vector) or id(x) in self.placed for x in tree_leaves((args, kwargs)))
        with fx_traceback.annotate({"line": self.line}):
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
            if len(args) > 1 and (among := self.apart(args[at].reshape(-1) if isinstance(args[at], torch.Tensor) else None)):
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


def _take(input, index):
    return input.reshape(-1), index


def _select(input, dim, index):
    """The dimension stays, as long as the index."""
    return input, (*[slice(None)] * (dim % input.ndim), index.reshape(-1))


def _one(input, dim, index):
    return input, (*[slice(None)] * (dim % input.ndim), index)


def _gather(input, dim, index, **kwargs):
    return (input, index) if input.ndim == 1 else None


# Other ways to index; each gives a tensor and its index, if it can.
_INDEXING = {
    getattr(of, name): index
    for name, index in (("take", _take), ("index_select", _select), ("select", _one), ("gather", _gather))
    for of in (torch, torch.Tensor)
}
# What torch differentiates as if it had no whole numbers below zero.
_INSTEAD = dict.fromkeys((torch.ldexp, torch.Tensor.ldexp), lambda x, by: x * torch.exp2(by)) | special.INSTEAD


@functools.cache
def _decompositions():
    from torch._decomp import get_decompositions

    made = get_decompositions([getattr(aten, name) for name in _DECOMPOSED if hasattr(aten, name)])
    for operation, decomposition in list(made.items()):  # and where it overwrites its argument
        packet, _, overload = str(operation).removeprefix("aten.").partition(".")
        over = getattr(getattr(aten, f"{packet}_", None), overload, None)
        if over is not None:
            made[over] = functools.partial(_overwritten, decomposition)
    return made | special.DECOMPOSITIONS


def _overwritten(decomposition, x, *args, **kwargs):
    return x.copy_(decomposition(x, *args, **kwargs))


# Operations that torch's own decompositions turn into ones that have a rule, and their gradients.
_DECOMPOSED = """
    _prelu_kernel _prelu_kernel_backward addcdiv addcmul celu copysign deg2rad elu elu_backward fmax fmin frac gelu
    gelu_backward hardshrink hardshrink_backward
    hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward heaviside lcm leaky_relu
    leaky_relu_backward lerp log_sigmoid_forward log_sigmoid_backward logaddexp logaddexp2 logit logit_backward mish
    mish_backward nan_to_num rad2deg rrelu_with_noise_backward sigmoid_backward silu silu_backward sinc softplus
    softplus_backward softshrink softshrink_backward special_entr tanh_backward threshold threshold_backward
    xlogy
""".split()
