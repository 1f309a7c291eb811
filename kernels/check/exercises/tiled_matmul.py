"""Exercise 02: ``tiled_matmul(a, b, scale, out, BLOCK_M, BLOCK_N, BLOCK_K)`` writes the lower triangle of a [M, K], times
the numbers that b and scale stand for, to out [M, N].

Byte b[j, n] holds the numbers of k = 2 j, in its low four bits, and of k = 2 j + 1, as codes 8 larger; scale[n] multiplies
column n.
"""

import functools

import torch

from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Size, Tier, calls
from kernels.check.tensors import NAN


def packed_pairs(q):
    """Two numbers a byte; what no number fills, in the last byte where K is odd, holds the largest one."""
    codes = torch.cat([q + 8, torch.full((len(q) % 2, q.shape[1]), 15)])
    return (codes[0::2] + 16 * codes[1::2]).to(torch.uint8)


def numbers(b, K):
    """The numbers that b holds, as float64 [K, N]."""
    return torch.stack((b & 15, b >> 4), dim=1).flatten(0, 1)[:K].double() - 8


def case(
    draw: Draw, M: int, N: int, K: int, *, size=1, dtype=torch.float16, above: float | None = 0.0, edit=None, spread=False,
    packed=False, orders=(), shared=(), blocks=(16, 16, 32), poison=(), tolerance: float | None = 5e-3,
) -> Case:  # fmt: skip
    """One call on matrices of these sizes times ``size``, with fences as wide as the blocks.

    ``above`` stands above the diagonal of a; where None, numbers as elsewhere. ``edit(a, q)`` gives others. ``spread``: the
    scales are thousands apart, and one is 0. ``orders`` and ``shared`` say by name how a tensor lies in memory.
    """
    M, N, K, shared = M * size, N * size, K * size, dict(shared)
    a, q = draw.normal(1 if "a" in shared else M, K, dtype=dtype).expand(M, K), draw.normal(K, N, scale=4.0)
    scale, q = draw.normal(N).abs() + 0.5, q.round().clamp(-8, 7).long()
    if above is not None:
        a = a.masked_fill(torch.ones(M, K).triu(1).bool(), above)
    a, q = edit(a, q) if edit else (a, q)
    scale = scale[:1].expand(N) if "scale" in shared else scale
    if spread:
        scale = scale * 10.0 ** (torch.arange(N) % 7 - 3)
        scale[N // 2] = 0.0
    groups = torch.arange(N).expand(M, N) if spread else None
    fence = None if packed else dict(zip("MNKJ", (*blocks, blocks[2] // 2)))
    tensors = (("a", "MK", a), ("b", "JN", packed_pairs(q)), ("scale", "N", scale), ("out", "MN", torch.empty(M, N)))
    *inputs, out = (
        Fenced(name, axes, values, fence=fence, order=dict(orders).get(name, ""), shared=shared.get(name, ""))
        for name, axes, values in tensors
    )
    answer = a.double().tril() @ q.double() * scale.double()
    launch = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks))
    # The precision properties alone look at the last digits.
    return Case(inputs, [Output(out, answer, groups, tolerance)], launch, poison=poison)


def cancelling(a, q):
    """Large terms of k and k + 2 that cancel, so that what is left shows the digits behind the sixteenth.

    Neighbours are of different halves of a byte, which a kernel may sum apart.
    """
    k, m = torch.arange(a.shape[1]), torch.arange(len(a))[:, None]
    return a + 1000.0 * (k // 4 < (m + 1) // 4), (7 - 14 * (k // 2 % 2))[:, None].expand_as(q)


def suspects(case: Case, out: Output):
    """Known mistakes: terms of the sum that are left out or counted again, or other operands."""
    full, b, scale = (tensor.values for tensor in case.inputs)
    full, scale = full.double(), scale.double()
    a, (M, K), N = full.tril(), full.shape, b.shape[1]
    tall, wide, step = (case.launch[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    q, k, m = numbers(b, K), torch.arange(K), torch.arange(M)[:, None]

    def summed(times=1, a=a, q=q, scale=scale):
        return (a * times) @ q * scale

    # Each row's program ends at the diagonal; the number of its last step, and that step's first index:
    ends = (m // tall + 1).mul(tall).clamp(max=K)
    last_step = (ends - 1).div(step, rounding_mode="floor")
    last, even = last_step * step, k % 2 == 0
    yield "only the last tile along K is left: add to the accumulator, do not replace it", summed(k >= last)
    for after in (last, 0):
        replaced = "the even k are left out: the second product replaces the first, and must be added to it"
        yield replaced, summed(~even * (k >= after))
    yield "the odd k are left out: the other four bits of a byte hold them", summed(even)
    whole = K // step * step
    yield "the partial tile at the end of K is left out: the loop must run to K", summed(k < whole)
    lost = "the last byte is left out where K is odd: b has (K + 1) // 2 rows, and the last one holds one number"
    for left in (0, -8):  # what is counted in its place
        yield lost, summed(q=torch.where(k[:, None] < K // 2 * 2, q, left))
    yield "only the first tile along K is used: loop up to the diagonal", summed(k < step)
    pair = k // 2  # step by step, it is met from start = 2 (pair - step / 2 + 1) to 2 pair + 1
    times = torch.minimum(2 * pair + 2, ends) - 2 * (pair - step // 2 + 1).clamp(min=0)
    yield "the loop advances by 1, so columns are added again and again: by BLOCK_K", summed(times.clamp(min=0))
    early = k < (m // tall + 1) * step
    yield "the loop of program p ends at (p + 1) * BLOCK_K: rows come BLOCK_M at a time", summed(early)
    twice = "a step has BLOCK_K values of k, and BLOCK_K // 2 bytes: the rows of b begin at start // 2"
    rows = 2 * (k // step * step) + k % step
    yield twice, summed(rows < K, q=q[rows.clamp(max=max(K - 1, 0))])
    yield "the last tile of each row of tiles is left out: the diagonal runs through it", summed(k < last)
    yield "the first tile along K is left out", summed(k >= step)
    yield "row m lacks the term k = m: the diagonal belongs to the triangle", summed(a=full.tril(-1).nan_to_num())
    odd = torch.where((k == m + 1) & ~even, full, a).nan_to_num()
    yield "an odd k above the diagonal counts: hold 2 j + 1 against m by itself", summed(a=odd)
    exchanged = numbers(b >> 4 | b << 4, K)
    yield "the two halves of a byte are exchanged: k = 2 j lies in the low four bits", summed(q=exchanged)
    twos = (q + 8) - 16 * (q >= 0)
    yield "the codes are read as signed numbers: a code is its number and 8, not two's complement", summed(q=twos)
    yield "8 is not taken off: the codes 0..15 stand for -8..7", summed(q=q + 8)
    yield "the codes are less 8 in uint8, where 3 - 8 is 251: convert them first", summed(q=q % 256)
    shifted = torch.where(even[:, None], q, 16 * (q + 8) - 8)
    yield "the high four bits count 16 times: shift them down, b >> 4", summed(q=shifted)
    whole_byte = torch.where(even[:, None], b.double().repeat_interleave(2, 0)[:K] - 8, q)
    yield "the low number is the whole byte: keep its low four bits, b & 15", summed(q=whole_byte)
    yield "the columns are not scaled: scale[n] times the sum, after the loop", summed(scale=1.0)
    first = "each program scales its columns by the first tile's scales: their place is offs_n"
    yield first, summed(scale=scale.repeat(2)[torch.arange(N) % wide])
    if M * K * N < 1 << 20:
        again = "the sum so far is scaled again in each step: scale it once, after the loop"
        powers = (last_step - k // step).clamp(min=0) + 1
        yield again, (a[:, :, None] * q * scale ** powers[:, :, None]).sum(1)
    if not full.isnan().any():
        above = "what stands above the diagonal is added: keep a[m, k] where k <= m, element by element"
        yield from ((above, summed(reached, a=full)) for reached in (k < last + step, 1))
        yield "the other triangle is kept: a[m, k] belongs to the sum where k <= m", summed(a=full.triu())
    if case.inputs[0].values.dtype == torch.float32:
        for dtype in (torch.float16, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            rounded = f"a is float32, and rounded to {name} before it is multiplied: multiply float32"
            yield rounded, summed(a=a.to(dtype).double())
        high = a.to(torch.bfloat16).double()
        halves = "a is float32, and taken apart into two of bfloat16, which hold 16 of its 24 digits: multiply float32"
        yield halves, summed(a=high + (a - high).to(torch.bfloat16).double())
    if M == N == K:
        yield "a is read transposed: its rows are offs_m, its columns k", summed(a=full.T.tril())
        yield "the tiles are stored transposed: rows are offs_m, columns offs_n", summed().T


def triangle(case: Case) -> int:
    """Three loads for each step up to the diagonal, one of the scales and a store for each tile."""
    (M, N), (tall, wide, step) = case.outs[0].tensor.shape, case.launch.values()
    return (N // wide) * sum(3 * ((p + 1) * tall // step) + 2 for p in range(M // tall))


of = functools.partial(calls, case)
SQUARE, FLOAT32 = {"M": 1, "N": 1, "K": 1}, {"M": 64, "N": 32, "K": 64, "dtype": torch.float32, "tolerance": None}
UNSHARED, LARGE = {"above": None, "tolerance": None}, Size(1024, 768, 1024, 256)
READ_LOOP, READ_MASK, READ_FP32 = (f"Lesson 05, step {step}" for step in (2, 3, 4))

EXERCISE = Exercise(
    name="tiled_matmul",
    missing="the kernel stores nothing yet. It needs a loop over the tiles along K, and a store after it.",
    properties=(
        Property(  # oblong, then square, so that a transposed product has the right shape and the wrong values
            "whole tiles", 1, READ_LOOP,
            of({"M": 2, "N": 4, "K": 3}, {"M": 2, "N": 2, "K": 2}, size=Size(32, 32, 64, 32), packed=True),
            "a tile is offs = program_id * BLOCK + tl.arange(0, BLOCK)",
        ),
        Property(  # in tiles that the diagonal crosses at corners, wide ones and tall ones
            "nothing above the diagonal", 2, READ_MASK,
            of(
                *(
                    {"above": above, "size": Size(2 * n, 2 * n, 3 * n, n), "blocks": (tall, 16, 32)}
                    for above in (None, NAN)
                    for tall, n in ((16, 32), (32, 32), (64, 64))
                ),
                **SQUARE, packed=True,
            ),
            "a[m, k] belongs to the sum where k <= m: compare offs_k with offs_m inside the tile",
            not_finite="what stands above the diagonal is multiplied, and 0 · NaN is NaN: replace it with tl.where",
        ),
        Property(
            "a scale for each column", 1, READ_LOOP,
            of(M=Size(96, 96, 128, 32), N=32, K=Size(96, 96, 128, 32), spread=True),
            "column n of the sum is multiplied by scale[n], once",
        ),
        Property(
            "strides", 1, "Lesson 01, step 4",
            of(
                {},
                *({"orders": {name: order}} for name, order in (("a", "KM"), ("b", "NJ"), ("out", "NM"))),
                {"shared": {"a": "M"}, "above": None},
                {"shared": {"scale": "N"}},
                M=Size(16, 32, 64, 16), N=Size(32, 32, 64, 16), K=Size(64, 32, 64, 16),
            ),
            "each address is row * stride + column * stride, with that tensor's strides; scale has one, too",
        ),
        Property(
            "ragged rows and columns", 1, READ_MASK,
            of({"M": Size(20, 17, 31), "N": Size(37, 33, 47)}, {"M": Size(3, 1, 15), "N": Size(5, 1, 15)}, K=32),
            "the grid must cover the last, partial tiles, and the masks must cut them at M and N",
        ),
        Property(  # odd and even, one beyond, one below a tile, an empty sum; rows reach past each
            "ragged depth", 1, READ_MASK,
            of(
                *({"K": K} for K in (Size(45, 35, 63, 1, 2), Size(40, 34, 62, 2), 33, Size(5, 3, 15, 1, 2), 0)),
                M=80, N=16, poison=None,
            ),
            "lanes beyond K must add nothing",
        ),
        Property(
            "tile shapes", 1, READ_LOOP,
            of(*({"blocks": b} for b in ((16, 32, 64), (32, 16, 32), (64, 64, 32))), **SQUARE, size=Size(64, 64, 128, 64)),
            "offs_m takes program_id(0) and BLOCK_M, offs_n program_id(1) and BLOCK_N",
        ),
        Property(  # of up to thousands of terms, past float16's largest value, and of operands with float32's digits
            "float32 accumulation", 1, READ_FP32,
            of(
                UNSHARED
                | {"M": LARGE, "N": 16, "K": LARGE, "blocks": (256, 16, 256)}
                | {"edit": lambda a, q: (a * 0.25 + 1, q.abs().clamp(1, 7))},
                UNSHARED | {"M": 64, "N": 16, "K": 64, "edit": lambda a, q: (a + 400, q.abs().clamp(6, 7))},
                FLOAT32,
                FLOAT32 | {"N": 16, "above": None, "edit": cancelling, "tolerance": 1e-3},
            ),
            "sums are kept in float16: the accumulator must be tl.float32",
        ),
        Property.stays_inside(READ_MASK, of(M=Size(52, 49, 63), N=Size(37, 33, 47), K=Size(45, 35, 47, 1, 2))),
        # A GPU's tl.dot rounds float32 to TF32 unless told otherwise, the interpreter never does.
        Property("float32 without TF32", 0, READ_FP32, of(FLOAT32), 'say input_precision="ieee"', needs="a GPU"),
    ),
    suspects=suspects,
    masks={("a", "K", "after"): "mask_even, mask_odd", ("b", "J", "after"): "mask_k"},
    spoken={("b", "J"): "K"},
    compiles=Compiles(
        of({"blocks": (64, 64, 32)}, {"dtype": torch.float32, "blocks": (32, 32, 32)}, **SQUARE, size=128, packed=True),
        READ_FP32, products={80: "HMMA", 90: "HGMMA"},
    ),
    cheap=Cheap(  # four tiles on each axis: ten of sixteen tiles of a lie on or below the diagonal
        of(M=128, N=64, K=128, packed=True, blocks=(32, 16, 32)), triangle,
        (Tier(3, read=2.5, steps=1.1), Tier(1, read=4.0, written=4.0, steps=2.0)),
        "a program loads each tile up to the diagonal once, one step for BLOCK_K columns, and stores its tile at last",
        READ_LOOP,
        sectors=2.2,  # every other column of a: a sector holds twice what is asked for
    ),
)  # fmt: skip
