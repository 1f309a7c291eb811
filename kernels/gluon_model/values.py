"""What a kernel computes with: tensors and pointers that follow Triton's types and C's integers, on torch."""

import functools
import math
import operator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
import triton.language as tl

TORCH = {
    tl.int1: torch.bool,
    tl.int8: torch.int8,
    tl.int16: torch.int16,
    tl.int32: torch.int32,
    tl.int64: torch.int64,
    tl.uint8: torch.uint8,
    tl.uint16: torch.uint16,
    tl.uint32: torch.uint32,
    tl.uint64: torch.uint64,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
TRITON = {torch_dtype: dtype for dtype, torch_dtype in TORCH.items()}


class ModelError(RuntimeError):
    """The kernel asks for something that has no meaning, or that the model does not know; the message says where."""


def poison(shape, dtype: torch.dtype) -> torch.Tensor:
    """What memory holds before anybody wrote to it: NaN, or a number that no index should be."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan")).to(dtype)
    return torch.full(shape, 1, dtype=dtype) if dtype == torch.bool else torch.full(shape, 113, dtype=dtype)


class Shape(tuple):
    """Sizes, which Gluon lets a kernel compare with lists and lengthen by them."""

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other):
        return tuple(self) == tuple(other)

    def __ne__(self, other):
        return not self == other

    def __add__(self, other):
        return Shape((*self, *other))

    def __radd__(self, other):
        return Shape((*other, *self))


class Tensor:
    """A block of numbers, or one number (shape ``()``), in registers.

    ``data`` is a torch tensor of the dtype's own precision, so every operation rounds and wraps as on the GPU. A
    Python number beside it is a compile-time constant and takes its dtype, as in Triton; ``//`` and ``%`` of integers
    truncate towards zero, as in C. ``layout`` is carried along and never used.

    ``product`` is the asynchronous matrix product that is still to write this tensor, or None.
    """

    __slots__ = ("_data", "dtype", "layout", "product")

    def __init__(self, data: torch.Tensor, dtype=None, layout=None):
        self._data, self.dtype, self.layout, self.product = data, dtype or TRITON[data.dtype], layout, None

    @property
    def data(self) -> torch.Tensor:
        """The numbers; asking for them while a product is in flight is a finding."""
        if self.product is not None:
            self.product.used_early(self)
        return self._data

    @property
    def shape(self) -> Shape:
        """The sizes; empty for one number."""
        return Shape(self._data.shape)

    @property
    def numel(self) -> int:
        """How many elements."""
        return self._data.numel()

    @property
    def type(self):
        """Layout, sizes and dtype, as kernels ask a type for them."""
        return SimpleNamespace(layout=self.layout, shape=self.shape, element_ty=self.dtype, scalar=self.dtype)

    def like(self, data: torch.Tensor, layout=None) -> "Tensor":
        """The same kind of value with other data."""
        return Tensor(data, self.dtype, layout)

    # Shapes.

    def __getitem__(self, index) -> "Tensor":
        index = index if isinstance(index, tuple) else (index,)
        if any(part is not None and part != slice(None) for part in index):
            raise ModelError(f"a tensor takes only `:` and `None` as indices, not {index}")
        layout = getattr(self.layout, "parent", None) if None in index else self.layout
        return self.like(self.data[index], layout)

    def reshape(self, *shape) -> "Tensor":
        """The same elements in other sizes."""
        return self.like(self.data.reshape(_flat(shape)))

    def permute(self, *order) -> "Tensor":
        """The dimensions in another order."""
        return self.like(self.data.permute(_flat(order)))

    def trans(self, *order) -> "Tensor":
        return self.permute(*order) if order else self.like(self.data.T)

    T = property(trans)

    def broadcast_to(self, *shape) -> "Tensor":
        """Repeated along the dimensions of size 1."""
        return self.like(self.data.broadcast_to(_flat(shape)), self.layout)

    def expand_dims(self, axis: int) -> "Tensor":
        """With a dimension of size 1 more."""
        return self.like(self.data.unsqueeze(axis), getattr(self.layout, "parent", None))

    def split(self) -> tuple["Tensor", "Tensor"]:
        """The two halves of a last dimension of size 2."""
        return self.like(self.data[..., 0]), self.like(self.data[..., 1])

    # Types.

    def to(self, dtype, fp_downcast_rounding=None, bitcast: bool = False) -> "Tensor":
        """In another dtype, rounded to nearest even; ``bitcast``: the same bits."""
        if not isinstance(dtype, tl.dtype):
            raise ModelError(f".to() needs a dtype such as gl.float32, not {dtype!r}")
        data = self.data.view(TORCH[dtype]) if bitcast else self.data.to(TORCH[dtype])
        return Tensor(data, dtype, self.layout)

    cast = to

    def __bool__(self) -> bool:
        return bool(self._single())

    def __int__(self) -> int:
        return int(self._single())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self._single())

    def _single(self):
        if self._data.dim():
            raise ModelError(f"a block of shape {self.shape} cannot steer a branch, a loop or an index: one number can")
        return self.data.item()

    def __repr__(self) -> str:
        return f"<{self.dtype}{self.shape or ''}{'' if self.shape else f' {self._data.item()}'}>"

    __hash__ = object.__hash__

    # Arithmetic.

    def __neg__(self):
        return self.like(-self.data, self.layout)

    def __invert__(self):
        return self.like(~self.data, self.layout)

    def __abs__(self):
        return self.like(self.data.abs(), self.layout)


def _flat(arguments) -> list[int]:
    inner = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)) else arguments
    return [int(size) for size in inner]


class Pointer(Tensor):
    """Addresses in one tensor of global memory: ``data`` holds offsets from its first element, in elements."""

    __slots__ = ("base", "name")

    def __init__(self, base: torch.Tensor, name: str, offsets=None, layout=None):
        offsets = torch.zeros((), dtype=torch.int64) if offsets is None else offsets
        super().__init__(offsets, tl.pointer_type(TRITON[base.dtype]), layout)
        self.base, self.name = base, name

    def like(self, data: torch.Tensor, layout=None) -> "Pointer":
        """Other offsets into the same tensor."""
        return Pointer(self.base, self.name, data, layout)

    def __add__(self, offset):
        return self.like(self.data + raw(offset), self.layout or getattr(offset, "layout", None))

    __radd__ = __add__

    def __sub__(self, offset):
        return self.like(self.data - raw(offset), self.layout)

    @property
    def flat(self) -> torch.Tensor:
        """The tensor's memory as a row, from its first element to its last."""
        span = 1 + sum((size - 1) * stride for size, stride in zip(self.base.shape, self.base.stride()))
        return self.base.as_strided((span if self.base.numel() else 0,), (1,))


def raw(value):
    """The torch tensor, or the Python number, of a value."""
    return value.data if isinstance(value, Tensor) else value


def tensor_of(value, dtype=None) -> Tensor:
    """A value as a Tensor; a Python number becomes int1, int32, int64 or fp32."""
    if isinstance(value, Tensor):
        return value
    dtype = dtype or _dtype_of(value)
    return Tensor(torch.tensor(value, dtype=TORCH[dtype]), dtype)


def _dtype_of(number):
    if isinstance(number, bool):
        return tl.int1
    if isinstance(number, int):
        return tl.int32 if -(2**31) <= number < 2**31 else tl.int64
    if isinstance(number, float):
        return tl.float32
    raise ModelError(f"a number was needed here, not {number!r}")


def _kind(dtype) -> int:
    return 2 if dtype.is_floating() else 0 if dtype == tl.int1 else 1


def common_dtype(a, b):
    """The dtype in which Triton combines two operands; a Python number has none of its own if it fits the other's."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        x, y = a.dtype, b.dtype
        if x is y:
            return x
        if _kind(x) != _kind(y):
            return x if _kind(x) > _kind(y) else y
        if x == y:
            return x
        if x.primitive_bitwidth != y.primitive_bitwidth:
            return x if x.primitive_bitwidth > y.primitive_bitwidth else y
        if _kind(x) == 2:
            return tl.float32
        return x if x.is_int_unsigned() else y
    tensor, number = (a, b) if isinstance(a, Tensor) else (b, a)
    own = _dtype_of(number)
    if _kind(own) > _kind(tensor.dtype) or (own == tl.int64 and tensor.dtype.primitive_bitwidth < 64):
        return own
    return tensor.dtype


def _number(value, dtype: torch.dtype) -> torch.Tensor:
    """A Python number as a tensor, to be read only; small integers are made once."""
    return _integer(value, dtype) if type(value) is int and -1024 <= value <= 1024 else torch.tensor(value, dtype=dtype)


@functools.cache
def _integer(value: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


def _combine(a, b, operation, result=None, dtype=None) -> Tensor:
    dtype = dtype or common_dtype(a, b)
    torch_dtype = TORCH[dtype]
    x = a.data.to(torch_dtype) if isinstance(a, Tensor) else _number(a, torch_dtype)
    y = b.data.to(torch_dtype) if isinstance(b, Tensor) else _number(b, torch_dtype)
    layout = getattr(a, "layout", None) or getattr(b, "layout", None)
    try:
        return Tensor(operation(x, y), result or dtype, layout)
    except (RuntimeError, NotImplementedError) as error:
        raise ModelError(f"{list(x.shape)} and {list(y.shape)} of {dtype}: {error}") from None


def _truncated_divide(x, y):
    return torch.div(x, y, rounding_mode="trunc")


def _true_divide(a, b):
    dtype = common_dtype(a, b)
    return _combine(a, b, operator.truediv, dtype=dtype if dtype.is_floating() else tl.float32)


def _arithmetic(operation):
    return lambda a, b: _combine(a, b, operation)


def _comparison(operation):
    return lambda a, b: _combine(a, b, operation, result=tl.int1)


BINARY = {
    "add": _arithmetic(operator.add),
    "sub": _arithmetic(operator.sub),
    "mul": _arithmetic(operator.mul),
    "floordiv": _arithmetic(_truncated_divide),
    "truediv": _true_divide,
    "mod": _arithmetic(torch.fmod),
    "and": _arithmetic(operator.and_),
    "or": _arithmetic(operator.or_),
    "xor": _arithmetic(operator.xor),
    "lshift": _arithmetic(operator.lshift),
    "rshift": _arithmetic(operator.rshift),
}
COMPARISONS = {name: _comparison(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def _install() -> None:
    """Give Tensor the operators of the two tables, from the left and from the right."""

    def guarded(function, swap: bool):
        def method(self, other):
            if not isinstance(other, (Tensor, int, float)):
                return NotImplemented
            return function(other, self) if swap else function(self, other)

        return method

    for name, function in BINARY.items():
        setattr(Tensor, f"__{name}__", guarded(function, False))
        setattr(Tensor, f"__r{name}__", guarded(function, True))
    for name, function in COMPARISONS.items():
        setattr(Tensor, f"__{name}__", guarded(function, False))


_install()


def combine(a, b, operation) -> Tensor:
    """``operation(x, y)`` on two values brought to their common dtype."""
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        a = tensor_of(a)
    return _combine(a, b, operation)


def wrap_argument(name: str, value, wrap=None):
    """A launch's runtime argument as the kernel sees it; a NumPy array shares its memory. wrap: what does it to members."""
    wrap = wrap or wrap_argument
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise ValueError(f"{name} is on {value.device}: the model runs on the CPU, give it CPU tensors")
        return Pointer(value.detach(), name)  # a kernel knows nothing of autograd
    if isinstance(value, (bool, int, float)):
        return tensor_of(value)
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)  # a named tuple keeps its names
        names = (
            [f"{name}[{i}]" for i in range(len(value))] if fields is None else [f"{name}.{field}" for field in fields]
        )
        wrapped = [wrap(*member) for member in zip(names, value, strict=True)]
        return tuple(wrapped) if fields is None else value._make(wrapped)
    return value


@dataclass(frozen=True)
class BlockType:
    """The type of a block, as a descriptor tells it to a kernel."""

    element_ty: tl.dtype
    shape: Shape

    @property
    def numel(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * max(self.element_ty.primitive_bitwidth // 8, 1)
