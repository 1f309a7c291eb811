"""Every private name of Triton that the instruments use, in this one file.

The interpreter gives no public way to see a kernel's memory accesses. The names below are the same in Triton 3.6 to
3.9; tests/lab/test_triton_private.py runs on each supported version and fails if one of them moves.
"""

import contextlib
import dataclasses
import inspect
import os
import sys

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle, interpreter_builder

_TRITON_FOLDER = os.path.dirname(triton.__file__) + os.sep


@contextlib.contextmanager
def observed(observer):
    """Show ``observer`` every interpreted launch and every memory access inside the ``with`` block.

    The observer has three methods:

    ``launch(kernel_name) -> finish`` is called as a launch begins; ``finish(grid)`` as it ends, also by an exception.
    ``operand(name, tensor, address) -> address`` says which address the kernel gets to see for a tensor argument.
    ``access(kind, program, addresses, active, nbytes, frame) -> (addresses, allowed)`` is called before each load,
    store or
    atomic: arrays of uint64 addresses and of booleans, one a lane; bytes a lane; the stack frame of the kernel's
    line. It returns the real addresses and which lanes may touch them.
    """
    original_call, original_convert = GridExecutor.__call__, interpreter._implicit_cvt
    original = {name: getattr(InterpreterBuilder, name) for name in _ACCESSES}
    tensors = iter(())  # of the launch that begins: (name, tensor) in the order in which Triton converts them

    def call(self, *args, **kwargs):
        nonlocal tensors
        known = inspect.signature(self.fn).parameters
        bound = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in known})
        finish = observer.launch(self.fn.__name__)
        interpreter_builder.grid_dim = ()
        tensors = iter(
            [leaf for name, arg in bound.items() if name not in self.constexprs for leaf in _leaves(name, arg)]
        )
        try:
            return original_call(self, *args, **kwargs)
        finally:
            finish(interpreter_builder.grid_dim)

    def convert(arg):
        converted = original_convert(arg)
        if not hasattr(arg, "data_ptr"):
            return converted
        name, tensor = next(tensors)
        address = int(converted.handle.data[0])
        converted.handle.data = np.array([observer.operand(name, tensor, address)], dtype=np.uint64)
        return converted

    def access(kind, ptrs, active):
        # A mask is a handle, except that 3.7's descriptors pass a bare array: `.data` is then a memoryview.
        active = np.asarray(active)
        nbytes = (ptrs.get_element_ty().primitive_bitwidth + 7) // 8
        addresses = np.atleast_1d(ptrs.data)
        real, allowed = observer.access(
            kind,
            interpreter_builder.grid_idx,
            addresses,
            np.broadcast_to(active, addresses.shape),
            nbytes,
            _kernel_frame(),
        )
        shape = ptrs.data.shape
        return dataclasses.replace(ptrs, data=real.reshape(shape)), TensorHandle(allowed.reshape(shape), tl.int1)

    # Leading arguments are the same on every version, trailing ones (cache and volatility hints) are not: pass those
    # through.
    def load(self, ptrs, mask, *rest, **named):
        ptrs, allowed = access("load", ptrs, mask.data)
        return original["create_masked_load"](self, ptrs, allowed, *rest, **named)

    def store(self, ptrs, value, mask, *rest, **named):
        ptrs, allowed = access("store", ptrs, mask.data)
        return original["create_masked_store"](self, ptrs, value, allowed, *rest, **named)

    def rmw(self, operation, ptrs, value, mask, *rest, **named):
        ptrs, allowed = access("atomic", ptrs, mask.data)
        return original["create_atomic_rmw"](self, operation, ptrs, value, allowed, *rest, **named)

    def cas(self, ptrs, *rest, **named):
        ptrs, allowed = access("atomic", ptrs, np.ones(ptrs.data.shape, dtype=bool))
        nowhere = np.zeros(2, dtype=np.uint64)  # this operation has no mask: forbidden lanes work on a scratch cell
        ptrs = dataclasses.replace(ptrs, data=np.where(allowed.data, ptrs.data, np.uint64(nowhere.ctypes.data)))
        return original["create_atomic_cas"](self, ptrs, *rest, **named)

    replacements = dict(zip(_ACCESSES, (load, store, rmw, cas), strict=True))
    try:
        GridExecutor.__call__, interpreter._implicit_cvt = call, convert
        for name, function in replacements.items():
            setattr(InterpreterBuilder, name, function)
        yield
    finally:
        GridExecutor.__call__, interpreter._implicit_cvt = original_call, original_convert
        for name, function in original.items():
            setattr(InterpreterBuilder, name, function)


_ACCESSES = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas")


def _leaves(name: str, arg):
    """The tensors inside one kernel argument, named: itself, a descriptor's base, or a tuple's members."""
    if isinstance(arg, tuple):
        for i, member in enumerate(arg):
            yield from _leaves(f"{name}[{i}]", member)
    elif isinstance(arg, interpreter.TensorDescriptor):
        yield from _leaves(name, arg.base)
    elif hasattr(arg, "data_ptr"):
        yield name, interpreter._unwrap_tensor(arg)


def _kernel_frame():
    """The innermost stack frame that is neither Triton's nor this file's: the kernel's (or its helper's) current
    line."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(_TRITON_FOLDER):
        frame = frame.f_back
    return frame
