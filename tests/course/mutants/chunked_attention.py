"""Bugs of exercise 05."""

import torch

from kernels.recurrent_attention.reference import recurrent_attention_reference
from tests.course.mutants import Mutant, Target, tf32
from tests.course.mutants.dynamic_conv import inside


def operands():
    """q, k, v of one chunk of 16 tokens, gates of 0, a state of zeros."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 16, 1, 16, generator=draw) for _ in range(3))
    return q, k, v, torch.zeros(1, 16, 1, 16), torch.zeros(1, 1, 16, 16)


def reference():
    """o and the last state of that chunk, scale 1."""
    q, k, v, g, S0 = operands()
    return recurrent_attention_reference(q, k, v, gv=g, scale=1.0, initial_state=S0, output_final_state=True)


def naive_states(chunk_states) -> bool:
    """The last state of one chunk against the reference."""
    _, k, v, g, S0 = operands()
    states = inside(torch.zeros(1, 1, 2, 16, 16))
    chunk_states(*map(inside, (k, v, g, S0)), states)
    return torch.allclose(states[:, :, -1], reference()[1], atol=0.1)


def naive_outputs(chunk_outputs) -> bool:
    """The outputs of one chunk that nothing enters against the reference, scale 1."""
    q, k, v, g, S0 = operands()
    o = inside(torch.zeros(1, 16, 1, 16))
    chunk_outputs(*map(inside, (q, k, v, g, S0[:, :, None].repeat(1, 1, 2, 1, 1))), o, scale=1.0)
    return torch.allclose(o, reference()[0], atol=0.1)


F16 = "something is rounded to float16: convert right after each load, keep S and every sum float32"
LENGTHS = "the answer depends on C or BLOCK_V: tokens of chunk n are n * C + tl.arange(0, C)"
POSITIVE = "a positive number is exponentiated: only differences of gates that are <= 0 may be"
STRIDES = "each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x"
UPDATE = 'S = through * S + tl.dot(tl.trans(k), to_end * v, input_precision="ieee")'

STATES = Target(
    "05_chunked_attention",
    "chunk_states",
    ("states-kernel",),
    naive_states,
    (
        Mutant(
            "state not carried", "every chunk leaves its own writes alone",
            ("S = through * S + tl.dot", "S = tl.dot"),
            "whole chunks", "the state is not carried on: S = through * S + ...",
        ),
        Mutant(
            "old state does not decay", "the new writes are added to the state as it was",
            ("S = through * S + tl.dot", "S = S + tl.dot"),
            "whole chunks", "the old state does not decay: through = exp(gamma_C)",
        ),
        Mutant(
            "decay after the write", "a write decays by its own gate too",
            ("tl.exp(gamma_C - gamma), 0.0)", "tl.exp(gamma_C - gamma + g), 0.0)"),
            "whole chunks", "a write decays by its own gate too: to_end = exp(gamma_C - gamma_s), gamma_s includes it",
        ),
        Mutant(
            "a key's gate", "the gates decay the rows of the state",
            (UPDATE, 'S = through[:, None] * S + tl.dot(tl.trans(k * to_end), v, input_precision="ieee")'),
            "initial state", "the gates decay rows of the state, as a key's would: each column has its own, to_end * v",
        ),
        Mutant(
            "leaving state stored", "slot n holds the state after chunk n; the last slot is right",
            (
                "        tl.store(states_ptrs + n * stride_states[2], S, mask=mask_state)\n",
                "",
                UPDATE,
                UPDATE + "\n        tl.store(states_ptrs + n * stride_states[2], S, mask=mask_state)",
            ),
            "whole chunks", "each slot holds the state that leaves its chunk: states[b, h, n] enters chunk n",
        ),
        Mutant(
            "initial state left out", "every sequence starts from zeros",
            (
                "S = tl.load(S0_ptr + at(stride_S0, b, h, offs_k[:, None], offs_v), mask=mask_state, other=0.0)",
                "S = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)",
            ),
            "initial state", "S0 is left out: S starts as S0[b, h]",
        ),
        Mutant(
            "positive exponent",
            "each write is divided by its decay from the chunk's start, and all are multiplied with the chunk's",
            (UPDATE, 'S = through * (S + tl.dot(tl.trans(k), tl.exp(-gamma) * v, input_precision="ieee"))'),
            "strong decay", POSITIVE,
        ),
        Mutant(
            "resets not counted", "a gate of -inf is taken for one of 0",
            ("resets == resets_C", "resets == resets", "resets_C == 0", "resets_C >= 0"),
            "resets", "nothing crosses a gate of -inf: where the counts of resets differ, the factor is exactly 0",
        ),
        Mutant(
            "partial chunk dropped", "the number of chunks is rounded down, for the loop and for the last slot",
            ("in range(tl.cdiv(T, C))", "in range(T // C)"),
            "ragged length", "the last, partial chunk is left out: there are cdiv(T, C) chunks",
        ),
        Mutant(
            "missing load mask, T", "gates of tokens beyond T are loaded",
            (
                "g_ptr + at(stride_g, b, t[:, None], h, offs_v), mask=mask_t[:, None] & mask_v",
                "g_ptr + at(stride_g, b, t[:, None], h, offs_v), mask=mask_v",
            ),
            "ragged length", "the load of g is not masked along T (mask_t)",
        ),
        Mutant(
            "missing load mask, V", "whole blocks of v are loaded; the surplus is never stored",
            ("mask=mask_t[:, None] & mask_v, other=0.0).to", "mask=mask_t[:, None], other=0.0).to"),
            "stays inside its tensors", "the load of v is not masked along V (mask_v)",
        ),
        Mutant(
            "missing store mask", "whole blocks of the last state are stored",
            (
                "tl.cdiv(T, C) * stride_states[2], S, mask=mask_state)",
                "tl.cdiv(T, C) * stride_states[2], S, mask=mask_v)",
            ),
            "ragged K and V", "the store of states is not masked along K (mask_k)",
        ),
        Mutant(
            "hard-coded chunk", "chunks advance by 16 tokens, whatever C is",
            ("t = n * C + tl.arange(0, C)", "t = n * 16 + tl.arange(0, C)"),
            "chunk lengths", LENGTHS,
        ),
        Mutant(
            "another tensor's strides", "v is read with the strides of k",
            ("at(stride_v, b, t[:, None], h, offs_v)", "at(stride_k, b, t[:, None], h, offs_v)"),
            "strides", STRIDES,
        ),
        Mutant(
            "float16 state", "the state is rounded to float16 after every chunk",
            (UPDATE, UPDATE + "\n        S = S.to(tl.float16).to(tl.float32)"),
            "float16", F16,
        ),
        tf32("the chunk's writes may be rounded to TF32", 'to_end * v, input_precision="ieee")'),
        Mutant(
            "stored twice", "each state is stored when it leaves a chunk and when it enters the next",
            (
                UPDATE + "\n",
                f"{UPDATE}\n"
                "        tl.store(states_ptrs + (n + 1) * stride_states[2], S, mask=mask_state)\n",
            ),
            "cheap", "stores write ",
        ),
    ),
)  # fmt: skip

EXPONENT = "gamma[:, None, :] - gamma[None, :, :]"
DECAY = f'decay = tl.exp(tl.where(seen, {EXPONENT}, -float("inf")))'
OWN = "tl.sum(decay * scores[:, :, None] * v[None, :, :], axis=1)"

OUTPUTS = Target(
    "05_chunked_attention",
    "chunk_outputs",
    ("outputs-kernel",),
    naive_outputs,
    (
        Mutant(
            "narrow keys", "a block of keys has 64 channels at most",
            ("width(K)", "min(width(K), 64)"),
            "ragged K and V", "rows beyond K, columns beyond V stay 0",
        ),
        Mutant(
            "missing scale", "o is not scaled; with scale=1.0 it need not be",
            ("scale * o, mask", "o, mask"),
            "one chunk", "the scale is left out: o_t = scale * (...)",
        ),
        Mutant(
            "decay after the write", "a write decays by its own gate too",
            (EXPONENT, f"{EXPONENT} + g[None, :, :]"),
            "one chunk", "a write decays by its own gate too: exp(gamma_t - gamma_s), gamma_s includes it",
        ),
        Mutant(
            "dropped transposition", "the state is read as if its rows were value channels",
            ("tl.dot(q, S, ", "tl.dot(q, tl.trans(S), "),
            "the state that enters", "the state is read transposed: q @ S sums over its rows, the key channels",
        ),
        Mutant(
            "one gate for all", "every value channel decays by the first one's gates",
            ("at(stride_g, b, t[:, None], h, offs_v)", "at(stride_g, b, t[:, None], h, 0 * offs_v)"),
            "one chunk", "every value channel reads the first one's g: offs_v moves by its stride",
        ),
        Mutant(
            "leaving state read", "chunk n reads slot n + 1",
            ("at(stride_states, b, h, n, offs_k[:, None])", "at(stride_states, b, h, n + 1, offs_k[:, None])"),
            "the state that enters", "the states of slot n + 1 are read: states[b, h, n] enters chunk n",
        ),
        Mutant(
            "entering state not scaled", "the scale is applied to the chunk's own part alone",
            ("o = inside + from_start", "o = scale * inside + from_start", "scale * o, mask", "o, mask"),
            "the state that enters", "the entering state's part is not scaled: scale * (both parts)",
        ),
        Mutant(
            "positive exponent", "the decay of a pair is the quotient of two, and one of them overflows",
            (DECAY, "decay = tl.where(seen, tl.exp(gamma)[:, None, :] * tl.exp(-gamma)[None, :, :], 0.0)"),
            "strong decay", POSITIVE,
        ),
        Mutant(
            "triangle cut too late", "the exponential is taken above the diagonal too, and infinity times 0 is NaN",
            (DECAY, f"decay = tl.exp({EXPONENT}) * seen.to(tl.float32)"),
            "strong decay", POSITIVE,
        ),
        Mutant(
            "resets not counted", "a gate of -inf is taken for one of 0",
            (
                "resets[:, None, :] == resets[None, :, :]",
                "resets[:, None, :] >= 0 * resets[None, :, :]",
                "resets == 0",
                "resets >= 0",
            ),
            "resets", "nothing crosses a gate of -inf: where the counts of resets differ, the factor is exactly 0",
        ),
        Mutant(
            "infinite sums", "gates of -inf are summed like others",
            ("gamma, resets, gamma_C, resets_C = cumulated(g)", "gamma, resets = tl.cumsum(g, axis=0), tl.zeros_like(g)"),
            "resets", "-inf - -inf is NaN: take gamma and the counts of resets from cumulated",
        ),
        Mutant(
            "missing load mask",
            "tokens beyond T are loaded; their scores lie above the diagonal, but NaN times 0 is NaN",
            ("offs_v), mask=mask_tv, other=0.0).to", "offs_v), mask=mask_v, other=0.0).to"),
            "ragged length", "the load of v is not masked along T (mask_t)",
        ),
        Mutant(
            "missing load mask, K", "whole blocks of q are loaded",
            (
                "q_ptr + at(stride_q, b, t[:, None], h, offs_k), mask=mask_tk",
                "q_ptr + at(stride_q, b, t[:, None], h, offs_k), mask=mask_t[:, None]",
            ),
            "ragged K and V", "the load of q is not masked along K (mask_k)",
        ),
        Mutant(
            "missing store mask", "whole chunks of o are stored",
            ("scale * o, mask=mask_tv)", "scale * o, mask=mask_v)"),
            "ragged length", "the store of o is not masked along T (mask_t)",
        ),
        Mutant(
            "hard-coded chunk", "the first 16 gates of a chunk count, whatever C is",
            (
                "gamma, resets, gamma_C, resets_C = cumulated(g)",
                "gamma, resets, gamma_C, resets_C = cumulated(tl.where(i[:, None] < 16, g, 0.0))",
            ),
            "chunk lengths", LENGTHS,
        ),
        Mutant(
            "head stride left out", "every head takes the first one's gates",
            ("at(stride_g, b, t[:, None], h, offs_v)", "at(stride_g, b, t[:, None], 0, offs_v)"),
            "strides", "every head reads the first one's g: h moves by its stride",
        ),
        Mutant(
            "float16 scores", "the scores are rounded to float16 before they are multiplied with v",
            (OWN, OWN.replace("scores[", "scores.to(tl.float16).to(tl.float32)[")),
            "float16", F16,
        ),
        tf32("the scores may be rounded to TF32", 'tl.dot(q, tl.trans(k), input_precision="ieee")'),
        Mutant(
            "cut too late", "the exponential of the whole square is taken, and its upper half thrown away",
            (DECAY, f"decay = tl.where(seen, tl.exp({EXPONENT}), 0.0)"),
            "strong decay", "a tl.where around an exponential comes too late",
        ),
        Mutant(
            "q again", "q is loaded a second time for the state's part",
            (
                "    from_start = ",
                "    q = tl.load(q_ptr + at(stride_q, b, t[:, None], h, offs_k), mask=mask_tk,"
                " other=0.0).to(tl.float32)\n"
                "    from_start = ",
            ),
            "cheap", "loads ask for ",
        ),
        Mutant(
            "gamma turned over", "the decay from s to t has the wrong sign",
            (EXPONENT, "gamma[None, :, :] - gamma[:, None, :]"),
            "one chunk", "gamma is turned over",
        ),
    ),
)  # fmt: skip

TARGETS = (STATES, OUTPUTS)
