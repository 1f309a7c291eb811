"""What the gradients' kernel needs of every query's row: lse and delta, laid out in whole tiles that TMA can copy."""

import torch
import triton
import triton.language as tl

from kernels.common.operator import launch
from kernels.flex_attention.plain_backward import delta_of_rows, strides_of_rows
from kernels.flex_attention.problem import cdiv, columns

MULTIPLE = 128  # rows are whole tiles, of any size up to this


@triton.jit
def rows_kernel(
    o_ptr,
    do_ptr,
    lse_ptr,
    dlse_ptr,
    rows_lse_ptr,
    rows_delta_ptr,
    M,
    MP,
    H,
    o_strides,
    do_strides,
    dlse_strides,
    DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """lse such that p = 2^(x - lse) is 0 where there is no query (inf) or no key (x = -inf, lse 0), and delta, [B H, MP]."""
    tiles = MP // BLOCK_M
    pid = tl.program_id(0)
    m0 = (pid % tiles).to(tl.int64) * BLOCK_M
    bh = (pid // tiles).to(tl.int64)
    b, h = bh // H, bh % H
    offs_m = tl.arange(0, BLOCK_M)
    delta = delta_of_rows(
        o_ptr, do_ptr, dlse_ptr, b, h, m0, M, o_strides, do_strides, dlse_strides, DV, BLOCK_M, BLOCK_DV
    )
    mask = m0 + offs_m < M
    lse = tl.load(lse_ptr + bh * M + m0 + offs_m, mask=mask, other=float("inf"))
    tl.store(rows_lse_ptr + bh * MP + m0 + offs_m, tl.where(lse == float("-inf"), 0.0, lse))
    tl.store(rows_delta_ptr + bh * MP + m0 + offs_m, delta)


def rows_of(p, do, dlse, o, lse):
    """``rows_kernel``'s lse and delta, float32 [B Hq, MP] with MP a multiple of 128."""
    MP = cdiv(p.M, MULTIPLE) * MULTIPLE
    rows_lse = torch.empty((p.B * p.Hq, MP), dtype=torch.float32, device=lse.device)
    rows = rows_lse, torch.empty_like(rows_lse)
    tile = {"DV": p.Dv, "BLOCK_M": 64, "BLOCK_DV": columns(p.Dv)}
    programs = (p.B * p.Hq * (MP // tile["BLOCK_M"]),)
    launch(rows_kernel, programs, o, do, lse, dlse, *rows, p.M, MP, p.Hq, *strides_of_rows(o, do, dlse), **tile)
    return rows
