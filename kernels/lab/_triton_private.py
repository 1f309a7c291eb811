"""Every private name of Triton that the instruments use, in this one file.

Three parts: watching the interpreter's accesses, watching launches, and describing a kernel for the
compiler.

The interpreter gives no public way to see a kernel's memory accesses. The names below are the same in Triton 3.6 to
3.9; tests/lab/test_triton_private.py runs on each supported version and fails if one of them moves.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import sys
import types

import numpy as np
import triton
import triton.language as tl
from triton._C.libtriton import native_specialize_impl
from triton._utils import find_paths_if, get_iterable_path
from triton.backends.compiler import BaseBackend
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    InterpreterBuilder,
    TensorHandle,
    interpreter_builder,
)
from triton.runtime.jit import ConstexprFunction, JITFunction

from kernels import _low_precision

_TRITON_FOLDER = os.path.dirname(triton.__file__) + os.sep


@contextlib.contextmanager
def observed(observer):
    """Show ``observer`` every interpreted launch and every memory access inside the ``with`` block.

    The observer has these methods:

    ``launch(kernel_name) -> finish`` is called as a launch begins; ``finish(grid)`` as it ends, also by an exception.
    ``operand(name, tensor, address) -> address`` says which address the kernel gets to see for a tensor argument.
    ``access(kind, program, addresses, active, nbytes, frame) -> (addresses, allowed)`` is called before each load,
    store or
    atomic: arrays of uint64 addresses and of booleans, one a lane; bytes a lane; the stack frame of the kernel's
    line. It returns the real addresses and which lanes may touch them.
    ``undefined(frame) -> poison`` is called after it for a load whose mask leaves lanes out and that has no ``other``:
    on a GPU nobody knows what such a lane holds. Here it holds the float ``poison``: NaN, something large of either
    sign, or the interpreter's 0. Lanes that may not be touched hold 0, for an address made from them would be one more stray.
    ``stored(values, allowed)`` is called before a store, with the values and the lanes that store them.
    ``barrier()`` is called at a ``tl.debug_barrier``.
    ``exponent(largest)`` is called before an exponential, of e or of 2, with the largest number that it takes; NaN counts as
    −inf.
    """
    original_call, original_convert = GridExecutor.__call__, interpreter._implicit_cvt
    original_load, has_other = TritonSemantic.load, False
    original = {name: getattr(InterpreterBuilder, name) for name in _WATCHED}
    tensors = iter(())  # of the launch that begins: (name, tensor) in the order in which Triton converts them

    def call(self, *args, **kwargs):
        nonlocal tensors
        known = inspect.signature(self.fn).parameters
        bound = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in known})
        finish = observer.launch(self.fn.__name__)
        interpreter_builder.grid_dim = ()
        tensors = iter(
            [leaf for name, arg in bound.items() if name not in self.constexprs for leaf in leaves(name, arg)]
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
    def asked_for(self, ptr, mask, other, *rest, **named):
        """The line's own load: what reaches ``load`` has lost an ``other`` of one element that is 0, for it is false."""
        nonlocal has_other
        has_other = other is not None
        try:
            return original_load(self, ptr, mask, other, *rest, **named)
        finally:
            has_other = False

    def load(self, ptrs, mask, other, *rest, **named):
        asked = np.broadcast_to(np.asarray(mask.data), ptrs.data.shape)
        ptrs, allowed = access("load", ptrs, mask.data)
        if other is None and not has_other and not asked.all():
            element = ptrs.get_element_ty()
            poison, zero = (_poison(element, value) for value in (observer.undefined(_kernel_frame()), 0.0))
            other = TensorHandle(np.where(asked, zero, poison), element)
        return original["create_masked_load"](self, ptrs, allowed, other, *rest, **named)

    def store(self, ptrs, value, mask, *rest, **named):
        ptrs, allowed = access("store", ptrs, mask.data)
        observer.stored(_numbers(value), allowed.data)
        return original["create_masked_store"](self, ptrs, value, allowed, *rest, **named)

    def rmw(self, operation, ptrs, value, mask, *rest, **named):
        ptrs, allowed = access("atomic", ptrs, mask.data)
        return original["create_atomic_rmw"](self, operation, ptrs, value, allowed, *rest, **named)

    def cas(self, ptrs, *rest, **named):
        ptrs, allowed = access("atomic", ptrs, np.ones(ptrs.data.shape, dtype=bool))
        nowhere = np.zeros(2, dtype=np.uint64)  # this operation has no mask: forbidden lanes work on a scratch cell
        ptrs = dataclasses.replace(ptrs, data=np.where(allowed.data, ptrs.data, np.uint64(nowhere.ctypes.data)))
        return original["create_atomic_cas"](self, ptrs, *rest, **named)

    def barrier(self):
        observer.barrier()
        return original["create_barrier"](self)

    def exponential(name):
        def of(self, x):
            numbers = _numbers(x)
            observer.exponent(float(np.max(numbers, initial=-np.inf, where=~np.isnan(numbers))))
            return original[name](self, x)

        return of

    replaced = (load, store, rmw, cas, barrier, *map(exponential, _EXPONENTIALS))
    replacements = dict(zip(_WATCHED, replaced, strict=True))
    try:
        GridExecutor.__call__, interpreter._implicit_cvt, TritonSemantic.load = call, convert, asked_for
        for name, function in replacements.items():
            setattr(InterpreterBuilder, name, function)
        yield
    finally:
        GridExecutor.__call__, interpreter._implicit_cvt, TritonSemantic.load = original_call, original_convert, original_load
        for name, function in original.items():
            setattr(InterpreterBuilder, name, function)


@contextlib.contextmanager
def typed_loops():
    """What an interpreted kernel's loop counts has the 64 bits of its bounds, as compiled; else it is a number of Python's.

    Beside a stride such a number has 32 bits, whatever the bounds had.
    """
    original, given = interpreter._patch_lang, []

    def counted(first, last=None, step=1, **options):
        numbers = range(0, first, step) if last is None else range(first, last, step)
        if not any(isinstance(bound, tl.tensor) and bound.dtype == tl.int64 for bound in (first, last, step)):
            return numbers
        return (tl.tensor(TensorHandle(np.array([i], dtype=np.int64), tl.int64), tl.int64) for i in numbers)

    def patched(fn):
        scope = original(fn)
        scope.set_attr(tl, "range", counted)
        if "range" not in fn.__globals__:
            fn.__globals__["range"] = counted
            given.append(fn.__globals__)
        return scope

    try:
        interpreter._patch_lang = patched
        yield
    finally:
        interpreter._patch_lang = original
        for names in given:
            names.pop("range", None)


@contextlib.contextmanager
def scaled_products(factor: float):
    """Meanwhile the interpreter multiplies what ``tl.dot`` adds to its accumulator by ``factor``."""
    original = InterpreterBuilder.create_dot

    def dot(self, a, b, d, *rest, **named):
        return original(self, dataclasses.replace(a, data=(_numbers(a) * factor).astype(a.data.dtype)), b, d, *rest, **named)

    InterpreterBuilder.create_dot = dot
    try:
        yield
    finally:
        InterpreterBuilder.create_dot = original


def _poison(element: tl.dtype, value: float) -> np.ndarray:
    """``value`` in the interpreter's own bits; where it isn't 0, integers hold a large odd number of its sign."""
    kind, negative = interpreter._get_np_dtype(element), value < 0
    if not value:
        bits = 0
    elif kind.kind == "b":
        bits = True
    elif not element.is_floating():
        number = (93, 30_003, 1_000_003)[min(kind.itemsize // 2, 2)]
        bits = -number if negative else number
    elif kind in _low_precision.NUMBERS.values():
        return _low_precision.rounded(np.array(value, np.float32), kind)
    else:
        bits = value
    return np.array(bits).astype(kind)


def _numbers(x: TensorHandle) -> np.ndarray:
    """A handle's values; those of 8 and 16 bits that numpy can't compare in float32."""
    return _low_precision.wide(x.data)


_EXPONENTIALS = ("create_exp", "create_exp2")
_ACCESSES = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas")
_WATCHED = (*_ACCESSES, "create_barrier", *_EXPONENTIALS)


def leaves(name: str, arg):
    """The tensors inside one kernel argument, named: itself, a descriptor's base, or a tuple's members."""
    if isinstance(arg, tuple):
        fields = getattr(arg, "_fields", None)
        for i, member in enumerate(arg):
            yield from leaves(f"{name}.{fields[i]}" if fields else f"{name}[{i}]", member)
    elif isinstance(arg, interpreter.TensorDescriptor):
        yield from leaves(name, arg.base)
    elif hasattr(arg, "data_ptr"):
        yield name, interpreter._unwrap_tensor(arg)


def _kernel_frame():
    """The innermost stack frame that is neither Triton's nor this file's: the kernel's (or its helper's) current
    line."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename == __file__ or _between(frame):
        frame = frame.f_back
    return frame


def _between(frame) -> bool:
    return frame.f_code.co_filename.startswith(_TRITON_FOLDER)


def caller(frame, helpers: frozenset[str]):
    """The stack frame that called the helpers of these names; ``frame`` itself where it is none of them."""
    while frame.f_code.co_name in helpers and frame.f_back is not None:
        frame = frame.f_back
        while _between(frame) and frame.f_back is not None:
            frame = frame.f_back
    return frame


@contextlib.contextmanager
def before_launches(handler):
    """Call ``handler(kernel, grid, args, kwargs) -> bool`` before each launch; it says whether to go on."""
    originals = {owner: owner.run for owner in (JITFunction, InterpretedFunction)}

    def replacement(original):
        def run(self, *args, grid, warmup, **kwargs):
            if warmup or handler(self, grid, args, kwargs):
                return original(self, *args, grid=grid, warmup=warmup, **kwargs)

        return run

    try:
        for owner, original in originals.items():
            owner.run = replacement(original)
        yield
    finally:
        for owner, original in originals.items():
            owner.run = original


def is_kernel(value) -> bool:
    """Whether a value is what ``@triton.jit`` returns, in either mode, or ``@gluon.jit``."""
    return isinstance(value, (JITFunction, InterpretedFunction))


def is_gluon(value) -> bool:
    """Whether a kernel is written in Gluon, which has a front end of its own and no interpreter."""
    return isinstance(value, JITFunction) and value.is_gluon()


@functools.lru_cache
def constant_parameters(function) -> list[str]:
    """The parameters that a kernel's function declares as ``tl.constexpr``. Triton reads all its source to say so."""
    return [param.name for param in JITFunction(function).params if param.is_constexpr]


def python_function(value):
    """The plain function behind a kernel, a helper or a compile-time function; None for anything else."""
    if is_kernel(value) or isinstance(value, ConstexprFunction):
        return value.fn
    return value if isinstance(value, types.FunctionType) else None


def decorator(value) -> str:
    """The decorator line that makes ``value`` again from its plain function; empty for a plain function."""
    if isinstance(value, types.FunctionType):
        return ""
    if isinstance(value, ConstexprFunction):
        return "@_triton.constexpr_function"
    home = "_gluon" if is_gluon(value) else "_triton"
    return f"@{home}.jit({', '.join(f'{name}={option!r}' for name, option in _jit_options(value).items())})"


def _jit_options(kernel) -> dict:
    """What a kernel's ``@triton.jit(...)`` was given and the compiler takes into account."""
    given = kernel.kwargs if isinstance(kernel, InterpretedFunction) else vars(kernel)
    names = ("do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")
    return {name: given[name] for name in names if given.get(name)}


def specialize(kernel, arguments: dict) -> tuple[dict, dict, dict]:
    """Signature, constants and attributes for ``ASTSource``, as a launch with these arguments would derive them.

    arguments: every parameter's value by name. A string is taken for the type itself (``"*bf16"``, ``"i32"``), a
    torch dtype for a pointer to it; such pointers count as aligned to 16 bytes, as those that torch allocates are.
    """
    params = JITFunction(kernel.fn, **_jit_options(kernel)).params
    types_, keys = [], []
    for param, value in zip(params, arguments.values(), strict=True):
        if param.is_constexpr:
            type_, key = "constexpr", value
        elif isinstance(value, str):
            type_, key = value, "D" if value.startswith("*") else ""
        else:
            value = triton.runtime.jit.MockTensor.wrap_dtype(value)
            alignment = not param.do_not_specialize_on_alignment
            type_, key = native_specialize_impl(
                BaseBackend, value, param.is_const, not param.do_not_specialize, alignment
            )
        if param.annotation_type and type_ != "constexpr":
            type_ = param.annotation_type
            key = None if type_ == "u1" or type_[:2] in ("fp", "bf") else key
        types_.append(type_)
        keys.append("" if type_ == "constexpr" else key)
    values = list(arguments.values())
    constants = {path: get_iterable_path(values, path) for path in find_paths_if(types_, lambda _, t: t == "constexpr")}
    marked = find_paths_if(keys, lambda _, key: isinstance(key, str))
    attributes = {path: BaseBackend.parse_attr(get_iterable_path(keys, path)) for path in marked}
    return dict(zip(arguments, types_, strict=True)), constants, attributes
