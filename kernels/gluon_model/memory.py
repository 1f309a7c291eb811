"""Shared memory, tensor memory and barriers as a kernel allocates them, and the views that it takes of them."""

from __future__ import annotations

import torch

from kernels.gluon_model.races import History
from kernels.gluon_model.values import TORCH, BlockType, ModelError, Shape, Tensor, poison

SHARED, TENSOR, BARRIER = "shared memory", "tensor memory", "barrier"


class Allocation:
    """A named piece of on-chip memory: its numbers, which of them have been written, and who touched which."""

    def __init__(self, kind: str, name: str, dtype, shape):
        self.kind, self.name, self.dtype, self.shape = kind, name, dtype, tuple(shape)
        self.data = poison(self.shape, TORCH[dtype])
        self.written = torch.zeros(self.shape, dtype=torch.bool)
        self.history = History()
        self.barriers: dict[tuple, object] = {}
        # In a cluster: the mask of what is its CTA's (None: everything), whose it is, all CTAs' pieces, and for a barrier
        # the CTA that it lies in and how many share it.
        self.held, self.owner, self.peers, self.lead, self.sharing = None, None, [self], 0, 1

    def hold(self, mask: torch.Tensor | None) -> None:
        """What is not in a CTA's hands is nobody's to write: nothing of it is missing."""
        self.held = mask
        if mask is not None:
            self.written |= ~mask


class View:
    """Part of an allocation, as ``.index``, ``.slice``, ``.permute`` and ``.reshape`` cut it out.

    ``box``: the part of the allocation, a range along each of its dimensions. ``axes``: which of those dimensions
    each dimension of the view runs along (None after a reshape, when the box is no longer cut finer).
    """

    def __init__(self, machine, allocation: Allocation, data, written, held, box, axes, layout=None):
        self.machine, self.allocation, self.data, self.written, self.held = machine, allocation, data, written, held
        self.box, self.axes, self.layout = box, axes, layout

    @classmethod
    def whole(cls, machine, allocation: Allocation, layout) -> View:
        """All of an allocation."""
        box = tuple((0, size) for size in allocation.shape)
        parts = allocation.data, allocation.written, allocation.held
        return cls(machine, allocation, *parts, box, tuple(range(len(box))), layout)

    def _with(self, change, box, axes) -> View:
        """Another cut of the same memory; ``change`` takes it out of each of the tensors that say something of it."""
        parts = (None if part is None else change(part) for part in (self.data, self.written, self.held))
        return View(self.machine, self.allocation, *parts, box, axes, self.layout)

    def at(self, cta: int) -> View:
        """The same place in the memory of another CTA of the cluster."""
        there, like = self.allocation.peers[cta], self.data
        parts = (
            None if part is None else part.as_strided(like.shape, like.stride(), like.storage_offset())
            for part in (there.data, there.written, there.held)
        )
        return View(self.machine, there, *parts, self.box, self.axes, self.layout)

    @property
    def dtype(self):
        return self.allocation.dtype

    @property
    def shape(self) -> Shape:
        """The sizes, as the kernel sees them."""
        return Shape(self.data.shape)

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return self.data.dim()

    @property
    def numel(self) -> int:
        """How many elements."""
        return self.data.numel()

    @property
    def type(self):
        """Kernels ask the type for the same things."""
        return self

    @property
    def element_ty(self):
        """The elements' type, by its other name."""
        return self.dtype

    @property
    def nbytes(self) -> int:
        """Bytes, in a cluster of this CTA's part."""
        shape = self.shape if self.held is None else (int(self.held.sum()),)
        return BlockType(self.dtype, shape).nbytes

    nbytes_per_cta = nbytes

    @property
    def label(self) -> str:
        """What a reader would call it: ``a[1]``, ``acc[0][:, 64:128]``, ``a[1] of CTA 0``."""
        owner = self.allocation.owner
        return self._label if owner is None else f"{self._label} of {owner}"

    @property
    def _label(self) -> str:
        name, sizes = self.allocation.name, self.allocation.shape
        if self.allocation.kind == BARRIER:
            return f"{name}[{self.box[0][0]}]" if len(sizes) > 1 else name
        cut = [":" if (a, b) == (0, n) else f"{a}" if b - a == 1 else f"{a}:{b}" for (a, b), n in zip(self.box, sizes)]
        lead, rest = ([cut[0]], cut[1:]) if len(cut) > 2 else ([], cut)
        first = f"[{lead[0]}]" if lead and (lead[0] != ":" or sizes[0] == 1) else ""
        if lead and sizes[0] == 1:
            first = "[0]"
        return name + first + ("" if set(rest) <= {":"} else f"[{', '.join(rest)}]")

    def _cut(self, dim: int, start: int, length: int, keep: bool) -> View:
        size = self.data.shape[dim]
        if not 0 <= start <= start + length <= size:
            what = f"index {start}" if not keep else f"elements {start} to {start + length}"
            raise ModelError(f"{self.label}: {what} of {size}")
        axes, box = self.axes, list(self.box)
        if axes is not None:
            first = box[axes[dim]][0] + start
            box[axes[dim]] = (first, first + length)
        if keep:
            return self._with(lambda part: part.narrow(dim, start, length), tuple(box), axes)
        axes = axes and axes[:dim] + axes[dim + 1 :]
        return self._with(lambda part: part.select(dim, start), tuple(box), axes)

    def index(self, index) -> View:
        """One slice along the first dimension, which goes away."""
        return self._cut(0, int(index), 1, keep=False)

    def slice(self, start, length, dim=None) -> View:
        """``length`` elements from ``start`` along a dimension."""
        if dim is None:
            dim = 1 if self.allocation.kind == TENSOR else 0
        return self._cut(int(dim), int(start), int(length), keep=True)

    def permute(self, order) -> View:
        """The dimensions in another order."""
        order = [int(o) for o in order]
        axes = self.axes and tuple(self.axes[o] for o in order)
        return self._with(lambda part: part.permute(order), self.box, axes)

    def reshape(self, shape) -> View:
        """The same elements in other sizes."""
        shape = [int(size) for size in shape]
        return self._with(lambda part: part.view(shape), self.box, None)

    def reinterpret(self, dtype=None, shape=None, layout=None) -> View:
        """The same memory in other sizes; other types are not modelled."""
        if dtype not in (None, self.dtype):
            raise ModelError(f"{self.label}: the model does not reinterpret {self.dtype} as {dtype}")
        return self if shape is None else self.reshape(shape)

    _reinterpret = reinterpret

    def get_reg_layout(self, num_warps=None, instr_variant="32x32b"):
        """Layouts are accepted everywhere and used nowhere."""
        return None

    def load(self, layout=None) -> Tensor:
        """Read into registers."""
        if self.machine.cluster is not None:
            wanted, _ = self.machine.cluster.part(layout, self.shape)
            self.machine.cluster.check_within(wanted, self.held, f"a load of {self.label}")
        self.machine.step()
        self.machine.touch(self, write=False)
        self.machine.note("read", self)
        return Tensor(self.data.clone(), self.dtype, layout)

    def store(self, value, pred=True) -> None:
        """Write from registers."""
        if not pred:
            return
        if value.shape != self.shape or value.dtype != self.dtype:
            raise ModelError(
                f"{value.dtype}{list(value.shape)} cannot be stored in {self.label}: {self.dtype}{list(self.shape)}"
            )
        if self.machine.cluster is not None:
            held, _ = self.machine.cluster.part(value.layout, value.shape)
            self.machine.cluster.check_within(self.held, held, f"a store to {self.label}")
        self.machine.step()
        self.machine.touch(self, write=True)
        self.machine.note("write", self)
        self.fill(value.data)

    def _keep_alive(self) -> None:
        """Keeps an allocation alive for the compiler; here all live as long as their program."""

    def fill(self, data: torch.Tensor) -> None:
        """Write the numbers, in a cluster those of this CTA's part, without asking who may."""
        if self.held is None:
            self.data.copy_(data)
        else:
            self.data[self.held] = data[self.held]
        self.written.fill_(True)
