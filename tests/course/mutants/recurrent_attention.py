"""Bugs of exercise 04."""

import torch

from kernels.recurrent_attention.reference import recurrent_attention_reference
from tests.course.mutants import Mutant, Target, tf32
from tests.course.mutants.dynamic_conv import inside

HEAD = (16, 1, 16)  # one sequence of 16 tokens, one head, 16 channels


def operands():
    """q, k, v, do of one sequence that fills its blocks, gates of 0 and of -1 at most, a state of zeros."""
    draw = torch.Generator().manual_seed(1)
    q, k, v, do = (torch.randn(HEAD, generator=draw) for _ in range(4))
    return q, k, v, do, torch.zeros(16, 1), -torch.rand(16, 1, generator=draw), torch.zeros(1, 1, 16, 16)


def reference(q, k, v, g, S0):
    """o of the one sequence, scale 1."""
    o, _ = recurrent_attention_reference(q[None], k[None], v[None], g=g[None], scale=1.0, initial_state=S0)
    return o[0]


def one_sequence():
    """What every call passes beside its tensors."""
    return {"cu_seqlens": torch.tensor([0, 16], dtype=torch.int32), "scale": 1.0}


def naive_forward(recurrent_forward) -> bool:
    """Against the reference, without gates, from an empty state, scale 1."""
    q, k, v, _, g, _, S0 = operands()
    o, ST = inside(torch.zeros(HEAD)), torch.zeros_like(S0)
    recurrent_forward(*map(inside, (q, k, v, g, torch.zeros(HEAD), S0)), o, inside(ST), **one_sequence())
    return torch.allclose(o, reference(q, k, v, g, S0), atol=0.1)


def naive_backward(recurrent_backward) -> bool:
    """Against autograd, without gates, from an empty state to one without a gradient, scale 1."""
    q, k, v, do, g, _, S0 = operands()
    wanted = [x.requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(reference(q, k, v, g, S0), wanted, do)
    q, k, v = (x.detach() for x in wanted)
    found = [inside(torch.zeros(HEAD)) for _ in range(3)]
    given = map(inside, (q, k, v, g, torch.zeros(HEAD), S0, do, S0))
    recurrent_backward(*given, *found, inside(S0), **one_sequence())
    return all(torch.allclose(a, b, atol=0.2) for a, b in zip(found, expected, strict=True))


def naive_gate(recurrent_gate_gradient) -> bool:
    """Against autograd, with mild gates, from an empty state to one without a gradient, scale 1."""
    q, k, v, do, _, g, S0 = operands()
    (expected,) = torch.autograd.grad(reference(q, k, v, g.requires_grad_(), S0), g, do)
    dg = inside(torch.zeros(16, 1))
    recurrent_gate_gradient(*map(inside, (q, k, v, g.detach(), S0, do, S0)), dg, **one_sequence())
    return torch.allclose(dg, expected, atol=0.2)


F16 = "products or sums are taken in float16: convert to tl.float32 right after each load"
STRIDES = "each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x"

FORWARD = Target(
    "04_recurrent_attention",
    "recurrent_forward",
    ("forward-kernel",),
    naive_forward,
    (
        Mutant(
            "reset leaks", "no gate is below -20, where hardly anything is left",
            ("tl.exp(g + gk) * S", "tl.exp(tl.maximum(g + gk, -20.0)) * S"),
            "gates", "every row i of the state decays by exp(g_t + gk_t[i])",
        ),
        Mutant(
            "decay after the write", "the token just written decays too",
            ("S = tl.exp(g + gk) * S + k * v", "S = tl.exp(g + gk) * (S + k * v)"),
            "gates", "the decay is applied after the write: decay, then write, then read",
        ),
        Mutant(
            "vector gate left out", "only the scalar gate decays the state",
            ("tl.exp(g + gk) * S", "tl.exp(g) * S"),
            "gates", "the gate gk is left out of the decay, exp(g + gk)",
        ),
        Mutant(
            "decays added", "with both gates 0 the sum of the decays, less 1, is 1 as well",
            ("tl.exp(g + gk) * S", "(tl.exp(g) + tl.exp(gk) - 1.0) * S"),
            "gates", "every row i of the state decays by exp(g_t + gk_t[i])",
        ),
        Mutant(
            "missing scale", "o is not scaled; with scale=1.0 it need not be",
            ("scale * tl.sum(q * S", "tl.sum(q * S"),
            "whole blocks", "the scale is left out: o_t = scale * S_t^T q_t",
        ),
        Mutant(
            "lanes race", "the state is read back by other lanes, transposed",
            (
                "o = scale * tl.sum(q * S, axis=0)[None, :]",
                "ST_ptrs = ST_ptr + at(stride_ST, n, h, offs_k) + offs_v * stride_ST[3]\n"
                "        tl.store(ST_ptrs, S, mask=mask_k & mask_v)\n"
                "        S_rows = tl.load(tl.trans(ST_ptrs), mask=tl.trans(mask_k & mask_v), other=0.0)\n"
                "        o = scale * tl.sum(tl.trans(q) * S_rows, axis=1)[None, :]",
            ),
            "whole blocks", "nothing orders the lanes of a program: put tl.debug_barrier() between the two",
        ),
        Mutant(
            "initial state left out", "every sequence starts from zeros",
            (
                "S = tl.load(S0_ptrs, mask=mask_k & mask_v, other=0.0)",
                "S = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)",
            ),
            "a state at both ends", "S0 is left out: S starts as S0[n, h]",
        ),
        Mutant(
            "final state stored in the walk", "every token stores the state; an empty sequence has none to do it",
            ("    ST_ptrs = ", "        ST_ptrs = ", "    tl.store(ST_ptrs", "        tl.store(ST_ptrs"),
            "packed sequences", "no program stores them: look at grid, offsets, strides and mask along N",
        ),
        Mutant(
            "sequences start at 0", "t counts from the start of the tensor, not of the sequence",
            ("for t in range(begin, end):", "for t in range(end - begin):"),
            "packed sequences", "every sequence is taken to start at token 0: t runs from cu_seqlens[n]",
        ),
        Mutant(
            "missing load mask, K", "whole blocks of q are loaded",
            ("at(stride_q, t, h, offs_k), mask=mask_k, other=0.0)", "at(stride_q, t, h, offs_k))"),
            "ragged K", "the load of q is not masked along K (mask_k)",
        ),
        Mutant(
            "missing load mask, V", "whole blocks of v are loaded; the surplus is never stored",
            ("at(stride_v, t, h, offs_v), mask=mask_v, other=0.0)", "at(stride_v, t, h, offs_v))"),
            "stays inside its tensors", "the load of v is not masked along V (mask_v)",
        ),
        Mutant(
            "missing store mask, K", "whole blocks of rows of the final state are stored",
            ("S, mask=mask_k & mask_v)", "S, mask=mask_v)"),
            "ragged K", "the store of ST is not masked along K (mask_k)",
        ),
        Mutant(
            "missing store mask, V", "whole blocks of o are stored",
            ("o, mask=mask_v)", "o)"),
            "ragged V", "the store of o is not masked along V (mask_v)",
        ),
        Mutant(
            "another tensor's strides", "v is read with the strides of k, as long as K = V and nothing is transposed",
            ("at(stride_v, t, h, offs_v)", "at(stride_k, t, h, offs_v)"),
            "strides", STRIDES,
        ),
        Mutant(
            "tokens in 32 bits", "the number of a token is multiplied with its stride as it comes",
            ("(cu_seqlens_ptr + n).to(tl.int64)", "(cu_seqlens_ptr + n)", "n + 1).to(tl.int64)", "n + 1)"),
            "strides", "wraps around in 32 bits",
        ),
        Mutant(
            "head stride left out", "every head takes the first one's gate",
            ("t * stride_g[0] + h * stride_g[1]", "t * stride_g[0]"),
            "strides", "every head reads the first one's g: h moves by its stride",
        ),
        Mutant(
            "hard-coded block", "blocks of V advance by 16",
            ("tl.program_id(2) * BLOCK_V", "tl.program_id(2) * 16"),
            "block sizes", "no program stores them: look at grid, offsets, strides and mask along V",
        ),
        Mutant(
            "float16 state", "the state is rounded to float16 after every token",
            ("S = tl.exp(g + gk) * S + k * v", "S = (tl.exp(g + gk) * S + k * v).to(tl.float16).to(tl.float32)"),
            "float16", F16,
        ),
        Mutant(
            "float16 products", "k * v is taken in the dtype of the tensors",
            (
                "at(stride_k, t, h, offs_k), mask=mask_k, other=0.0).to(tl.float32)",
                "at(stride_k, t, h, offs_k), mask=mask_k, other=0.0)",
                "at(stride_v, t, h, offs_v), mask=mask_v, other=0.0).to(tl.float32)",
                "at(stride_v, t, h, offs_v), mask=mask_v, other=0.0)",
            ),
            "float16", F16,
        ),
        Mutant(
            "float16 state", "the state begins in float16 and goes on in float32",
            (
                "    S = tl.load(S0_ptrs, mask=mask_k & mask_v, other=0.0)\n",
                "    S = tl.load(S0_ptrs, mask=mask_k & mask_v, other=0.0).to(tl.float16)\n",
            ),
            "compiles", "`S` is a float16 block",
        ),
        Mutant(
            "ST a token", "the state is stored at every token, the last of them stays",
            (
                "o, mask=mask_v)\n",
                "o, mask=mask_v)\n"
                "        tl.store(ST_ptr + at(stride_ST, n, h, offs_k) + offs_v * stride_ST[3], S,"
                " mask=mask_k & mask_v)\n",
            ),
            "cheap", "stores write ",
        ),
    ),
)  # fmt: skip

BACKWARD = Target(
    "04_recurrent_attention",
    "recurrent_backward",
    ("dq-kernel", "dkv-kernel"),
    naive_backward,
    (
        Mutant(
            "decay too early", "dS decays by the gate of the token that is about to use it",
            ("dS += scale * q * do", "dS = tl.exp(g + gk) * dS + scale * q * do", "        dS *= tl.exp(g + gk)\n", ""),
            "gates",
            "dS decays by D_t before token t uses it: D_t lies between token t and the one before",
            "dkv-kernel",
        ),
        Mutant(
            "decay after the write", "the states of the walk forward decay once too often",
            ("S = tl.exp(g + gk) * S + k * v", "S = tl.exp(g + gk) * (S + k * v)"),
            "gates", "the decay is applied after the write: decay, then write, then read",
        ),
        Mutant(
            "missing scale in dq", "dq is not scaled; with scale=1.0 it need not be",
            ("scale * tl.sum(S * do", "tl.sum(S * do"),
            "queries", "the scale is left out: dq_t = scale * S_t do_t",
        ),
        Mutant(
            "missing scale in dS", "the reads are added to dS unscaled",
            ("dS += scale * q * do", "dS += q * do"),
            "keys and values", "the scale is left out: each token adds scale * q_t do_t^T to dS", "dkv-kernel",
        ),
        Mutant(
            "final state's gradient left out", "dS starts from zeros, right for whoever throws the final state away",
            (
                "dS = tl.load(dST_ptrs, mask=mask_k & mask_v, other=0.0)",
                "dS = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)",
            ),
            "a state at both ends", "dST is left out: dS starts as dST[n, h]", "dkv-kernel",
        ),
        Mutant(
            "last decay left out", "the first token's gate is not on the way to the initial state",
            (
                "        dS *= tl.exp(g + gk)\n",
                "        if i < end - begin - 1:\n            dS *= tl.exp(g + gk)\n",
            ),
            "gates", "the last decay is left out: dS0 = D_1 * dS_1", "dkv-kernel",
        ),
        Mutant(
            "reverse walk ends at token 0", "the walk back is right for the first sequence only",
            ("t = end - 1 - i", "t = end - begin - 1 - i"),
            "packed sequences", "every sequence is taken to start at token 0: t runs from cu_seqlens[n]", "dkv-kernel",
        ),
        Mutant(
            "vector gate left out", "on the way back only the scalar gate decays",
            ("dS *= tl.exp(g + gk)", "dS *= tl.exp(g)"),
            "gates", "the gate gk is left out of the decay, exp(g + gk)", "dkv-kernel",
        ),
        Mutant(
            "missing load mask", "whole blocks of do are loaded in the walk forward",
            ("at(stride_do, t, h, offs_v), mask=mask_v, other=0.0)", "at(stride_do, t, h, offs_v))"),
            "ragged V", "the load of do is not masked along V (mask_v)",
        ),
        Mutant(
            "missing store mask, K", "whole blocks of dk are stored",
            ("dk, mask=mask_k)", "dk)"),
            "ragged K", "the store of dk is not masked along K (mask_k)", "dkv-kernel",
        ),
        Mutant(
            "missing store mask, V", "whole blocks of dv are stored",
            ("dv, mask=mask_v)", "dv)"),
            "ragged V", "the store of dv is not masked along V (mask_v)", "dkv-kernel",
        ),
        Mutant(
            "channel stride left out", "the channels of do are taken as neighbours, but o.sum() sends a do of stride 0",
            ("at(stride_do, t, h, offs_v)", "t * stride_do[0] + h * stride_do[1] + offs_v"),
            "strides", STRIDES,
        ),
        Mutant(
            "states in 32 bits", "the number of a sequence's state is multiplied with its stride as it comes",
            ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
            "strides", "wraps around in 32 bits", "dkv-kernel",
        ),
        Mutant(
            "float16 gradient of the state", "dS is rounded to float16 after every token",
            ("dS *= tl.exp(g + gk)", "dS = (dS * tl.exp(g + gk)).to(tl.float16).to(tl.float32)"),
            "float16", F16, "dkv-kernel",
        ),
        Mutant(
            "reversed", "the walk back is Python's",
            (
                "    for i in range(end - begin):\n        t = end - 1 - i\n",
                "    for t in reversed(range(begin, end)):\n",
            ),
            "compiles",
            "a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else",
            "dkv-kernel",
        ),
        Mutant(
            "dS0 a token", "the gradient of the state is stored at every token",
            (
                "        dS *= tl.exp(g + gk)\n",
                "        dS *= tl.exp(g + gk)\n"
                "        tl.store(dS0_ptr + at(stride_dS0, n, h, offs_k) + offs_v * stride_dS0[3],"
                " dS, mask=mask_k & mask_v)\n",
            ),
            "cheap", "stores write ", "dkv-kernel",
        ),
    ),
)  # fmt: skip

GATE = Target(
    "04_recurrent_attention",
    "recurrent_gate_gradient",
    ("gate-kernel", "gamma-kernel"),
    naive_gate,
    (
        Mutant(
            "no boundary term", "the pair of both states is left out",
            ("    dg += tl.where(resets_T == 0, tl.exp(gamma_T), 0.0) * tl.sum(S * dS)\n", ""),
            "the states' terms",
            "the pair of both states is left out: exp(the sum of all gates) * <S0, dST>, in every dg_t",
        ),
        Mutant(
            "final state's gradient left out",
            "what the tokens write into the final state is left out, and its pair with the initial state",
            (
                "    dg += tl.sum(tl.where(i < i[:, None], writes, 0.0), axis=1)\n",
                "",
                "    dg += tl.where(resets_T == 0, tl.exp(gamma_T), 0.0) * tl.sum(S * dS)\n",
                "",
            ),
            "the states' terms", "dST is left out: it counts as an r after the last token",
        ),
        Mutant(
            "dropped transposition",
            "do is multiplied with S, not with its transpose; with a state of zeros nobody sees",
            ("tl.dot(do, tl.trans(S), ", "tl.dot(do, S, "),
            "the states' terms", "S0 is not transposed in its product with the tokens: do @ S0^T",
        ),
        Mutant(
            "shifted sum", "the token's own write counts towards the final state's term",
            ("tl.where(i < i[:, None], writes, 0.0)", "tl.where(i <= i[:, None], writes, 0.0)"),
            "the states' terms", "the term of dST counts s = t: a token writes after its gate, s < t strictly",
        ),
        Mutant(
            "running sum", "row sums of W less its column sums, summed from the end: the published form",
            (
                "dg = tl.sum(tl.where(i < i[:, None], tl.cumsum(W, axis=0, reverse=True), 0.0), axis=1)",
                "dg = tl.cumsum(tl.sum(W, axis=1) - tl.sum(W, axis=0), axis=0, reverse=True)",
            ),
            "strong decay", "large terms cancel: add up the pairs with s < t <= r and subtract nothing",
        ),
        Mutant(
            "positive exponent", "the decay of a pair is the quotient of two, and one of them overflows",
            (
                'decay = tl.exp(tl.where(seen, gamma[:, None] - gamma, -float("inf")))',
                "decay = tl.where(seen, tl.exp(gamma)[:, None] * tl.exp(-gamma), 0.0)",
            ),
            "strong decay", "a positive number is exponentiated: only differences gamma_r - gamma_s <= 0 may be",
        ),
        Mutant(
            "infinite sums", "gates of -inf are summed like others",
            ("tl.cumsum(finite, axis=0)", "tl.cumsum(g, axis=0)"),
            "resets",
            "-inf - -inf is NaN: put 0 for a gate of -inf into gamma, and count the resets instead",
            "gamma-kernel",
        ),
        Mutant(
            "resets not counted", "a gate of -inf is taken for one of 0",
            ("tl.cumsum(reset, axis=0)", "tl.cumsum(reset * 0, axis=0)"),
            "resets",
            "a pair with a gate of -inf between its tokens gives exactly 0: their counts of resets differ",
            "gamma-kernel",
        ),
        Mutant(
            "sum across sequences",
            "a block ends at the end of the tensor, so that the next sequence's tokens are summed too",
            ("begin + i < end,", "begin + i < tl.load(cu_seqlens_ptr + tl.num_programs(0)).to(tl.int64),"),
            "packed sequences",
            "the sums run on into the next sequence: a block ends at cu_seqlens[n + 1], not at T (mask_t)",
        ),
        Mutant(
            "missing load mask", "whole blocks of k are loaded",
            (
                "at(stride_k, t[:, None], h, offs_k), mask=mask_tk, other=0.0)",
                "at(stride_k, t[:, None], h, offs_k), mask=mask_t[:, None], other=0.0)",
            ),
            "ragged sizes", "the load of k is not masked along K (mask_k)",
        ),
        Mutant(
            "missing store mask", "whole blocks of dg are stored",
            ("dg, mask=mask_t)", "dg)"),
            "ragged sizes", "the store of dg is not masked along T (mask_t)",
        ),
        Mutant(
            "another tensor's strides", "do is read with the strides of v",
            ("at(stride_do, t[:, None], h, offs_v)", "at(stride_v, t[:, None], h, offs_v)"),
            "strides", STRIDES,
        ),
        Mutant(
            "tokens in 32 bits", "the number of a token is multiplied with its stride as it comes",
            ("(cu_seqlens_ptr + n).to(tl.int64)", "(cu_seqlens_ptr + n)", "n + 1).to(tl.int64)", "n + 1)"),
            "strides", "wraps around in 32 bits",
        ),
        Mutant(
            "float16 scores", "the scores are rounded to float16 before they are multiplied",
            (
                'scores = tl.dot(q, tl.trans(k), input_precision="ieee")',
                'scores = tl.dot(q, tl.trans(k), input_precision="ieee").to(tl.float16).to(tl.float32)',
            ),
            "float16", F16,
        ),
        tf32("the scores may be rounded to TF32", 'scores = tl.dot(q, tl.trans(k), input_precision="ieee")'),
        Mutant(
            "k and v again", "the tokens are loaded a second time for the states' terms",
            (
                "    reads = tl.sum(",
                "    k = tl.load(k_ptr + at(stride_k, t[:, None], h, offs_k), mask=mask_tk,"
                " other=0.0).to(tl.float32)\n"
                "    v = tl.load(v_ptr + at(stride_v, t[:, None], h, offs_v), mask=mask_tv,"
                " other=0.0).to(tl.float32)\n"
                "    reads = tl.sum(",
            ),
            "cheap", "loads ask for ",
        ),
    ),
)  # fmt: skip

TARGETS = (FORWARD, BACKWARD, GATE)
