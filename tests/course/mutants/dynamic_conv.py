"""Bugs of exercise 03."""

import torch

from kernels.dynamic_conv.reference import dynamic_conv_reference
from tests.course.mutants import Target, planted


def inside(values: torch.Tensor) -> torch.Tensor:
    """The same values, with zeros before and after them in memory, as ``F.pad`` leaves them."""
    room = torch.zeros(values.numel() + 512)
    room[256:-256] = values.flatten()
    return room[256:-256].view(values.shape)


def operands():
    """One sequence of 16 tokens, 16 channels, no dilation; four taps, the same for every token, as in a static one."""
    draw = torch.Generator().manual_seed(1)
    x, dy = (torch.randn(1, 16, 16, generator=draw) for _ in range(2))
    weight = torch.randn(1, 1, 16, 4, generator=draw).expand(1, 16, 16, 4).contiguous()
    return x.requires_grad_(), weight.requires_grad_(), dy


def naive(output: str):
    """A test of one of the three against the reference and autograd."""

    def passes(fn) -> bool:
        x, weight, dy = operands()
        y = dynamic_conv_reference(x, weight)
        dx, dweight = torch.autograd.grad(y, (x, weight), dy)
        inputs, right, atol = {
            "y": ((x, weight), y, 1e-3),
            "dx": ((dy, weight), dx, 1e-2),
            "dweight": ((dy, x), dweight, 1e-3),
        }[output]
        got = inside(torch.zeros_like(right))
        fn(*(inside(tensor.detach()) for tensor in inputs), got)
        return torch.allclose(got, right, atol=atol)

    return passes


# Bugs of more than one of the three.
UNDILATED = r"""
dilation left out: neighbouring tokens are read, as in the lessons
- (W - 1 - w) * dilation
+ (W - 1 - w)
dilation: the dilation is left out
"""

HALF_DILATED = r"""
half dilated: the window begins where it would without a dilation
- (W - 1 - w) * dilation
+ ((W - 1) - w * dilation)
dilation: the dilation multiplies w alone
"""

LEAK = r"""
the past leaks in: time is not masked at 0: the previous sequence of the batch is read
- (time >= 0) & mask_t
+ mask_t
the first tokens: the load of x is not masked along T (time >= 0)
"""

STORE_MASKS = r"""
missing store mask, T: whole blocks of times are stored
- {stored}, mask=mask_t & mask_d)
+ {stored}, mask=mask_d)
ragged length: the store of {out} is not masked along T (mask_t)

missing store mask, D: whole blocks of channels are stored
- {stored}, mask=mask_t & mask_d)
+ {stored}, mask=mask_t)
ragged channels: the store of {out} is not masked along D (mask_d)
"""

FORWARD = Target(
    "03_dynamic_conv",
    "dynamic_conv_forward",
    ("forward-kernel",),
    naive("y"),
    planted(
        UNDILATED,
        HALF_DILATED,
        LEAK,
        r"""
off-by-one padding: one token before the start counts
- time >= 0
+ time >= -1
the first tokens: the load of x is not masked along T (time >= 0)

missing load mask: whole blocks of weight are loaded; the surplus is never stored
- k = tl.load(k_ptrs, mask=mask_t & mask_d, other=0.0)
+ k = tl.load(k_ptrs)
stays inside its tensors: the load of weight is not masked along T (mask_t)
""",
        STORE_MASKS.format(stored="acc", out="y"),
        r"""
swapped dims in a mask: channels are held against T
- mask_d = offs_d < D
+ mask_d = offs_d < T
ragged channels: no program stores them: look at grid, offsets, strides and mask along D

batch stride left out: every sequence reads the first one
- x_ptr + b * stride_xb
+ x_ptr
strides: every sequence reads the first one's x: add b times its stride

packed strides assumed: weight is taken to lie packed beside x
- offs_t * stride_kt
+ offs_t * (stride_xt * W)
strides: stride_xt is a stride of x, and this is an address of weight

hard-coded width: four taps, whatever W is
- tl.static_range(W)
+ tl.static_range(4)
number of taps: the load of weight is not masked along W (w runs over 0..W-1)

swapped block sizes: times advance by BLOCK_D
- tl.program_id(1) * BLOCK_T
+ tl.program_id(1) * BLOCK_D
block sizes: no program stores them: look at grid, offsets, strides and mask along T

float16 products: each product is taken in the dtype of the tensors
- mask=(time >= 0) & mask_t & mask_d, other=0.0).to(tl.float32)
+ mask=(time >= 0) & mask_t & mask_d, other=0.0)
- other=0.0).to(tl.float32)
-         acc
+ other=0.0)
+         acc
float16: products or sums are taken in float16: convert to tl.float32 right after each load

taps in a list: the products are collected in a list and summed at the end
-     acc = tl.zeros((BLOCK_T, BLOCK_D), dtype=tl.float32)
+     taps = []
- acc += k * x
+ taps.append(k * x)
- offs_d * stride_yd, acc,
+ offs_d * stride_yd, sum(taps),
compiles: a kernel has no lists to append to and no comprehensions

a store a tap: the sum so far is stored for each tap, inside the loop
-         acc += k * x
+         acc += k * x
+         tl.store(y_ptr + b * stride_yb + offs_t * stride_yt + offs_d * stride_yd, acc, mask=mask_t & mask_d)
cheap: 1 of 3 points: stores write 5 times the outputs' bytes, and 1 times do

axes of the grid exchanged: times come from program_id(2), channels from program_id(1)
- (tl.program_id(1) * BLOCK_T
+ (tl.program_id(2) * BLOCK_T
- (tl.program_id(2) * BLOCK_D
+ (tl.program_id(1) * BLOCK_D
whole blocks: no program stores them: look at grid, offsets, strides and mask along D

mask on the weight: the time is masked where the weight is loaded, not where x is
- x = tl.load(x_ptrs, mask=(time >= 0) & mask_t & mask_d
+ x = tl.load(x_ptrs, mask=mask_t & mask_d
- k = tl.load(k_ptrs, mask=mask_t & mask_d
+ k = tl.load(k_ptrs, mask=(time >= 0) & mask_t & mask_d
the first tokens: the load of x is not masked along T (time >= 0)
""",
    ),
)

DX = Target(
    "03_dynamic_conv",
    "dynamic_conv_dx",
    ("dx-kernel",),
    naive("dx"),
    planted(
        r"""
another tensor's strides: dy is addressed by dx's stride, the same number as long as both are packed
- time * stride_yt
+ time * stride_xt
strides: stride_xt is a stride of dx, and this is an address of dy
""",
        UNDILATED,
        r"""
half dilated: only the window's length is dilated, not the step between taps
- (W - 1 - w) * dilation
+ ((W - 1) * dilation - w)
dilation: the dilation multiplies W - 1 alone

wrong diagonal: the weight is read at the time of x, not at the time that saw it
- time * stride_kt
+ offs_t * stride_kt
whole blocks: weight is read at time t: it must be read where tap w saw x[t], at t + (W - 1 - w) * dilation

the future leaks in: dy is masked at the block's own times only
- dy = tl.load(dy_ptrs, mask=(time < T) & mask_d
+ dy = tl.load(dy_ptrs, mask=mask_t & mask_d
the last tokens: the load of dy is not masked along T (time < T)

off-by-one padding: one weight past the end is read
- k = tl.load(k_ptrs, mask=(time < T)
+ k = tl.load(k_ptrs, mask=(time <= T)
the last tokens: the load of weight is not masked along T (time < T)

missing load mask: whole blocks of channels of weight are loaded; the surplus is never stored
- k = tl.load(k_ptrs, mask=(time < T) & mask_d
+ k = tl.load(k_ptrs, mask=time < T
stays inside its tensors: the load of weight is not masked along D (mask_d)
""",
        STORE_MASKS.format(stored="acc", out="dx"),
        r"""
channel stride left out: the channels of dy are taken as neighbours, but y.sum() sends a dy of stride 0
- dy_ptr + b * stride_yb + time * stride_yt + offs_d * stride_yd
+ dy_ptr + b * stride_yb + time * stride_yt + offs_d
strides: each axis of each tensor has its own stride, and some strides are 0

hard-coded width: four taps, whatever W is
- tl.static_range(W)
+ tl.static_range(4)
number of taps: the load of weight is not masked along W (w runs over 0..W-1)

float16 accumulator: sums are kept in float16
- acc += k * dy
+ acc = (acc + k * dy).to(tl.float16).to(tl.float32)
float16: products or sums are taken in float16: convert to tl.float32 right after each load

list of taps: the loop runs over a list
- for w in tl.static_range(W):
+ for w in [w for w in range(W)]:
compiles: a kernel has no lists to append to and no comprehensions

a store a tap: the sum so far is stored for each tap
-         acc += k * dy
+         acc += k * dy
+         tl.store(dx_ptr + b * stride_xb + offs_t * stride_xt + offs_d * stride_xd, acc, mask=mask_t & mask_d)
cheap: 1 of 3 points: stores write 5 times the outputs' bytes, and 1 times do
""",
    ),
)

DWEIGHT = Target(
    "03_dynamic_conv",
    "dynamic_conv_dweight",
    ("dweight-kernel",),
    naive("dweight"),
    planted(
        r"""
a program too few: the grid covers T - 1 tokens: one alone in its block has no program
- triton.cdiv(T, BLOCK_T)
+ max(1, triton.cdiv(T - 1, BLOCK_T))
ragged length: no program stores them

batch in 32 bits: the number of a sequence is multiplied with its stride as it comes
- tl.program_id(0).to(tl.int64)
+ tl.program_id(0)
strides: wraps around in 32 bits

blocks beyond the registers: the default tile has 512 numbers for each thread; the check's own tiles are smaller
- BLOCK_T=16, BLOCK_D=16):
+ BLOCK_T=256, BLOCK_D=256):
compiles: a tile of BLOCK_D = 256 × BLOCK_T = 256 in dweight_kernel is 512 numbers for each of 128 threads
""",
        UNDILATED,
        HALF_DILATED,
        LEAK,
        r"""
slots left as they were: what lies before the start is not stored at all, right by luck in a zeroed output
- tl.store(k_ptrs, dy * x, mask=mask_t
+ tl.store(k_ptrs, dy * x, mask=(time >= 0) & mask_t
the first tokens: slots whose tap lies before the first token hold 0, and they are stored too

missing load mask: whole blocks of dy are loaded; the surplus is never stored
- , mask=mask_t & mask_d, other=0.0).to(tl.float32)
-     for
+ ).to(tl.float32)
+     for
stays inside its tensors: the load of dy is not masked along T (mask_t)

strides in another order: the launch gives the strides of x before those of dy, the same numbers as long as both are packed
- *dy.stride(), *x.stride()
+ *x.stride(), *dy.stride()
strides: the strides come in another order there than in dweight_kernel's signature
""",
        STORE_MASKS.format(stored="dy * x", out="dweight"),
        r"""
tap stride left out: the slots of a weight are taken as neighbours
- w * stride_kw
+ w
strides: each axis of each tensor has its own stride, and some strides are 0

batch stride left out: every sequence reads the first one's gradient
- dy_ptr + b * stride_yb
+ dy_ptr
strides: every sequence reads the first one's dy: add b times its stride

hard-coded width: four slots, whatever W is
- tl.static_range(W)
+ tl.static_range(4)
number of taps: the store of dweight is not masked along W (w runs over 0..W-1)

float16 products: the product is taken in float16
- dy * x, mask
+ (dy.to(dy_ptr.dtype.element_ty) * x.to(x_ptr.dtype.element_ty)), mask
float16: products or sums are taken in float16: convert to tl.float32 right after each load

enumerate: the taps are counted by Python
- for w in tl.static_range(W):
+ for w, _ in enumerate(range(W)):
compiles: a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else

dy once a tap: dy is loaded for each tap, although it is the same
-         time = offs_t - (W
+         dy = tl.load(dy_ptrs, mask=mask_t & mask_d, other=0.0).to(tl.float32)
+         time = offs_t - (W
cheap: 1 of 3 points: loads ask for 4.45 times
""",
    ),
)

TARGETS = (FORWARD, DX, DWEIGHT)
