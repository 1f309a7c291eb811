"""The check of exercise 02: ``tiled_matmul(a, b, out, BLOCK_M, BLOCK_N, BLOCK_K)`` writes the lower triangle of a, times b,
to out: row m sums over k <= m."""

import torch

from kernels.check.framework import (
    ADDRESSES,
    Case,
    Cheap,
    Compiles,
    Draw,
    Exercise,
    Fenced,
    Output,
    Property,
    Tier,
)

NAN = float("nan")


def lower(a):
    """``a`` with zeros above the diagonal, whatever stands there."""
    return a.double().tril()


def product(a, b):
    """The answer in float64. Rows of ``b`` past the last row of ``a`` belong to no sum, and may hold NaN."""
    depth = min(a.shape)
    return lower(a)[:, :depth] @ b[:depth].double()


def case(a, b, *, packed=False, orders=("", "", ""), shared="", blocks=(16, 16, 16), poison=(), tolerance=5e-3) -> Case:
    """One call on ``a`` and ``b``, with fences as wide as the blocks."""
    launch = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks))
    fence = None if packed else dict(zip("MNK", blocks))
    out = Fenced("out", "MN", torch.empty(a.shape[0], b.shape[1]), fence=fence, order=orders[2])
    return Case(
        inputs=[
            Fenced("a", "MK", a, fence=fence, order=orders[0], shared=shared),
            Fenced("b", "KN", b, fence=fence, order=orders[1]),
        ],
        # The precision properties alone look at the last digits.
        outs=[Output(out, product(a, b), tolerance=tolerance)],
        launch=launch,
        poison=poison,
    )


def normal(draw: Draw, M: int, N: int, K: int, dtype=torch.float16, above: float | None = 0.0):
    """A pair of matrices; ``above`` stands above the diagonal of a, or, when None, numbers like all others."""
    a, b = draw.normal(M, K, dtype=dtype), draw.normal(K, N, dtype=dtype)
    if above is not None:
        a = a.masked_fill(torch.ones(M, K).triu(1).bool(), above)
    return a, b


def aligned(draw: Draw):
    """Whole tiles only; oblong, then square, so that a transposed product has the right shape and the wrong values."""
    size = draw.size(32, 32, 64, multiple_of=16)
    yield case(*normal(draw, size, size + 32, size + 16), packed=True)
    yield case(*normal(draw, size, size, size), packed=True)


def diagonal(draw: Draw):
    """Numbers above the diagonal, then NaN; tiles that it crosses at corners, and wide and tall ones."""
    for above in (None, NAN):
        for blocks in ((16, 16, 16), (16, 16, 32), (32, 16, 16)):
            size = draw.size(32, 32, 64, multiple_of=32)
            yield case(*normal(draw, size, size, size, above=above), packed=True, blocks=blocks)


def past_the_diagonal(draw: Draw):
    """More columns of a than rows, with zeros there, and NaN in the rows of b that no sum reaches."""
    M = draw.size(32, 32, 64, multiple_of=32)
    a, b = normal(draw, M, M + 48, M + 48)
    b[M:] = NAN
    for blocks in ((16, 16, 16), (32, 16, 16)):
        yield case(a, b, packed=True, blocks=blocks)


def strides(draw: Draw):
    """Each matrix in turn stored transposed, rows of ``a`` that are one row repeated, rows with gaps."""
    M, N, K = (draw.size(shown, 16, 48, multiple_of=16) for shown in (16, 32, 32))
    for orders in (("", "", ""), ("KM", "", ""), ("", "NK", ""), ("", "", "NM")):
        yield case(*normal(draw, M, N, K), orders=orders)
    a, b = normal(draw, 1, N, K, above=None)
    yield case(a.expand(M, K), b, shared="M")


def ragged_output(draw: Draw):
    """Rows and columns that fill no tile, and fewer of them than one tile has."""
    yield case(*normal(draw, draw.size(20, 17, 31), draw.size(37, 33, 47), 16))
    yield case(*normal(draw, draw.size(3, 1, 15), draw.size(5, 1, 15), 16))


def ragged_depth(draw: Draw):
    """A K that fills no tile, one below a tile, and an empty sum, with rows that reach past each."""
    for K in (draw.size(23, 17, 31), draw.size(5, 1, 15), 0):
        yield case(*normal(draw, 48, 16, K), poison=None)


def tiles(draw: Draw):
    """The same product with tiles of several shapes."""
    a, b = normal(draw, *(draw.size(64, 64, 128, multiple_of=64) for _ in "MNK"))
    for blocks in ((16, 32, 64), (32, 16, 16), (64, 64, 32)):
        yield case(a, b, blocks=blocks)


def accumulation(draw: Draw):
    """Sums of up to thousands of terms, and sums past float16's largest value."""
    size = draw.size(2048, 1536, 2048, multiple_of=256)
    a, b = normal(draw, size, 16, size, above=None)
    yield case(a * 0.25 + 1, b * 0.25 + 1, blocks=(256, 16, 256), tolerance=None)
    a, b = normal(draw, 32, 16, 32, above=None)
    yield case(a + 300, b + 300, tolerance=None)


def float32(draw: Draw):
    """float32 matrices: a GPU's tl.dot rounds them to TF32 unless told otherwise, the interpreter never does."""
    yield case(*normal(draw, 64, 32, 64, dtype=torch.float32), tolerance=None)


def suspects(case: Case, out: Output):
    """Known mistakes, as formulas."""
    full, b = (tensor.values.double() for tensor in case.inputs)
    if b.isnan().any():
        return
    a, (M, K), N = lower(full), full.shape, b.shape[1]
    tall, step = case.launch["BLOCK_M"], case.launch["BLOCK_K"]
    k = torch.arange(K)
    # Each row's program ends at the diagonal; the first index of its last step:
    ends = (torch.arange(M) // tall + 1).mul(tall).clamp(max=K)[:, None]
    last = (ends - 1).div(step, rounding_mode="floor") * step
    whole = K // step * step
    yield "only the last tile along K is left: add to the accumulator, do not replace it", (a * (k >= last)) @ b
    yield "the partial tile at the end of K is left out: the loop must run to K", (a * (k < whole)) @ b
    yield "only the first tile along K is used: loop up to the diagonal", (a * (k < step)) @ b
    early = (torch.arange(M) // tall + 1).mul(step)[:, None]
    yield "the loop of program p ends at (p + 1) * BLOCK_K: rows come BLOCK_M at a time", (a * (k < early)) @ b
    steps = "the loop advances by 1, so columns are added again and again: range(0, end, BLOCK_K)"
    yield steps, (a * (k + 1).clamp(max=step)) @ b
    yield "the last tile of each row of tiles is left out: the diagonal runs through it", (a * (k < last)) @ b
    yield "the first tile along K is left out", (a * (k >= step)) @ b
    yield "row m lacks the term k = m: the diagonal belongs to the triangle", full.tril(-1).nan_to_num() @ b
    if not full.isnan().any():
        above = "what stands above the diagonal is added: keep a[m, k] where k <= m, element by element"
        yield above, (full * (k < ends)) @ b
        yield above, full @ b
        yield "the other triangle is kept: a[m, k] belongs to the sum where k <= m", full.triu() @ b
    if M == N == K:
        yield "b is read transposed: its rows are offs_k, its columns offs_n", a @ b.T
        yield "a is read transposed: its rows are offs_m, its columns offs_k", lower(full.T) @ b
        yield "the tiles are stored transposed: rows are offs_m, columns offs_n", (a @ b).T


READ_LOOP = "Lesson 03, step 2"
READ_STRIDES = "Lesson 01, step 4"
READ_MASK = "Lesson 03, step 4"
READ_FP32 = "Lesson 03, step 5"


def both_ragged(draw: Draw):
    """Everything ragged at once, for the addresses."""
    yield case(*normal(draw, draw.size(20, 17, 31), draw.size(37, 33, 47), draw.size(23, 17, 31)))


def large_tiles(draw: Draw):
    """float16 in tiles as a GPU wants them, and float32, whose digits are asked for."""
    yield case(*normal(draw, 128, 128, 128), packed=True, blocks=(64, 64, 32))
    yield case(*normal(draw, 128, 128, 128, dtype=torch.float32), packed=True, blocks=(32, 32, 32))


def square(draw: Draw):
    """Four tiles on each axis: ten of sixteen tiles of a lie on or below the diagonal."""
    yield case(*normal(draw, 64, 64, 64), packed=True)


def triangle(case: Case) -> int:
    """Two loads for each step up to the diagonal, and a store for each tile."""
    (M, N), (tall, wide, step) = case.outs[0].tensor.shape, case.launch.values()
    return (N // wide) * sum(2 * ((p + 1) * tall // step) + 1 for p in range(M // tall))


EXERCISE = Exercise(
    name="tiled_matmul",
    missing="the kernel stores nothing yet. It needs a loop over the tiles along K, and a store after it.",
    properties=(
        Property("whole tiles", 1, READ_LOOP, aligned, "a tile is offs = program_id * BLOCK + tl.arange(0, BLOCK)"),
        Property(
            "nothing above the diagonal",
            2,
            READ_MASK,
            diagonal,
            "a[m, k] belongs to the sum where k <= m: compare offs_k with offs_m inside the tile",
            not_finite="what stands above the diagonal is multiplied, and 0 · NaN is NaN: replace it with tl.where",
        ),
        Property(
            "no step past the diagonal",
            1,
            READ_LOOP,
            past_the_diagonal,
            "a program needs no k beyond its last row: the loop ends there, or at K",
            not_finite="steps past the diagonal are taken, and 0 · NaN is NaN: the loop ends at the program's last row",
        ),
        Property(
            "strides",
            1,
            READ_STRIDES,
            strides,
            "each address is row * stride + column * stride, with the two strides of that tensor",
        ),
        Property(
            "ragged rows and columns",
            1,
            READ_MASK,
            ragged_output,
            "the grid must cover the last, partial tiles, and the masks must cut them at M and N",
        ),
        Property("ragged depth", 1, READ_MASK, ragged_depth, "lanes beyond K must add nothing"),
        Property(
            "tile shapes",
            1,
            READ_LOOP,
            tiles,
            "offs_m takes program_id(0) and BLOCK_M, offs_n program_id(1) and BLOCK_N",
        ),
        Property(
            "float32 accumulation",
            1,
            READ_FP32,
            accumulation,
            "sums are kept in float16: the accumulator must be tl.float32",
        ),
        Property(
            "stays inside its tensors", 1, READ_MASK, both_ragged, ADDRESSES, needs="the interpreter", addresses=True
        ),
        Property("float32 without TF32", 0, READ_FP32, float32, 'say input_precision="ieee"', needs="a GPU"),
    ),
    suspects=suspects,
    compiles=Compiles(large_tiles, READ_FP32, products={80: "HMMA", 90: "HGMMA"}),
    cheap=Cheap(
        square,
        triangle,
        (Tier(3, read=2.5, steps=1.1), Tier(1, read=4.0, written=4.0, steps=2.0)),
        "a program loads each tile up to the diagonal once, one step for BLOCK_K columns, and stores its tile after the loop",
        READ_LOOP,
    ),
)
