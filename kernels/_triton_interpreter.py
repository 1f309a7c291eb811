"""Triton's interpreter with less bookkeeping: the same operations on the same numbers, in a third of the time.

The interpreter spends most of a kernel's time not on its arithmetic but around it. What is put right here, once, when
``kernels.runtime`` finds itself in a process that interprets:

* every call of a helper searches all of ``triton.language`` for functions to replace, though its kernel's launch has
  replaced them;
* every sum, difference and product of integers is computed a second time in 64 bits, compared with both ends of its
  range, and the comparison thrown away, unless ``debug`` is on;
* every operation makes new Python objects for the shape of its result, checks them, and looks its type up in a table
  built for the purpose.

Nothing else changes: no operation, no order, no rounding, but for one fault that is mended on the way: a comparison of two
numbers, spread over a block, becomes 32-bit integers, so that ``(offs_n < N) & (row < M)``, right on a GPU, is refused as a
mask. tests/test_triton_interpreter.py runs kernels both ways, and
compares bits, accesses and errors. The names below are the same in Triton 3.6 to 3.9.
"""

import functools
import inspect

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

#: The names that are replaced, as (object, attribute): what they were stands in ``originals`` once ``quicken`` has run.
NAMES = (
    (interpreter, "_patch_builtin"),
    (interpreter, "_patch_lang"),
    (interpreter, "_get_np_dtype"),
    (interpreter.InterpreterBuilder, "create_splat"),
    (TritonSemantic, "binary_op_sanitize_overflow_impl"),
    (TritonSemantic, "broadcast_impl_value"),
    (tl.core.dtype, "__eq__"),
    (tl.core.tensor, "__init__"),
    (tl.core.block_type, "__init__"),
)
originals: dict[tuple[object, str], object] = {}

_is_builtin = tl.core.is_builtin


def quicken() -> None:
    """Replace the slow names, once; where a version of Triton lacks one of them, none."""
    if originals or not all(name in vars(owner) for owner, name in NAMES):
        return
    originals.update({(owner, name): vars(owner)[name] for owner, name in NAMES})
    for (owner, name), replacement in zip(NAMES, _replacements(), strict=True):
        setattr(owner, name, replacement)


def restore() -> None:
    """Put Triton's own functions back."""
    for (owner, name), original in originals.items():
        setattr(owner, name, original)
    originals.clear()


def _replacements():
    """One function for each of ``NAMES``, in their order."""
    patch_lang, np_dtype = originals[interpreter, "_patch_lang"], originals[interpreter, "_get_np_dtype"]
    create_splat_of = originals[interpreter.InterpreterBuilder, "create_splat"]
    sanitize = originals[TritonSemantic, "binary_op_sanitize_overflow_impl"]
    broadcast, dtype_eq = originals[TritonSemantic, "broadcast_impl_value"], originals[tl.core.dtype, "__eq__"]
    tensor_init, block_type_init = originals[tl.core.tensor, "__init__"], originals[tl.core.block_type, "__init__"]
    block_type = tl.core.block_type
    packages = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    builtins = {
        package: [name for name, member in inspect.getmembers(package) if _is_builtin(member)] for package in packages
    }
    np_dtypes = {}

    def _patch_builtin(package, builder, scope):
        for name in builtins[package]:
            member = getattr(package, name)
            if _is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    def _patch_lang(fn):
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if languages and not any(map(_is_builtin, (tl.tensor.__add__, *(language.load for language in languages)))):
            return interpreter._LangPatchScope()  # all is replaced already, nothing is to be put back
        return patch_lang(fn)

    def _get_np_dtype(tt_dtype):
        scalar = tt_dtype.scalar
        found = np_dtypes.get(scalar.name)
        if found is None:
            found = np_dtypes[scalar.name] = np_dtype(scalar)
        return found

    def create_splat(self, type, scalar):
        if scalar.data.dtype == bool:
            scalar = interpreter.TensorHandle(scalar.data, tl.int1)  # a comparison's handle is said to be of what it compares
        return create_splat_of(self, type, scalar)

    def binary_op_sanitize_overflow_impl(self, lhs, rhs, binary_op):
        if self.builder is not interpreter.interpreter_builder or self.builder.options.debug:
            sanitize(self, lhs, rhs, binary_op)

    def broadcast_impl_value(self, lhs, rhs):
        if self.builder is not interpreter.interpreter_builder:
            return broadcast(self, lhs, rhs)
        left, right = (x.type.shape.values if x.type.is_block() else None for x in (lhs, rhs))
        if left == right:
            return lhs, rhs
        if left is None:
            return splat(self, lhs, rhs.type), rhs
        if right is None:
            return lhs, splat(self, rhs, lhs.type)
        if len(left) != len(right) or any(m != n and 1 not in (m, n) for m, n in zip(left, right)):
            return broadcast(self, lhs, rhs)
        shape = [n if m == 1 else m for m, n in zip(left, right)]
        return widened(self, lhs, left, shape), widened(self, rhs, right, shape)

    def widened(semantic, block, sizes, shape):
        if sizes == shape:
            return block
        return semantic.tensor(semantic.builder.create_broadcast(block.handle, shape), block_type(block.dtype, shape))

    def splat(semantic, scalar, like):
        type = like.with_element_ty(scalar.type.scalar)
        return semantic.tensor(semantic.builder.create_splat(type, scalar.handle), type)

    def dtype__eq__(self, other):
        return self is other or dtype_eq(self, other)

    @functools.cache
    def sizes(shape: tuple[int, ...]):
        """A tensor's ``shape`` and ``numel``: the same objects for all tensors of one shape."""
        like = object.__new__(tl.core.tensor)
        tensor_init(like, None, block_type(tl.int32, list(shape)) if shape else tl.int32)
        return like.shape, like.numel

    def tensor__init__(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = sizes(tuple(type.shape.values) if type.is_block() else ())

    @functools.cache
    def block(shape: tuple[int, ...]):
        """A block type's ``shape`` and ``numel``, and the beginning of its name; raises what Triton raises."""
        like = object.__new__(block_type)
        block_type_init(like, tl.int32, list(shape))
        return like.shape, like.numel, like.name.removesuffix("int32>")

    def block_type__init__(self, element_ty, shape):
        shape = shape.values if isinstance(shape, tl.core.tuple) else shape
        if not isinstance(shape, (list, tuple)) or not all(type(size) is int for size in shape):
            return block_type_init(self, element_ty, shape)
        self.element_ty = element_ty
        self.shape, self.numel, name = block(tuple(shape))
        self.name = f"{name}{element_ty}>"

    return (
        _patch_builtin,
        _patch_lang,
        _get_np_dtype,
        create_splat,
        binary_op_sanitize_overflow_impl,
        broadcast_impl_value,
        dtype__eq__,
        tensor__init__,
        block_type__init__,
    )
