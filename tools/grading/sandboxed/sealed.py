"""Tensors as a launcher may see them: shapes and strides. Numbers are a kernel's work, and torch does none of it."""

import functools
import inspect

import torch
import triton.language as tl
from triton.runtime.interpreter import GridExecutor, InterpretedFunction
from triton.runtime.jit import ConstexprFunction

from kernels.lab._triton_private import is_kernel, passage

from .tables import copied, same, tables_of

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


#: The same numbers in other places: no work is taken from a kernel, and at home it passes.
_LAID_OUT = {torch.Tensor.contiguous, torch.Tensor.reshape, torch.Tensor.flatten}
#: Other shapes and strides of the same memory, which a launcher could write down itself; some of these copy, then or now.
_VIEWS = _LAID_OUT | {
    torch.Tensor.t, torch.Tensor.transpose, torch.Tensor.permute, torch.Tensor.view, torch.Tensor.expand,
    torch.Tensor.unsqueeze, torch.Tensor.squeeze, torch.Tensor.detach, torch.Tensor.__getitem__, torch.Tensor.to,
    torch.Tensor.float, torch.Tensor.half, torch.Tensor.T.__get__, torch.Tensor.mT.__get__,
}  # fmt: skip


class Sealed(torch.Tensor):
    """A tensor whose numbers cannot be computed with on the host."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Let what only looks at shape and strides pass, what clears, and what lays the same numbers out in another way."""
        kwargs = kwargs or {}
        if function in _SEEN:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if function in (torch.Tensor.__repr__, torch.Tensor.__format__):  # a line of debugging that was left in
            return f"tensor(…, shape={tuple(args[0].shape)}, dtype={args[0].dtype})"
        name = getattr(function, "__name__", str(function)).strip("_")
        name = getattr(function, "__self__", function).__name__ if name == "get" else name
        # A number of a tensor as a size or an index would be told by the view's shape.
        if function in _VIEWS and not _holds_tensor((*args[1:], *kwargs.values())):
            with torch._C.DisableTorchFunctionSubclass():
                seen = function(*args, **kwargs)
                if function in _LAID_OUT or seen.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr():
                    return sealed(seen)
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
    if isinstance(value, slice):
        return _holds_tensor((value.start, value.stop, value.step))
    return isinstance(value, torch.Tensor)


def _is_argument(value) -> bool:
    """Whether a GPU's launch takes it: a function of Python, or a table, would take the work out of the kernel."""
    if isinstance(value, tl.constexpr):
        return _is_argument(value.value)
    if isinstance(value, tuple):
        return all(map(_is_argument, value))
    plain = value is None or isinstance(value, (bool, int, float, str, torch.dtype, tl.dtype))
    return plain or isinstance(value, torch.Tensor) or is_kernel(value) or isinstance(value, ConstexprFunction)


def open_in_kernels() -> None:
    """From now on a launch sees the tensors themselves, and nothing but a launch runs a kernel's lines."""
    launched, called = GridExecutor.__call__, InterpretedFunction.__call__
    running = False

    @functools.wraps(launched)
    def launch(self, *args, **kwargs):
        nonlocal running
        # A pointer is opened. A constant is handed on as it is, and a tensor of torch there would compute like one.
        given = dict(zip(self.arg_names, args)) | kwargs
        for name, value in given.items():
            if name in self.constexprs and _holds_tensor(value):
                raise TypeError(f"{name} is a tl.constexpr, and was given a tensor: a tensor arrives as a pointer")
            if name in self.arg_names and not _is_argument(value):
                what = "a function of Python" if callable(value) else f"a {type(value).__name__}"
                raise TypeError(f"{name} was given {what}: a kernel takes tensors, numbers, text and other kernels")
        if callable(self.grid):  # here, where it sees what a GPU's launch shows it, and no kernel's language works yet
            known = {name: value for name, value in kwargs.items() if name in self.arg_names}
            self.grid = self.grid(inspect.getcallargs(self.fn, *args, **known))
        tables = tables_of(self.fn.__globals__)
        kept, before, running = copied(tables), running, True
        try:
            launched(self, *map(_opened, args), **{name: _opened(value) for name, value in kwargs.items()})
        finally:
            running = before
        changed = [name for name in tables if not same(tables[name], kept[name])]
        if changed:  # in which a launcher would find numbers to compute with
            raise TypeError(f"a kernel writes to {changed[0]}: what a kernel computes leaves it by tl.store")

    @functools.wraps(called)
    @passage
    def call(self, *args, **kwargs):
        if not running:
            raise TypeError(f"{self.__name__} is a kernel: it is launched with a grid, {self.__name__}[grid](...)")
        return called(self, *args, **kwargs)

    GridExecutor.__call__, InterpretedFunction.__call__ = launch, call
