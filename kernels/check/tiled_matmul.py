"""The check of exercise 02: ``tiled_matmul(a, b, scale, out, BLOCK_M, BLOCK_N, BLOCK_K)`` writes the lower triangle of a
[M, K], times the numbers that b and scale stand for, to out [M, N].

Byte b[j, n] holds the numbers of k = 2 j, in its low four bits, and of k = 2 j + 1, as codes 8 larger; scale[n] multiplies
column n.
"""

import torch

from kernels.check.framework import NAN, Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Tier


def lower(a):
    """``a`` with zeros above the diagonal, whatever stands there."""
    return a.double().tril()


def product(a, q, scale):
    """The answer in float64, from the numbers q [K, N]."""
    return lower(a) @ q.double() * scale.double()


def packed_pairs(q):
    """Two numbers a byte; what no number fills, in the last byte where K is odd, holds the largest one."""
    codes = torch.cat([q + 8, torch.full((len(q) % 2, q.shape[1]), 15)])
    return (codes[0::2] + 16 * codes[1::2]).to(torch.uint8)


def numbers(b, K):
    """The numbers that b holds, as float64 [K, N]."""
    return torch.stack((b & 15, b >> 4), dim=1).flatten(0, 1)[:K].double() - 8


def case(
    a, q, scale, *, packed=False, orders=("", "", ""), shared=("", ""), blocks=(16, 16, 32), poison=(), tolerance=5e-3
) -> Case:
    """One call on ``a``, the packed ``q`` and ``scale``, with fences as wide as the blocks.

    ``shared``: axes of ``a`` and of ``scale`` with stride 0.
    """
    launch = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks))
    fence = None if packed else dict(zip("MNKJ", (*blocks, blocks[2] // 2)))
    out = Fenced("out", "MN", torch.empty(a.shape[0], q.shape[1]), fence=fence, order=orders[2])
    return Case(
        inputs=[
            Fenced("a", "MK", a, fence=fence, order=orders[0], shared=shared[0]),
            Fenced("b", "JN", packed_pairs(q), fence=fence, order=orders[1]),
            Fenced("scale", "N", scale, fence=fence, shared=shared[1]),
        ],
        # The precision properties alone look at the last digits.
        outs=[Output(out, product(a, q, scale), tolerance=tolerance)],
        launch=launch,
        poison=poison,
    )


def normal(draw: Draw, M: int, N: int, K: int, dtype=torch.float16, above: float | None = 0.0):
    """a, numbers of four bits, scales; ``above`` stands above the diagonal of a, or, where None, numbers as elsewhere."""
    a, q, scale = draw.normal(M, K, dtype=dtype), draw.normal(K, N, scale=4.0), draw.normal(N).abs() + 0.5
    if above is not None:
        a = a.masked_fill(torch.ones(M, K).triu(1).bool(), above)
    return a, q.round().clamp(-8, 7).long(), scale


def aligned(draw: Draw):
    """Whole tiles only; oblong, then square, so that a transposed product has the right shape and the wrong values."""
    size = draw.size(32, 32, 64, multiple_of=32)
    yield case(*normal(draw, 2 * size, 4 * size, 3 * size), packed=True)
    yield case(*normal(draw, 2 * size, 2 * size, 2 * size), packed=True)


def diagonal(draw: Draw):
    """Numbers above the diagonal, then NaN; tiles that it crosses at corners, and wide and tall ones."""
    for above in (None, NAN):
        for blocks in ((16, 16, 32), (32, 16, 32), (64, 16, 32)):
            size = draw.size(2, 2, 3) * max(blocks)
            yield case(*normal(draw, size, size, size, above=above), packed=True, blocks=blocks)


def scales(draw: Draw):
    """Columns whose scales are thousands apart, along several steps; one of them is 0."""
    size, wide = draw.size(96, 96, 128, multiple_of=32), 32
    a, q, scale = normal(draw, size, wide, size)
    scale = scale * 10.0 ** (torch.arange(wide) % 7 - 3)
    scale[wide // 2] = 0.0
    groups = torch.arange(wide).expand(size, wide)
    made = case(a, q, scale)
    made.outs = [Output(made.outs[0].tensor, product(a, q, scale), groups=groups, tolerance=5e-3)]
    yield made


def strides(draw: Draw):
    """Each matrix in turn stored transposed, rows of ``a`` that are one repeated, one scale for all, gaps."""
    M, N, K = (draw.size(shown, 32, 64, multiple_of=16) for shown in (16, 32, 64))
    for orders in (("", "", ""), ("KM", "", ""), ("", "NJ", ""), ("", "", "NM")):
        yield case(*normal(draw, M, N, K), orders=orders)
    a, q, scale = normal(draw, 1, N, K, above=None)
    yield case(a.expand(M, K), q, scale, shared=("M", ""))
    a, q, scale = normal(draw, M, N, K)
    yield case(a, q, scale[:1].expand(N), shared=("", "N"))


def ragged_output(draw: Draw):
    """Rows and columns that fill no tile, and fewer of them than one tile has."""
    yield case(*normal(draw, draw.size(20, 17, 31), draw.size(37, 33, 47), 32))
    yield case(*normal(draw, draw.size(3, 1, 15), draw.size(5, 1, 15), 32))


def ragged_depth(draw: Draw):
    """A K that fills no tile, odd and even ones, one beyond, one below a tile, an empty sum; rows reach past each."""
    for K in (2 * draw.size(22, 17, 31) + 1, 2 * draw.size(20, 17, 31), 33, 2 * draw.size(2, 1, 7) + 1, 0):
        yield case(*normal(draw, 80, 16, K), poison=None)


def tiles(draw: Draw):
    """The same product with tiles of several shapes."""
    made = normal(draw, *(draw.size(64, 64, 128, multiple_of=64) for _ in "MNK"))
    for blocks in ((16, 32, 64), (32, 16, 32), (64, 64, 32)):
        yield case(*made, blocks=blocks)


def accumulation(draw: Draw):
    """Sums of up to thousands of terms, sums past float16's largest value, and operands with float32's digits."""
    size = draw.size(1024, 768, 1024, multiple_of=256)
    a, q, scale = normal(draw, size, 16, size, above=None)
    yield case(a * 0.25 + 1, q.abs().clamp(1, 7), scale, blocks=(256, 16, 256), tolerance=None)
    a, q, scale = normal(draw, 64, 16, 64, above=None)
    yield case(a + 400, q.abs().clamp(6, 7), scale, tolerance=None)
    yield case(*normal(draw, 64, 32, 64, dtype=torch.float32), tolerance=None)


def float32(draw: Draw):
    """float32 matrices: a GPU's tl.dot rounds them to TF32 unless told otherwise, the interpreter never does."""
    yield case(*normal(draw, 64, 32, 64, dtype=torch.float32), tolerance=None)


def suspects(case: Case, out: Output):
    """Known mistakes, as formulas."""
    full, b, scale = (tensor.values for tensor in case.inputs)
    full, scale = full.double(), scale.double()
    a, (M, K), N = lower(full), full.shape, b.shape[1]
    q = numbers(b, K)
    wide, tall, step = case.launch["BLOCK_N"], case.launch["BLOCK_M"], case.launch["BLOCK_K"]
    k = torch.arange(K)
    # Each row's program ends at the diagonal; the first index of its last step:
    ends = (torch.arange(M) // tall + 1).mul(tall).clamp(max=K)[:, None]
    last = (ends - 1).div(step, rounding_mode="floor") * step
    whole, summed = K // step * step, lambda weights, values=q: weights @ values * scale
    yield "only the last tile along K is left: add to the accumulator, do not replace it", summed(a * (k >= last))
    for after in (last, 0):
        replaced = "the even k are left out: the second product replaces the first, and must be added to it"
        yield replaced, summed(a * (k % 2) * (k >= after))
    yield "the odd k are left out: the other four bits of a byte hold them", summed(a * (1 - k % 2))
    yield "the partial tile at the end of K is left out: the loop must run to K", summed(a * (k < whole))
    lost = "the last byte is left out where K is odd: b has (K + 1) // 2 rows, and the last one holds one number"
    for left in (0, -8):  # what is counted in its place
        yield lost, summed(a, torch.where(k[:, None] < K // 2 * 2, q, left))
    yield "only the first tile along K is used: loop up to the diagonal", summed(a * (k < step))
    pair = k // 2  # step by step, it is met from start = 2 (pair - step / 2 + 1) to 2 pair + 1
    times = torch.minimum(2 * pair + 2, ends) - 2 * (pair - step // 2 + 1).clamp(min=0)
    yield "the loop advances by 1, so columns are added again and again: by BLOCK_K", summed(a * times.clamp(min=0))
    early = (torch.arange(M) // tall + 1).mul(step)[:, None]
    yield "the loop of program p ends at (p + 1) * BLOCK_K: rows come BLOCK_M at a time", summed(a * (k < early))
    twice = "a step has BLOCK_K values of k, and BLOCK_K // 2 bytes: the rows of b begin at start // 2"
    rows = 2 * (k // step * step) + k % step
    yield twice, summed(a * (rows < K), q[rows.clamp(max=max(K - 1, 0))])
    yield "the last tile of each row of tiles is left out: the diagonal runs through it", summed(a * (k < last))
    yield "the first tile along K is left out", summed(a * (k >= step))
    yield "row m lacks the term k = m: the diagonal belongs to the triangle", summed(full.tril(-1).nan_to_num())
    odd = torch.where((k[None, :] == torch.arange(M)[:, None] + 1) & (k % 2 == 1), full, a).nan_to_num()
    yield "an odd k above the diagonal counts: hold 2 j + 1 against m by itself", summed(odd)
    exchanged = numbers(b >> 4 | b << 4, K)
    yield "the two halves of a byte are exchanged: k = 2 j lies in the low four bits", summed(a, exchanged)
    twos = "the codes are read as signed numbers: a code is its number and 8, not two's complement"
    yield twos, summed(a, (q + 8) - 16 * (q >= 0))
    yield "8 is not taken off: the codes 0..15 stand for -8..7", summed(a, q + 8)
    yield "the codes are less 8 in uint8, where 3 - 8 is 251: convert them first", summed(a, q % 256)
    low = (k % 2 == 0)[:, None]
    shifted = torch.where(low, q, 16 * (q + 8) - 8)
    yield "the high four bits count 16 times: shift them down, b >> 4", summed(a, shifted)
    whole_byte = torch.where(low, b.double().repeat_interleave(2, 0)[:K] - 8, q)
    yield "the low number is the whole byte: keep its low four bits, b & 15", summed(a, whole_byte)
    yield "the columns are not scaled: scale[n] times the sum, after the loop", a @ q
    first = scale.repeat(2)[torch.arange(N) % wide]
    yield "each program scales its columns by the first tile's scales: their place is offs_n", a @ q * first
    blocks = (k // step)[None, :]
    powers = (((ends - 1).div(step, rounding_mode="floor") - blocks).clamp(min=0) + 1)[:, :, None]
    if M * K * N < 1 << 20:
        again = (a[:, :, None] * q[None] * scale[None, None, :] ** powers).sum(1)
        yield "the sum so far is scaled again in each step: scale it once, after the loop", again
    if not full.isnan().any():
        above = "what stands above the diagonal is added: keep a[m, k] where k <= m, element by element"
        reached = (ends + step - 1).div(step, rounding_mode="floor") * step
        yield above, summed(full * (k < reached))
        yield above, summed(full)
        yield "the other triangle is kept: a[m, k] belongs to the sum where k <= m", summed(full.triu())
    if case.inputs[0].values.dtype == torch.float32:
        for dtype in (torch.float16, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            rounded = f"a is float32, and rounded to {name} before it is multiplied: multiply float32"
            yield rounded, summed(a.to(dtype).double())
    if M == N == K:
        yield "a is read transposed: its rows are offs_m, its columns k", summed(lower(full.T))
        yield "the tiles are stored transposed: rows are offs_m, columns offs_n", summed(a).T


def both_ragged(draw: Draw):
    """Everything ragged at once, for the addresses."""
    yield case(*normal(draw, draw.size(52, 49, 63), draw.size(37, 33, 47), 2 * draw.size(22, 17, 23) + 1))


def large_tiles(draw: Draw):
    """float16 in tiles as a GPU wants them, and float32, whose digits are asked for."""
    yield case(*normal(draw, 128, 128, 128), packed=True, blocks=(64, 64, 32))
    yield case(*normal(draw, 128, 128, 128, dtype=torch.float32), packed=True, blocks=(32, 32, 32))


def square(draw: Draw):
    """Four tiles on each axis: ten of sixteen tiles of a lie on or below the diagonal."""
    yield case(*normal(draw, 128, 64, 128), packed=True, blocks=(32, 16, 32))


def triangle(case: Case) -> int:
    """Three loads for each step up to the diagonal, one of the scales and a store for each tile."""
    (M, N), (tall, wide, step) = case.outs[0].tensor.shape, case.launch.values()
    return (N // wide) * sum(3 * ((p + 1) * tall // step) + 2 for p in range(M // tall))


READ_LOOP = "Lesson 05, step 2"
READ_STRIDES = "Lesson 01, step 4"
READ_MASK = "Lesson 05, step 3"
READ_FP32 = "Lesson 05, step 4"

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
            "a scale for each column", 1, READ_LOOP, scales, "column n of the sum is multiplied by scale[n], once"
        ),
        Property(
            "strides",
            1,
            READ_STRIDES,
            strides,
            "each address is row * stride + column * stride, with that tensor's strides; scale has one, too",
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
        Property.stays_inside(READ_MASK, both_ragged),
        Property("float32 without TF32", 0, READ_FP32, float32, 'say input_precision="ieee"', needs="a GPU"),
    ),
    suspects=suspects,
    masks={("a", "K", "after"): "mask_even, mask_odd", ("b", "J", "after"): "mask_k"},
    spoken={("b", "J"): "K"},
    compiles=Compiles(large_tiles, READ_FP32, products={80: "HMMA", 90: "HGMMA"}),
    cheap=Cheap(
        square,
        triangle,
        (Tier(3, read=2.5, steps=1.1), Tier(1, read=4.0, written=4.0, steps=2.0)),
        "a program loads each tile up to the diagonal once, one step for BLOCK_K columns, and stores its tile at last",
        READ_LOOP,
        sectors=2.2,  # every other column of a: a sector holds twice what is asked for
    ),
)
