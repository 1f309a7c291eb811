"""Gluon's language, function by function, as the model executes it: constants, the grid, blocks and their arithmetic.

Each function here stands for the builtins of Gluon and of Triton that have the name that it is registered under;
``TABLE`` maps the one to the other by identity. What touches memory, barriers and engines is in ``hardware.py``, in the
same table. What is in neither is not modelled, and a kernel that uses it is told so. Layouts and cache hints are accepted
and ignored, but for how a layout shares a block among the CTAs of a cluster.
"""

# ruff: noqa: D103 (what each function does is what Triton documents for the builtin it stands for)

from __future__ import annotations

import torch
import triton.experimental.gluon.language as gl
import triton.language as tl

from kernels.gluon_model import engines
from kernels.gluon_model.machine import Machine
from kernels.gluon_model.values import (
    TORCH,
    ModelError,
    Pointer,
    Tensor,
    combine,
    raw,
    tensor_of,
)

TABLE: dict[int, object] = {}
_KEEP: list = []  # the originals, so that their ids stay theirs


def models(*names: str):
    """Register a function as what the kernel calls when it names one of these, below ``gluon.language``.

    Where ``triton.language`` has a function of that name it stands for that, too: a kernel may call ``@triton.jit``
    functions.
    """

    def register(function):
        for name in names:
            for original in (gl, tl):
                for part in name.split("."):
                    original = getattr(original, part, None)
                if original is not None:
                    TABLE[id(original)] = function
                    _KEEP.append(original)
        return function

    return register


def machine() -> Machine:
    """The machine whose kernel is running."""
    return Machine.current


def sizes(shape) -> list[int]:
    """A shape as plain numbers."""
    return [int(size) for size in shape]


# Compile time.


@models("constexpr")
class constexpr:
    """A compile-time constant is the plain value."""

    def __new__(cls, value):
        """The value itself."""
        return value


@models("static_assert")
def static_assert(condition, message=""):
    if not condition:
        raise ModelError(f"static_assert: {message}")


@models("device_assert")
def device_assert(condition, message="", mask=None):
    holds = torch.as_tensor(raw(condition)).bool()
    if machine().cluster is not None:
        holds = holds | ~machine().cluster.lanes(getattr(condition, "layout", None), holds.shape, alone=False)
    if not bool(holds.all()):
        raise ModelError(f"device_assert: {message}")


@models("static_print", "device_print")
def show(*values, sep=" ", hex=False):
    print(*(value.data if isinstance(value, Tensor) else value for value in values), sep=sep)


@models("assume", "max_constancy", "max_contiguous", "multiple_of", "expect_zero")
def hint(value, *promises):
    return value


@models("to_tensor")
def to_tensor(value):
    return tensor_of(value)


@models("tuple")
def as_tuple(values):
    return tuple(values)


@models("aggregate_replace")
def aggregate_replace(instance, **changes):
    return type(instance)(**({name: getattr(instance, name) for name in instance.fields} | changes))


@models("static_range")
class static_range:
    """An unrolled loop: its variable is a compile-time constant."""

    def __init__(self, first, last=None, step=1):
        self._range = range(0, int(first), step) if last is None else range(int(first), int(last), int(step))

    def __iter__(self):
        return iter(self._range)


def loop(first, last=None, step=1, **hints):
    """``range`` in a kernel: its variable is a number at run time, so that it can be cast."""
    numbers = range(int(first)) if last is None else range(int(first), int(last), int(step))
    wide = any(isinstance(end, Tensor) and end.dtype == tl.int64 for end in (first, last))
    return (tensor_of(number, tl.int64 if wide else tl.int32) for number in numbers)


TABLE[id(tl.range)] = loop


# The grid.


@models("program_id")
def program_id(axis):
    return tensor_of(machine().program[axis])


@models("num_programs")
def num_programs(axis):
    return tensor_of((*machine().run.grid, 1, 1)[axis])


@models("num_warps")
def num_warps():
    return machine().me.num_warps


@models("num_ctas")
def num_ctas():
    return 1 if machine().cluster is None else machine().cluster.size


@models("barrier")
def barrier(cluster=False):
    """All threads of a partition are one thread of the model: there is nobody to wait for but other CTAs."""
    if cluster:
        cluster_barrier()


@models("nvidia.hopper.cluster.barrier")
def cluster_barrier(relaxed=False):
    if machine().cluster is not None:
        machine().step()
        machine().cluster.meet(bool(relaxed))


# Blocks.


@models("arange")
def arange(start, end, layout=None):
    return Tensor(torch.arange(int(start), int(end), dtype=torch.int32), tl.int32, layout)


@models("full")
def full(shape, value, dtype, layout=None):
    return Tensor(torch.full(sizes(shape), raw(value), dtype=TORCH[dtype]), dtype, layout)


@models("zeros")
def zeros(shape, dtype, layout=None):
    return full(shape, 0, dtype, layout)


@models("full_like")
def full_like(input, value, shape=None, dtype=None, layout=None):
    return full(input.shape if shape is None else shape, value, dtype or input.dtype, layout or input.layout)


@models("zeros_like")
def zeros_like(input, shape=None, dtype=None, layout=None):
    return full_like(input, 0, shape, dtype, layout)


@models("convert_layout", "set_auto_layout")
def convert_layout(value, layout, assert_trivial=False):
    cluster = machine().cluster
    if cluster is not None:
        cluster.check_within(*(cluster.part(one, value.shape)[0] for one in (layout, value.layout)), "convert_layout")
    return value.like(value.data, layout)


@models("expand_dims")
def expand_dims(input, axis):
    return input.expand_dims(int(axis))


@models("reshape")
def reshape(input, *shape, can_reorder=False):
    return input.reshape(*shape)


@models("permute")
def permute(input, *order):
    return input.permute(*order)


@models("ravel")
def ravel(x, can_reorder=False):
    return x.reshape(x.numel)


@models("broadcast")
def broadcast(a, b):
    x, y = torch.broadcast_tensors(raw(a), raw(b))
    return a.like(x), b.like(y)


@models("broadcast_to")
def broadcast_to(input, *shape):
    return tensor_of(input).broadcast_to(*shape)


@models("trans")
def trans(input, *dims):
    return input.trans(*dims)


@models("join")
def join(a, b):
    return a.like(torch.stack(torch.broadcast_tensors(a.data, b.data), dim=-1))


@models("split")
def split(a):
    return a.split()


@models("cast")
def cast(input, dtype, fp_downcast_rounding=None, bitcast=False):
    return tensor_of(input).to(dtype, bitcast=bitcast)


@models("where")
def where(condition, x, y):
    if isinstance(x, Pointer) and isinstance(y, Pointer):
        return _where_pointer(tensor_of(condition), x, y)
    dtype = None if isinstance(x, Tensor) and isinstance(y, Tensor) and x.dtype == y.dtype else _common(x, y)
    x, y = (tensor_of(value) for value in (x, y))
    data = torch.where(tensor_of(condition).data.bool(), *(_as(value, dtype) for value in (x, y)))
    return Tensor(data, dtype or x.dtype, x.layout or y.layout)


def _where_pointer(condition: Tensor, x: Pointer, y: Pointer) -> Pointer:
    if not condition.shape:
        return x if condition else y
    if x.base is not y.base:
        raise ModelError(f"gl.where mixes addresses in {x.name} and {y.name} in one block: choose by one number")
    return x.like(torch.where(condition.data.bool(), x.data, y.data), x.layout or y.layout)


def _common(x, y):
    return combine(x, y, lambda a, b: a).dtype


def _as(value: Tensor, dtype) -> torch.Tensor:
    return value.data if dtype is None else value.data.to(TORCH[dtype])


@models("minimum")
def minimum(x, y, propagate_nan=None):
    return combine(x, y, torch.minimum)


@models("maximum")
def maximum(x, y, propagate_nan=None):
    return combine(x, y, torch.maximum)


@models("clamp")
def clamp(x, min, max, propagate_nan=None):
    return minimum(maximum(x, min), max)


@models("cdiv")
def cdiv(x, div):
    return (x + div - 1) // div


models("add")(lambda x, y, sanitize_overflow=True: x + y)
models("sub")(lambda x, y, sanitize_overflow=True: x - y)
models("mul")(lambda x, y, sanitize_overflow=True: x * y)
models("fdiv", "div_rn")(lambda x, y, ieee_rounding=False: x / y)
models("fma")(lambda x, y, z: x * y + z)


def _elementwise(name: str, function) -> None:
    models(name)(lambda x: tensor_of(x).like(function(tensor_of(x).data), getattr(x, "layout", None)))


for _name in ("exp", "exp2", "log", "log2", "cos", "sin", "sqrt", "rsqrt", "abs", "erf", "floor", "ceil"):
    _elementwise(_name, getattr(torch, _name))
_elementwise("sqrt_rn", torch.sqrt)


def _reduced(input, name: str, axis, keep_dims):
    """The layout of a reduction in a cluster, none of whose CTAs may need another's part for it."""
    held, _ = machine().cluster.part(input.layout, input.shape)
    if axis is None:
        machine().cluster.check_within(None, held, f"{name} of a block")
        return None
    if held is not None:
        wanted = held.any(int(axis), keepdim=True).expand(held.shape)
        machine().cluster.check_within(wanted, held, f"{name} along axis {axis}")
    return input.layout if keep_dims else gl.SliceLayout(int(axis), input.layout)


def _reduction(name: str, function) -> None:
    def reduce(input, axis=None, keep_dims=False, **hints):
        data = input.data.reshape(-1) if axis is None else input.data
        out = function(data, dim=0 if axis is None else int(axis), keepdim=bool(keep_dims and axis is not None))
        layout = None if machine().cluster is None else _reduced(input, name, axis, keep_dims)
        return Tensor(out.to(torch.int32) if input.dtype == tl.int1 else out.to(data.dtype), layout=layout)

    models(name)(reduce)
    setattr(Tensor, name, reduce)


for _name, _function in (("sum", torch.sum), ("max", torch.amax), ("min", torch.amin)):
    _reduction(_name, _function)


@models("cumsum")
def cumsum(input, axis=0, reverse=False):
    data = input.data.flip(axis) if reverse else input.data
    out = data.cumsum(axis).to(data.dtype)
    return input.like(out.flip(axis) if reverse else out, input.layout)


@models("dot_fma")
def dot_fma(a, b, acc):
    return acc.like(engines.multiply(a.data, b.data, acc.data, acc.data.dtype), acc.layout)
