"""Bugs of exercise 08."""

import torch

from tests.course.mutants import Target, planted
from tests.course.mutants.dynamic_conv import inside

EVERY_SECOND = {"R": 1, "S": 1, "stride": (2, 2), "dilation": (2, 2)}


def operands():
    """Two images of 8 x 8 pixels in one colour of 16 channels; dy for every second pixel, 16 by 16, a symmetric matrix."""
    draw = torch.Generator().manual_seed(1)
    colour, dy = torch.randn(16, generator=draw), torch.randn(2, 16, 16, generator=draw)
    return colour.expand(2, 8, 8, 16).contiguous(), (dy + dy.mT).view(2, 4, 4, 16)


def naive_im2col(im2col) -> bool:
    """The first image alone: each row of A is its colour."""
    x, _ = operands()
    A = inside(torch.zeros(16, 16))
    im2col(inside(x[:1]), A, **EVERY_SECOND)
    return torch.equal(A, x[0, 0, :1].expand(16, 16))


def naive_wgrad(wgrad) -> bool:
    """The first image alone."""
    x, dy = operands()
    dweight = inside(torch.zeros(16, 16))
    wgrad(inside(x[:1]), inside(dy[:1]), dweight, **EVERY_SECOND)
    return torch.allclose(dweight, dy[0].sum((0, 1))[:, None] * x[0, 0, 0], atol=0.1)


def naive_split(wgrad_split) -> bool:
    """Both images, a piece for each."""
    x, dy = operands()
    dweight = inside(torch.zeros(16, 16))
    wgrad_split(inside(x), inside(dy), inside(torch.zeros(2, 16, 16)), dweight, **EVERY_SECOND)
    return torch.allclose(dweight, dy.sum((0, 1, 2))[:, None] * x[0, 0, 0], atol=0.1)


IM2COL = Target(
    "08_conv_wgrad",
    "im2col",
    ("tile-kernel", "im2col-kernel"),
    naive_im2col,
    planted(r"""
images not told apart: p counts the rows of all images; the first one is right
- m // g.Q % g.P
+ m // g.Q
pixels and taps: p runs on into the next image: p = m // Q % P

p and q swapped: pixels are numbered column by column
- p = m // g.Q % g.P
+ p = m % g.P
- q = m % g.Q
+ q = m // g.P % g.Q
pixels and taps: p and q are swapped: q is the fastest digit of m = (n P + p) Q + q

r and s swapped: taps are numbered column by column, as a filter of one tap is too
- r = offs_j // (g.S * g.C)
+ r = offs_j // g.C % g.R
- s = offs_j // g.C % g.S
+ s = offs_j // (g.R * g.C)
pixels and taps: r and s are swapped: s is the faster digit of j = (r S + s) C + c

channels first: columns are numbered as PyTorch's weights lie in memory
- r = offs_j // (g.S * g.C)
+ r = offs_j // g.S % g.R
- s = offs_j // g.C % g.S
+ s = offs_j % g.S
- c = offs_j % g.C
+ c = offs_j // (g.R * g.S)
pixels and taps: channels come first: c is the fastest digit of j = (r S + s) C + c

rows and columns swapped in the address: h moves by the stride of columns, w by that of rows
- at(stride_x, n[:, None], h, w, c)
+ at(stride_x, n[:, None], w, h, c)
pixels and taps: x is [N, H, W, C], and indices come in this order: the one of W stands where H's belongs

padding off by one: the image begins one row and one column earlier
- p * g.sh - g.pt
+ p * g.sh - g.pt + 1
- q * g.sw - g.pl
+ q * g.sw - g.pl + 1
pixels and taps: h and w are 1 too large: h = p * sh + r * dil_h - pt

padding left out: there is none to be seen where the filter fits
- p * g.sh - g.pt
+ p * g.sh
- q * g.sw - g.pl
+ q * g.sw
padding: the padding is left out: h = ... - pt

paddings swapped: the left padding is taken for rows, the top one for columns
- p * g.sh - g.pt
+ p * g.sh - g.pl
- q * g.sw - g.pl
+ q * g.sw - g.pt
padding: the paddings of rows and columns are swapped: pt goes with h, pl with w

edges like poles: columns beyond either edge are masked, as in the lessons
-  % g.W
-     w = tl.where(w < 0, w + g.W, w)
+
- mask_m[:, None] & mask_h
+ mask_m[:, None] & mask_h & (w >= 0) & (w < g.W)
padding: columns beyond either edge are 0: they run round, w mod W

negative remainder: the remainder of a negative number, which is negative in C, is taken for an address
-     w = tl.where(w < 0, w + g.W, w)
padding: columns left of the edge are 0: w % W is negative there, add W

once round: W is added or taken away once
-  % g.W
-     w = tl.where(w < 0, w + g.W, w)
+
+     w = tl.where(w < 0, w + g.W, tl.where(w >= g.W, w - g.W, w))
padding: columns run round once only: w mod W, however large the padding

over the poles: rows run round as columns do
-     w = tl.where(w < 0, w + g.W, w)
+     w = tl.where(w < 0, w + g.W, w)
+     h = (h % g.H + g.H) % g.H
padding: rows run round too: beyond the poles there are zeros, mask_h

border off by one: one row too many is inside
- (h < g.H)
+ (h <= g.H)
padding: the load of x is not masked along H (mask_h)

last row masked: row H - 1 is taken for padding; a stride of 2 does not come to it
- (h < g.H)
+ (h < g.H - 1)
pixels and taps: the image's last row is taken for padding: look at the comparison in mask_h

stride and dilation swapped: with both 2 it makes no difference
- p * g.sh - g.pt)[:, None] + r * g.dil_h
+ p * g.dil_h - g.pt)[:, None] + r * g.sh
- q * g.sw - g.pl)[:, None] + s * g.dil_w
+ q * g.dil_w - g.pl)[:, None] + s * g.sw
stride and dilation: stride and dilation are swapped: the stride goes with p and q, the dilation with r and s

one stride for both: columns move by the stride of rows
- q * g.sw
+ q * g.sh
stride and dilation: columns take the stride of rows: sw goes with q

dilation left out: taps are neighbours; one alone has none
- r * g.dil_h
+ r
- s * g.dil_w
+ s
stride and dilation: the dilation is left out: h = ... + r * dil_h

pixels beyond M loaded: the last, partial block reads on into images that do not exist; the surplus is never stored
- mask=mask_m[:, None] & mask_h
+ mask=mask_h
stays inside its tensors: the load of x is not masked along M (mask_m)

missing store mask: whole tiles of A are stored
@ im2col-kernel
- tile, mask=mask_m[:, None] & mask_j)
+ tile, mask=mask_m[:, None])
ragged sizes: the store of A is not masked along J (mask_j)

hard-coded block: columns advance by 16
@ im2col-kernel
- tl.program_id(1) * BLOCK_N
+ tl.program_id(1) * 16
block sizes: no program stores them: look at grid, offsets, strides and mask along J

packed pixels assumed: channels are taken for neighbours in memory
- at(stride_x, n[:, None], h, w, c)
+ at(stride_x, n[:, None], h, w, 0) + c
strides in memory: each tensor has its own strides, and some are 0: an address takes those of its own

W added once: a negative remainder is avoided by adding W first, which is right for paddings up to W
- + s * g.dil_w) % g.W
-     w = tl.where(w < 0, w + g.W, w)
+ + s * g.dil_w + g.W) % g.W
padding: W is added once before the remainder, and a wide padding needs more

stride and dilation swapped in h: rows of pixels lie the dilation apart, rows of taps the stride
- (p * g.sh - g.pt)[:, None] + r * g.dil_h
+ (p * g.dil_h - g.pt)[:, None] + r * g.sh
stride and dilation: stride and dilation are swapped in h: sh goes with p, dil_h with r

and for &: the conditions of a mask are joined by and, which keeps the last
- mask=mask_m[:, None] & mask_h
+ mask=mask_m[:, None] and mask_h
stays inside its tensors: `and` asks whether a whole block is true

lambda: a column is made by a lambda
-     h = (p * g.sh - g.pt)[:, None] + r
+     column = lambda i: i[:, None]
+     h = column(p * g.sh - g.pt) + r
compiles: a kernel is no full Python: Lambda

loaded twice: the pixels are loaded twice
-     tile = tl.load(x_ptr
+     tile = tl.load(x_ptr + at(stride_x, n[:, None], h, w, c), mask=mask_m[:, None] & mask_h, other=0.0)
+     tile = tl.load(x_ptr
cheap: loads ask for
"""),
)

WGRAD = Target(
    "08_conv_wgrad",
    "wgrad",
    ("product-kernel",),
    naive_wgrad,
    planted(r"""
a block too few: M - 1 pixels are summed: one alone in its block is left out
- tl.cdiv(g.M, BLOCK_K)
+ tl.cdiv(g.M - 1, BLOCK_K)
ragged pixels: the partial block at the end is left out

forty blocks: the loop over the blocks of pixels is unrolled for forty
- blocks = tl.cdiv(g.M, BLOCK_K)
+ blocks = tl.minimum(tl.cdiv(g.M, BLOCK_K), 40)
whole blocks: the last block of pixels is left out

operands rounded: both tiles are made float16, whatever the tensors are
- acc = tl.dot(tl.trans(dy), tile, acc, input_precision="ieee")
+ acc = tl.dot(tl.trans(dy).to(tl.float16), tile.to(tl.float16), acc, input_precision="ieee")
float16: tiles keep their tensor's dtype

dropped accumulate: each block replaces the accumulator
- tl.dot(tl.trans(dy), tile, acc,
+ tl.dot(tl.trans(dy), tile,
whole blocks: only the last block of pixels is left: add to acc, do not replace it

dropped transposition: the sum runs over channels instead of pixels
- tl.dot(tl.trans(dy), tile
+ tl.dot(dy, tile
whole blocks: dy is not transposed: the sum runs over its rows, tl.trans(dy)

pixels stand still: each step reads the first block
- offs_m = block * BLOCK_K
+ offs_m = first * BLOCK_K
whole blocks: every step adds the first block's pixels: offs_m moves by BLOCK_K

one image summed: the reduction runs over P Q pixels
- blocks = tl.cdiv(g.M, BLOCK_K)
+ blocks = tl.cdiv(g.P * g.Q, BLOCK_K)
whole blocks: only the first image counts: the sum runs over all M = N P Q pixels

dy column by column: dy is read at (q, p); in an image of one colour it makes no difference
- n[:, None], p[:, None], q[:, None]
+ n[:, None], q[:, None], p[:, None]
whole blocks: dy is [N, P, Q, O], and indices come in this order: the one of Q stands where P's belongs

partial block dropped: the number of blocks is rounded down
- blocks = tl.cdiv(g.M, BLOCK_K)
+ blocks = g.M // BLOCK_K
ragged pixels: the partial block at the end is left out: there are cdiv(M, BLOCK_K)

wrapped round: pixels beyond the last one are the first ones once more, as rows of tiles may be
- offs_m = block * BLOCK_K + tl.arange(0, BLOCK_K)
+ offs_m = (block * BLOCK_K + tl.arange(0, BLOCK_K)) % g.M
ragged pixels: % M finds rows that exist, and adds them again

missing load mask: dy is loaded beyond the last pixel; A is 0 there, but 0 times NaN is NaN
- mask=mask_m[:, None] & mask_o, other
+ mask=mask_o, other
ragged pixels: the load of dy is not masked along M (mask_m)

missing load mask in A: the same for x; dy is 0 there
@ tile-kernel
- mask=mask_m[:, None] & mask_h
+ mask=mask_h
ragged pixels: the load of x is not masked along M (mask_m)

channels beyond O loaded: whole blocks of dy are loaded; the surplus is never stored
- mask=mask_m[:, None] & mask_o, other
+ mask=mask_m[:, None], other
stays inside its tensors: the load of dy is not masked along O (mask_o)

missing store mask: the tail of a tile is stored over the next output channel's weights
- acc, mask=mask_o[:, None] & mask_j)
+ acc, mask=mask_o[:, None])
ragged channels: the store of dweight is not masked along J (mask_j)

swapped sizes in a mask: output channels are held against C
-     mask_o = offs_o < O
-     mask_j
+     mask_o = offs_o < g.C
+     mask_j
ragged channels: no program stores them: look at grid, offsets, strides and mask along O

hard-coded block: pixels advance by 16, whatever BLOCK_K is
- offs_m = block * BLOCK_K
+ offs_m = block * 16
block sizes: the answer depends on a block size: offsets of block i are i * BLOCK + tl.arange(0, BLOCK)

packed rows assumed: pixel m of dy is taken to lie m steps from the first
- at(stride_dy, n[:, None], p[:, None], q[:, None], offs_o)
+ offs_m[:, None] * stride_dy[2] + offs_o * stride_dy[3]
strides in memory: each tensor has its own strides, and some are 0: an address takes those of its own

float16 accumulator: the sum is rounded to float16 after every block
- acc = tl.dot(tl.trans(dy), tile, acc, input_precision="ieee")
+ acc = tl.dot(tl.trans(dy), tile, acc, input_precision="ieee")
+         acc = acc.to(tl.float16).to(tl.float32)
float16: something is rounded to float16: acc, partials and total stay float32

float16 products: the product of each pair of tiles is rounded to float16
- acc = tl.dot(tl.trans(dy), tile, acc, input_precision="ieee")
+ acc += tl.dot(tl.trans(dy), tile, input_precision="ieee").to(tl.float16).to(tl.float32)
float16: something is rounded to float16: acc, partials and total stay float32

TF32: the products of float32 may be rounded to TF32
- , acc, input_precision="ieee")
+ , acc)
compiles: a product of float32 blocks keeps 10 of 23 bits unless it says input_precision

a step a pixel: the loop runs over M blocks where there are cdiv(M, BLOCK_K)
- blocks = tl.cdiv(g.M, BLOCK_K)
+ blocks = g.M
cheap: times the loads and stores are executed that the lesson's scheme needs
"""),
)

OWN = "piece z owns the blocks z * per ... (z + 1) * per - 1, per = cdiv(blocks, Z)"
UNORDERED = "programs come in no fixed order, so the last bits change from run to run: one program adds up all pieces"

SPLIT = Target(
    "08_conv_wgrad",
    "wgrad_split",
    ("split-kernel",),
    naive_split,
    planted(rf"""
piece in 32 bits: the number of a piece is multiplied with its stride as it comes
- z.to(tl.int64) * stride_z
+ z * stride_z
strides in memory: wraps around in 32 bits

blocks beyond the registers: the default tile has 512 numbers for each thread; the check's own tiles are smaller
- BLOCK_M=16, BLOCK_N=16, BLOCK_K=16
+ BLOCK_M=256, BLOCK_N=256, BLOCK_K=16
compiles: a thread has 255 registers

a gap: the number of blocks in a piece is rounded down
- per = tl.cdiv(blocks, Z)
+ per = blocks // Z
unequal pieces: blocks at the end belong to no piece: round up, per = cdiv(blocks, Z)

forty blocks a piece: the loop over a piece's blocks is unrolled for forty
- last = tl.minimum(first + per, blocks)
+ last = tl.minimum(first + tl.minimum(per, 40), blocks)
unequal pieces: piece z owns the blocks z * per ... (z + 1) * per - 1, per = cdiv(blocks, Z)

eight pieces: the loop over the pieces is unrolled for eight
- for _piece in range(Z):
+ for _piece in range(tl.minimum(Z, 8)):
unequal pieces: only the first 8 of the 10 pieces are added: z runs over all Z

an overlap: ranges are rounded outwards at both ends
- first = z * per
+ first = z * blocks // Z
- last = tl.minimum(first + per, blocks)
+ last = tl.cdiv((z + 1) * blocks, Z)
unequal pieces: the ranges overlap: the block where one piece ends begins the next

the last piece takes the rest: it may be much longer than the others
- per = tl.cdiv(blocks, Z)
+ per = blocks // Z
- last = tl.minimum(first + per, blocks)
+ last = tl.where(z == Z - 1, blocks, first + per)
unequal pieces: the last piece adds all that is left over: {OWN}

one block a piece: piece z is block z
- first = z * per
+ first = z
- last = tl.minimum(first + per, blocks)
+ last = tl.minimum(z + 1, blocks)
equal pieces: each piece adds one block, number z: {OWN}

hard-coded number of pieces: there are two
- for _piece in range(Z):
+ for _piece in range(2):
equal pieces: only the first 2 of the 4 pieces are added: z runs over all Z

empty piece not stored: a program without blocks returns at once
-     tl.store(ptrs, acc, mask=mask_o[:, None] & mask_j)
+     if first < last:
+         tl.store(ptrs, acc, mask=mask_o[:, None] & mask_j)
pieces without blocks: a piece without blocks is not stored: it is the sum of nothing, zeros

sum from the last piece: the pieces are added in the other direction
- offs_o, offs_j)
-     total
+ offs_o, offs_j) + (Z - 1) * stride_z
+     total
- ptrs += stride_z
+ ptrs -= stride_z
order of the sum: the pieces are not added from the first to the last: total starts at 0, z runs up

atomics: each piece has a program that adds it to dweight atomically: the right sum, in any order
-     for _piece in range(Z):
-         total += tl.load(ptrs, mask=mask_o[:, None] & mask_j, other=0.0)
-         ptrs += stride_z
-     tl.store(dweight_ptr + at_tile(stride_dweight, offs_o, offs_j), total, mask=mask_o[:, None] & mask_j)
+     own = tl.load(ptrs + tl.program_id(2).to(tl.int64) * stride_z, mask=mask_o[:, None] & mask_j, other=0.0)
+     tl.atomic_add(dweight_ptr + at_tile(stride_dweight, offs_o, offs_j), own, mask=mask_o[:, None] & mask_j)
-     sum_kernel[tiles](partials,
+     dweight.zero_()
+     sum_kernel[*tiles, Z](partials,
the same bits every time: {UNORDERED}

summed by torch: no kernel adds up the pieces; in which order torch does is torch's business
-     sum_kernel[tiles](partials, dweight, *strides[2:], dweight.stride(), Z, O, g.J, BLOCK_M, BLOCK_N)
+     dweight.copy_(partials.sum(0))
equal pieces: dweight is written by the launcher, after its last launch

made anew: the second launch takes the product over all blocks, and leaves the pieces as they are
- sum_kernel[tiles](partials, dweight, *strides[2:], dweight.stride(), Z, O, g.J, BLOCK_M, BLOCK_N)
+ wgrad_kernel[tiles](x, dy, dweight, *strides[:2], dweight.stride(), O, g, BLOCK_M, BLOCK_N, BLOCK_K)
order of the sum: dweight is made anew from x and dy: it is the sum of what partials holds

load, add, store: the same without atomics: on a GPU whole pieces get lost
-     for _piece in range(Z):
-         total += tl.load(ptrs, mask=mask_o[:, None] & mask_j, other=0.0)
-         ptrs += stride_z
-     tl.store(dweight_ptr + at_tile(stride_dweight, offs_o, offs_j), total, mask=mask_o[:, None] & mask_j)
+     dweight_ptrs = dweight_ptr + at_tile(stride_dweight, offs_o, offs_j)
+     total = tl.load(ptrs + tl.program_id(2).to(tl.int64) * stride_z, mask=mask_o[:, None] & mask_j, other=0.0)
+     total += tl.load(dweight_ptrs, mask=mask_o[:, None] & mask_j, other=0.0)
+     tl.store(dweight_ptrs, total, mask=mask_o[:, None] & mask_j)
-     sum_kernel[tiles](partials,
+     dweight.zero_()
+     sum_kernel[*tiles, Z](partials,
the same bits every time: {UNORDERED}

missing load mask: whole tiles of the pieces are loaded; the surplus is never stored
- mask=mask_o[:, None] & mask_j, other
+ mask=mask_o[:, None], other
stays inside its tensors: the load of partials is not masked along J (mask_j)

missing store mask: a piece's tile is stored over the next piece
- acc, mask=mask_o[:, None] & mask_j)
+ acc, mask=mask_j)
ragged sizes: the store of partials is not masked along O (mask_o)

packed pieces assumed: partials is taken to be one piece of memory
- stride_z, *stride_piece = partials.stride()
+ stride_z, *stride_piece = O * g.J, g.J, 1
strides in memory: each tensor has its own strides, and some are 0: an address takes those of its own

float16 pieces: each piece is rounded to float16 before it is stored
- tl.store(ptrs, acc,
+ tl.store(ptrs, acc.to(tl.float16).to(tl.float32),
order of the sum: something is rounded to float16: acc, partials and total stay float32

sum from a number: the sum of the pieces begins as the number 0
- total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
+ total = 0
compiles: `total` is a number, int32, before the loop

pieces run on: a piece has as many blocks as there are, all but its own masked out
-     last = tl.minimum(first + per, blocks)
+     last = first + per
cheap: times the loads and stores are executed that the lesson's scheme needs
"""),
)

TARGETS = (IM2COL, WGRAD, SPLIT)
