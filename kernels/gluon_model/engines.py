"""The units that work beside the warps: the tensor memory accelerator's copies and the tensor core's products."""

from __future__ import annotations

import itertools

import torch

from kernels.gluon_model import counters
from kernels.gluon_model.memory import View
from kernels.gluon_model.races import join
from kernels.gluon_model.values import TRITON, BlockType, ModelError, Pointer, Shape, Tensor, raw, tensor_of

COPY, TENSOR_CORE = "copy engine", "tensor core"
TMA_BYTES = 16  # a copy begins at a multiple of so many


class Descriptor:
    """A TMA descriptor: a tensor of global memory, and the block that one copy moves.

    ``element_strides``, ``lower`` and ``upper`` belong to the im2col mode and are None in the tiled one.
    """

    def __init__(self, name, base, shape, strides, block_shape, layout, padding="zero", im2col=None):
        self.name, self.base, self.layout = name, base, layout
        self.sizes, self.steps = [int(n) for n in shape], [int(n) for n in strides]
        self.shape = tuple(tensor_of(n) for n in self.sizes)
        self.strides = tuple(tensor_of(n) for n in self.steps)
        self.block_shape, self.dtype = Shape(int(n) for n in block_shape), TRITON[base.dtype]
        self.block_type = BlockType(self.dtype, self.block_shape)
        self.fill = float("nan") if padding == "nan" else 0
        self.element_strides, self.lower, self.upper = im2col or (None, None, None)

    @classmethod
    def of(cls, name: str, host) -> Descriptor:
        """The device's view of a ``TensorDescriptor`` or ``TensorDescriptorIm2Col`` made by the host."""
        im2col = None
        if host.mode == "im2col":
            steps = host.element_strides or [1] * len(host.shape)
            im2col = list(steps), list(host.pixel_box_lower_corner), list(host.pixel_box_upper_corner)
        base = wrap_cpu(name, host.base)
        return cls(name, base, host.shape, host.strides, host.block_shape, host.layout, host.padding, im2col)

    @property
    def nbytes_per_cta(self) -> int:
        """Bytes that one copy moves, to one CTA if several share the block."""
        parts = sum(any(basis) for basis in getattr(self.layout, "cga_layout", None) or ())
        return self.block_type.nbytes >> parts

    @property
    def type(self):
        """Kernels ask the type for the same things."""
        return self

    def _global(self) -> torch.Tensor:
        return self.base.as_strided(self.sizes, self.steps)

    def _ranges(self, coord):
        """For each dimension the part of the block that lies in the tensor: where in the tensor, where in the block."""
        for start, length, size in zip(coord, self.block_shape, self.sizes):
            first, last = max(start, 0), min(start + length, size)
            yield slice(first, max(last, first)), slice(first - start, max(last, first) - start)

    def coordinates(self, coord, mode: str) -> list[int]:
        """The coordinates of a copy as numbers, checked against the descriptor."""
        coord = [int(c) for c in coord]
        if (self.lower is not None) != (mode == "im2col"):
            raise ModelError(f"{self.name} is not a descriptor for {mode} copies")
        if len(coord) != len(self.sizes):
            raise ModelError(f"{self.name} has {len(self.sizes)} dimensions, the copy gives {len(coord)} coordinates")
        if begin := coord[-1] * self.base.element_size() % TMA_BYTES:
            raise ModelError(
                f"a copy of {self.name} begins {begin} bytes behind a multiple of {TMA_BYTES} (its last coordinate is "
                f"{coord[-1]}): a GPU stops there with an illegal instruction"
            )
        return coord

    def tile(self, coord) -> torch.Tensor:
        """The block that begins at ``coord``; elements outside the tensor are the padding value."""
        out = torch.full(self.block_shape, self.fill, dtype=self.base.dtype)
        there, here = zip(*self._ranges(coord))
        out[here] = self._global()[there]
        return out

    def put(self, coord, block: torch.Tensor, add: bool = False) -> None:
        """Write a block that begins at ``coord``; what lies outside the tensor is dropped."""
        there, here = zip(*self._ranges(coord))
        target, block = self._global()[there], block.reshape(self.block_shape)[here]
        target.copy_(target + block if add else block)

    def pixels(self, coord, count: int):
        """The positions [n, ..., w] of ``count`` pixels: along the last dimension, then the one before, then n.

        A dimension runs from its lower corner to ``size - 1 + upper``, that included, in steps of its element stride.
        """
        *position, _ = coord
        for _ in range(count):
            yield list(position)
            for d in range(len(position) - 1, 0, -1):
                position[d] += self.element_strides[d]
                if position[d] <= self.sizes[d] - 1 + self.upper[d - 1]:
                    break
                position[d] = self.lower[d - 1]
            else:
                position[0] += 1

    def patch(self, coord, offsets) -> torch.Tensor:
        """The im2col block [pixels, channels]: each pixel of the walk shifted by ``offsets``, outside the padding."""
        count, channels = self.block_shape
        walk = torch.tensor(list(self.pixels(coord, count))) + torch.tensor([0, *offsets])
        inside = ((walk >= 0) & (walk < torch.tensor(self.sizes[:-1]))).all(dim=1)
        first, last = max(coord[-1], 0), min(coord[-1] + channels, self.sizes[-1])
        out = torch.full((count, channels), self.fill, dtype=self.base.dtype)
        if last > first:
            out[inside, first - coord[-1] : last - coord[-1]] = self._global()[tuple(walk[inside].T)][:, first:last]
        return out


def wrap_cpu(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that the model can read; a kernel knows nothing of autograd."""
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}: the model runs on the CPU, give it CPU tensors")
    return tensor.detach()


def load(machine, descriptor: Descriptor, barrier_view, result: View, fetch, multicast: bool = False) -> None:
    """Start a copy into shared memory that signals a barrier with its bytes when it lands.

    ``multicast``: where several CTAs of a cluster hold the same part of the block, the first of them asks for it, and it
    lands at the same place in the memory of each, and signals the barrier of each.
    """
    if result.numel != descriptor.block_type.numel:
        raise ModelError(f"{descriptor.name} loads blocks {descriptor.block_shape}, {result.label} has {result.shape}")
    if result.dtype != descriptor.dtype:
        raise ModelError(f"{descriptor.name} holds {descriptor.dtype}, {result.label} holds {result.dtype}")
    targets = [(barrier_view, result)]
    if machine.cluster is not None:
        machine.cluster.publish()
        held, holders = machine.cluster.part(descriptor.layout, descriptor.block_shape)
        held = None if held is None else held.reshape(result.shape)
        machine.cluster.check_within(result.held, held, f"a copy of {descriptor.name} into {result.label}")
        if multicast:
            if machine.me.cta != holders[0]:
                return
            targets = [(barrier_view.at(cta), result.at(cta)) for cta in holders]
    barriers = [machine.barrier(view, "a load") for view, _ in targets]
    phase = barriers[0].known(machine.me)  # of the issuer's own barrier: that one is meant in every CTA

    def land(operation):
        block = fetch().reshape(result.shape)
        for barrier, (_, buffer) in zip(barriers, targets):
            buffer.fill(block)
            barrier.land(buffer.nbytes, operation.clock, operation.fenced)

    views, buffers = zip(*targets)
    operation = machine.issue("TMA load", COPY, land, reads=views, writes=buffers)
    for barrier, buffer in zip(barriers, buffers):
        if barrier.known(machine.me) < phase:
            machine.conflicts.early_bytes(barrier, phase)
        operation.signals.append((barrier, phase))
        barrier.loaded[phase] += buffer.nbytes
        barrier.loads[phase].append((operation, buffer.nbytes))


def store(machine, descriptor: Descriptor, coord, source: View, add: bool = False) -> None:
    """Start a copy from shared to global memory, or an addition there; ``store_wait`` waits for it."""
    if machine.cluster is not None:
        raise ModelError("a copy to global memory is not modelled in a cluster of several CTAs")
    coord = descriptor.coordinates(coord, "tiled")
    if source.numel != descriptor.block_type.numel:
        raise ModelError(f"{descriptor.name} stores blocks {descriptor.block_shape}, {source.label} has {source.shape}")

    def land(operation):
        descriptor.put(coord, source.data, add)

    operation = machine.issue("TMA store", COPY, land, reads=[source])
    counters.send(machine, descriptor, coord, operation, add)
    machine.me.stores.append(operation)
    machine.me.sent.append(operation)


def store_wait(machine, pending: int, read_only: bool) -> None:
    """Wait until at most ``pending`` of the partition's stores are still reading their shared memory, or, if not
    ``read_only``, have not reached global memory."""
    stores, sent = machine.me.stores, machine.me.sent
    for operation in stores[: max(len(stores) - pending, 0)]:
        machine.join(operation)
    del stores[: max(len(stores) - pending, 0)]
    if not read_only:
        for operation in sent[: max(len(sent) - pending, 0)]:
            join(machine.me.clock, {operation.arrival: operation.arrived})
        del sent[: max(len(sent) - pending, 0)]


class Product:
    """An asynchronous warpgroup product and the accumulator that it is to fill."""

    def __init__(self, machine, operation):
        self.machine, self.operation = machine, operation

    @property
    def over(self) -> bool:
        """Whether the running partition knows that the product is complete."""
        return self.machine.known(self.operation)

    def used_early(self, tensor: Tensor) -> None:
        """The accumulator is asked for: report it unless the product is known to be over, and go on with its result."""
        if not self.over:
            self.machine.conflicts.used_early(self.operation)
            machine_lands_up_to(self.machine, self.operation)
        tensor.product = None


def machine_lands_up_to(machine, operation) -> None:
    """Land an operation and all before it in its queue now."""
    for earlier in itertools.takewhile(lambda o: not operation.landed, list(operation.queue.operations)):
        if not earlier.landed:
            machine.land(earlier)


def multiply(a: torch.Tensor, b: torch.Tensor, acc: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """a · b (+ acc), products and sums in fp32 as the tensor core forms them."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if not a.dtype.is_floating_point:
        wide = torch.int32
    out = a.to(wide) @ b.to(wide)
    return (out if acc is None else out + acc.to(wide)).to(dtype)


def warpgroup_product(machine, a, b: View, acc: Tensor, use_acc: bool, is_async: bool) -> Tensor:
    """a · b (+ acc) into registers; the operands are read when the product lands, not when it is issued."""
    machine.step()
    if not isinstance(b, View):
        raise ModelError("warpgroup_mma takes b from shared memory")
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    if b.shape[0] != inner or acc.shape != [rows, columns]:
        raise ModelError(f"warpgroup_mma of {a.shape} and {b.shape} into {acc.shape}")
    if machine.cluster is not None:
        _check_operands(machine.cluster, a, b, acc)
    result = Tensor(torch.empty(rows, columns, dtype=acc._data.dtype), acc.dtype, acc.layout)
    in_registers = None if isinstance(a, View) else raw(a)

    def land(operation):
        left = a.data if in_registers is None else in_registers
        result._data = multiply(left, b.data, acc._data if use_acc else None, result._data.dtype)

    before = acc.product
    if before is not None and before.operation.issuer is not machine.me:
        before.used_early(acc)
    reads = [view for view in (a, b) if isinstance(view, View)]
    operation = machine.issue("matrix product", TENSOR_CORE, land, reads, queue=machine.me.products)
    result.product = Product(machine, operation)
    if not is_async:
        machine.join(operation)
    return result


def _check_operands(cluster, a, b: View, acc: Tensor) -> None:
    """That a CTA has the rows of a and the columns of b that its sums are of, all of each."""
    mine, _ = cluster.part(acc.layout, acc.shape)
    if mine is None:
        mine = torch.ones(acc.shape, dtype=torch.bool)
    held = a.held if isinstance(a, View) else cluster.part(a.layout, a.shape)[0]
    cluster.check_within(mine.any(1, keepdim=True).expand(a.shape), held, "a of warpgroup_mma")
    cluster.check_within(mine.any(0, keepdim=True).expand(b.shape), b.held, f"b of warpgroup_mma, {b.label}")


def product_wait(machine, outstanding: int) -> None:
    """Wait until at most ``outstanding`` of the partition's products are running."""
    operations = machine.me.products.operations
    if len(operations) > outstanding:
        machine.join(operations[len(operations) - 1 - outstanding])


def tensor_product(machine, a, b: View, acc: View, use_acc: bool) -> None:
    """a · b (+ acc) in tensor memory, asynchronously; ``commit`` says when it is over."""
    if b.shape[0] != a.shape[1] or acc.shape != [a.shape[0], b.shape[1]]:
        raise ModelError(f"tcgen05_mma of {a.shape} and {b.shape} into {acc.shape}")

    def land(operation):
        acc.fill(multiply(a.data, b.data, acc.data if use_acc else None, acc.data.dtype))

    reads = [a, b, acc] if use_acc else [a, b]
    machine.issue("matrix product", TENSOR_CORE, land, reads, [acc], machine.me.products)


def tensor_copy(machine, source: View, target: View) -> None:
    """Shared memory to tensor memory, in order with the products."""

    def land(operation):
        target.fill(source.data.reshape(target.shape))

    machine.issue("copy to tensor memory", TENSOR_CORE, land, [source], [target], machine.me.products)


def commit(machine, barrier_view) -> None:
    """Arrive on a barrier once all products that this partition has issued so far are complete."""
    barrier = machine.barrier(barrier_view, "a commit")

    def land(operation):
        machine.arrive(barrier, 1, operation)

    phase = barrier.known(machine.me)
    signals = [(barrier, phase)]
    unsignalled = itertools.takewhile(
        lambda o: all(known is not barrier for known, _ in o.signals), reversed(machine.me.products.operations)
    )
    for one in unsignalled:
        one.signals += signals
    operation = machine.issue("commit", TENSOR_CORE, land, [barrier_view], queue=machine.me.products)
    operation.signals = signals


def global_access(machine, pointer: Pointer, mask, what: str):
    """The memory, the offsets and the lanes of a pointer access that lie in its tensor and are not masked off."""
    flat, offsets = pointer.flat, pointer.data
    shape = torch.broadcast_shapes(offsets.shape, raw(mask).shape) if isinstance(mask, Tensor) else offsets.shape
    active = torch.ones(shape, dtype=torch.bool) if mask is None else torch.as_tensor(raw(mask)).bool().expand(shape)
    if machine.cluster is not None:
        layout = pointer.layout or getattr(mask, "layout", None)
        active = active & machine.cluster.lanes(layout, shape, alone=what != "loads")
    offsets = offsets.expand(shape)
    outside = active & ((offsets < 0) | (offsets >= len(flat)))
    if bool(outside.any()):
        machine.conflicts.out_of_bounds(pointer, what, int(offsets[outside].flatten()[0]), len(flat))
    return flat, offsets, active & ~outside
