"""Gluon's language, function by function, as the model executes it.

Each function here stands for the builtins of Gluon and of Triton that have the name that it is registered under;
``TABLE`` maps the one to the other by identity. What is not here is not modelled, and a kernel that uses it is told
so. Layouts, cache hints and multicast flags are accepted and ignored.
"""

# ruff: noqa: D103 (what each function does is what Triton documents for the builtin it stands for)

from __future__ import annotations

import torch
import triton.experimental.gluon.language as gl
import triton.language as tl

from kernels.gluon_model import engines, memory
from kernels.gluon_model.machine import Machine
from kernels.gluon_model.values import (
    TORCH,
    ModelError,
    Pointer,
    Tensor,
    combine,
    poison,
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


def _sizes(shape) -> list[int]:
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
    if not bool(torch.as_tensor(raw(condition)).all()):
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
    return 1


@models("barrier", "nvidia.hopper.cluster.barrier")
def barrier(cluster=False, relaxed=False):
    """All threads of a partition are one thread of the model: there is nobody to wait for."""


# Blocks.


@models("arange")
def arange(start, end, layout=None):
    return Tensor(torch.arange(int(start), int(end), dtype=torch.int32), tl.int32, layout)


@models("full")
def full(shape, value, dtype, layout=None):
    return Tensor(torch.full(_sizes(shape), raw(value), dtype=TORCH[dtype]), dtype, layout)


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


def _reduction(name: str, function) -> None:
    def reduce(input, axis=None, keep_dims=False, **hints):
        data = input.data.reshape(-1) if axis is None else input.data
        out = function(data, dim=0 if axis is None else int(axis), keepdim=bool(keep_dims and axis is not None))
        return Tensor(out.to(torch.int32) if input.dtype == tl.int1 else out.to(data.dtype))

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


# Global memory through pointers.


@models("load")
def load(pointer, mask=None, other=None, **hints):
    """Lanes masked off without ``other`` hold whatever the register held: poison."""
    machine().step()
    flat, offsets, active = engines.global_access(machine(), pointer, mask, "loads")
    if other is None:
        out = poison(active.shape, flat.dtype)
    else:
        out = torch.as_tensor(raw(other)).to(flat.dtype).expand(active.shape).clone()
    out[active] = flat[offsets[active]]
    machine().log("load", pointer.name)
    return Tensor(out, pointer.dtype.element_ty, pointer.layout)


@models("store")
def store(pointer, value, mask=None, **hints):
    machine().step()
    flat, offsets, active = engines.global_access(machine(), pointer, mask, "stores")
    value = torch.as_tensor(raw(value)).to(flat.dtype).expand(active.shape)
    flat[offsets[active]] = value[active]
    machine().log("store", pointer.name)


def _atomic(name: str, update) -> None:
    def atomic(pointer, val, mask=None, sem=None, scope=None):
        machine().step()
        flat, offsets, active = engines.global_access(machine(), pointer, mask, "updates")
        value = torch.as_tensor(raw(val)).to(flat.dtype).expand(active.shape)
        old = poison(active.shape, flat.dtype)
        old[active] = flat[offsets[active]]
        update(flat, offsets[active], value[active])
        machine().log("store", pointer.name)
        return Tensor(old, pointer.dtype.element_ty, pointer.layout)

    models(f"atomic_{name}")(atomic)


_atomic("add", lambda flat, at, value: flat.index_put_((at,), value, accumulate=True))
_atomic("max", lambda flat, at, value: flat.scatter_reduce_(0, at, value, "amax"))
_atomic("min", lambda flat, at, value: flat.scatter_reduce_(0, at, value, "amin"))


# On-chip memory.


@models("allocate_shared_memory")
def allocate_shared_memory(element_ty, shape, layout=None, value=None):
    is_barrier = isinstance(layout, gl.nvidia.hopper.mbarrier.MBarrierLayout)
    kind = memory.BARRIER if is_barrier else memory.SHARED
    view = machine().allocate(kind, element_ty, shape, layout)
    if value is not None:
        view.store(value)
    return view


@models("nvidia.hopper.mbarrier.allocate_mbarrier")
def allocate_mbarrier(batch=None, two_ctas=False):
    return machine().allocate(memory.BARRIER, tl.int64, [1] if batch is None else [batch, 1], None)


@models("nvidia.blackwell.allocate_tensor_memory")
def allocate_tensor_memory(element_ty, shape, layout=None, value=None):
    view = machine().allocate(memory.TENSOR, element_ty, shape, layout)
    if value is not None:
        view.store(value)
    return view


@models("nvidia.hopper.fence_async_shared")
def fence_async_shared(cluster=False):
    machine().step()
    machine().fence()


# Barriers.


@models("nvidia.hopper.mbarrier.init")
def init(mbarrier, count):
    machine().step()
    barrier = machine().barrier(mbarrier, "init")
    if barrier.ready:
        machine().conflicts.initialized_twice(barrier)
    barrier.init(int(count))


@models("nvidia.hopper.mbarrier.invalidate")
def invalidate(mbarrier):
    machine().step()
    barrier = machine().barrier(mbarrier, "invalidate")
    barrier.ready, barrier.ended = False, machine().place()


@models("nvidia.hopper.mbarrier.expect")
def expect(mbarrier, bytes_per_cta=None, pred=True, from_cta=None):
    """Arrive once, and let the phase last until so many more bytes have landed."""
    if not pred:
        return
    machine().step()
    barrier = machine().barrier(mbarrier, "expect")
    phase, place, nbytes = barrier.known(machine().me), machine().place(), int(bytes_per_cta)
    barrier.announced[phase] += nbytes
    barrier.announcers.setdefault(phase, (machine().me, place))
    barrier.expect(nbytes)
    machine().log("expect", barrier.label, nbytes)
    machine().arrive(barrier, 1)


@models("nvidia.hopper.mbarrier.arrive", "nvidia.ampere.mbarrier.arrive")
def arrive(mbarrier, count=1, pred=True, from_cta=None):
    if not pred:
        return
    machine().step()
    barrier = machine().barrier(mbarrier, "arrive")
    machine().log("arrive", barrier.label)
    machine().arrive(barrier, int(count))


@models("nvidia.hopper.mbarrier.wait")
def wait(mbarrier, phase, pred=True, deps=()):
    if not pred:
        return
    machine().step()
    parity = int(phase)
    if parity not in (0, 1):
        raise ModelError(f"mbarrier.wait waits for a parity, 0 or 1, not {parity}: take it modulo 2")
    machine().wait(machine().barrier(mbarrier, "wait"), parity)


# The tensor memory accelerator.


@models("nvidia.hopper.tma.make_tensor_descriptor")
def make_tensor_descriptor(base, shape, strides, block_shape, layout, padding_option="zero"):
    if not isinstance(base, Pointer):
        raise ModelError(f"make_tensor_descriptor needs a pointer, not {base!r}")
    start = base.base.as_strided((1,), (1,), base.base.storage_offset() + int(base.data))
    return engines.Descriptor(base.name, start, shape, strides, block_shape, layout, padding_option)


@models("nvidia.hopper.tma.async_load", "nvidia.hopper.tma.async_copy_global_to_shared")
def async_load(tensor_desc, coord, barrier, result, pred=True, multicast=False, cache_policy=None):
    if pred:
        machine().step()
        coord = tensor_desc.coordinates(coord, "tiled")
        engines.load(machine(), tensor_desc, barrier, result, lambda: tensor_desc.tile(coord))


@models("nvidia.hopper.tma.async_load_im2col", "nvidia.hopper.tma.async_copy_global_to_shared_im2col")
def async_load_im2col(tensor_desc, coord, offsets, barrier, result, pred=True, multicast=False, cache_policy=None):
    if pred:
        machine().step()
        coord, offsets = tensor_desc.coordinates(coord, "im2col"), _sizes(offsets)
        if len(offsets) != len(coord) - 2:
            raise ModelError(f"{tensor_desc.name} needs {len(coord) - 2} offsets, not {len(offsets)}")
        engines.load(machine(), tensor_desc, barrier, result, lambda: tensor_desc.patch(coord, offsets))


@models("nvidia.hopper.tma.async_store", "nvidia.hopper.tma.async_copy_shared_to_global")
def async_store(tensor_desc, coord, src, cache_policy=None):
    machine().step()
    engines.store(machine(), tensor_desc, coord, src)


@models("nvidia.hopper.tma.async_atomic_add")
def async_atomic_add(tensor_desc, coord, src):
    machine().step()
    engines.store(machine(), tensor_desc, coord, src, add=True)


@models("nvidia.hopper.tma.store_wait")
def store_wait(pendings, read_only=True):
    machine().step()
    machine().log("wait", "stores")
    engines.store_wait(machine(), int(pendings))
    machine().log("pass", "stores")


# The tensor core.


@models("nvidia.hopper.warpgroup_mma_init")
def warpgroup_mma_init(value):
    return value


@models("nvidia.hopper.warpgroup_mma")
def warpgroup_mma(a, b, acc, use_acc=True, precision=None, max_num_imprecise_acc=None, is_async=False):
    return engines.warpgroup_product(machine(), a, b, acc, bool(use_acc), bool(is_async))


@models("nvidia.hopper.warpgroup_mma_wait")
def warpgroup_mma_wait(num_outstanding=0, deps=None):
    if deps is None:
        raise ModelError("warpgroup_mma_wait needs deps: the accumulators that are read after it")
    machine().step()
    machine().log("wait", "products")
    engines.product_wait(machine(), int(num_outstanding))
    machine().log("pass", "products")
    return deps[0] if len(deps) == 1 else tuple(deps)


@models("nvidia.blackwell.tcgen05_mma")
def tcgen05_mma(a, b, acc, use_acc=True, pred=True, multicast=False, mbarriers=None, mbarrier_preds=None):
    if not pred:
        return
    machine().step()
    engines.tensor_product(machine(), a, b, acc, bool(use_acc))
    for barrier, signal in zip(mbarriers or (), mbarrier_preds or [True] * len(mbarriers or ())):
        if signal:
            engines.commit(machine(), barrier)


@models("nvidia.blackwell.tcgen05_copy")
def tcgen05_copy(src, dst):
    machine().step()
    engines.tensor_copy(machine(), src, dst)


@models("nvidia.blackwell.tcgen05_commit")
def tcgen05_commit(barrier, pred=True, descs=()):
    if pred:
        machine().step()
        engines.commit(machine(), barrier)


@models("nvidia.blackwell.tcgen05_mma_barrier_count")
def tcgen05_mma_barrier_count(smems, multicast, two_ctas):
    return 1


# Partitions.


@models("warp_specialize")
def warp_specialize(functions_and_args, worker_num_warps, worker_num_regs=None):
    names = []
    for function, _ in functions_and_args:
        twins = sum(name.split(" ")[0] == function.__name__ for name in names)
        names.append(f"{function.__name__} {twins + 1}" if twins else function.__name__)
    bodies = [lambda f=f, args=args: f(*args) for f, args in functions_and_args]
    warps = [int(n) for n in worker_num_warps]
    if len(warps) != len(bodies) - 1:
        raise ModelError(f"warp_specialize got {len(bodies) - 1} workers and {len(warps)} numbers of warps")
    fills = [_names(function) & _FILLERS != set() for function, _ in functions_and_args]
    return machine().warp_specialize(names, warps, bodies, fills)


_FILLERS = {"async_load", "async_load_im2col", "tcgen05_mma", "tcgen05_copy"}


def _names(function, seen=()) -> set[str]:
    """Everything that a partition's function and its helpers name."""
    names = set(function.__code__.co_names)
    helpers = [v for v in function.__globals__.values() if hasattr(v, "__code__") and v.__code__.co_name in names]
    return names.union(*(_names(h, (*seen, function)) for h in helpers if h not in seen and h is not function))
