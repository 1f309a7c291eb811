"""Bugs of exercise 01."""

import torch

from tests.course.mutants import Target, planted


def naive(row_softmax) -> bool:
    """Four rows of sixteen, float32."""
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    out, entropy = torch.zeros_like(x), torch.zeros(4)
    row_softmax(x, out, entropy)
    p = torch.softmax(x, dim=1)
    return torch.allclose(out, p, atol=1e-3) and torch.allclose(entropy, -(p * p.log()).sum(1), atol=1e-3)


TARGET = Target(
    "01_row_softmax",
    "row_softmax",
    ("kernel",),
    naive,
    planted(
        r"""
missing load mask: the whole block is loaded
- , mask=mask_n, other=-float("inf")
+
ragged width: the load of x is not masked along N (mask_n)

missing store mask: the whole block is stored
- , p, mask=mask_n)
+ , p)
ragged width: the store of out is not masked along N (mask_n)

lanes count as zeros: masked lanes are loaded as 0
- other=-float("inf")
+ other=0.0
ragged width: the masked lanes count as zeros: their `other` must be -inf

lanes nearly out: masked lanes are loaded as -10, small enough in a short block
- other=-float("inf")
+ other=-10.0
block length: the answer depends on BLOCK_N, it must not

one step: the last walk does its first block only
-     for start in range(0, N, BLOCK_N):
-         offs_n = start + lanes
-         mask_n
+     for start in range(0, BLOCK_N, BLOCK_N):
+         offs_n = start + lanes
+         mask_n
wide rows: no program stores them: look at grid, offsets, strides and mask along N

sum not carried: each block's exponentials replace the sum so far
- total += power
+ total = power
wide rows: the sum is that of the last block alone

sums of different maxima: a block's exponentials are taken against its own maximum
-         total += power
+         total += tl.exp(d - tl.max(d, axis=0))
wide rows: each block's sum is taken against its own maximum

maximum not carried: each block replaces the maximum so far
- high = tl.maximum(high, load_block(x_row, start + lanes, N, stride_xn))
+ high = load_block(x_row, start + lanes, N, stride_xn)
large values: what is subtracted is the maximum of the last block alone

hard-coded width: no walk goes beyond the first 4096 elements
- range(0, N, BLOCK_N):
-         high
+ range(0, min(N, 4096), BLOCK_N):
+         high
- range(0, N, BLOCK_N):
-         d
+ range(0, min(N, 4096), BLOCK_N):
+         d
- range(0, N, BLOCK_N):
-         offs_n
+ range(0, min(N, 4096), BLOCK_N):
+         offs_n
wide rows: no program stores them

no maximum: the exponential of x itself
- d = load_block(x_row, start + lanes, N, stride_xn) - row_max
+ d = load_block(x_row, start + lanes, N, stride_xn)
-  - row_max) / row_sum
+ ) / row_sum
large values: exp overflows, or is zero all along a row: subtract the row's maximum first

maximum from zero: the maximum is never below 0
- row_max = tl.max(high, axis=0)
+ row_max = tl.maximum(tl.max(high, axis=0), 0.0)
large values: what is subtracted is not the maximum of a row that is negative throughout

maximum from a number: the maximum begins at -1e30, not at -inf
- high = tl.full((BLOCK_N,), -float("inf")
+ high = tl.full((BLOCK_N,), -1e30
large values: subtract the row's maximum first

empty row subtracts: a row of -inf subtracts -inf from itself
-     row_max = tl.where(row_max == -float("inf"), 0.0, row_max)
excluded entries: a row of -inf gives inf - inf or 0 / 0: the specification asks for zeros

empty row divides: a row of -inf is divided by its sum, 0
-     row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
excluded entries: a row of -inf gives inf - inf or 0 / 0: the specification asks for zeros

zero times infinity: a power of 0 is multiplied with its exponent, -inf
- power * tl.where(power > 0.0, d, 0.0)
+ power * d
entropy: 0 · -inf is NaN: where a power is 0, as in the lanes beyond N, its part of the entropy must be made 0

zero times infinity inside: only beyond N is the exponent put to 0
- tl.where(power > 0.0, d, 0.0)
+ tl.where(start + lanes < N, d, 0.0)
excluded entries: 0 · -inf is NaN: where a power is 0, as for an excluded entry, its part of the entropy must be made 0

logarithm kept from zero: 1e-6 is added to each power before its logarithm is taken
- power * tl.where(power > 0.0, d, 0.0)
+ power * tl.log(power + 1e-6)
entropy: it is minus the sum of p times ln p along row m

entropy not carried: each block's part of the entropy replaces the sum so far
- weighted += power
+ weighted = power
entropy: the sum of the powers times their exponents is that of the last block alone

column stride left out: the elements of a row of x are taken as neighbours
- x_row + offs_n * stride_xn
+ x_row + offs_n
strides: each address is row * stride_m + offs_n * stride_n, with the strides of that tensor

row in 32 bits: the row's number is multiplied with its stride as it comes
- tl.program_id(0).to(tl.int64)
+ tl.program_id(0)
strides: wraps around in 32 bits

the other tensor's stride: rows of out are placed with the stride of x
- row * stride_om
+ row * stride_xm
strides: each address is row * stride_m + offs_n * stride_n, with the strides of that tensor

float16 arithmetic: the difference is rounded to the dtype of x
- p = tl.exp(load_block(x_row, offs_n, N, stride_xn) - row_max)
+ x = load_block(x_row, offs_n, N, stride_xn) - row_max
+         p = tl.exp(x.to(x_ptr.dtype.element_ty).to(tl.float32))
float16: the arithmetic is done in float16: convert to tl.float32 right after the load

accumulator of another type: the sum begins as the number 0
-     total = tl.zeros((BLOCK_N,), tl.float32)
+     total = 0
compiles: `total` is a number, int32, before the loop and a float32 block [1024] after a step

a walk too many: a fourth walk takes the maximum of what is known by then
-     row_sum = tl.sum(total, axis=0)
+     for start in range(0, N, BLOCK_N):
+         high = tl.maximum(high, load_block(x_row, start + lanes, N, stride_xn))
+     row_sum = tl.sum(total, axis=0)
cheap: 1 of 3 points: loads ask for 4 times the inputs' bytes, and 3 times do

added to garbage: the quotients are added to what lies in the output
- tl.store(out_row
+ tl.atomic_add(out_row
one block wide: nobody has cleared the output
"""
    ),
)
