"""Tensors as a launcher may see them: shapes and strides. Numbers are a kernel's work, and torch does none of it."""

import functools

import torch
from triton.runtime.interpreter import GridExecutor

_SEEN = {
    torch.Tensor.stride, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.dim, torch.Tensor.element_size,
    torch.Tensor.data_ptr, torch.Tensor.storage_offset, torch.Tensor.is_contiguous, torch.Tensor.__len__,
    torch.Tensor.nelement,
    torch.Tensor.zero_,  # cleared before programs add to it: what is then stored is theirs all the same
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("shape", "dtype", "device", "ndim", "is_cuda", "layout", "requires_grad", "itemsize")
    ),
}  # fmt: skip


class Sealed(torch.Tensor):
    """A tensor whose numbers cannot be computed with on the host."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Let what only looks at shape and strides pass, and what clears."""
        if function in _SEEN:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", str(function)).strip("_")
        raise TypeError(f"{name} computes outside a kernel: a launcher sees shapes and strides, a kernel sees numbers")


def sealed(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as a launcher may see it."""
    return tensor.as_subclass(Sealed)


def _opened(value):
    if isinstance(value, Sealed):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(torch.Tensor)
    if isinstance(value, tuple):
        members = map(_opened, value)
        return type(value)(*members) if hasattr(value, "_fields") else tuple(members)
    return value


def _holds_tensor(value) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tensor, value))
    return isinstance(value, torch.Tensor)


def open_in_kernels() -> None:
    """From now on a launch sees the tensors themselves."""
    original = GridExecutor.__call__

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        # A pointer is opened. A constant is handed on as it is, and a tensor of torch there would compute like one.
        given = dict(zip(self.arg_names, args)) | kwargs
        for name in self.constexprs:
            if _holds_tensor(given.get(name)):
                raise TypeError(f"{name} is a tl.constexpr, and was given a tensor: a tensor arrives as a pointer")
        return original(self, *map(_opened, args), **{name: _opened(value) for name, value in kwargs.items()})

    GridExecutor.__call__ = call
