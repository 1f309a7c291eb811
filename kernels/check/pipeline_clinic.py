"""The checks of exercise 09: three mended pipelines, how each is launched, and what must hold for it."""

import torch

from kernels.check.framework import Draw
from kernels.check.pipelines import Compiled, Launch, Pipeline, Property, Tallied


def described(x: torch.Tensor, *block: int):
    """A descriptor of ``x`` in tiles of this size, as Hopper's shared memory takes them."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    dtype = {torch.float16: gl.float16, torch.float32: gl.float32}[x.dtype]
    return TensorDescriptor.from_tensor(x, list(block), gl.NVMMASharedLayout.get_default_for(list(block), dtype))


def layout(kind: str):
    """The registers' layout of the relay ("rows"), or of the sums of a product ("product")."""
    from triton.experimental.gluon import language as gl

    if kind == "rows":
        return gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])


def relay(draw: Draw, stages: int, steps: int, rows: int = 16, cut: int = 0) -> Launch:
    """y = x² in tiles of 16 × 16; ``cut``: columns that the last tile lacks."""
    width = 16 * steps - cut
    x, y = draw.normal(rows, width), torch.full((rows, width), float("nan"))
    args = described(x, 16, 16), described(y, 16, 16), width, layout("rows"), stages
    sizes = f"STAGES = {stages}, steps = {steps}, elements = {rows} × {width}"
    return Launch(-(-rows // 16), args, y, x.double() ** 2, sizes)


def product(draw: Draw, stages: int, M: int, N: int, K: int, programs: int = 1) -> Launch:
    """c = a · b in tiles of 32 × 32, 16 along K."""
    a, b = draw.normal(M, K, dtype=torch.float16), draw.normal(K, N, dtype=torch.float16)
    c = torch.full((M, N), float("nan"))
    args = described(a, 32, 16), described(b, 16, 32), c, M, N, K, layout("product"), stages
    tiles, steps = -(-M // 32) * -(-N // 32), -(-K // 16)
    sizes = f"STAGES = {stages}, tiles = {tiles}, steps of each = {steps}, programs = {programs}"
    return Launch(programs, args, c, a.double() @ b.double(), sizes)


def _rounds(draw: Draw, stages: int) -> int:
    """Steps in which a ring turns three times and a bit."""
    return 3 * stages + draw.size(1, 1, 2)


def _relay_on_hopper() -> tuple:
    x = torch.zeros(64, 256)
    return described(x, 16, 64), described(x, 16, 64), 256, layout("rows"), 3


def _product_on_hopper(rows: int) -> tuple:
    a, b, c = torch.zeros(256, 256).half(), torch.zeros(256, 256).half(), torch.zeros(256, 256)
    return described(a, rows, 64), described(b, 64, 32), c, 256, 256, 256, layout("product"), 3


RELAY = Pipeline(
    "mended_relay",
    "the worker does nothing yet. It needs waits, a read, a store and arrivals.",
    (
        Property("first round", 3, "Lesson 50, step 2", lambda draw: [relay(draw, 3, 3), relay(draw, 3, 2)]),
        Property(
            "three rounds",
            3,
            "Lesson 50, step 2",
            lambda draw: [relay(draw, stages, _rounds(draw, stages)) for stages in (2, 3)],
        ),
        Property("a ring of one", 2, "Lesson 50, step 1", lambda draw: [relay(draw, 1, _rounds(draw, 1))]),
        Property(
            "ragged ends",
            2,
            "Lesson 50, step 3",
            lambda draw: [relay(draw, 2, 5, rows=draw.size(20, 17, 31), cut=draw.size(4, 4, 12, multiple_of=4))],
        ),
    ),
    Compiled(_relay_on_hopper, {"UTMALDG": 1, "UTMASTG": 1}, "Lesson 50, step 3"),
    Tallied(lambda draw: relay(draw, 2, 5), 5, 11, "Lesson 50, step 2"),
)


def _one_tile(draw: Draw) -> list[Launch]:
    return [product(draw, 3, 32, 32, 48), product(draw, 3, 32, 32, 32)]


def _many_steps(draw: Draw) -> list[Launch]:
    return [product(draw, stages, 32, 32, 16 * _rounds(draw, stages)) for stages in (1, 2, 3)]


def _many_tiles(draw: Draw) -> list[Launch]:
    steps = draw.size(3, 3, 5, but_not_of=4)
    return [
        product(draw, 2, 96, 64, 16 * steps),
        product(draw, 3, 64, 96, 16 * steps, programs=2),
        product(draw, 2, 32, 128, 16),
    ]


def _ragged(draw: Draw) -> list[Launch]:
    sizes = draw.size(50, 33, 63), draw.size(40, 40, 56, multiple_of=8), draw.size(72, 72, 88, multiple_of=8)
    return [product(draw, 2, *sizes), product(draw, 3, *sizes, programs=3)]


TILES = Pipeline(
    "mended_tiles",
    "loader or multiplier does nothing yet. Both need a loop over tiles, and one over steps.",
    (
        Property("one tile", 2, "Lesson 50, step 4", _one_tile),
        Property("more steps than buffers", 2, "Lesson 50, step 2", _many_steps),
        Property("several tiles", 4, "Lesson 50, step 4", _many_tiles),
        Property("ragged ends", 2, "Lesson 50, step 4", _ragged),
    ),
    Compiled(lambda: _product_on_hopper(64), {"UTMALDG": 2, "HGMMA": 4}, "Lesson 50, step 4"),
    Tallied(lambda draw: product(draw, 2, 64, 64, 80), 20, 8, "Lesson 50, step 4"),
)


HALVES = Pipeline(
    "mended_halves",
    "the multipliers do nothing yet. They need waits, a product and a release.",
    (
        Property("first round", 3, "Lesson 50, step 4", _one_tile),
        Property(
            "three rounds",
            5,
            "Lesson 50, step 6",
            lambda draw: [product(draw, stages, 32, 32, 16 * _rounds(draw, stages)) for stages in (2, 3)],
        ),
        Property(
            "ragged ends",
            2,
            "Lesson 50, step 4",
            lambda draw: [product(draw, 2, draw.size(20, 17, 31), 24, draw.size(72, 72, 88, multiple_of=8))],
        ),
    ),
    Compiled(lambda: _product_on_hopper(128), {"UTMALDG": 2, "HGMMA": 8}, "Lesson 50, step 4"),
    Tallied(lambda draw: product(draw, 2, 32, 32, 80), 5, 12, "Lesson 50, step 6"),
)
