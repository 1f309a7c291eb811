"""Exercise 01: the softmax of each row of x [M, N] to out, and its entropy to entropy [M].

``row_softmax(x, out, entropy, BLOCK_N=None)`` is the function. Most properties look at out alone, so that a softmax earns
points before its entropy is there.
"""

import functools
import math

import torch
from numpy import s_

from kernels.check.cases import ROUNDED
from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Size, Tier, calls
from kernels.check.tensors import NAN

INF, LN2 = float("inf"), math.log(2.0)


def case(
    draw: Draw, M=3, N=16, *, dtype=torch.float32, scale=1.0, put=(), add=(), entropy=False, packed=False,
    order="", shared="", out_order="", out_dtype=None, far=False, poison=(), **launch,
) -> Case:  # fmt: skip
    """One call on M rows of N normal numbers, some of them replaced or added to.

    The fence is as wide as the widest block that the launch may use. The entropies are judged where ``entropy``.
    """
    x = draw.normal(1 if shared else M, N, dtype=dtype, scale=scale).expand(M, N)
    for place, number in put:
        x[place] = number
    for place, number in add:
        x[place] += number
    p = torch.softmax(x.double(), dim=1).nan_to_num(nan=0.0)
    answer = torch.special.entr(p).sum(dim=1) if entropy else None
    fence = None if packed else {"M": 2, "N": max(64, launch.get("BLOCK_N", 0))}
    out = Fenced("out", "MN", torch.empty(M, N, dtype=out_dtype or dtype), fence=fence, order=out_order)
    each_row = Fenced("entropy", "M", torch.empty(M), fence=fence)
    slack = torch.full([M], ROUNDED)  # it is a difference: near 0 the rounding of 1 and of ln 1 is left
    made = Case(
        inputs=[Fenced("x", "MN", x, fence=fence, order=order, shared=shared)],
        outs=[Output(out, p), Output(each_row, answer, slack=slack)],
        launch=launch,
        neutral=-INF,
        poison=poison,
    )
    return made.stretched(x="M", out="M") if far else made


def block_of(case: Case, N: int) -> int:
    """How many elements of a row a program sees at once."""
    return case.launch.get("BLOCK_N", min(1 << (N - 1).bit_length(), 1024))


def softmaxes(case: Case):
    """Known mistakes, as another maximum, power or sum in the equation, and the probabilities that they give."""
    x = case.inputs[0].values.float()
    N, high = x.shape[1], x.amax(dim=1, keepdim=True)
    block, high0 = block_of(case, N), high.clamp(min=0.0)

    def p(top=high, power=torch.exp, total=None, more=0.0, guarded=False):
        powers = power(x - top)
        total = powers.sum(dim=1, keepdim=True) + more if total is None else total
        return powers / total.where(total > 0, 1.0) if guarded else powers / total

    yield "a row of -inf gives inf - inf or 0 / 0: the specification asks for zeros", p()
    padding = (-N % block) * torch.exp(-high0)
    yield "the masked lanes count as zeros: their `other` must be -inf", p(high0, more=padding)
    for top, cause in (
        (0.0, "exp overflows, or is zero all along a row: subtract the row's maximum first"),
        (high0, "what is subtracted is not the maximum of a row that is negative throughout"),
    ):
        yield from ((cause, p(top, guarded=guarded)) for guarded in (False, True))  # against 0 / 0
    if N > block:
        parts = x.split(block, dim=1)
        sums = [torch.exp(part - high).sum(dim=1, keepdim=True) for part in parts]
        tops = [part.amax(dim=1, keepdim=True) for part in parts]
        own = sum(torch.exp(part - top).sum(dim=1, keepdim=True) for part, top in zip(parts, tops))
        again = "every step adds the first block again: the lanes of a block begin at start, start + lanes"
        yield "the sum is that of the last block alone", p(total=sums[-1])
        yield "the sum is that of the first block alone", p(total=sums[0])
        yield again, p(total=len(parts) * sums[0])
        yield "each block's sum is taken against its own maximum", p(total=own)
        yield "what is subtracted is the maximum of the last block alone", p(tops[-1])
        yield "what is subtracted is the maximum of the first block alone", p(tops[0])
    yield "the row is not divided by its sum", p(total=1.0)
    yield "the sum runs down the columns, it must run along the row", torch.softmax(x, dim=0)
    yield "exp2 needs the factor log2(e)", p(power=torch.exp2)
    yield "the values are divided by the block's length, not by their sum", p(total=block)


def entropies(case: Case, right: torch.Tensor):
    """Known mistakes in the entropy, ln Σ exp(d) - Σ exp(d) d / Σ exp(d), of rows whose softmax is right."""
    x = case.inputs[0].values.double()
    excluded, high = torch.isneginf(x), x.amax(dim=1, keepdim=True).nan_to_num(neginf=0.0)
    d, power = (x - high).masked_fill(excluded, 0.0), torch.exp(x - high)
    total, block = power.sum(dim=1).clamp(min=1.0), block_of(case, x.shape[1])
    log_sum, parts = total.log(), (power * d).split(block, dim=1)
    mean = (power * d).sum(dim=1) / total
    zero = "0 · -inf is NaN: where a power is 0, {}, its part of the entropy must be made 0 before it is added"
    if x.shape[1] % block:
        yield zero.format("as in the lanes beyond N"), right * NAN
    yield zero.format("as for an excluded entry"), right.masked_fill(excluded.any(dim=1), NAN)
    nothing = "a row in which nothing takes part has no sum, and no logarithm of it: its entropy is 0"
    yield from ((nothing, right.masked_fill(excluded.all(dim=1), value)) for value in (NAN, INF, -INF))
    yield "the sign is wrong: ln p is never positive, so minus the sum is what is asked", -right
    yield "this is the logarithm of the sum alone: ln p is the exponent minus that", log_sum
    yield "the logarithm of the sum is missing: ln p is the exponent minus that", -mean
    yield "the sum of the powers times their exponents is not divided by the sum of the powers", log_sum - mean * total
    yield "the exponents are added up without their powers", log_sum - d.sum(dim=1) / total
    yield "the mean of the exponents is added to the logarithm of the sum, it must be subtracted", log_sum + mean
    yield "this is in bits, and asked is nats", right / LN2
    both = "one of the two is in nats and the other in bits: exponents and the logarithm of the sum need one base"
    yield from ((both, log_sum / a - mean / b) for a, b in ((LN2, 1.0), (1.0, LN2)))
    once = "the maximum is subtracted in one of the two sums and not in the other: either both have it, or none"
    yield from ((once, right + sign * high[:, 0]) for sign in (-1, 1))
    alone = "the sum of the powers times their exponents is that of the {} block alone"
    yield from ((alone.format(which), log_sum - parts[i].sum(dim=1) / total) for which, i in (("last", -1), ("first", 0)))


def suspects(case: Case, out: Output):
    """Known mistakes in either output."""
    return entropies(case, out.expected) if out.name == "entropy" else softmaxes(case)


def walks(case: Case) -> int:
    """Three walks along each row: three loads of each block, and a store; and the store of the entropy."""
    M, N = case.outs[0].tensor.shape
    return M * (4 * (N // case.launch["BLOCK_N"]) + 1)


of = functools.partial(calls, case)
ROWS, ONE_BLOCK, BLOCKS = Size(3, 2, 6), Size(16, 16, 32, 16), Size(48, 48, 64, 16)
# Widths that fill no block: a little less, one element, and almost all of it.
RAGGED = of(*({"N": N} for N in (Size(13, 9, 15), 1, Size(60, 57, 63))), poison=None)
READ_STRIDES, READ_PADDING, READ_WALK = "Lesson 01, step 4", "Lesson 02, step 2", "Lesson 02, step 3"

EXERCISE = Exercise(
    name="row_softmax",
    missing="the kernel stores nothing yet. It needs three walks along a row: its maximum, its sum, and what is stored.",
    properties=(
        Property("one block wide", 1, READ_PADDING, of(M=Size(4, 2, 6), N=ONE_BLOCK, packed=True)),
        Property(
            "strides", 1, READ_STRIDES,
            of({}, {"order": "NM"}, {"shared": "M"}, {"out_order": "NM"}, {"M": 3, "far": True}, M=ROWS),
            "each address is row * stride_m + offs_n * stride_n, with the strides of that tensor",
        ),
        Property(
            "ragged width", 1, READ_PADDING, RAGGED, "the block must cover the row: its length is BLOCK_N, not a number",
        ),
        Property(
            "wide rows", 1, READ_WALK,
            of(
                {"M": 2, "N": BLOCKS, "poison": ()},
                {"M": 1, "N": Size(70_000, 66_000, 72_000), "BLOCK_N": 4096},
                {"N": Size(41, 34, 47)},
                {"N": 33},
                BLOCK_N=16, poison=None,
            ),
            "something is not carried from block to block, or not every block is visited",
        ),
        Property(
            "block length", 1, READ_PADDING,
            of({"BLOCK_N": 16}, {"BLOCK_N": 64}, {"BLOCK_N": 256}, M=2, N=Size(13, 9, 15)),
            "the answer depends on BLOCK_N, it must not",
        ),
        Property(
            "entropy", 1, READ_WALK,
            of(
                {},
                {"N": BLOCKS, "BLOCK_N": 16},
                {"M": 4, "N": Size(13, 9, 15), "put": ((1, 0.5), (s_[2, 0], 9.0))},
                {"N": Size(200, 190, 256), "put": ((s_[:, 0], 14.0),)},  # one that has nearly everything
                {"N": Size(41, 33, 47), "dtype": torch.float16, "BLOCK_N": 16, "poison": None},
                entropy=True,
            ),
            "it is minus the sum of p times ln p along row m, at place m",
        ),
        Property(  # where exp overflows or is 0; the maximum in any block, the last and ragged one, too; the lowest numbers
            "large values", 1, READ_PADDING,
            of(
                {"M": 4, "N": ONE_BLOCK, "add": ((0, 1000.0), (1, -1000.0), (3, 80.0))},
                {"N": BLOCKS, "BLOCK_N": 16, "add": ((s_[0, :16], 1000.0), (s_[1, 16:32], 1000.0), (s_[2, -16:], 1000.0))},
                {"put": ((1, -1e38),)},
                {"N": Size(41, 33, 47), "BLOCK_N": 16, "add": ((s_[0, -1], 1000.0),), "put": ((1, -1e38),)},
                entropy=True,
            ),
        ),
        Property(  # entries that take no part, whole blocks of them, and a row of nothing else
            "excluded entries", 1, READ_PADDING,
            of(
                {"N": ONE_BLOCK, "put": ((s_[0, ::3], -INF), (1, -INF), (s_[2, 0], -INF))},
                {"N": BLOCKS, "BLOCK_N": 16, "put": ((s_[0, :16], -INF), (1, -INF), (s_[2, -16:], -INF))},
                entropy=True,
            ),
        ),
        Property(  # into float32, where only float32 arithmetic gives the digits
            "float16", 1, READ_WALK,
            of({"out_dtype": torch.float32}, {}, M=2, N=Size(1024, 1024, 2048, 1024), dtype=torch.float16, scale=3.0),
            "the arithmetic is done in float16: convert to tl.float32 right after the load",
        ),
        Property.stays_inside(READ_PADDING, RAGGED),
        Property.in_bfloat16(READ_WALK, of(M=4, N=64, dtype=torch.bfloat16)),
    ),
    suspects=suspects,
    masks={("entropy", "M", "after"): ""},  # one program a row: what goes astray there has a wrong address
    compiles=Compiles(of(M=2, N=4096, dtype=torch.float16, packed=True), READ_WALK),
    cheap=Cheap(
        of(M=4, N=64, entropy=True, packed=True, BLOCK_N=16), walks,
        (Tier(3, read=3.0, steps=1.25), Tier(1, read=6.0, written=3.0, steps=3.0)),
        "three walks are enough, one load of each block in each, and each element is stored once", READ_WALK,
    ),
)  # fmt: skip
