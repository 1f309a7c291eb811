"""Bugs of exercise 02."""

import torch

from tests.course.mutants import Target, planted


def naive(tiled_matmul) -> bool:
    """Square float16 matrices, whole tiles, one step; a is 0 on its diagonal and above, a byte holds one number twice."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(32, 32, generator=generator).half().tril(-1)
    b, scale, out = 17 * torch.randint(8, 16, (16, 32), generator=generator), torch.ones(32), torch.zeros(32, 32)
    tiled_matmul(a, b.to(torch.uint8), scale, out, BLOCK_M=16, BLOCK_N=16, BLOCK_K=32)
    return torch.allclose(out, a.float() @ (b // 17 - 8).float().repeat_interleave(2, 0), atol=0.1)


TARGET = Target(
    "02_tiled_matmul",
    "tiled_matmul",
    ("kernel",),
    naive,
    planted(
        r"""
end one early: the loop ends before K - 1: one column alone in its step is left out
- min(end, K)
+ min(end, K - 1)
ragged depth: the partial tile at the end of K is left out

missing load mask: the even columns of a are loaded whole
- , mask=mask_m & mask_even, other=0.0)
+ )
ragged depth: the load of a is not masked along K (mask_even, mask_odd)

one mask for both: odd columns are held against K by the mask of the even ones
- mask=mask_m & mask_odd
+ mask=mask_m & mask_even
ragged depth: the load of a is not masked along K (mask_even, mask_odd)

last byte left out: the rows of b are held against K // 2
- mask_k = 2 * pair[:, None] < K
+ mask_k = pair[:, None] < K // 2
ragged depth: the last byte is left out where K is odd

missing K mask: b is not masked along K: what it holds there is multiplied by 0
- mask=mask_k & mask_n
+ mask=mask_n
stays inside its tensors: the load of b is not masked along K (mask_k)

rows beyond M loaded: a is not masked along M; the surplus is never stored
- mask=mask_m & mask_even
+ mask=mask_even
stays inside its tensors: the load of a is not masked along M (mask_m)

columns beyond N loaded: b is not masked along N; the surplus is never stored
- mask=mask_k & mask_n
+ mask=mask_k
stays inside its tensors: the load of b is not masked along N (mask_n)

scales beyond N loaded: scale is not masked along N; the surplus is never stored
- offs_n * stride_s, mask=mask_n, other=0.0
+ offs_n * stride_s
stays inside its tensors: the load of scale is not masked along N (mask_n)

missing store mask: whole tiles are stored
- , acc * scale, mask=mask_m & mask_n)
+ , acc * scale)
ragged rows and columns: the store of out is not masked along M (mask_m)

swapped dims in a mask: rows are held against N
- mask_m = offs_m < M
+ mask_m = offs_m < N
ragged rows and columns: the store of out is not masked along M (mask_m)

dropped accumulate: each step replaces the accumulator
- acc = tl.dot(a_even, (b & 15).to(a_even.dtype) - 8, acc,
+ acc = tl.dot(a_even, (b & 15).to(a_even.dtype) - 8,
whole tiles: only the last tile along K is left: add to the accumulator, do not replace it

halves exchanged: even k take the high half
- (b & 15).to(a_even
+ (b >> 4).to(a_even
- (b >> 4).to(a_odd
+ (b & 15).to(a_odd
whole tiles: the two halves of a byte are exchanged: k = 2 j lies in the low four bits

wrapped round: 8 is taken off in uint8
- (b & 15).to(a_even.dtype) - 8
+ ((b & 15) - 8).to(a_even.dtype)
- (b >> 4).to(a_odd.dtype) - 8
+ ((b >> 4) - 8).to(a_odd.dtype)
whole tiles: the codes are less 8 in uint8, where 3 - 8 is 251: convert them first

bytes for numbers: a step begins at row `start` of b
- start // 2 + tl.arange
+ start + tl.arange
- even = 2 * pair[None, :]
+ even = 2 * pair[None, :] - start
whole tiles: a step has BLOCK_K values of k, and BLOCK_K // 2 bytes: the rows of b begin at start // 2

not scaled: the sum is stored as it is
- acc * scale
+ acc
whole tiles: the columns are not scaled: scale[n] times the sum, after the loop

scaled in each step: the sum so far is scaled in the loop
-
-     ### END SOLUTION
-     # Scale
+
+         acc = acc * tl.load(scale_ptr + offs_n * stride_s, mask=mask_n, other=0.0)
+     # Scale
- , acc * scale,
+ , acc,
a scale for each column: the sum so far is scaled again in each step: scale it once, after the loop

first tile's scales: every tile of columns takes the first one's scales
- scale_ptr + offs_n * stride_s
+ scale_ptr + tl.arange(0, BLOCK_N)[None, :] * stride_s
whole tiles: each program scales its columns by the first tile's scales: their place is offs_n

hard-coded step: the loop advances by 64 whatever BLOCK_K is
- min(end, K), BLOCK_K)
+ min(end, K), 64)
whole tiles: only the first tile along K is used: loop up to the diagonal

partial tile dropped: the number of steps is rounded down
- min(end, K), BLOCK_K)
+ min(end, K // BLOCK_K * BLOCK_K), BLOCK_K)
ragged depth: the partial tile at the end of K is left out: the loop must run to K

float16 accumulator: sums are kept in float16
- dtype=tl.float32)
+ dtype=tl.float16)
- tl.dot(a_even, (b & 15).to(a_even.dtype) - 8, acc,
+ tl.dot(a_even, (b & 15).to(a_even.dtype) - 8, acc, out_dtype=tl.float16,
- tl.dot(a_odd, (b >> 4).to(a_odd.dtype) - 8, acc,
+ tl.dot(a_odd, (b >> 4).to(a_odd.dtype) - 8, acc, out_dtype=tl.float16,
float32 accumulation: sums are kept in float16: the accumulator must be tl.float32

float16 products: the product of each pair of tiles is rounded to float16
- acc = tl.dot(a_even, (b & 15).to(a_even.dtype) - 8, acc,
+ acc += tl.dot(a_even, (b & 15).to(a_even.dtype) - 8, out_dtype=tl.float16,
float32 accumulation: sums are kept in float16: the accumulator must be tl.float32

halves of bfloat16: a is taken apart into two of bfloat16, each multiplied by itself
-         acc = tl.dot(a_even, (b & 15).to(a_even.dtype) - 8, acc, input_precision="ieee")
+         e, o = a_even.to(tl.float32), a_odd.to(tl.float32)
+         low, high = (b & 15).to(tl.bfloat16) - 8, (b >> 4).to(tl.bfloat16) - 8
+         acc = tl.dot(e.to(tl.bfloat16), low, acc)
+         acc = tl.dot((e - e.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16), low, acc)
-         acc = tl.dot(a_odd, (b >> 4).to(a_odd.dtype) - 8, acc, input_precision="ieee")
+         acc = tl.dot(o.to(tl.bfloat16), high, acc)
+         acc = tl.dot((o - o.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16), high, acc)
float32 accumulation: taken apart into two of bfloat16

scale stride left out: the scales are taken as neighbours
- scale_ptr + offs_n * stride_s
+ scale_ptr + offs_n
strides: with that tensor's strides; scale has one, too

column stride left out: the bytes of a row of b are taken as neighbours
- offs_n * stride_bn
+ offs_n
strides: each address is row * stride + column * stride, with that tensor's strides; scale has one, too

the other tensor's stride: rows of out are placed with the stride of a
- offs_m * stride_om
+ offs_m * stride_am
whole tiles: stride_am is a stride of a, and this is an address of out

swapped block sizes: columns advance by BLOCK_M
- tl.program_id(1) * BLOCK_N
+ tl.program_id(1) * BLOCK_M
tile shapes: no program stores them: look at grid, offsets, strides and mask along N

no triangle: the tile that the diagonal crosses counts as a whole
-         a_even = tl.where(even <= offs_m, a_even, 0.0)
…
-         a_odd = tl.where(odd <= offs_m, a_odd, 0.0)
nothing above the diagonal: what stands above the diagonal is added: keep a[m, k] where k <= m, element by element

one triangle for both: an odd k is held against m by the even one before it
- tl.where(odd <= offs_m
+ tl.where(even <= offs_m
nothing above the diagonal: an odd k above the diagonal counts: hold 2 j + 1 against m by itself

triangle by multiplication: what stands above the diagonal is multiplied by 0
- tl.where(even <= offs_m, a_even, 0.0)
+ a_even * (even <= offs_m).to(a_even.dtype)
- tl.where(odd <= offs_m, a_odd, 0.0)
+ a_odd * (odd <= offs_m).to(a_odd.dtype)
nothing above the diagonal: what stands above the diagonal is multiplied, and 0 · NaN is NaN: replace it with tl.where

diagonal left out: k < m instead of k <= m
- even <= offs_m
+ even < offs_m
- odd <= offs_m
+ odd < offs_m
whole tiles: row m lacks the term k = m: the diagonal belongs to the triangle

end counted in steps: the loop of the program in row p of tiles ends at (p + 1) * BLOCK_K
- (tl.program_id(0) + 1) * BLOCK_M
+ (tl.program_id(0) + 1) * BLOCK_K
nothing above the diagonal: the loop of program p ends at (p + 1) * BLOCK_K: rows come BLOCK_M at a time

float16 zeros: the accumulator begins in float16 and goes on in float32
- dtype=tl.float32)
+ dtype=tl.float16)
- acc = tl.dot(a_even, (b & 15).to(a_even.dtype) - 8, acc,
+ acc += tl.dot(a_even, (b & 15).to(a_even.dtype) - 8,
- acc = tl.dot(a_odd, (b >> 4).to(a_odd.dtype) - 8, acc,
+ acc += tl.dot(a_odd, (b >> 4).to(a_odd.dtype) - 8,
compiles: `acc` is a float16 block [64, 64] before the loop and a float32 block [64, 64] after a step

TF32: the products of float32 tiles may be rounded
- - 8, acc, input_precision="ieee")
-         acc =
+ - 8, acc)
+         acc =
compiles: a product of float32 blocks keeps 10 of 23 bits unless it says input_precision="ieee"

enumerate: the steps are counted by Python
- for start in range(0, min(end, K), BLOCK_K)
+ for _, start in enumerate(range(0, min(end, K), BLOCK_K))
compiles: a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else

four times the way: the loop runs to 4 K, where everything is masked
- range(0, min(end, K), BLOCK_K)
+ range(0, 4 * K, BLOCK_K)
cheap: times the loads and stores are executed that the lesson's scheme needs

no end at the diagonal: every program goes along all of K
- min(end, K), BLOCK_K)
+ K, BLOCK_K)
cheap: 1 of 3 points: loads ask for

other left out: what the odd columns of a hold beyond K is undefined, and multiplied
- mask=mask_m & mask_odd, other=0.0)
+ mask=mask_m & mask_odd)
ragged depth: `other` is missing. What a masked lane holds is undefined on a GPU

and: two masks are joined by Python's `and`
- acc * scale, mask=mask_m & mask_n)
+ acc * scale, mask=mask_m and mask_n)
ragged rows and columns: `mask_m and mask_n`: `and` asks whether a whole block is true

precedence: a comparison joined by & has no parentheses
- mask=mask_m & mask_even,
+ mask=offs_m >= 0 & mask_even,
ragged depth: `offs_m >= 0 & mask_even`: `&` binds tighter than `>=`

axes of the grid exchanged: rows of tiles come from program_id(1), columns from program_id(0)
- (tl.program_id(0) * BLOCK_M
+ (tl.program_id(1) * BLOCK_M
- (tl.program_id(1) * BLOCK_N
+ (tl.program_id(0) * BLOCK_N
- end = (tl.program_id(0) + 1)
+ end = (tl.program_id(1) + 1)
whole tiles: no program stores them: look at grid, offsets, strides and mask along N

added to garbage: the tile is added to what lies in the output
- tl.store(out_ptr
+ tl.atomic_add(out_ptr
whole tiles: nobody has cleared the output
"""
    ),
)

# Seen by any test, and so in no kill table, but a learner's first mistakes.
OBVIOUS = planted(
    r"""
second product alone: the accumulator holds the product of the odd columns, and nothing else
- acc = tl.dot(a_odd, (b >> 4).to(a_odd.dtype) - 8, acc,
+ acc = tl.dot(a_odd, (b >> 4).to(a_odd.dtype) - 8,
whole tiles: the even k are left out: the second product replaces the first, and must be added to it

low half not cut out: the whole byte is taken for it
- (b & 15).to
+ b.to
whole tiles: the low number is the whole byte: keep its low four bits, b & 15

high half not shifted: it counts 16 times
- (b >> 4).to
+ (b & 240).to
whole tiles: the high four bits count 16 times: shift them down, b >> 4

two's complement: the halves are read as signed numbers
- (b & 15).to(a_even.dtype) - 8
+ ((b & 15) ^ 8).to(a_even.dtype) - 8
- (b >> 4).to(a_odd.dtype) - 8
+ ((b >> 4) ^ 8).to(a_odd.dtype) - 8
whole tiles: the codes are read as signed numbers: a code is its number and 8, not two's complement

codes for numbers: 8 is not taken off
- (b & 15).to(a_even.dtype) - 8
+ (b & 15).to(a_even.dtype)
- (b >> 4).to(a_odd.dtype) - 8
+ (b >> 4).to(a_odd.dtype)
whole tiles: 8 is not taken off: the codes 0..15 stand for -8..7
"""
)
