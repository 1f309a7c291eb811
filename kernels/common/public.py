"""What every public function has in common with torch's own, beyond its kernel: overrides, and transforms it must refuse."""

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch._C import _functorch, _get_tracing_state, _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack, handle_torch_function, has_torch_function
from torch.utils._device import DeviceContext

from kernels.common.validate import PLAIN

F = TypeVar("F", bound=Callable)
_is_functorch_wrapped_tensor = _functorch.is_functorch_wrapped_tensor
_peek_interpreter_stack = _functorch.peek_interpreter_stack


def public(function: F, name: str | None = None, refuses: bool = True) -> F:
    """A public function as other programs call it; name: what errors call it, its own if not given. refuses: whether it runs
    its kernels for all that it is given: else it calls ``refuse_transforms`` itself, before it does.

    Tensor subclasses and tracers that override torch's functions (``__torch_function__``, such as ``torch.fx``'s proxies) see
    one call of it. ``torch.func`` transforms and forward mode raise ``RuntimeError``: kernels have neither batching rules nor
    tangents, and a tangent that is lost without a word would be read as zero.
    """
    name = name or function.__name__

    @functools.wraps(function)
    def call(*args, **kwargs):
        given = (*args, *kwargs.values()) if kwargs else args
        if has_torch_function(given):
            if torch.compiler.is_compiling() or not torch._C._len_torch_function_stack():
                return handle_torch_function(call, given, *args, **kwargs)
            before, _default.device = _default.device, _default.device or _device_of_modes()  # each mode calls this again
            try:
                return handle_torch_function(call, given, *args, **kwargs)
            finally:
                _default.device = before
        if refuses:
            refuse_transforms(name, given)
        return function(*args, **kwargs)

    return call


class _Default(threading.local):
    device = None


_default = _Default()


def default_device():
    """Where functions make tensors that a public function calls, ``None`` where nobody has said so: torch's default device
    is a mode, and no mode looks on at what it has been shown itself."""
    return _default.device


def _device_of_modes():
    """Of the innermost ``torch.device`` that is on; torch's own ``get_default_device`` makes tensors, which tracers see."""
    modes = reversed(_get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


def explains(function):
    """Makes the decorated function ``function.explain``: called with the same arguments, which it gets by name, all of them.

    It checks them as ``function`` does, and returns what that would run, and why, as text.
    """
    signature = inspect.signature(function)

    def attach(explain):
        @functools.wraps(explain)
        def call(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return explain(**bound.arguments)

        call.__signature__ = signature.replace(return_annotation=str)
        function.explain = call
        return call

    return attach


def refuse_transforms(name, given):
    """Raise ``RuntimeError`` under ``torch.func``'s transforms, and for tensors among ``given`` that carry a tangent."""
    if torch.compiler.is_compiling():  # dynamo has its own word on transforms, and traces no interpreter's stack
        return
    if (interpreter := _functorch.peek_interpreter_stack()) is not None:
        transform = str(interpreter.key()).rsplit(".", 1)[-1].lower()
        raise RuntimeError(
            f"{name} cannot run under torch.func's {transform}: kernels have no rule for it. "
            "Gradients: torch.autograd.grad or backward(); batches: the batch dimension."
        )
    refuse_batched_gradients(name, given)
    if forward_ad._current_level >= 0 and any(
        isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in given
    ):
        raise RuntimeError(
            f"{name} has no forward-mode derivative: its kernels compute gradients (backward mode) alone. "
            "For tangents use its reference, which is plain PyTorch."
        )


def refuse_batched_gradients(name, given):
    """Raise ``RuntimeError`` for tensors among ``given`` that are the gradients of ``is_grads_batched``."""
    for x in given:  # a loop of a call's every argument: a generator takes three times as long
        if isinstance(x, torch.Tensor) and _functorch.is_legacy_batchedtensor(x):
            raise RuntimeError(f"{name} cannot run with is_grads_batched=True: call it once for each of the gradients")


def refuse_parts(name, given):
    """Raise ``ValueError`` for tensors among ``given`` that are parts of larger ones on several ranks."""
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is not None and any(isinstance(x, tensor.DTensor) for x in given):
        raise ValueError(
            f"{name} is given a DTensor, needs each rank's own part, of batch rows or heads: "
            "torch.distributed.tensor.experimental.local_map hands it over, as docs/other_programs.md shows"
        )


def nothing_looks_on(tensors):
    """Whether these are plain tensors or ``None`` in plain eager execution: no dispatch mode, tracer or transform is on, and
    none of them is what a transform has left behind, or a view that negates what lies in memory (``z.conj().imag``)."""
    if _anything_is_on():
        return False
    for t in tensors:
        if t is not None and (type(t) not in PLAIN or t.is_neg() or _is_functorch_wrapped_tensor(t)):
            return False
    return True


def as_usual(tensors):
    """Whether a backward pass of these tensors or ``None`` goes as most do: nothing is on, not even gradients that are to be
    differentiated again, and they are plain. What a transform has wrapped is not told from others: it has no address."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or forward_ad._current_level >= 0 or _anything_is_on():
        return False
    for t in tensors:
        if t is not None and (type(t) not in PLAIN or t.is_neg()):
            return False
    return True


def _anything_is_on():
    return _len_torch_dispatch_stack() or _get_tracing_state() is not None or _peek_interpreter_stack() is not None


def nobody_asks(*tensors):
    """Whether these are plain tensors or ``None``, nothing looks on, and all that ``public`` and ``autocast`` ask for is not
    there: a call that is known to be right may go to its operator directly."""
    if (
        torch.compiler.is_compiling()
        or torch._C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or has_torch_function(tensors)
        or _anything_is_on()
    ):
        return False
    try:
        for t in tensors:
            if t is not None and (type(t) not in PLAIN or t.is_neg() or t.data_ptr() is None):
                return False
    except RuntimeError:  # what a transform has wrapped has no address: to ask for one is quicker than to ask for wrappers
        return False
    return True


def autocast(*tensors):
    """``tensors`` in the dtype of ``torch.autocast`` where it is on; float64 and what is no tensor stays as it is."""
    if not torch.compiler.is_compiling() and not torch._C._is_any_autocast_enabled():  # all that most calls ask
        return tensors
    kind = tensors[0].device.type if isinstance(tensors[0], torch.Tensor) else ""
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):  # torch asks no other device for its own
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype in _CAST else t for t in tensors)


_CAST = (torch.float32, torch.float16, torch.bfloat16)


def once_differentiable(operator, grads, given, room=None):
    """``grads`` of a backward pass, such that differentiating them again says what is missing.

    Args:
        operator, room: as ``refuse_second_derivative``.
        grads: the gradients, ``None`` among them.
        given: the tensors that they were made from.
    """
    if not torch.is_grad_enabled():
        return grads
    return _Once.apply(operator, room, len(grads), *grads, *given)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, operator, room, count, *tensors):
        ctx.refuse = refuse_second_derivative(operator, room)
        return tuple(None if t is None else t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx, *grads):
        ctx.refuse(ctx, *grads)


def refuse_second_derivative(operator, room=None):
    """The gradient of ``operator``'s backward pass: an error that names the reference to differentiate twice instead.

    Args:
        operator: the public function's name; its reference is ``<operator>_reference``.
        room: the folder under ``kernels`` it lives in, ``None`` where that has the operator's name.
    """

    def refuse(ctx, *grads):
        raise RuntimeError(
            f"{operator} has no second derivative: its backward pass is a kernel without a gradient of its own. "
            f"For double backward use kernels.{room or operator}.reference.{operator}_reference."
        )

    return refuse
