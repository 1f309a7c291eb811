"""Exercise 09: three mended pipelines, how each is launched, and what must hold for it."""

import functools

import torch

from kernels.check.framework import Draw, Property, Size, calls
from kernels.check.pipelines import Compiled, Launch, Pipeline, Tallied


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


def relay(draw: Draw, stages: int, steps: int, rows=16, cut=0) -> Launch:
    """y = x² in tiles of 16 × 16; ``cut``: columns that the last tile lacks."""
    width = 16 * steps - cut
    x, y = draw.normal(rows, width), torch.full((rows, width), float("nan"))
    args = described(x, 16, 16), described(y, 16, 16), width, layout("rows"), stages
    sizes = f"STAGES = {stages}, steps = {steps}, elements = {rows} × {width}"
    return Launch(-(-rows // 16), args, y, x.double() ** 2, sizes)


def product(draw: Draw, stages: int, M=32, N=32, K=48, *, steps=0, programs=1) -> Launch:
    """c = a · b in tiles of 32 × 32, 16 along K, which is ``steps`` of them unless told."""
    K = 16 * steps or K
    a, b = draw.normal(M, K, dtype=torch.float16), draw.normal(K, N, dtype=torch.float16)
    c = torch.full((M, N), float("nan"))
    args = described(a, 32, 16), described(b, 16, 32), c, M, N, K, layout("product"), stages
    tiles, each = -(-M // 32) * -(-N // 32), -(-K // 16)
    sizes = f"STAGES = {stages}, tiles = {tiles}, steps of each = {each}, programs = {programs}"
    return Launch(programs, args, c, a.double() @ b.double(), sizes)


def relay_on_hopper() -> tuple:
    """The relay's arguments in the size that Hopper has in mind."""
    x = torch.zeros(64, 256)
    return described(x, 16, 64), described(x, 16, 64), 256, layout("rows"), 3


def product_on_hopper(rows: int) -> tuple:
    """The product's, for tiles of so many rows."""
    a, b, c = torch.zeros(256, 256).half(), torch.zeros(256, 256).half(), torch.zeros(256, 256)
    return described(a, rows, 64), described(b, 64, 32), c, 256, 256, 256, layout("product"), 3


relays, products = (functools.partial(calls, make) for make in (relay, product))
# Steps in which a ring turns three times and a bit.
ROUNDS = tuple({"stages": n, "steps": Size(3 * n + 1, 3 * n + 1, 3 * n + 2)} for n in (1, 2, 3))
RAGGED = {"K": Size(72, 72, 88, 8)}
SIZES = RAGGED | {"M": Size(50, 33, 63), "N": Size(40, 40, 56, 8)}
STEPS = {"steps": Size(3, 3, 5, 1, 4)}
ONE_TILE = products({"K": 48}, {"K": 32}, stages=3)
WAITS, FENCES, TILE = "Lesson 50, step 2", "Lesson 50, step 3", "Lesson 50, step 4"

RELAY = Pipeline(
    "mended_relay",
    "the worker does nothing yet. It needs waits, a read, a store and arrivals.",
    (
        Property("first round", 3, WAITS, relays({"steps": 3}, {"steps": 2}, stages=3)),
        Property("three rounds", 3, WAITS, relays(*ROUNDS[1:])),
        Property("a ring of one", 2, "Lesson 50, step 1", relays(ROUNDS[0])),
        Property("ragged ends", 2, FENCES, relays(stages=2, steps=5, rows=Size(20, 17, 31), cut=Size(4, 4, 12, 4))),
    ),
    compiles=Compiled(relay_on_hopper, {"UTMALDG": 1, "UTMASTG": 1}, FENCES),
    cheap=Tallied(lambda draw: relay(draw, 2, 5), 5, 11, WAITS),
)

TILES = Pipeline(
    "mended_tiles",
    "loader or multiplier does nothing yet. Both need a loop over tiles, and one over steps.",
    (
        Property("one tile", 2, TILE, ONE_TILE),
        Property("more steps than buffers", 2, WAITS, products(*ROUNDS)),
        Property(
            "several tiles", 4, TILE,
            products(
                STEPS | {"stages": 2, "M": 96, "N": 64},
                STEPS | {"stages": 3, "M": 64, "N": 96, "programs": 2},
                {"stages": 2, "N": 128, "steps": 1},
            ),
        ),
        Property("ragged ends", 2, TILE, products({"stages": 2}, {"stages": 3, "programs": 3}, **SIZES)),
    ),
    compiles=Compiled(lambda: product_on_hopper(64), {"UTMALDG": 2, "HGMMA": 4}, TILE),
    cheap=Tallied(lambda draw: product(draw, 2, 64, 64, 80), 20, 8, TILE),
)  # fmt: skip

HALVES = Pipeline(
    "mended_halves",
    "the multipliers do nothing yet. They need waits, a product and a release.",
    (
        Property("first round", 3, TILE, ONE_TILE),
        Property("three rounds", 5, "Lesson 50, step 6", products(*ROUNDS[1:])),
        Property("ragged ends", 2, TILE, products(RAGGED, stages=2, M=Size(20, 17, 31), N=24)),
    ),
    compiles=Compiled(lambda: product_on_hopper(128), {"UTMALDG": 2, "HGMMA": 8}, TILE),
    cheap=Tallied(lambda draw: product(draw, 2, 32, 32, 80), 5, 12, "Lesson 50, step 6"),
)
