"""Forward pass: attention without the matrix of scores, over the blocks that a mask leaves.

One program owns BLOCK_M queries of one head and walks over its tiles of keys. For each tile, with t = f(c q k) and base 2,

    m' = max(m, max_n t log2 e)        running maximum
    p  = 2^(t log2 e - m')
    l  <- l 2^(m - m') + sum_n p       running denominator
    a  <- a 2^(m - m') + p v           running numerator

and at the end o = a / l, lse = m + log2 l. Blocks come in two lists: in full blocks no mask code runs at all.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.launch import launch


@triton.jit
def load_rows(
    source, row, end, D: tl.constexpr, EDGE: tl.constexpr, TMA: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Rows row ... row + BLOCK - 1 of a matrix [., D], zero from ``end`` on (where EDGE) and past D.

    source: ``(pointer, stride of rows, stride of columns)``; with TMA ``(descriptor of [B, H, ., D], b, h)``: one thread asks
    the GPU's copy engine for the whole tile, and no thread computes an address.
    """
    if TMA:
        return source[0].load([source[1], source[2], row, 0]).reshape([BLOCK, BLOCK_D])
    else:
        offs_r = row.to(tl.int64) + tl.arange(0, BLOCK)
        offs_d = tl.arange(0, BLOCK_D)
        at = source[0] + offs_r[:, None] * source[1] + offs_d[None, :].to(tl.int64) * source[2]
        if EDGE:
            return tl.load(at, mask=(offs_r < end)[:, None] & (offs_d < D)[None, :], other=0.0)
        elif BLOCK_D != D:
            return tl.load(at, mask=(offs_d < D)[None, :], other=0.0)
        else:
            return tl.load(at)


@triton.jit
def source_of(x, b, h, stride_b, stride_h, stride_r, stride_d, TMA: tl.constexpr):
    """What ``load_rows`` reads of x [B, H, ., D]: the matrix of batch b and head h."""
    if TMA:
        return x, b, h
    else:
        return x + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h, stride_r, stride_d


@triton.jit
def logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr):
    """f(scale s), minus infinity where the mask or ``inside`` forbids. Without a score mod the scale is left to the caller:
    s itself, which costs no instruction."""
    x = s if SCORE_MOD is None else SCORE_MOD(s * scale, b, h, m, n, score_tables)
    if MASK_MOD is not None:
        x = tl.where(MASK_MOD(b, h, m, n, mask_tables), x, float("-inf"))
    if inside is not None:
        x = tl.where(inside, x, float("-inf"))
    return x


@triton.jit
def attend_tile(
    acc, l, top, q, k_source, v_source, n0, n_end, N, scale, unit, b, h, m, score_tables, mask_tables,
    SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EDGE: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax: keys n0 ... n0 + BLOCK_N - 1, of which those from n_end on don't count (EDGE)."""
    offs_n = tl.arange(0, BLOCK_N)
    k = load_rows(k_source, n0, n_end, D, EDGE, TMA, BLOCK_N, BLOCK_D)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    n = (n0 + offs_n)[None, :]
    inside = None
    if EDGE:
        inside = n < n_end
        n = tl.minimum(n, N - 1)  # what a mod captures is read inside its bounds in every tile
    x = logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD, MASK_MOD)

    new_top = tl.maximum(top, tl.max(x, 1) * unit)
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen no key yet: 2^(-inf - 0) = 0
    p = tl.exp2(x * unit - shift[:, None])
    alpha = tl.exp2(top - shift)
    l = l * alpha + tl.sum(p, 1)
    v = load_rows(v_source, n0, n_end, DV, EDGE, TMA, BLOCK_N, BLOCK_DV)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
    return acc, l, new_top


@triton.jit
def attend_list(
    acc, l, top, q, k_source, v_source, lists, row, begin, end, N, scale, unit, b, h, m, score_tables, mask_tables,
    SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EDGE: tl.constexpr,
    SPARSE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Tiles begin ... end - 1 of one row's list of blocks."""
    TILES: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
    blocks_ptr = lists[1] + row * lists[4]
    # The next block's number is asked for one tile ahead: loads of keys do not wait for it.
    block = tl.load(blocks_ptr + begin // TILES, mask=begin < end, other=0)
    for i in range(begin, end):
        n0 = block * SPARSE_N + (i % TILES) * BLOCK_N
        n_end = tl.minimum((block + 1) * SPARSE_N, N)
        block = tl.load(blocks_ptr + (i + 1) // TILES, mask=i + 1 < end, other=0)
        acc, l, top = attend_tile(
            acc, l, top, q, k_source, v_source, n0, n_end, N, scale, unit, b, h, m, score_tables, mask_tables,
            SCORE_MOD, MASK_MOD, D, DV, EDGE, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    return acc, l, top


@triton.jit
def list_row(lists, b, h, r):
    """Where in a pair of lists ``(num_blocks, indices, batch stride, head stride, width)`` block row r of (b, h) lies."""
    return b.to(tl.int64) * lists[2] + h * lists[3] + r


@triton.jit
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, top_ptr, partial, full, score_tables, mask_tables,
    scale, unit, M, N, Hkv, G, tiles_m, shared,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    SPARSE: tl.constexpr, HAS_FULL: tl.constexpr, SPARSE_M: tl.constexpr, SPARSE_N: tl.constexpr,
    EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """SPARSE: walk over the lists ``partial`` and ``full``; otherwise over all keys. EDGE_M, EDGE_N: some tile of queries
    (keys) reaches past the end or past its block. TMA: k_ptr and v_ptr are descriptors. shared: batch rows that share
    keys."""
    # Heads that share keys run side by side, and rows with the most keys (the last ones, under a causal mask) come first.
    pid = tl.program_id(0)
    g = pid % G
    tile = tiles_m - 1 - (pid // G) % tiles_m
    b = pid // (G * tiles_m) // Hkv
    h_kv = pid // (G * tiles_m) % Hkv
    h = h_kv * G + g

    TILES_M: tl.constexpr = (SPARSE_M + BLOCK_M - 1) // BLOCK_M
    r = tile // TILES_M if SPARSE else 0
    m0 = r * SPARSE_M + (tile % TILES_M) * BLOCK_M if SPARSE else tile * BLOCK_M
    m_end = tl.minimum(M, (r + 1) * SPARSE_M) if SPARSE else M
    offs_m = tl.arange(0, BLOCK_M)
    offs_dv = tl.arange(0, BLOCK_DV)
    b_kv = b // shared
    k_source = source_of(k_ptr, b_kv, h_kv, stride_kb, stride_kh, stride_kn, stride_kd, TMA)
    v_source = source_of(v_ptr, b_kv, h_kv, stride_vb, stride_vh, stride_vn, stride_vd, TMA)
    q_source = source_of(q_ptr, b, h, stride_qb, stride_qh, stride_qm, stride_qd, False)
    q = load_rows(q_source, m0, m_end, D, EDGE_M, False, BLOCK_M, BLOCK_D)
    m = tl.minimum(m0 + offs_m, M - 1)[:, None]

    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    top = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    if SPARSE:
        TILES_N: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
        row = list_row(partial, b, h, r)
        acc, l, top = attend_list(
            acc, l, top, q, k_source, v_source, partial, row, 0, tl.load(partial[0] + row) * TILES_N, N, scale, unit, b, h, m,
            score_tables, mask_tables,
            SCORE_MOD, MASK_MOD, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
        if HAS_FULL:
            row = list_row(full, b, h, r)
            acc, l, top = attend_list(
                acc, l, top, q, k_source, v_source, full, row, 0, tl.load(full[0] + row) * TILES_N, N, scale, unit, b, h, m,
                score_tables, mask_tables,
                SCORE_MOD, None, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
    else:
        for n0 in range(0, N // BLOCK_N * BLOCK_N, BLOCK_N):
            acc, l, top = attend_tile(
                acc, l, top, q, k_source, v_source, tl.cast(n0, tl.int32), N, N, scale, unit, b, h, m,
                score_tables, mask_tables,
                SCORE_MOD, None, D, DV, False, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
        if EDGE_N:
            acc, l, top = attend_tile(
                acc, l, top, q, k_source, v_source, tl.cast(N // BLOCK_N * BLOCK_N, tl.int32), N, N, scale, unit, b, h, m,
                score_tables, mask_tables,
                SCORE_MOD, None, D, DV, True, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip

    # A row without any allowed key: o = 0, lse = -inf.
    l = tl.where(l == 0.0, 1.0, l)
    o = acc / l[:, None]
    rows = (b.to(tl.int64) * Hkv * G + h) * M + m0 + offs_m
    mask_m = m0 + offs_m < m_end
    tl.store(lse_ptr + rows, top + tl.log2(l), mask=mask_m)
    if top_ptr is not None:
        tl.store(top_ptr + rows, top, mask=mask_m)
    o_base = o_ptr + b.to(tl.int64) * stride_ob + h.to(tl.int64) * stride_oh
    o_at = o_base + (m0.to(tl.int64) + offs_m)[:, None] * stride_om + offs_dv[None, :].to(tl.int64) * stride_od
    tl.store(o_at, o.to(o_ptr.dtype.element_ty), mask=mask_m[:, None] & (offs_dv < DV)[None, :])


def like_strided(x, shape, dtype=None):
    """Uninitialized memory of ``shape`` whose dimensions lie in memory in the order in which x's do."""
    order = sorted(range(len(shape)), key=lambda i: (-x.stride(i), i))
    memory = torch.empty([shape[i] for i in order], dtype=dtype or x.dtype, device=x.device)
    return memory.permute([order.index(i) for i in range(len(shape))])


def fits_copy_engine(t):
    """Whether the copy engine can read a tensor: columns side by side, all else at multiples of 16 bytes."""
    steps = [stride * t.element_size() for stride in t.stride()[:-1]]
    return t.numel() > 0 and t.stride(-1) == 1 and t.data_ptr() % 16 == 0 and all(s % 16 == 0 and s > 0 for s in steps)


def sources(TMA, BLOCK, *tensors):
    """``(TMA, kernel arguments)``: descriptors of tensors [B, H, ., D] in tiles of BLOCK rows, if ``TMA`` asks for them and
    the copy engine can read them all; else the tensors."""
    if not (TMA and all(map(fits_copy_engine, tensors))):
        return False, tensors
    tiles = ([1, 1, BLOCK, max(16, triton.next_power_of_2(t.shape[-1]))] for t in tensors)
    return True, [TensorDescriptor(t, list(t.shape), list(t.stride()), tile) for t, tile in zip(tensors, tiles)]


def forward(problem, query, key, value, want_top=False):
    """Launch the forward pass.

    Args:
        problem: what the call asks for, a ``Problem``.
        query, key, value: [B, Hq, M, D], [B or 1, Hkv, N, D], [B or 1, Hkv, N, Dv].
        want_top: whether the largest logit of each row is wanted.

    Returns:
        ``(o, lse, top)``: o [B, Hq, M, Dv] in query's dtype and order of strides; lse and top [B, Hq, M] float32 in base 2,
        top ``None`` unless wanted.
    """
    p = problem
    o = like_strided(query, (p.B, p.Hq, p.M, p.Dv))
    lse = torch.empty(p.B, p.Hq, p.M, dtype=torch.float32, device=query.device)
    top = torch.empty_like(lse) if want_top else None
    meta = p.launch_options("forward")
    tiles_m = p.tiles(p.M, p.SPARSE_M, meta["BLOCK_M"])
    meta["TMA"], (k, v) = sources(meta["TMA"], meta["BLOCK_N"], key, value)
    launch(
        attention_forward_kernel,
        (p.B * p.Hq * tiles_m,),
        query, k, v, o, lse, top, p.partial, p.full, p.score_tables, p.mask_tables,
        p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_m, p.shared(key),
        *query.stride(), *key.stride(), *value.stride(), *o.stride(),
        outputs=(o,),
        SCORE_MOD=p.score_mod, MASK_MOD=p.mask_mod, HAS_FULL=p.full is not None, **p.static(meta), **meta,
    )  # fmt: skip
    return o, lse, top
