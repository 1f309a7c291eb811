"""Bugs of exercise 04."""

import torch

from kernels.recurrent_attention.reference import recurrent_attention_reference
from tests.course.mutants import Target, planted
from tests.course.mutants.dynamic_conv import inside


def naive(inputs: str, outs: str, atol: float):
    """A test against the reference and autograd: one sequence that fills its blocks, without states, scale 1; gates of 0, and
    mild ones where their gradient is asked for."""

    def passes(fn) -> bool:
        draw = torch.Generator().manual_seed(1)
        x = {name: torch.randn(16, 1, 16, generator=draw) for name in ("q", "k", "v", "do")}
        x["g"] = -torch.rand(16, 1, generator=draw) * (outs == "dg")
        x |= {"gk": torch.zeros(16, 1, 16)} | dict.fromkeys(("S0", "dST"), torch.zeros(1, 1, 16, 16))
        q, k, v, g = wanted = [x[name].requires_grad_() for name in "qkvg"]
        o, _ = recurrent_attention_reference(q[None], k[None], v[None], g=g[None], scale=1.0, initial_state=x["S0"])
        gradients = torch.autograd.grad(o[0], wanted, x["do"])
        right = {"o": o[0]} | dict(zip(("dq", "dk", "dv", "dg"), gradients))
        found = {name: inside(torch.zeros_like(right.get(name, x["S0"]))) for name in outs.split()}
        given = (inside(x[name].detach()) for name in inputs.split())
        fn(*given, *found.values(), cu_seqlens=torch.tensor([0, 16], dtype=torch.int32), scale=1.0)
        return all(torch.allclose(found[name], right[name], atol=atol) for name in found if name in right)

    return passes

TOKENS = r"""
tokens in 32 bits: the number of a token is multiplied with its stride as it comes
- (cu_seqlens_ptr + n).to(tl.int64)
+ (cu_seqlens_ptr + n)
- n + 1).to(tl.int64)
+ n + 1)
strides: wraps around in 32 bits
"""

FORWARD = Target(
    "04_recurrent_attention",
    "recurrent_forward",
    ("forward-kernel",),
    naive("q k v g gk S0", "o ST", 0.1),
    planted(r"""
reset leaks: no gate is below -20, where hardly anything is left
- tl.exp(g + gk) * S
+ tl.exp(tl.maximum(g + gk, -20.0)) * S
gates: every row i of the state decays by exp(g_t + gk_t[i])

decay after the write: the token just written decays too
- S = tl.exp(g + gk) * S + k * v
+ S = tl.exp(g + gk) * (S + k * v)
gates: the decay is applied after the write: decay, then write, then read

vector gate left out: only the scalar gate decays the state
- tl.exp(g + gk) * S
+ tl.exp(g) * S
gates: the gate gk is left out of the decay, exp(g + gk)

decays added: with both gates 0 the sum of the decays, less 1, is 1 as well
- tl.exp(g + gk) * S
+ (tl.exp(g) + tl.exp(gk) - 1.0) * S
gates: every row i of the state decays by exp(g_t + gk_t[i])

missing scale: o is not scaled; with scale=1.0 it need not be
- scale * tl.sum(q * S
+ tl.sum(q * S
whole blocks: the scale is left out: o_t = scale * S_t^T q_t

lanes race: the state is read back by other lanes, transposed
- o = scale * tl.sum(q * S, axis=0)[None, :]
+ ST_ptrs = ST_ptr + at(stride_ST, n, h, offs_k) + offs_v * stride_ST[3]
+         tl.store(ST_ptrs, S, mask=mask_k & mask_v)
+         S_rows = tl.load(tl.trans(ST_ptrs), mask=tl.trans(mask_k & mask_v), other=0.0)
+         o = scale * tl.sum(tl.trans(q) * S_rows, axis=1)[None, :]
whole blocks: nothing orders the lanes of a program: put tl.debug_barrier() between the two

initial state left out: every sequence starts from zeros
- S = tl.load(S0_ptrs, mask=mask_k & mask_v, other=0.0)
+ S = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)
a state at both ends: S0 is left out: S starts as S0[n, h]

final state stored in the walk: every token stores the state; an empty sequence has none to do it
-     ST_ptrs =
+         ST_ptrs =
-     tl.store(ST_ptrs
+         tl.store(ST_ptrs
packed sequences: no program stores them: look at grid, offsets, strides and mask along N

sequences start at 0: t counts from the start of the tensor, not of the sequence
- for t in range(begin, end):
+ for t in range(end - begin):
packed sequences: every sequence is taken to start at token 0: t runs from cu_seqlens[n]

missing load mask, K: whole blocks of q are loaded
- at(stride_q, t, h, offs_k), mask=mask_k, other=0.0)
+ at(stride_q, t, h, offs_k))
ragged K: the load of q is not masked along K (mask_k)

missing load mask, V: whole blocks of v are loaded; the surplus is never stored
- at(stride_v, t, h, offs_v), mask=mask_v, other=0.0)
+ at(stride_v, t, h, offs_v))
stays inside its tensors: the load of v is not masked along V (mask_v)

missing store mask, K: whole blocks of rows of the final state are stored
- S, mask=mask_k & mask_v)
+ S, mask=mask_v)
ragged K: the store of ST is not masked along K (mask_k)

missing store mask, V: whole blocks of o are stored
- o, mask=mask_v)
+ o)
ragged V: the store of o is not masked along V (mask_v)

another tensor's strides: v is read with the strides of k, as long as K = V and nothing is transposed
- at(stride_v, t, h, offs_v)
+ at(stride_k, t, h, offs_v)
strides: each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x
""", TOKENS, r"""
head stride left out: every head takes the first one's gate
- t * stride_g[0] + h * stride_g[1]
+ t * stride_g[0]
strides: every head reads the first one's g: h moves by its stride

hard-coded block: blocks of V advance by 16
- tl.program_id(2) * BLOCK_V
+ tl.program_id(2) * 16
block sizes: no program stores them: look at grid, offsets, strides and mask along V

float16 state: the state is rounded to float16 after every token
- S = tl.exp(g + gk) * S + k * v
+ S = (tl.exp(g + gk) * S + k * v).to(tl.float16).to(tl.float32)
float16: products or sums are taken in float16: convert to tl.float32 right after each load

float16 products: k * v is taken in the dtype of the tensors
- at(stride_k, t, h, offs_k), mask=mask_k, other=0.0).to(tl.float32)
+ at(stride_k, t, h, offs_k), mask=mask_k, other=0.0)
- at(stride_v, t, h, offs_v), mask=mask_v, other=0.0).to(tl.float32)
+ at(stride_v, t, h, offs_v), mask=mask_v, other=0.0)
float16: products or sums are taken in float16: convert to tl.float32 right after each load

float16 state: the state begins in float16 and goes on in float32
-     S = tl.load(S0_ptrs, mask=mask_k & mask_v, other=0.0)
+     S = tl.load(S0_ptrs, mask=mask_k & mask_v, other=0.0).to(tl.float16)
compiles: `S` is a float16 block

ST a token: the state is stored at every token, the last of them stays
- o, mask=mask_v)
+ o, mask=mask_v)
+         tl.store(ST_ptr + at(stride_ST, n, h, offs_k) + offs_v * stride_ST[3], S, mask=mask_k & mask_v)
cheap: stores write
"""),
)

BACKWARD = Target(
    "04_recurrent_attention",
    "recurrent_backward",
    ("dq-kernel", "dkv-kernel"),
    naive("q k v g gk S0 do dST", "dq dk dv dS0", 0.2),
    planted(r"""
decay too early: dS decays by the gate of the token that is about to use it
@ dkv-kernel
- dS += scale * q * do
+ dS = tl.exp(g + gk) * dS + scale * q * do
-         dS *= tl.exp(g + gk)
gates: dS decays by D_t before token t uses it: D_t lies between token t and the one before

decay after the write: the states of the walk forward decay once too often
- S = tl.exp(g + gk) * S + k * v
+ S = tl.exp(g + gk) * (S + k * v)
gates: the decay is applied after the write: decay, then write, then read

missing scale in dq: dq is not scaled; with scale=1.0 it need not be
- scale * tl.sum(S * do
+ tl.sum(S * do
queries: the scale is left out: dq_t = scale * S_t do_t

missing scale in dS: the reads are added to dS unscaled
@ dkv-kernel
- dS += scale * q * do
+ dS += q * do
keys and values: the scale is left out: each token adds scale * q_t do_t^T to dS

final state's gradient left out: dS starts from zeros, right for whoever throws the final state away
@ dkv-kernel
- dS = tl.load(dST_ptrs, mask=mask_k & mask_v, other=0.0)
+ dS = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)
a state at both ends: dST is left out: dS starts as dST[n, h]

last decay left out: the first token's gate is not on the way to the initial state
@ dkv-kernel
-         dS *= tl.exp(g + gk)
+         if i < end - begin - 1:
+             dS *= tl.exp(g + gk)
gates: the last decay is left out: dS0 = D_1 * dS_1

reverse walk ends at token 0: the walk back is right for the first sequence only
@ dkv-kernel
- t = end - 1 - i
+ t = end - begin - 1 - i
packed sequences: every sequence is taken to start at token 0: t runs from cu_seqlens[n]

vector gate left out: on the way back only the scalar gate decays
@ dkv-kernel
- dS *= tl.exp(g + gk)
+ dS *= tl.exp(g)
gates: the gate gk is left out of the decay, exp(g + gk)

missing load mask: whole blocks of do are loaded in the walk forward
- at(stride_do, t, h, offs_v), mask=mask_v, other=0.0)
+ at(stride_do, t, h, offs_v))
ragged V: the load of do is not masked along V (mask_v)

missing store mask, K: whole blocks of dk are stored
@ dkv-kernel
- dk, mask=mask_k)
+ dk)
ragged K: the store of dk is not masked along K (mask_k)

missing store mask, V: whole blocks of dv are stored
@ dkv-kernel
- dv, mask=mask_v)
+ dv)
ragged V: the store of dv is not masked along V (mask_v)

channel stride left out: the channels of do are taken as neighbours, but o.sum() sends a do of stride 0
- at(stride_do, t, h, offs_v)
+ t * stride_do[0] + h * stride_do[1] + offs_v
strides: each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x

states in 32 bits: the number of a sequence's state is multiplied with its stride as it comes
@ dkv-kernel
- tl.program_id(0).to(tl.int64)
+ tl.program_id(0)
strides: wraps around in 32 bits

float16 gradient of the state: dS is rounded to float16 after every token
@ dkv-kernel
- dS *= tl.exp(g + gk)
+ dS = (dS * tl.exp(g + gk)).to(tl.float16).to(tl.float32)
float16: products or sums are taken in float16: convert to tl.float32 right after each load

reversed: the walk back is Python's
@ dkv-kernel
-     for i in range(end - begin):
-         t = end - 1 - i
+     for t in reversed(range(begin, end)):
compiles: a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else

dS0 a token: the gradient of the state is stored at every token
@ dkv-kernel
-         dS *= tl.exp(g + gk)
+         dS *= tl.exp(g + gk)
+         tl.store(dS0_ptr + at(stride_dS0, n, h, offs_k) + offs_v * stride_dS0[3], dS, mask=mask_k & mask_v)
cheap: stores write
"""),
)

GATE = Target(
    "04_recurrent_attention",
    "recurrent_gate_gradient",
    ("gate-kernel", "gamma-kernel"),
    naive("q k v g S0 do dST", "dg", 0.2),
    planted(r"""
no boundary term: the pair of both states is left out
-     dg += tl.where(resets_T == 0, tl.exp(gamma_T), 0.0) * tl.sum(S * dS)
the states' terms: the pair of both states is left out: exp(the sum of all gates) * <S0, dST>, in every dg_t

final state's gradient left out: what the tokens write into the final state is left out, and its pair with the initial state
-     dg += tl.sum(tl.where(i < i[:, None], writes, 0.0), axis=1)
…
-     dg += tl.where(resets_T == 0, tl.exp(gamma_T), 0.0) * tl.sum(S * dS)
the states' terms: dST is left out: it counts as an r after the last token

dropped transposition: do is multiplied with S, not with its transpose; with a state of zeros nobody sees
- tl.dot(do, tl.trans(S),
+ tl.dot(do, S,
the states' terms: S0 is not transposed in its product with the tokens: do @ S0^T

shifted sum: the token's own write counts towards the final state's term
- tl.where(i < i[:, None], writes, 0.0)
+ tl.where(i <= i[:, None], writes, 0.0)
the states' terms: the term of dST counts s = t: a token writes after its gate, s < t strictly

running sum: row sums of W less its column sums, summed from the end: the published form
- dg = tl.sum(tl.where(i < i[:, None], tl.cumsum(W, axis=0, reverse=True), 0.0), axis=1)
+ dg = tl.cumsum(tl.sum(W, axis=1) - tl.sum(W, axis=0), axis=0, reverse=True)
strong decay: large terms cancel: add up the pairs with s < t <= r and subtract nothing

positive exponent: the decay of a pair is the quotient of two, and one of them overflows
- decay = tl.exp(tl.where(seen, gamma[:, None] - gamma, -float("inf")))
+ decay = tl.where(seen, tl.exp(gamma)[:, None] * tl.exp(-gamma), 0.0)
strong decay: a positive number is exponentiated: only differences gamma_r - gamma_s <= 0 may be

infinite sums: gates of -inf are summed like others
@ gamma-kernel
- tl.cumsum(finite, axis=0)
+ tl.cumsum(g, axis=0)
resets: -inf - -inf is NaN: put 0 for a gate of -inf into gamma, and count the resets instead

resets not counted: a gate of -inf is taken for one of 0
@ gamma-kernel
- tl.cumsum(reset, axis=0)
+ tl.cumsum(reset * 0, axis=0)
resets: a pair with a gate of -inf between its tokens gives exactly 0: their counts of resets differ

sum across sequences: a block ends at the end of the tensor, so that the next sequence's tokens are summed too
- begin + i < end,
+ begin + i < tl.load(cu_seqlens_ptr + tl.num_programs(0)).to(tl.int64),
packed sequences: the sums run on into the next sequence: a block ends at cu_seqlens[n + 1], not at T (mask_t)

missing load mask: whole blocks of k are loaded
- at(stride_k, t[:, None], h, offs_k), mask=mask_tk, other=0.0)
+ at(stride_k, t[:, None], h, offs_k), mask=mask_t[:, None], other=0.0)
ragged sizes: the load of k is not masked along K (mask_k)

missing store mask: whole blocks of dg are stored
- dg, mask=mask_t)
+ dg)
ragged sizes: the store of dg is not masked along T (mask_t)

another tensor's strides: do is read with the strides of v
- at(stride_do, t[:, None], h, offs_v)
+ at(stride_v, t[:, None], h, offs_v)
strides: each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x
""", TOKENS, r"""
float16 scores: the scores are rounded to float16 before they are multiplied
- scores = tl.dot(q, tl.trans(k), input_precision="ieee")
+ scores = tl.dot(q, tl.trans(k), input_precision="ieee").to(tl.float16).to(tl.float32)
float16: products or sums are taken in float16: convert to tl.float32 right after each load

TF32: the scores may be rounded to TF32
- scores = tl.dot(q, tl.trans(k), input_precision="ieee")
+ scores = tl.dot(q, tl.trans(k))
compiles: a product of float32 blocks keeps 10 of 23 bits unless it says input_precision

k and v again: the tokens are loaded a second time for the states' terms
-     reads = tl.sum(
+     k = tl.load(k_ptr + at(stride_k, t[:, None], h, offs_k), mask=mask_tk, other=0.0).to(tl.float32)
+     v = tl.load(v_ptr + at(stride_v, t[:, None], h, offs_v), mask=mask_tv, other=0.0).to(tl.float32)
+     reads = tl.sum(
cheap: loads ask for
"""),
)

TARGETS = (FORWARD, BACKWARD, GATE)
