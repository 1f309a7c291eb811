"""What one call asks for, checked and put in the kernels' terms: sizes, compiled mods, lists of blocks, launch options."""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
import triton

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.precision import matmul_in_tf32
from kernels.flex_attention import block_mask as masks
from kernels.flex_attention.mods import device
from kernels.flex_attention.mods.bind import BoundMod
from kernels.flex_attention.options import OPTIONS

LOG2E = math.log2(math.e)


def table_options(kernel, key, device):
    """What the table of configurations says; the interpreter takes the same tiles for all classes."""
    return configuration("flex_attention", kernel, "default" if runtime.interpreted else key, device)


@dataclass
class BlockLists:
    """The lists of a block mask, without its mask mod."""

    BLOCK_SIZE: tuple[int, int]
    kv_num_blocks: torch.Tensor | None
    kv_indices: torch.Tensor | None
    full_kv_num_blocks: torch.Tensor | None
    full_kv_indices: torch.Tensor | None
    q_num_blocks: torch.Tensor | None
    q_indices: torch.Tensor | None
    full_q_num_blocks: torch.Tensor | None
    full_q_indices: torch.Tensor | None


BlockLists.NAMES = tuple(field.name for field in fields(BlockLists))[1:]


@dataclass
class Problem:
    """Sizes as in the docstring of ``flex_attention``; score and mask: the compiled mods, or ``None``."""

    B: int
    Hq: int
    Hkv: int
    M: int
    N: int
    D: int
    Dv: int
    dtype: torch.dtype
    device: torch.device
    scale: float
    score: BoundMod | None
    mask: BoundMod | None
    block_mask: masks.BlockMask | BlockLists | None
    options: dict

    @property
    def G(self):
        """Query heads that share a key head."""
        return self.Hq // max(self.Hkv, 1)

    # What autograd has to know of: the tensors, beside query, key and value, that both passes read.

    def parted(self):
        """``(problem without tensors, tensors)``: captured ones and lists of blocks, for autograd to save."""
        bare = {}
        tensors = []
        for name in ("score", "mask"):
            if (mod := getattr(self, name)) is not None:
                tensors += mod.captured
                bare[name] = replace(mod, captured=(None,) * len(mod.captured))
        if self.block_mask is not None:
            lists = [getattr(self.block_mask, name) for name in BlockLists.NAMES]
            tensors += lists
            bare["block_mask"] = BlockLists(self.block_mask.BLOCK_SIZE, *[None] * len(lists))
        return replace(self, **bare), tensors

    def with_tensors(self, tensors):
        """The problem again, from ``parted``'s two, whose tensors autograd may have moved and given back."""
        tensors = iter(tensors)
        whole = {
            name: replace(mod, captured=tuple(next(tensors) for _ in mod.captured))
            for name in ("score", "mask")
            if (mod := getattr(self, name)) is not None
        }
        if self.block_mask is not None:
            whole["block_mask"] = BlockLists(self.block_mask.BLOCK_SIZE, *tensors)
        return replace(self, **whole)

    def shared(self, key):
        """Batch rows that share a batch row of ``key``."""
        return self.B // max(key.shape[0], 1)

    # The kernels' compile-time arguments.

    @property
    def score_mod(self):
        """Triton's score mod. ``None``, and the scale folded into ``unit``, needs a scale above zero: the running maximum of
        scale * s is then scale times the maximum of s."""
        if self.score is None or self.score.compiled.value is None:
            return None if self.scale > 0 else device.unchanged
        return self.score.compiled.value

    @property
    def score_gradient(self):
        """Triton's derivative of the score mod."""
        if self.score is None or self.score.compiled.value is None:
            return device.unchanged_gradient
        return self.score.compiled.gradient

    @property
    def mask_mod(self):
        """Triton's mask mod, for partial blocks."""
        return None if self.mask is None else self.mask.compiled.value

    @cached_property
    def score_tables(self):
        """What the score mod reads."""
        return () if self.score is None else self.score.tables()

    @cached_property
    def mask_tables(self):
        """What the mask mod reads."""
        return () if self.mask is None else self.mask.tables()

    @property
    def unit(self):
        """Logits in base 2 are ``unit`` times what ``logits`` returns."""
        return LOG2E if self.score_mod is not None else self.scale * LOG2E

    # Blocks.

    @property
    def SPARSE_M(self):
        """Queries in a block; a block that holds them all is cut to them."""
        return self._block(0, self.M)

    @property
    def SPARSE_N(self):
        """Keys in a block."""
        return self._block(1, self.N)

    def _block(self, axis, length):
        if self.block_mask is None:
            return 0
        return min(self.block_mask.BLOCK_SIZE[axis], triton.next_power_of_2(max(length, 16)))

    @cached_property
    def partial(self):
        """Partial blocks of each block of queries."""
        mask = self.block_mask
        return None if mask is None else _lists(mask.kv_num_blocks, mask.kv_indices)

    @cached_property
    def full(self):
        """Full blocks of each block of queries."""
        mask = self.block_mask
        if mask is None or mask.full_kv_num_blocks is None:
            return None
        return _lists(mask.full_kv_num_blocks, mask.full_kv_indices)

    @cached_property
    def transposed(self):
        """``(partial, full)`` blocks of queries of each block of keys."""
        mask = self.block_mask
        if mask is None:
            return None, None
        rows, columns = triton.cdiv(self.M, self.SPARSE_M), triton.cdiv(self.N, self.SPARSE_N)

        def transpose(num, indices, q_num, q_indices):
            if num is None:
                return None
            if q_num is None or q_num.shape[-1] < columns:  # not given, or made from lists that were cut short
                dense = masks.dense_blocks(num[..., :rows], indices[..., :rows, :], columns)
                q_num, q_indices = masks.ordered_lists(dense.mT)
            return _lists(q_num, q_indices)

        return (
            transpose(mask.kv_num_blocks, mask.kv_indices, mask.q_num_blocks, mask.q_indices),
            transpose(mask.full_kv_num_blocks, mask.full_kv_indices, mask.full_q_num_blocks, mask.full_q_indices),
        )

    @staticmethod
    def tiles(length, SPARSE, BLOCK):
        """Tiles of BLOCK that cover ``length``; tiles never cross blocks of SPARSE."""
        return triton.cdiv(length, SPARSE) * triton.cdiv(SPARSE, BLOCK) if SPARSE else triton.cdiv(length, BLOCK)

    # Launch options.

    @property
    def key(self):
        """The class of sizes and dtypes in the table of configurations."""
        head = next((d for d in (64, 128, 256) if max(self.D, self.Dv) <= d), None)
        bits = 8 * self.dtype.itemsize
        return f"d{head} {bits}-bit {'plain' if self.score_mod is None else 'mod'}" if head else "default"

    @property
    def workspace(self):
        """Bytes that the backward pass may use to keep ds."""
        if "WORKSPACE" in self.options:
            return self.options["WORKSPACE"]
        return table_options("backward_dq_from_ds", self.key, self.device)["WORKSPACE"]

    def launch_options(self, kernel):
        """BLOCK_M, BLOCK_N, num_warps, num_stages of ``kernel``: the table's, the caller's over them, cut to the problem."""
        table = table_options(kernel, self.key, self.device)
        options = {name: table[name] for name in OPTIONS if name in table} | {"TMA": table.get("TMA", False)}
        prefix = "bwd_" if kernel.startswith("backward") else ""
        options |= {name: self.options[prefix + name] for name in OPTIONS if prefix + name in self.options}
        if kernel == "decoding":  # its tile holds all rows
            options.pop("BLOCK_M", None)
        else:
            options["BLOCK_M"] = _fit(options["BLOCK_M"], self.M, self.SPARSE_M)
        options["BLOCK_N"] = _fit(options["BLOCK_N"], self.N, self.SPARSE_N)
        return options

    def static(self, options):
        """Compile-time arguments that every kernel takes, for these launch options."""
        BLOCK_M, BLOCK_N = options["BLOCK_M"], options["BLOCK_N"]
        return {
            "D": self.D,
            "DV": self.Dv,
            "SPARSE": self.block_mask is not None,
            "SPARSE_M": self.SPARSE_M or 1,
            "SPARSE_N": self.SPARSE_N or 1,
            "EDGE_M": self.M % BLOCK_M != 0 or self.SPARSE_M % BLOCK_M != 0,
            "EDGE_N": self.N % BLOCK_N != 0 or self.SPARSE_N % BLOCK_N != 0,
            "PRECISION": self.precision,
            "BLOCK_D": max(16, triton.next_power_of_2(self.D)),
            "BLOCK_DV": max(16, triton.next_power_of_2(self.Dv)),
        }

    @property
    def precision(self):
        """How float32 is multiplied: as torch is set."""
        return "ieee" if self.dtype == torch.float32 and not matmul_in_tf32() else "tf32"


def _lists(num_blocks, indices):
    """``(num_blocks, indices, batch stride, head stride, width)`` in rows; a batch or head of one serves all."""
    B, H, rows = num_blocks.shape
    num_blocks, indices = (t.to(torch.int32).contiguous() for t in (num_blocks, indices))
    return num_blocks, indices, H * rows if B > 1 else 0, rows if H > 1 else 0, indices.shape[-1]


def _fit(BLOCK, length, SPARSE):
    """The tile for ``length`` rows in blocks of SPARSE: a power of two, at least 16, that divides a block if it can."""
    BLOCK = min(BLOCK, max(16, triton.next_power_of_2(length)))
    if SPARSE and SPARSE % BLOCK:
        divisor = SPARSE & -SPARSE
        BLOCK = min(BLOCK, divisor if divisor >= 16 else max(16, triton.next_power_of_2(SPARSE)))
    return BLOCK
