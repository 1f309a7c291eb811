"""What stands before PyTorch's dispatcher: overrides of torch's functions, transforms to refuse, and checks of arguments.

Checks come before anything is launched; each error names the argument, what it got and what it needs.
"""

import functools
import inspect
import numbers
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TypeVar, overload

import numpy as np
import torch
from torch.overrides import handle_torch_function, has_torch_function

from kernels import runtime
from kernels.common import torch_private as private
from kernels.common.lines import wrapped

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
INDEX_DTYPES = (torch.int32, torch.int64)
LONGEST = 100  # letters of a value in a message
# types of tensors whose sizes are numbers, and that nothing else stands behind
PLAIN = {torch.Tensor, torch.nn.Parameter}


def shown(value):
    """A value in a message: what is short as it is written, of all else what it is; never a tensor's elements."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple | list):
        inside = ", ".join(map(shown, value))
        text = f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    elif isinstance(value, dict):
        text = f"{{{', '.join(f'{shown(k)}: {shown(v)}' for k, v in value.items())}}}"
    elif value is None or isinstance(value, bool | numbers.Number | str | torch.dtype | torch.device):
        text = repr(value)
    elif isinstance(value, type) or hasattr(value, "__name__"):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
    else:
        kind = type(value).__name__
        return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def same_device(one, other):
    """Whether two torch.devices are one: ``cuda`` without an index is the current GPU, ``cuda:0`` where that is 0."""
    if one == other or one.type != other.type:
        return one == other
    named = {one.index, other.index} - {None}
    several = one.type == "cuda" and torch.cuda.is_initialized()
    return len(named) == 1 and (not several or named == {torch.cuda.current_device()})


def check_tensor(name, tensor, shape, legend, *, dtypes=FLOAT_DTYPES, like=None):
    """Raise ``ValueError`` unless ``tensor`` has the wanted shape, a dtype among ``dtypes`` and the device of ``like``.

    Args:
        name: the argument's name, for the message.
        tensor: what was passed.
        shape: sequence of ints; ``None`` stands for any size.
        legend: the shape in symbols, such as ``"[B, T, D]"``.
        dtypes: tuple of allowed torch dtypes.
        like: ``(name, tensor)`` whose device this one must share, or ``None`` for the tensor that decides the device.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} must be a tensor {legend}, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ValueError(f"{name} is {kind}, needs a dense tensor {legend}; sequences of different lengths are packed")
    if tensor.is_quantized:
        raise ValueError(f"{name} is a quantized tensor, needs one of numbers {legend}: {name}.dequantize()")
    fits = tensor.ndim == len(shape) and all(
        want is None or want == got for got, want in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
        raise ValueError(f"{name} has shape {list(tensor.shape)}, needs {legend} = {wanted}")
    if tensor.dtype not in dtypes:
        needs = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise ValueError(f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}, needs one of {needs}")
    if like is not None and tensor.device != like[1].device and not same_device(tensor.device, like[1].device):
        raise ValueError(f"{name} is on {tensor.device}, needs {like[1].device}, the device of {like[0]}")
    if like is None and not runtime.interpreted and tensor.device.type != "cuda":
        raise ValueError(
            f"{name} is on {tensor.device}, needs a CUDA device, because kernels are compiled here; "
            "start Python with TRITON_INTERPRET=1 to run on CPU tensors"
        )


def check_updated_in_place(name, tensor):
    """Raise ``ValueError`` unless a function that isn't differentiable may write ``tensor``: each of its elements at an
    address of its own, and no gradient expected."""
    if not torch.compiler.is_compiling():  # where strides may be symbols, which can't be put in order
        strides, end = tensor.stride(), 0  # of what the dimensions so far span
        for stride, size in sorted(zip(strides, tensor.shape, strict=True)):
            if size > 1 and stride <= end:
                raise ValueError(f"{name} has strides {strides}, needs no element twice: it is updated in place")
            end += (size - 1) * stride
    check_writable(name, tensor)


def check_writable(name, tensor):
    """Raise ``ValueError`` where what a function that isn't differentiable writes would not be what ``tensor`` holds."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} requires a gradient, needs none: it is updated in place, which is not differentiable")
    if not torch.compiler.is_compiling() and tensor.is_neg():
        raise ValueError(f"{name} is a view that negates its memory, needs {name}.resolve_neg() to be written in place")


def check_apart(name, written, **read):
    """Raise ``ValueError`` where ``written`` lies in the memory of a tensor that is read; as torch's own operators do, of
    tensors without gaps alone: others may lie between each other."""
    if torch.compiler.is_compiling() or private.is_fake(written):
        return
    for other, tensor in read.items():
        both = written, tensor
        begins = [t.data_ptr() for t in both]
        ends = [begin + _span(t) * t.element_size() for begin, t in zip(begins, both, strict=True)]
        if written.device == tensor.device and max(begins) < min(ends) and all(_span(t) <= t.numel() for t in both):
            raise ValueError(f"{name} lies in the memory of {other}, needs memory of its own: it is written meanwhile")


def _span(t):
    """Elements from the first to the last in memory: fewer than the tensor has where one stands for several."""
    return 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def left_to_reference(layer, tensor):
    """Whether a layer must do without kernels: its tensors are on the CPU, and kernels are compiled for a GPU here.

    A model's evaluation on the CPU goes on then, in plain PyTorch, with one warning for each kind of layer.
    """
    if runtime.interpreted or tensor.device.type != "cpu":
        return False
    if layer not in _left and not torch.compiler.is_compiling():
        _left.add(layer)
        warnings.warn(
            f"{layer} is given tensors on the CPU where kernels are compiled for a GPU: it computes with plain PyTorch there",
            stacklevel=3,
        )
    return True


_left = set()  # the layers that have said so


def check_choice(name, value, choices):
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} is {shown(value)}, needs one of {', '.join(repr(c) for c in choices)}")


def check_flag(name, value):
    """``value`` as a bool, numpy's and 0 and 1 too; raise ``ValueError`` for anything else."""
    if not isinstance(value, int | np.integer | np.bool_) or value not in (0, 1):
        raise ValueError(f"{name} is {shown(value)}, needs True or False")
    return bool(value)


def is_whole(value):
    """Whether a value is a whole number, of Python, numpy or a tracer; True and False are none."""
    return isinstance(value, int | numbers.Integral | torch.SymInt) and not isinstance(value, bool)


def check_number(name, value):
    """Raise ``ValueError`` unless ``value`` is a real number, of Python or numpy, or ``None``."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
        raise ValueError(f"{name} is {shown(value)}, needs a number or None")


def values_checked(tensor):
    """Whether the *values* of an index tensor may be read: on the CPU, or when ``KERNELS_CHECK=1`` asks for it.

    Reading a GPU tensor's values waits for the GPU; under ``torch.compile``, and in a fake tensor, there are none.
    """
    if torch.compiler.is_compiling() or type(tensor) is not torch.Tensor and private.is_fake(tensor):
        return False
    return tensor.device.type == "cpu" or os.environ.get("KERNELS_CHECK") == "1"


def check_cu_seqlens(cu_seqlens, B, like, T=None):
    """Raise ``ValueError`` unless ``cu_seqlens`` [N+1] can split a single batch row in N sequences; return N.

    Args:
        cu_seqlens: int32 or int64 [N+1], or ``None`` for one sequence per batch row. Equal neighbours are empty sequences.
        B: batch size, which must be 1 with ``cu_seqlens``.
        like: ``(name, tensor)`` whose device ``cu_seqlens`` must share.
        T: tokens along time; with it the values, where they may be read, must begin at 0, never fall, and end at T or
            before: tokens behind the last sequence are padding.

    Returns:
        N, the number of sequences.
    """
    if cu_seqlens is None:
        return B
    check_tensor("cu_seqlens", cu_seqlens, (None,), "[N+1]", dtypes=INDEX_DTYPES, like=like)
    if cu_seqlens.shape[0] == 0:
        raise ValueError("cu_seqlens has shape [0], needs [N+1] with at least the leading 0")
    if B != 1:
        raise ValueError(f"cu_seqlens needs a batch of 1, because sequences lie end to end along time; got B = {B}")
    if T is not None and values_checked(cu_seqlens):
        values = cu_seqlens.tolist()
        if values[0] != 0 or values[-1] > T or any(a > b for a, b in zip(values[:-1], values[1:], strict=True)):
            needs = f"needs to start at 0, never fall and end at no more than T = {T}"
            raise ValueError(f"cu_seqlens is {_shorten(values)}, {needs}")
    return cu_seqlens.shape[0] - 1


def _shorten(values):
    return str(values) if len(values) <= 12 else f"[{', '.join(map(str, values[:6]))}, ..., {values[-1]}]"


def check_slots(name, slots, count, pool, like):
    """Raise ``ValueError`` unless ``slots`` holds ``count`` different int32 or int64 indices into a pool of ``pool`` states,
    negative ones for rows that are padding."""
    check_tensor(name, slots, (count,), "[B]", dtypes=INDEX_DTYPES, like=like)
    if not values_checked(slots):
        return
    slots = slots[slots >= 0]
    count = slots.numel()
    if count == 0:
        return
    low, high = slots.min().item(), slots.max().item()
    if high >= pool:
        needs = f"0 to {pool - 1}, the pool's last state" if pool else "only negative ones: the pool has no state"
        raise ValueError(f"{name} holds values from {low} to {high}, needs {needs}")
    if slots.unique().numel() != count:
        raise ValueError(f"{name} holds a state twice, needs different states: each is updated by one sequence")


F = TypeVar("F", bound=Callable)


@overload
def public(function: F, *, name: str | None = None, casts: tuple = (), refuses: bool = True) -> F: ...
@overload
def public(*, name: str | None = None, casts: tuple = (), refuses: bool = True) -> Callable[[F], F]: ...
def public(function=None, *, name=None, casts=(), refuses=True):
    """A public function as other programs call it.

    Tensor subclasses and tracers that override torch's functions (``__torch_function__``, such as ``torch.fx``'s proxies) see
    one call of it. ``torch.func`` transforms and forward mode raise ``RuntimeError``: kernels have neither batching rules nor
    tangents, and a tangent that is lost without a word would be read as zero.

    Args:
        function: what is decorated.
        name: what errors call it, its own if not given.
        casts: names of its first arguments, the tensors that ``torch.autocast`` casts.
        refuses: whether it runs its kernels for all that it is given: else it calls ``refuse_transforms`` itself.
    """
    if function is None:
        return functools.partial(public, name=name, casts=casts, refuses=refuses)
    name = name or function.__name__
    function.casts = casts
    places = [(n, list(inspect.signature(function).parameters).index(n)) for n in casts]

    @functools.wraps(function)
    def call(*args, **kwargs):
        given = (*args, *kwargs.values()) if kwargs else args
        if has_torch_function(given):
            if torch.compiler.is_compiling() or not private.count_function_modes():
                return handle_torch_function(call, given, *args, **kwargs)
            before, default.device = default.device, default.device or _device_of_modes()  # each mode calls this again
            try:
                return handle_torch_function(call, given, *args, **kwargs)
            finally:
                default.device = before
        if refuses and not torch.compiler.is_compiling():  # dynamo has its own word on transforms
            unusual = private.transforms() is not None or private.forward_ad._current_level >= 0
            for x in given:
                unusual = unusual or isinstance(x, torch.Tensor) and (type(x) not in PLAIN or private.is_batched(x))
            if unusual:
                refuse_transforms(name, given)
                refuse_parts(name, given)
        if places and (torch.compiler.is_compiling() or private.any_autocast()):
            args = list(args)
            found = [(n, i, args[i] if i < len(args) else kwargs.get(n)) for n, i in places]
            for (n, i, _), cast in zip(found, autocast(*[t for *_, t in found]), strict=True):
                if i < len(args):
                    args[i] = cast
                elif n in kwargs:
                    kwargs[n] = cast
        return function(*args, **kwargs)

    return call


class _Default(threading.local):
    """device: where functions make tensors that a public function calls, ``None`` where nobody has said so: torch's default
    device is a mode, and a mode isn't on while it is shown a call itself."""

    device = None


default = _Default()


def _device_of_modes():
    """Of the innermost ``torch.device`` that is on; torch's own ``get_default_device`` makes tensors, which tracers see."""
    modes = reversed(private.function_modes())
    return next((mode.device for mode in modes if isinstance(mode, private.DeviceContext)), None)


def explains(function):
    """Makes the decorated function ``function.explain``: called with the same arguments, which it gets by name, all of them.

    It checks them as ``function`` does, and returns what that would run, and why, as text whose lines fit.
    """
    signature = inspect.signature(function)

    def attach(explain):
        @functools.wraps(explain)
        def call(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            casts = getattr(function, "casts", ())
            bound.arguments |= zip(casts, autocast(*[bound.arguments[n] for n in casts])) if casts else ()
            return wrapped(explain(**bound.arguments))

        call.__signature__ = signature.replace(return_annotation=str)
        function.explain = call
        return call

    return attach


def refuse_transforms(name, given):
    """Raise ``RuntimeError`` under ``torch.func``'s transforms, and for tensors among ``given`` that carry a tangent."""
    if torch.compiler.is_compiling():  # dynamo has its own word on transforms, and traces no interpreter's stack
        return
    if (interpreter := private.transforms()) is not None:
        transform = str(interpreter.key()).rsplit(".", 1)[-1].lower()
        raise RuntimeError(
            f"{name} cannot run under torch.func's {transform}: kernels have no rule for it. "
            "Gradients: torch.autograd.grad or backward(); batches: the batch dimension."
        )
    refuse_batched_gradients(name, given)
    if private.forward_ad._current_level >= 0 and any(
        isinstance(x, torch.Tensor) and private.forward_ad.unpack_dual(x).tangent is not None for x in given
    ):
        raise RuntimeError(
            f"{name} has no forward-mode derivative: its kernels compute gradients (backward mode) alone. "
            "For tangents use its reference, which is plain PyTorch."
        )


def refuse_batched_gradients(name, given):
    """Raise ``RuntimeError`` for tensors among ``given`` that are the gradients of ``is_grads_batched``."""
    for x in given:  # a loop of a call's every argument: a generator takes three times as long
        if isinstance(x, torch.Tensor) and private.is_batched(x):
            raise RuntimeError(f"{name} cannot run with is_grads_batched=True: call it once for each of the gradients")


def refuse_parts(name, given):
    """Raise ``ValueError`` for tensors among ``given`` that are parts of larger ones on several ranks."""
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is not None and any(isinstance(x, tensor.DTensor) for x in given):
        raise ValueError(
            f"{name} is given a DTensor, needs each rank's own part, of batch rows or heads: "
            "torch.distributed.tensor.experimental.local_map hands it over, as docs/other_programs.md shows"
        )


def autocast(*tensors):
    """``tensors`` in the dtype of ``torch.autocast`` where it is on; float64 and what is no tensor stays as it is."""
    if not torch.compiler.is_compiling() and not private.any_autocast():  # all that most calls ask
        return tensors
    kind = tensors[0].device.type if isinstance(tensors[0], torch.Tensor) else ""
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):  # torch asks no other device for its own
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype in _CAST else t for t in tensors)


_CAST = (torch.float32, torch.float16, torch.bfloat16)
