"""What one call asks for, checked and put in the kernels' terms: sizes, layouts, compiled mods, launch options."""

import operator
from dataclasses import dataclass
from functools import cached_property

import torch

from kernels import runtime
from kernels.common.configs import configuration, declare
from kernels.common.math import LOG2_E, bits, block
from kernels.flex_attention.mods import device as device_functions
from kernels.flex_attention.mods.compiler import CompiledMod
from kernels.flex_attention.mods.extent import Extent
from kernels.flex_attention.options import OPTIONS

KERNELS = (
    "forward", "forward_narrow", "forward_hopper", "forward_hopper_tall", "forward_hopper_small", "decoding",
    "backward_dq", "backward_dkdv", "backward_dq_from_ds", "backward_hopper",
)  # fmt: skip
#: What each kernel for any GPU reads by TMA where its table says so and the tensors' strides fit.
READ_BY_TMA = {
    "forward": ("key", "value"), "forward_narrow": ("key", "value"), "decoding": ("key", "value"),
    "backward_dq": ("key", "value"), "backward_dkdv": ("query",), "backward_dq_from_ds": ("key",),
}  # fmt: skip
HEADS = (64, 128, 256)
_classes = [f"d{d} {size}-bit {kind}" for d in HEADS for size in (16, 32) for kind in ("plain", "mod")]
declare("flex_attention", {kernel: ["default", *_classes] for kernel in KERNELS})


def table_options(kernel, key, device):
    """What the table of configurations says; the interpreter takes the same tiles for all classes."""
    return configuration("flex_attention", kernel, "default" if runtime.interpreted else key, device)


@dataclass(eq=False)
class Problem:
    """All that a plan depends on. Sizes as in the docstring of ``flex_attention``.

    layouts: of query, key and value ``(strides, whether TMA can read it)``. score, mask: the compiled mods, or
    ``None``. BLOCK_SIZE: of the block mask, ``None`` without one; lists: the names of its lists that there are; list_heads:
    for how many heads. precision: how float32 is multiplied. extent: see ``extent.extent_of``.
    """

    B: int
    Hq: int
    Hkv: int
    Bkv: int
    M: int
    N: int
    D: int
    Dv: int
    dtype: torch.dtype
    device: torch.device
    layouts: dict
    scale: float
    score: CompiledMod | None
    mask: CompiledMod | None
    BLOCK_SIZE: tuple[int, int] | None
    lists: tuple
    list_heads: int
    options: dict
    precision: str
    extent: Extent

    def __post_init__(self):
        self._cached = {}

    def cached(self, make, *of):
        """``make(self, *of)``, made once: what is the same in every call of this problem."""
        key = make, *of
        if key not in self._cached:
            self._cached[key] = make(self, *of)
        return self._cached[key]

    def tma(self, *names):
        """Whether TMA can read all of them."""
        return all(self.layouts[name][1] for name in names)

    @cached_property
    def outputs(self):
        """``(shape, strides)`` of o: its dimensions lie in memory in the order in which query's do."""
        strides, _ = self.layouts["query"]
        shape = self.B, self.Hq, self.M, self.Dv
        query = torch.empty_strided((*shape[:3], self.D), strides, dtype=self.dtype, device="meta")
        return shape, like_strided(query, shape).stride()

    @cached_property
    def G(self):
        """Query heads that share a key head."""
        return self.Hq // max(self.Hkv, 1)

    @cached_property
    def shared(self):
        """Batch rows that share a batch row of keys."""
        return self.B // max(self.Bkv, 1)

    # The kernels' compile-time arguments.

    @cached_property
    def score_mod(self):
        """Triton's score mod. ``None``, and the scale folded into ``unit``, needs a scale above zero: the running maximum of
        scale * s is then scale times the maximum of s."""
        if self.score is None or self.score.value is None:
            return None if self.scale > 0 else device_functions.unchanged
        return self.score.value

    @cached_property
    def score_gradient(self):
        """Triton's derivative of the score mod."""
        if self.score is None or self.score.value is None:
            return device_functions.unchanged_gradient
        return self.score.gradient

    @cached_property
    def mask_mod(self):
        """Triton's mask mod, for partial blocks."""
        return None if self.mask is None else self.mask.value

    def mods(self):
        """What kernels of the backward pass are compiled with."""
        return {"SCORE_MOD": self.score_mod, "SCORE_GRADIENT": self.score_gradient, "MASK_MOD": self.mask_mod}

    @cached_property
    def unit(self):
        """Logits in base 2 are ``unit`` times what ``logits`` returns."""
        return LOG2_E if self.score_mod is not None else self.scale * LOG2_E

    # Blocks.

    @cached_property
    def sparse(self):
        """Whether blocks are visited by a mask's lists; without queries or keys there is no block, whatever they name."""
        return self.BLOCK_SIZE is not None and self.M > 0 < self.N

    @cached_property
    def SPARSE_M(self):
        """Queries in a block; a block that holds them all is cut to them; 0 without a block mask."""
        return self._block(0, self.M)

    @cached_property
    def SPARSE_N(self):
        """Keys in a block."""
        return self._block(1, self.N)

    def _block(self, axis, length):
        return min(self.BLOCK_SIZE[axis], block(length)) if self.sparse else 0

    @cached_property
    def list_sizes(self):
        """``{name: (rows that are asked for, blocks that there are)}`` of the mask's pairs of lists."""
        rows, columns = cdiv(self.M, self.BLOCK_SIZE[0]), cdiv(self.N, self.BLOCK_SIZE[1])
        names = [name.removesuffix("_indices") for name in self.lists if name.endswith("_indices")]
        return {name: (rows, columns) if name.endswith("kv") else (columns, rows) for name in names}

    @cached_property
    def BLOCK_DV(self):
        """Columns of a tile of values."""
        return columns(self.Dv)

    @staticmethod
    def tiles(length, SPARSE, BLOCK):
        """Tiles of BLOCK that cover ``length``; tiles never cross blocks of SPARSE."""
        return cdiv(length, SPARSE) * cdiv(SPARSE, BLOCK) if SPARSE else cdiv(length, BLOCK)

    # Launch options.

    @cached_property
    def key(self):
        """The class of sizes and dtypes in the table of configurations."""
        head = next((d for d in HEADS if max(self.D, self.Dv) <= d), None)
        return f"d{head} {bits(self.dtype)} {'plain' if self.score_mod is None else 'mod'}" if head else "default"

    @cached_property
    def workspace(self):
        """Bytes that the backward pass may use to keep ds."""
        if "WORKSPACE" in self.options:
            return self.options["WORKSPACE"]
        return table_options("backward_dq_from_ds", self.key, self.device)["WORKSPACE"]

    def launch_options(self, kernel):
        """BLOCK_M, BLOCK_N, num_warps, num_stages of ``kernel``: the table's, the caller's over them, cut to the problem."""
        table = table_options(kernel, self.key, self.device)
        by_tma = table.get("TMA", False) and self.tma(*READ_BY_TMA[kernel])
        options = {name: table[name] for name in OPTIONS if name in table} | {"TMA": by_tma}
        prefix = "bwd_" if kernel.startswith("backward") else ""
        options |= {name: self.options[prefix + name] for name in OPTIONS if prefix + name in self.options}
        if kernel == "decoding":  # its tile holds all rows
            options.pop("BLOCK_M", None)
        else:
            options["BLOCK_M"] = _fit(options["BLOCK_M"], self.M, self.SPARSE_M)
        options["BLOCK_N"] = _fit(options["BLOCK_N"], self.N, self.SPARSE_N)
        return options


def like_strided(x, shape):
    """Uninitialized memory of ``shape`` whose dimensions lie in memory in the order in which x's do."""
    if x.is_contiguous() and x.shape == shape:
        return torch.empty_like(x)
    strides = x.stride()
    if all(map(operator.ge, strides, strides[1:])):
        return torch.empty(shape, dtype=x.dtype, device=x.device)
    order = []
    for i, stride in enumerate(
        strides
    ):  # put where it belongs: a tracer compares strides that have no value, but sorts none
        at = len(order)
        while at and strides[order[at - 1]] < stride:
            at -= 1
        order.insert(at, i)
    memory = torch.empty([shape[i] for i in order], dtype=x.dtype, device=x.device)
    return memory.permute([order.index(i) for i in range(len(shape))])


def _fit(BLOCK, length, SPARSE):
    """The tile for ``length`` rows in blocks of SPARSE: a power of two, at least 16, that divides a block if it can."""
    BLOCK = min(BLOCK, columns(length))
    if SPARSE and SPARSE % BLOCK:
        divisor = SPARSE & -SPARSE
        BLOCK = min(BLOCK, divisor if divisor >= 16 else columns(SPARSE))
    return BLOCK


def has_edge(length, SPARSE, BLOCK):
    """Whether some tile reaches past the end or past its block. Of the last block all tiles are visited: some of them may lie
    behind the end, although tiles alone would divide the length."""
    return length % (SPARSE or BLOCK) != 0 or SPARSE % BLOCK != 0


# Triton has this, too, as a function that its compiler can call; around a launch it takes longer than it computes.


def cdiv(a, b):
    """The quotient, rounded up."""
    return -(-a // b)


columns = block  # of a tile: a head, filled up with zeros
