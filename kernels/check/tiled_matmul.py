"""The check of exercise 02: ``tiled_matmul(a, b, out, BLOCK_M, BLOCK_N, BLOCK_K)`` writes a @ b to out."""

import torch

from kernels.check.framework import ADDRESSES, Case, Draw, Exercise, Fenced, Output, Property


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
        outs=[Output(out, a.double() @ b.double(), tolerance=tolerance)],
        launch=launch,
        poison=poison,
    )


def normal(draw: Draw, M: int, N: int, K: int, dtype=torch.float16):
    """A pair of matrices to multiply."""
    return draw.normal(M, K, dtype=dtype), draw.normal(K, N, dtype=dtype)


def aligned(draw: Draw):
    """Whole tiles only; square, so that a transposed product has the right shape and the wrong values."""
    size = draw.size(32, 32, 64, multiple_of=16)
    yield case(*normal(draw, size, size, size), packed=True)


def strides(draw: Draw):
    """Each matrix in turn stored transposed, rows of ``a`` that are one row repeated, rows with gaps."""
    M, N, K = (draw.size(shown, 16, 48, multiple_of=16) for shown in (16, 32, 32))
    for orders in (("", "", ""), ("KM", "", ""), ("", "NK", ""), ("", "", "NM")):
        yield case(*normal(draw, M, N, K), orders=orders)
    a, b = normal(draw, 1, N, K)
    yield case(a.expand(M, K), b, shared="M")


def ragged_output(draw: Draw):
    """Rows and columns that fill no tile, and fewer of them than one tile has."""
    yield case(*normal(draw, draw.size(20, 17, 31), draw.size(37, 33, 47), 16))
    yield case(*normal(draw, draw.size(3, 1, 15), draw.size(5, 1, 15), 16))


def ragged_depth(draw: Draw):
    """A K that fills no tile, one below a tile, and an empty sum."""
    for K in (draw.size(23, 17, 31), draw.size(5, 1, 15), 0):
        yield case(*normal(draw, 16, 16, K), poison=None)


def tiles(draw: Draw):
    """The same product with tiles of several shapes."""
    a, b = normal(draw, *(draw.size(64, 64, 128, multiple_of=64) for _ in "MNK"))
    for blocks in ((16, 32, 64), (32, 16, 16), (64, 64, 32)):
        yield case(a, b, blocks=blocks)


def accumulation(draw: Draw):
    """Sums of thousands of terms, and sums past float16's largest value."""
    K = draw.size(4096, 2048, 4096, multiple_of=1024)
    a, b = normal(draw, 16, 16, K)
    yield case(a * 0.25 + 1, b * 0.25 + 1, blocks=(16, 16, 256), tolerance=None)
    a, b = normal(draw, 16, 16, 32)
    yield case(a + 300, b + 300, tolerance=None)


def float32(draw: Draw):
    """float32 matrices: a GPU's tl.dot rounds them to TF32 unless told otherwise, the interpreter never does."""
    yield case(*normal(draw, 32, 32, 64, dtype=torch.float32), tolerance=None)


def suspects(case: Case, out: Output):
    """Known mistakes, as formulas."""
    a, b = (tensor.values.double() for tensor in case.inputs)
    (M, K), N, step = a.shape, b.shape[1], case.launch["BLOCK_K"]
    last = (K - 1) // step * step if K else 0
    whole = K // step * step
    yield "only the last tile along K is left: add to the accumulator, do not replace it", a[:, last:] @ b[last:]
    yield "the partial tile at the end of K is left out: the loop must run to K", a[:, :whole] @ b[:whole]
    yield "only the first tile along K is used: loop over all of K", a[:, :step] @ b[:step]
    yield "the last tile along K is left out", a[:, :last] @ b[:last]
    yield "the first tile along K is left out", a[:, step:] @ b[step:]
    if K % step == 0:
        yield "every step reads the first tile along K: move offs_k", (a[:, :step] @ b[:step]) * (K // step)
    if M == N == K:
        yield "b is read transposed: its rows are offs_k, its columns offs_n", a @ b.T
        yield "a is read transposed: its rows are offs_m, its columns offs_k", a.T @ b
        yield "the tiles are stored transposed: rows are offs_m, columns offs_n", (a @ b).T


READ_LOOP = "Lesson 03, step 3"
READ_STRIDES = "Lesson 01, step 4"
READ_MASK = "Lesson 03, step 4"
READ_FP32 = "Lesson 03, step 5"


def both_ragged(draw: Draw):
    """Everything ragged at once, for the addresses."""
    yield case(*normal(draw, draw.size(20, 17, 31), draw.size(37, 33, 47), draw.size(23, 17, 31)))


EXERCISE = Exercise(
    name="tiled_matmul",
    missing="the kernel stores nothing yet. It needs a loop over the tiles along K, and a store after it.",
    properties=(
        Property("whole tiles", 2, READ_LOOP, aligned, "a tile is offs = program_id * BLOCK + tl.arange(0, BLOCK)"),
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
        Property("ragged depth", 2, READ_MASK, ragged_depth, "lanes beyond K must add nothing"),
        Property(
            "tile shapes",
            1,
            READ_LOOP,
            tiles,
            "offs_m takes program_id(0) and BLOCK_M, offs_n program_id(1) and BLOCK_N",
        ),
        Property(
            "float32 accumulation",
            2,
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
)
