"""Bugs of exercise 06."""

import torch

from kernels.check.flash_mods import every_pair
from tests.course.mutants import Target, planted
from tests.course.mutants.dynamic_conv import inside


def operands():
    """q, k, v, do of one head, 16 queries and 16 keys; queries near 0 and values that cancel, so that lse is log 16."""
    draw = torch.Generator().manual_seed(1)
    q, k, v, do = (torch.randn(1, 16, 16, generator=draw) for _ in range(4))
    return 0.02 * q, k, torch.cat((v[:, :8], -v[:, :8]), dim=1), do


def lists(num, idx):
    """One row of lists in int32."""
    return torch.tensor([[num[0]], [num[1]]], dtype=torch.int32), torch.tensor([[[idx]], [[idx]]], dtype=torch.int32)


def naive_lists(block_lists) -> bool:
    """One block, some of whose pairs are allowed."""
    found = [x for _ in range(2) for x in lists((7, 7), 7)]
    block_lists(torch.ones(16, 16, dtype=torch.bool).tril(), *found)
    return all(num.flatten().tolist() == [1, 0] and idx[0].item() == 0 for num, idx in (found[:2], found[2:]))


def naive_forward(flash_forward) -> bool:
    """o of one block, all of whose pairs are allowed, against the softmax; scale 1."""
    q, k, v, _ = operands()
    o = inside(torch.zeros(1, 16, 16))
    given = map(inside, (q, k, v, torch.ones(1, 16)))
    flash_forward(*given, *lists((1, 0), 0), o, torch.zeros(1, 16), scale=1.0, mask_mod=every_pair)
    return torch.allclose(o, (q @ k.mT).softmax(-1) @ v, atol=0.1)


def naive_backward(flash_backward) -> bool:
    """The same block's gradients against autograd, scale 1."""
    q, k, v, do = operands()
    tau = torch.ones(1, 16)
    wanted = [x.requires_grad_() for x in (q, k, v, tau)]
    z = tau[..., None] * q @ k.mT
    o = z.softmax(-1) @ v
    expected = torch.autograd.grad(o, wanted, do)
    found = [inside(torch.zeros(shape)) for shape in (*[(1, 16, 16)] * 3, (1, 16))]
    given = map(inside, (x.detach() for x in (q, k, v, tau, o, z.logsumexp(-1), do)))
    listed = (*lists((1, 0), 0), *lists((1, 0), 0))
    flash_backward(*given, *listed, *map(inside, torch.zeros(1, 1, 16)), *found, scale=1.0, mask_mod=every_pair)
    return all(torch.allclose(a, b, atol=0.3) for a, b in zip(found, expected, strict=True))

LISTS = Target(
    "06_flash_attention",
    "block_lists",
    ("lists-kernel", "lists-launcher-kernel"),
    naive_lists,
    planted(r"""
full blocks partial: a block goes to list 0 as soon as it has a pair
- if count == BLOCK_M * BLOCK_N:
+ if count > BLOCK_M * BLOCK_N:
partial, full, empty: full blocks are listed as partial

eight blocks a row: the loop over blocks is unrolled for eight of them
- for c in range(C):
+ for c in range(tl.minimum(C, 8)):
partial, full, empty: count the allowed pairs: none is empty

empty blocks listed: whatever is not full is taken for partial
- elif count > 0:
+ elif count >= 0:
partial, full, empty: empty blocks are listed

in both lists: a full block is listed as partial too
-         elif count > 0:
-             tl.store(idx_ptr + r * C + partial, c)
+         if count > 0:
+             tl.store(idx_ptr + r * C + partial, c)
partial, full, empty: full blocks are listed as partial too: a block is in one list

empty row not stored: a row without blocks leaves its count of 0 to whoever made the tensor
-     tl.store(num_ptr + r, partial)
+     if partial + full > 0:
+         tl.store(num_ptr + r, partial)
rows without pairs: no program stores them

from the last to the first: blocks are listed in descending order
-         offs_n = c * BLOCK_N
+         c = C - 1 - c
+         offs_n = c * BLOCK_N
partial, full, empty: the blocks of a list are in ascending order

holes in the lists: block c stands at place c, as in a matrix
- idx_ptr + (R + r) * C + full, c
+ idx_ptr + (R + r) * C + c, c
- idx_ptr + r * C + partial, c
+ idx_ptr + r * C + c, c
partial, full, empty: block c stands at place c: blocks stand side by side, each at the place that counts those before it

ragged block full: a block is full if all its pairs that exist are allowed
- if count == BLOCK_M * BLOCK_N:
+ if count == tl.minimum(BLOCK_M, M - r * BLOCK_M) * tl.minimum(BLOCK_N, N - c * BLOCK_N):
ragged sizes: a block that reaches past M or N is taken for full: all BLOCK_M * BLOCK_N pairs must be allowed

keys' lists not transposed: the second launch is the first once more, right for symmetric masks
@ lists-launcher-kernel
- (mask, num_t, idx_t, stride_n, stride_m, N, M, C, R, BLOCK_N, BLOCK_M)
+ (mask, num_t, idx_t, stride_m, stride_n, M, N, R, C, BLOCK_M, BLOCK_N)
lists of the keys: the keys' lists are the queries' once more: swap the strides, and the sizes

missing load mask: pairs beyond N are read
- mask=mask_m[:, None] & mask_n, other=0)
+ mask=mask_m[:, None], other=0)
ragged sizes: the load of mask is not masked along N (mask_n)

hard-coded block: columns advance by 16
- offs_n = c * BLOCK_N
+ offs_n = c * 16
block sizes: block (r, c) begins at row r * BLOCK_M, column c * BLOCK_N

packed rows assumed: rows of the mask are taken to lie N apart
@ lists-launcher-kernel
- (stride_m, stride_n) = mask.shape, mask.stride()
+ (stride_m, stride_n) = mask.shape, (mask.shape[1], 1)
strides: the mask has its own strides, and some are 0

continue: an empty block is left by Python's continue
-         if count == BLOCK_M * BLOCK_N:
+         if count == 0:
+             continue
+         if count == BLOCK_M * BLOCK_N:
compiles: no break and no continue

stored in vain: every block's number is stored first, and counted if it is partial
-         if count == BLOCK_M * BLOCK_N:
+         tl.store(idx_ptr + r * C + partial, c)
+         if count == BLOCK_M * BLOCK_N:
cheap: 1 of 3 points:
"""),
)

STRIDES = "query head h reads key head h // G, and each tensor has its own strides, some of them 0: at(stride_x, ...)"

FORWARD = Target(
    "06_flash_attention",
    "flash_forward",
    ("forward-kernel", "logits-kernel", "online-kernel"),
    naive_forward,
    planted(rf"""
full blocks unguarded: where a block is full, -inf is taken from -inf
- acc, l, top = online_step(acc, l, top, z, v)
+ before = top
+             acc, l, top = online_step(acc, l, top, z, v)
+             if kind == 1:
+                 acc += (0.0 * tl.exp(before - top))[:, None]
score mods: z = SCORE_MOD(s, m, n)

largest logit from a number: the maximum begins at -1e30, not at -inf
- top = l - float("inf")
+ top = l - 1e30
large logits: exponentiate z - top

accumulator not rescaled: what was summed before keeps the old maximum
@ online-kernel
- acc = acc * alpha[:, None] +
+ acc = acc +
blocks of keys: the numerator is not rescaled: acc = acc * alpha + p v, alpha = exp(top - new_top)

denominator not rescaled: only the numerator is
@ online-kernel
- l = l * alpha +
+ l = l +
blocks of keys: the denominator is not rescaled: l = l * alpha + sum of p, alpha = exp(top - new_top)

running maximum not updated: the new maximum is used and forgotten: every block is the first
@ online-kernel
- return acc, l, new_top
+ return acc, l, top
blocks of keys: top is not carried from block to block: a step returns new_top

maximum falls: each block takes its own maximum; the algebra is right, the exponents are not
@ online-kernel
- new_top = tl.maximum(top, tl.max(z, axis=1))
+ new_top = tl.max(z, axis=1)
large logits: a positive number is exponentiated: top is the largest logit so far, it never falls

minus infinity less itself: a row that has seen no key yet is shifted by its maximum
@ online-kernel
- shift = tl.where(new_top == -float("inf"), 0.0, new_top)
+ shift = new_top
rows without keys: -inf - -inf or 0 / 0 is NaN: shift by 0 where the maximum is -inf, divide by 1 where l is 0

masked row divides by zero: the numerator of a row without keys is divided by its denominator
-     l = tl.where(l == 0.0, 1.0, l)
rows without keys: -inf - -inf or 0 / 0 is NaN: shift by 0 where the maximum is -inf, divide by 1 where l is 0

lse without the maximum: only o is looked at
- top + tl.log(l)
+ tl.log(l)
blocks of keys: the maximum is left out: lse = top + log l

lse in base 2: the logarithm of the hardware
- top + tl.log(l)
+ top * 1.4426950408889634 + tl.log2(l)
blocks of keys: lse is in base 2: it is natural, top + log l

missing scale: scores are not scaled; with scale=1.0 they need not be
@ logits-kernel
- s = scale * tl.dot(
+ s = tl.dot(
large logits: the scale is left out: s = scale * q k^T

temperature left out: queries are read as they are
- q = tau[:, None] * tile(
+ q = tile(
blocks of keys: the temperature is left out: s = tau * scale * q k^T

one head's temperatures: every head takes those of the first
- tau_ptr + h * stride_tau[0]
+ tau_ptr
blocks of keys: every head takes the first one's temperatures

scale after the score mod: the mod sees the bare product
@ logits-kernel
- s = scale * tl.dot(
+ s = tl.dot(
- z = SCORE_MOD(s, m, n)
+ z = scale * SCORE_MOD(s, m, n)
score mods: the scale is applied after the score mod: the mod takes scale * q k^T

mask left out: all pairs of a partial block count that exist
@ logits-kernel
- MASK_MOD(m, n) & (m < M)
+ (m < M)
block lists: the mask is not applied in partial blocks

mask in full blocks: the mask is evaluated in every block
- M, N, kind == 0, SCORE_MOD
+ M, N, True, SCORE_MOD
block lists: the mask is applied in full blocks: there every pair counts

eight blocks a list: a list is walked along in a loop that is unrolled for eight blocks
- range(tl.load(num_ptr + kind * R + r))
+ range(tl.minimum(tl.load(num_ptr + kind * R + r), 8))
block lists: row r visits what its lists name, the mask counts in list 0 only

full list left out: only list 0 is walked along
- tl.static_range(2)
+ tl.static_range(1)
block lists: the full blocks are left out: list 1 comes after list 0

ragged tail not masked: keys beyond N are zeros, and count
@ logits-kernel
-  & (n < N)
+
ragged sizes: keys beyond N count: where n >= N, z is -inf

another axis' mask: the values' rows are masked as if there were BLOCK_N of them
- v = tile(v_ptr, stride_v, h // G, offs_n, offs_v, mask_n, mask_v)
+ v = tile(v_ptr, stride_v, h // G, offs_n, offs_v, offs_n >= 0, mask_v)
ragged sizes: the load of v is not masked along N (mask_n)

missing store mask: whole blocks of rows of o are stored
- mask=mask_m[:, None] & mask_v)
+ mask=mask_v)
ragged sizes: the store of o is not masked along M (mask_m)

wrong key head: query heads are dealt out to key heads in turn
- tile(k_ptr, stride_k, h // G
+ tile(k_ptr, stride_k, h % (tl.num_programs(1) // G)
- tile(v_ptr, stride_v, h // G
+ tile(v_ptr, stride_v, h % (tl.num_programs(1) // G)
heads and strides: query head h reads key head h % J: heads that share keys are neighbours, h // G

another tensor's strides: v is read with the strides of k
- tile(v_ptr, stride_v,
+ tile(v_ptr, stride_k,
heads and strides: {STRIDES}

hard-coded block: keys advance by 16
- offs_n = c * BLOCK_N
+ offs_n = c * 16
block sizes: the answer depends on BLOCK_M or BLOCK_N, it must not

float16 accumulator: the numerator is rounded to float16 after every block
@ online-kernel
- return acc, l, new_top
+ return acc.to(tl.float16).to(tl.float32), l, new_top
float16: something is rounded to float16: tile gives float32, and all sums stay float32

TF32: the scores may be rounded to TF32
@ logits-kernel
- scale * tl.dot(q, tl.trans(k), input_precision="ieee")
+ scale * tl.dot(q, tl.trans(k))
compiles: a product of float32 blocks keeps 10 of 23 bits unless it says input_precision

queries again: the queries are loaded for every block of keys
-             k = tile(k_ptr
+             q = tau[:, None] * tile(q_ptr, stride_q, h, offs_m, offs_d, mask_m, mask_d)
+             k = tile(k_ptr
cheap: loads ask for
"""),
)

BACKWARD = Target(
    "06_flash_attention",
    "flash_backward",
    ("backward-kernel",),
    naive_backward,
    planted(rf"""
head in 32 bits: the number of a key head is multiplied with the stride of dv as it comes
- at(stride_dv, j.to(tl.int64)
+ at(stride_dv, j
heads and strides: wraps around in 32 bits

delta left out: the softmax is differentiated as if its denominator were a constant
-  - delta[:, None])
+ )
queries: delta is left out: dz = p * (do v^T - delta)

delta added: delta has the wrong sign
-  - delta[:, None])
+  + delta[:, None])
queries: delta is added: dz = p * (do v^T - delta)

missing scale in dq: dq is not scaled; with scale=1.0 it need not be
- scale * tau[:, None] * dq, mask
+ tau[:, None] * dq, mask
queries: the scale is left out: dq is scale * the product with ds

temperature twice: dtau is taken from queries that have their temperature already
- tl.sum(bare * dq, axis=1)
+ tl.sum(q * dq, axis=1)
queries: dtau is the sum of q * dq, which holds tau already: leave it out there

temperature divided out: dtau is q * dq over tau, and some temperatures are 0
- tl.sum(bare * dq, axis=1)
+ tl.sum(q * dq, axis=1) / tau
queries: dtau is divided by tau, and where that is 0 it is NaN

temperature left out of dq: dq is that of the queries with their temperature
- scale * tau[:, None] * dq, mask
+ scale * dq, mask
queries: the temperature is left out of dq: dq = tau * scale * ds k

cold keys: the keys' kernel reads the queries as they are
- q = rows_tau[:, None] * tile(
+ q = tile(
keys and values: the temperature is left out: s = tau * scale * q k^T

missing scale in dk: dk is not scaled
- scale * dk, mask
+ dk, mask
keys and values: the scale is left out: dk is scale * the product with ds

derivative left out: the gradient passes the score mod unchanged
- ds = SCORE_GRADIENT(s, offs_m[:, None], offs_n[None, :], dz)
+ ds = dz
score mods: the score mod's derivative is left out: ds = SCORE_GRADIENT(s, m, n, dz)

dead rows: minus infinity is subtracted from minus infinity in rows without keys
- shift = tl.where(lse == -float("inf"), 0.0, lse)
+ shift = lse
rows without keys: a row without keys has z = lse = -inf, and -inf - -inf is NaN: take 0 for such an lse

ragged tail not masked: rows beyond M are zeros, and count: with score + 100 their p is infinite
@ logits-kernel
-  & (m < M)
+
ragged sizes: rows beyond M count: z must be -inf there, and ds 0 wherever z is -inf, whatever the gradient is

derivative after the mask: the score mod's derivative, infinite at a score of 0, is multiplied with zeros
-     ds = tl.where(z == -float("inf"), 0.0, ds)
ragged sizes: rows beyond M count: z must be -inf there, and ds 0 wherever z is -inf, whatever the gradient is

transposed lists swapped: the keys' kernel gets the lists of the queries, right for symmetric masks
- *for_dkv, num_t, idx_t,
+ *for_dkv, num, idx,
block lists: the keys' kernel walks along the queries' lists: row c of num_t and idx_t lists blocks of queries

full list left out: dk and dv come from partial blocks only
-         for kind in tl.static_range(2):
-             for
+         for kind in tl.static_range(1):
+             for
block lists: the full blocks are left out: list 1 comes after list 0

eight blocks a list: the keys' lists are walked along in a loop that is unrolled for eight blocks
- range(tl.load(num_ptr + kind * C + c))
+ range(tl.minimum(tl.load(num_ptr + kind * C + c), 8))
block lists: dq walks along num and idx, dk and dv along num_t and idx_t

eight heads a group: the loop over the heads that share keys is unrolled for eight
- for g in range(G)
+ for g in range(tl.minimum(G, 8))
heads and strides: {STRIDES}

one head of the group: of the heads that share keys only the first gives them gradients
- for g in range(G)
+ for g in range(1)
heads and strides: only the first of the heads that share keys counts: add up all G

another tensor's strides: o is read with the strides of do; o.sum() sends a do of stride 0
- tile(o_ptr, stride_o,
+ tile(o_ptr, stride_do,
heads and strides: {STRIDES}

missing store mask: whole blocks of rows of dk are stored
- scale * dk, mask=mask_n[:, None] & mask_d)
+ scale * dk, mask=mask_d)
ragged sizes: the store of dk is not masked along N (mask_n)

hard-coded block: queries advance by 16
- idx_ptr + (kind * C + c) * R + i) * BLOCK_M
+ idx_ptr + (kind * C + c) * R + i) * 16
block sizes: the answer depends on BLOCK_M or BLOCK_N, it must not

float16 ds: ds is rounded to float16 before it is multiplied with q
- tl.trans(ds), q
+ tl.trans(ds.to(tl.float16).to(tl.float32)), q
float16: something is rounded to float16: tile gives float32, and all sums stay float32

TF32: the product with the keys may be rounded to TF32
- dq += tl.dot(ds, k, input_precision="ieee")
+ dq += tl.dot(ds, k)
compiles: a product of float32 blocks keeps 10 of 23 bits unless it says input_precision

values again: the values are loaded for every block of queries
-                 do = tile(do_ptr
+                 v = tile(v_ptr, stride_v, j, offs_n, offs_v, mask_n, mask_v)
+                 do = tile(do_ptr
cheap: the inputs' bytes
"""),
)

TARGETS = (FORWARD, LISTS, BACKWARD)
