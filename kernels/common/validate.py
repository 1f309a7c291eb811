"""Checks of arguments, made before anything is launched: each error names the argument, what it got and what it needs."""

import functools
import numbers
import os
import warnings

import torch
from torch._subclasses.fake_tensor import is_fake

from kernels import runtime
from kernels.common.plan import Remembered

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LONGEST = 100  # letters of a value in a message
PLAIN = {torch.Tensor, torch.nn.Parameter}  # types of tensors whose sizes are numbers, and that nothing else stands behind


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
    if like is not None and not same_device(tensor.device, like[1].device):
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
        end = 0  # of what the dimensions so far span
        for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
            if size > 1 and stride <= end:
                raise ValueError(f"{name} has strides {tensor.stride()}, needs no element twice: it is updated in place")
            end += (size - 1) * stride
    check_writable(name, tensor)


def check_writable(name, tensor):
    """Raise ``ValueError`` where what a function that isn't differentiable writes would not be what ``tensor`` holds."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} requires a gradient, needs none: it is updated in place, which is not differentiable")
    if not torch.compiler.is_compiling() and tensor.is_neg():
        raise ValueError(f"{name} is a view that negates its memory, needs to be updated in place: {name}.resolve_neg()")


def check_apart(name, written, **read):
    """Raise ``ValueError`` where ``written`` lies in the memory of a tensor that is read; as torch's own operators do, of
    tensors without gaps alone: others may lie between each other."""
    if torch.compiler.is_compiling() or is_fake(written):
        return
    for other, tensor in read.items():
        begins = written.data_ptr(), tensor.data_ptr()
        ends = [begin + _span(t) * t.element_size() for begin, t in zip(begins, (written, tensor), strict=True)]
        if written.device == tensor.device and max(begins) < min(ends) and _without_gaps(written) and _without_gaps(tensor):
            raise ValueError(f"{name} lies in the memory of {other}, needs memory of its own: it is written meanwhile")


def _span(t):
    """Elements from the first to the last in memory: fewer than the tensor has where one stands for several."""
    return 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def _without_gaps(t):
    return _span(t) <= t.numel()


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


def remembered_check(check=None, *, layouts=False):
    """``check`` of tensors and options, its answers remembered by the tensors' shapes, dtypes and devices, and the options.

    It must look at nothing else, and no error is remembered. Tensors that are not plain, and what a tracer gives, are checked
    every time. layouts: the answers may depend on the strides, too, and on ``check``'s first argument, which is put before
    those given: whether the answer is remembered, and all tensors begin at multiples of 16 bytes.
    """
    if check is None:
        return functools.partial(remembered_check, layouts=layouts)
    known = Remembered()
    anew = functools.partial(check, False) if layouts else check

    @functools.wraps(check)
    def call(*given):
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return anew(*given)
        key, addresses = [runtime.interpreted], 0
        for arg in given:
            kind = type(arg)
            if kind in PLAIN:
                if arg.layout is not _STRIDED:
                    return anew(*given)
                try:
                    key += arg.shape, arg.dtype, arg.device
                    if layouts:
                        key.append(arg.stride())
                        addresses |= arg.data_ptr()
                except RuntimeError:  # torch's old nested tensors have no shape, what a transform has wrapped no address
                    return anew(*given)
            elif arg is None:
                key.append(None)
            elif kind in _OPTIONS:
                key += kind, arg
            elif kind is tuple and set(map(type, arg)) <= _INTS:
                key.append(arg)
            else:
                return anew(*given)
        key.append(addresses & 15)
        key = tuple(key)
        if (answer := known.get(key)) is not None:
            return answer
        return known.keep(key, check(not addresses & 15, *given) if layouts else check(*given))

    return call


_STRIDED = torch.strided
_OPTIONS, _INTS = {bool, int, float, str}, {int}


def check_choice(name, value, choices):
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} is {shown(value)}, needs one of {', '.join(repr(c) for c in choices)}")


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
    if torch.compiler.is_compiling() or type(tensor) is not torch.Tensor and is_fake(tensor):
        return False
    return tensor.device.type == "cpu" or os.environ.get("KERNELS_CHECK") == "1"


def check_slots(name, slots, count, pool, like):
    """Raise ``ValueError`` unless ``slots`` holds ``count`` different int32 or int64 indices into a pool of ``pool`` states,
    negative ones for rows that are padding."""
    check_tensor(name, slots, (count,), "[B]", dtypes=(torch.int32, torch.int64), like=like)
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
