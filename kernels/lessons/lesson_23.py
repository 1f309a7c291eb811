"""What lesson 23 goes on with, made from notebooks/23_gate_gradients.ipynb: see this package."""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-104.0)


@triton.jit
def load_tile(ptr, rows, mask_t, size, BLOCK: tl.constexpr):  # [C, BLOCK] in float32, zeros where nothing is
    cols = tl.arange(0, BLOCK)
    mask = mask_t[:, None] & (cols < size)[None, :]
    return tl.load(ptr + rows[:, None] * size + cols[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def dg_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, g_ptr, states_ptr, dstates_ptr, dg_ptr, T, H, K, V, c,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    n, chunk, h = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    offs_t, offs_k, offs_v = chunk * C + tl.arange(0, C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    rows, mask_t = (n * T + offs_t) * H + h, offs_t < T
    q, k = load_tile(q_ptr, rows, mask_t, K, BLOCK_K), load_tile(k_ptr, rows, mask_t, K, BLOCK_K)
    v, do = load_tile(v_ptr, rows, mask_t, V, BLOCK_V), load_tile(do_ptr, rows, mask_t, V, BLOCK_V)
    at_state = ((n * tl.num_programs(1) + chunk) * H + h) * K * V + offs_k[:, None] * V + offs_v[None, :]
    mask_state = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    S = tl.load(states_ptr + at_state, mask=mask_state, other=0.0)  # enters the chunk
    dS = tl.load(dstates_ptr + at_state, mask=mask_state, other=0.0)  # of the state that leaves it

    g = tl.maximum(tl.load(g_ptr + rows, mask=mask_t, other=0.0), LOWEST)
    Gamma, Gamma_C = tl.cumsum(g, 0), tl.sum(g, 0)
    earlier = offs_t[None, :] < offs_t[:, None]
    written = tl.exp(Gamma_C - Gamma) * tl.sum(k * tl.dot(v, tl.trans(dS), input_precision="ieee"), axis=1)
    dg = tl.sum(tl.where(earlier, written[None, :], 0.0), axis=1)  # part 3
    dg += tl.exp(Gamma_C) * tl.sum(tl.sum(S * dS, axis=1), axis=0)  # part 4
    W = tl.exp(tl.where(earlier, Gamma[:, None] - Gamma[None, :], float("-inf")))
    W *= c * tl.dot(q, tl.trans(k), input_precision="ieee") * tl.dot(do, tl.trans(v), input_precision="ieee")
    dg += tl.sum(tl.where(earlier, tl.cumsum(W, 0, reverse=True), 0.0), axis=1)  # part 1
    read = c * tl.exp(Gamma) * tl.sum(q * tl.dot(do, tl.trans(S), input_precision="ieee"), axis=1)
    dg += tl.cumsum(read, 0, reverse=True)  # part 2
    tl.store(dg_ptr + rows, dg, mask=mask_t)
