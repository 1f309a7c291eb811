"""Gluon's memory, barriers, copies, products and partitions, function by function, as the model executes them."""

# ruff: noqa: D103 (what each function does is what Triton documents for the builtin it stands for)

from __future__ import annotations

import torch
import triton.experimental.gluon.language as gl
import triton.language as tl

from kernels.gluon_model import counters, engines, memory
from kernels.gluon_model.language import machine, models, sizes
from kernels.gluon_model.values import ModelError, Pointer, Tensor, poison, raw

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
    counters.touch(machine(), pointer, flat, offsets[active], write=False)
    machine().log("load", pointer.name)
    return Tensor(out, pointer.dtype.element_ty, pointer.layout)


@models("store")
def store(pointer, value, mask=None, **hints):
    machine().step()
    flat, offsets, active = engines.global_access(machine(), pointer, mask, "stores")
    value = torch.as_tensor(raw(value)).to(flat.dtype).expand(active.shape)
    at, value = offsets[active], value[active]
    before = flat[at]
    changed = (before != value) & ~(before.isnan() & value.isnan())
    flat[at] = value
    counters.touch(machine(), pointer, flat, at[changed], write=True)
    machine().log("store", pointer.name)


def _atomic(name: str, update) -> None:
    def atomic(pointer, val, mask=None, sem=None, scope=None):
        if machine().cluster is not None and not pointer.shape:
            return machine().cluster.once(lambda: apply(pointer, val, mask, sem))
        return apply(pointer, val, mask, sem)

    def apply(pointer, val, mask, sem):
        machine().step(aside=True)
        flat, offsets, active = engines.global_access(machine(), pointer, mask, "updates")
        value = torch.as_tensor(raw(val)).to(flat.dtype).expand(active.shape)
        old = poison(active.shape, flat.dtype)
        at = offsets.expand(active.shape)[active]
        old[active] = flat[at]
        update(flat, at, value[active])
        counters.meet(machine(), pointer, at, sem)
        if not torch.equal(old[active], flat[at]):
            machine().log("store", pointer.name)
        else:  # it only asks how a counter stands
            if machine().polls.note(pointer.name, old.tolist()):
                machine().log("load", pointer.name)
            machine().run.programs.poll(machine())
        return Tensor(old, pointer.dtype.element_ty, pointer.layout)

    models(f"atomic_{name}")(atomic)


_atomic("add", lambda flat, at, value: flat.index_put_((at,), value, accumulate=True))
_atomic("max", lambda flat, at, value: flat.scatter_reduce_(0, at, value, "amax"))
_atomic("min", lambda flat, at, value: flat.scatter_reduce_(0, at, value, "amin"))


# On-chip memory.


@models("allocate_shared_memory")
def allocate_shared_memory(element_ty, shape, layout=None, value=None):
    is_barrier = isinstance(layout, gl.nvidia.hopper.mbarrier.MBarrierLayout)
    if is_barrier and machine().cluster is not None:
        raise ModelError("in a cluster of several CTAs the model takes barriers from mbarrier.allocate_mbarrier")
    kind = memory.BARRIER if is_barrier else memory.SHARED
    view = machine().allocate(kind, element_ty, shape, layout)
    if value is not None:
        view.store(value)
    return view


@models("nvidia.hopper.mbarrier.allocate_mbarrier")
def allocate_mbarrier(batch=None, two_ctas=False):
    return machine().allocate(memory.BARRIER, tl.int64, [1] if batch is None else [batch, 1], None, bool(two_ctas))


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
    machine().me.inits = True
    if _lies_elsewhere(mbarrier):
        return
    barrier = machine().barrier(mbarrier, "init")
    if barrier.ready:
        machine().conflicts.initialized_twice(barrier)
    barrier.init(int(count) * mbarrier.allocation.sharing)


def _lies_elsewhere(mbarrier) -> bool:
    """Whether a barrier that CTAs share lies in another one of them: that one alone initializes it and waits for it."""
    return isinstance(mbarrier, memory.View) and mbarrier.allocation.lead != machine().me.cta


def _check_route(from_cta) -> None:
    if machine().cluster is not None and from_cta not in (None, machine().cluster.size - 1):
        raise ModelError(f"from_cta={from_cta} is not modelled: every CTA arrives for itself")


@models("nvidia.hopper.mbarrier.invalidate")
def invalidate(mbarrier):
    machine().step()
    if _lies_elsewhere(mbarrier):
        return
    barrier = machine().barrier(mbarrier, "invalidate")
    barrier.ready, barrier.ended = False, machine().place()


@models("nvidia.hopper.mbarrier.expect")
def expect(mbarrier, bytes_per_cta=None, pred=True, from_cta=None):
    """Arrive once, and let the phase last until so many more bytes have landed."""
    if not pred:
        return
    _check_route(from_cta)
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
    _check_route(from_cta)
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
    if _lies_elsewhere(mbarrier):
        machine().cluster.publish()
        return
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
        engines.load(machine(), tensor_desc, barrier, result, lambda: tensor_desc.tile(coord), multicast)


@models("nvidia.hopper.tma.async_load_im2col", "nvidia.hopper.tma.async_copy_global_to_shared_im2col")
def async_load_im2col(tensor_desc, coord, offsets, barrier, result, pred=True, multicast=False, cache_policy=None):
    if pred:
        machine().step()
        coord, offsets = tensor_desc.coordinates(coord, "im2col"), sizes(offsets)
        if len(offsets) != len(coord) - 2:
            raise ModelError(f"{tensor_desc.name} needs {len(coord) - 2} offsets, not {len(offsets)}")
        engines.load(machine(), tensor_desc, barrier, result, lambda: tensor_desc.patch(coord, offsets), multicast)


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
    engines.store_wait(machine(), int(pendings), bool(read_only))
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
