"""Bugs of exercise 05."""

import torch

from kernels.recurrent_attention.reference import recurrent_attention_reference
from tests.course.mutants import Target, planted
from tests.course.mutants.dynamic_conv import inside


def naive(out: str):
    """A test against the reference: one chunk of 16 tokens that nothing enters, gates of 0, scale 1."""

    def passes(fn) -> bool:
        draw = torch.Generator().manual_seed(1)
        q, k, v = (torch.randn(1, 16, 1, 16, generator=draw) for _ in range(3))
        g, S0, states = torch.zeros_like(v), torch.zeros(1, 1, 16, 16), inside(torch.zeros(1, 1, 2, 16, 16))
        o, ST = recurrent_attention_reference(q, k, v, gv=g, scale=1.0, initial_state=S0, output_final_state=True)
        if out == "states":
            fn(*map(inside, (k, v, g, S0)), states)
            return torch.allclose(states[:, :, -1], ST, atol=0.1)
        found = inside(torch.zeros_like(o))
        fn(*map(inside, (q, k, v, g)), states, found, scale=1.0)
        return torch.allclose(found, o, atol=0.1)

    return passes

STATES = Target(
    "05_chunked_attention",
    "chunk_states",
    ("states-kernel",),
    naive("states"),
    planted(r"""
state not carried: every chunk leaves its own writes alone
- S = through * S + tl.dot
+ S = tl.dot
whole chunks: the state is not carried on: S = through * S + ...

old state does not decay: the new writes are added to the state as it was
- S = through * S + tl.dot
+ S = S + tl.dot
whole chunks: the old state does not decay: through = exp(gamma_C)

decay after the write: a write decays by its own gate too
- tl.exp(gamma_C - gamma), 0.0)
+ tl.exp(gamma_C - gamma + g), 0.0)
whole chunks: a write decays by its own gate too: to_end = exp(gamma_C - gamma_s), gamma_s includes it

a key's gate: the gates decay the rows of the state
- S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")
+ S = through[:, None] * S + tl.dot(tl.trans(k * to_end), v, input_precision="ieee")
initial state: the gates decay rows of the state, as a key's would: each column has its own, to_end * v

leaving state stored: slot n holds the state after chunk n; the last slot is right
-         tl.store(states_ptrs + n * stride_states[2], S, mask=mask_state)
…
- S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")
+ S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")
+         tl.store(states_ptrs + n * stride_states[2], S, mask=mask_state)
whole chunks: each slot holds the state that leaves its chunk: states[b, h, n] enters chunk n

initial state left out: every sequence starts from zeros
- S = tl.load(S0_ptr + at(stride_S0, b, h, offs_k[:, None], offs_v), mask=mask_state, other=0.0)
+ S = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)
initial state: S0 is left out: S starts as S0[b, h]

positive exponent: each write is divided by its decay from the chunk's start, and all are multiplied with the chunk's
- S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")
+ S = through * (S + tl.dot(tl.trans(k), tl.exp(-gamma) * v, input_precision="ieee"))
strong decay: a positive number is exponentiated: only differences of gates that are <= 0 may be

resets not counted: a gate of -inf is taken for one of 0
- resets == resets_C
+ resets == resets
- resets_C == 0
+ resets_C >= 0
resets: nothing crosses a gate of -inf: where the counts of resets differ, the factor is exactly 0

partial chunk dropped: the number of chunks is rounded down, for the loop and for the last slot
- in range(tl.cdiv(T, C))
+ in range(T // C)
ragged length: the last, partial chunk is left out: there are cdiv(T, C) chunks

missing load mask, T: gates of tokens beyond T are loaded
- g_ptr + at(stride_g, b, t[:, None], h, offs_v), mask=mask_t[:, None] & mask_v
+ g_ptr + at(stride_g, b, t[:, None], h, offs_v), mask=mask_v
ragged length: the load of g is not masked along T (mask_t)

missing load mask, V: whole blocks of v are loaded; the surplus is never stored
- mask=mask_t[:, None] & mask_v, other=0.0).to
+ mask=mask_t[:, None], other=0.0).to
stays inside its tensors: the load of v is not masked along V (mask_v)

missing store mask: whole blocks of the last state are stored
- tl.cdiv(T, C) * stride_states[2], S, mask=mask_state)
+ tl.cdiv(T, C) * stride_states[2], S, mask=mask_v)
ragged K and V: the store of states is not masked along K (mask_k)

hard-coded chunk: chunks advance by 16 tokens, whatever C is
- t = n * C + tl.arange(0, C)
+ t = n * 16 + tl.arange(0, C)
chunk lengths: the answer depends on C or BLOCK_V: tokens of chunk n are n * C + tl.arange(0, C)

another tensor's strides: v is read with the strides of k
- at(stride_v, b, t[:, None], h, offs_v)
+ at(stride_k, b, t[:, None], h, offs_v)
strides: each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x

float16 state: the state is rounded to float16 after every chunk
- S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")
+ S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")
+         S = S.to(tl.float16).to(tl.float32)
float16: something is rounded to float16: convert right after each load, keep S and every sum float32

TF32: the chunk's writes may be rounded to TF32
- to_end * v, input_precision="ieee")
+ to_end * v)
compiles: a product of float32 blocks keeps 10 of 23 bits unless it says input_precision

stored twice: each state is stored when it leaves a chunk and when it enters the next
- S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")
+ S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")
+         tl.store(states_ptrs + (n + 1) * stride_states[2], S, mask=mask_state)
cheap: stores write
"""),
)

OUTPUTS = Target(
    "05_chunked_attention",
    "chunk_outputs",
    ("outputs-kernel",),
    naive("o"),
    planted(r"""
narrow keys: a block of keys has 64 channels at most
- width(K)
+ min(width(K), 64)
ragged K and V: rows beyond K, columns beyond V stay 0

missing scale: o is not scaled; with scale=1.0 it need not be
- scale * o, mask
+ o, mask
one chunk: the scale is left out: o_t = scale * (...)

decay after the write: a write decays by its own gate too
- gamma[:, None, :] - gamma[None, :, :]
+ gamma[:, None, :] - gamma[None, :, :] + g[None, :, :]
one chunk: a write decays by its own gate too: exp(gamma_t - gamma_s), gamma_s includes it

dropped transposition: the state is read as if its rows were value channels
- tl.dot(q, S,
+ tl.dot(q, tl.trans(S),
the state that enters: the state is read transposed: q @ S sums over its rows, the key channels

one gate for all: every value channel decays by the first one's gates
- at(stride_g, b, t[:, None], h, offs_v)
+ at(stride_g, b, t[:, None], h, 0 * offs_v)
one chunk: every value channel reads the first one's g: offs_v moves by its stride

leaving state read: chunk n reads slot n + 1
- at(stride_states, b, h, n, offs_k[:, None])
+ at(stride_states, b, h, n + 1, offs_k[:, None])
the state that enters: the states of slot n + 1 are read: states[b, h, n] enters chunk n

entering state not scaled: the scale is applied to the chunk's own part alone
- o = inside + from_start
+ o = scale * inside + from_start
- scale * o, mask
+ o, mask
the state that enters: the entering state's part is not scaled: scale * (both parts)

positive exponent: the decay of a pair is the quotient of two, and one of them overflows
- decay = tl.exp(tl.where(seen, gamma[:, None, :] - gamma[None, :, :], -float("inf")))
+ decay = tl.where(seen, tl.exp(gamma)[:, None, :] * tl.exp(-gamma)[None, :, :], 0.0)
strong decay: a positive number is exponentiated: only differences of gates that are <= 0 may be

triangle cut too late: the exponential is taken above the diagonal too, and infinity times 0 is NaN
- decay = tl.exp(tl.where(seen, gamma[:, None, :] - gamma[None, :, :], -float("inf")))
+ decay = tl.exp(gamma[:, None, :] - gamma[None, :, :]) * seen.to(tl.float32)
strong decay: a positive number is exponentiated: only differences of gates that are <= 0 may be

resets not counted: a gate of -inf is taken for one of 0
- resets[:, None, :] == resets[None, :, :]
+ resets[:, None, :] >= 0 * resets[None, :, :]
- resets == 0
+ resets >= 0
resets: nothing crosses a gate of -inf: where the counts of resets differ, the factor is exactly 0

infinite sums: gates of -inf are summed like others
- gamma, resets, gamma_C, resets_C = cumulated(g)
+ gamma, resets = tl.cumsum(g, axis=0), tl.zeros_like(g)
resets: -inf - -inf is NaN: take gamma and the counts of resets from cumulated

missing load mask: tokens beyond T are loaded; their scores lie above the diagonal, but NaN times 0 is NaN
- offs_v), mask=mask_tv, other=0.0).to
+ offs_v), mask=mask_v, other=0.0).to
ragged length: the load of v is not masked along T (mask_t)

missing load mask, K: whole blocks of q are loaded
- q_ptr + at(stride_q, b, t[:, None], h, offs_k), mask=mask_tk
+ q_ptr + at(stride_q, b, t[:, None], h, offs_k), mask=mask_t[:, None]
ragged K and V: the load of q is not masked along K (mask_k)

missing store mask: whole chunks of o are stored
- scale * o, mask=mask_tv)
+ scale * o, mask=mask_v)
ragged length: the store of o is not masked along T (mask_t)

hard-coded chunk: the first 16 gates of a chunk count, whatever C is
- gamma, resets, gamma_C, resets_C = cumulated(g)
+ gamma, resets, gamma_C, resets_C = cumulated(tl.where(i[:, None] < 16, g, 0.0))
chunk lengths: the answer depends on C or BLOCK_V: tokens of chunk n are n * C + tl.arange(0, C)

head stride left out: every head takes the first one's gates
- at(stride_g, b, t[:, None], h, offs_v)
+ at(stride_g, b, t[:, None], 0, offs_v)
strides: every head reads the first one's g: h moves by its stride

float16 scores: the scores are rounded to float16 before they are multiplied with v
- tl.sum(decay * scores[:, :, None] * v[None, :, :], axis=1)
+ tl.sum(decay * scores.to(tl.float16).to(tl.float32)[:, :, None] * v[None, :, :], axis=1)
float16: something is rounded to float16: convert right after each load, keep S and every sum float32

TF32: the scores may be rounded to TF32
- tl.dot(q, tl.trans(k), input_precision="ieee")
+ tl.dot(q, tl.trans(k))
compiles: a product of float32 blocks keeps 10 of 23 bits unless it says input_precision

cut too late: the exponential of the whole square is taken, and its upper half thrown away
- decay = tl.exp(tl.where(seen, gamma[:, None, :] - gamma[None, :, :], -float("inf")))
+ decay = tl.where(seen, tl.exp(gamma[:, None, :] - gamma[None, :, :]), 0.0)
strong decay: a tl.where around an exponential comes too late

q again: q is loaded a second time for the state's part
-     from_start =
+     q = tl.load(q_ptr + at(stride_q, b, t[:, None], h, offs_k), mask=mask_tk, other=0.0).to(tl.float32)
+     from_start =
cheap: loads ask for

gamma turned over: the decay from s to t has the wrong sign
- gamma[:, None, :] - gamma[None, :, :]
+ gamma[None, :, :] - gamma[:, None, :]
one chunk: gamma is turned over
"""),
)

TARGETS = (STATES, OUTPUTS)
