"""The steps of lesson 03: a tile of a transposed matrix, a scale inside the sum, an order along columns."""

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.check.steps import step
from kernels.check.steps.helpers import block, difference, launch

NAN = float("nan")


@step("03-transposed", "where a tile of a transposed matrix lies")
def transposed(offsets):
    """Rows of at are 40 elements apart; the lanes of m and of k begin anywhere."""
    stride = 40
    for first_m, first_k, BLOCK_M, BLOCK_K in ((16, 32, 16, 16), (0, 0, 16, 16), (8, 16, 8, 16)):
        m, k = first_m + torch.arange(BLOCK_M), first_k + torch.arange(BLOCK_K)
        got = block(offsets, m, k, stride, shape=(BLOCK_M, BLOCK_K))
        right, plain = k[None, :] * stride + m[:, None], m[:, None] * stride + k[None, :]
        if torch.equal(got, plain.double()):
            return "This is where a[m, k] lies in a. In at, k says which row, so it is k that moves by stride_at."
        if BLOCK_M == BLOCK_K and torch.equal(got.T, right.double()):
            return "The tile comes back transposed: make m a column, offs_m[:, None], and k a row, offs_k[None, :]."
        if said := difference("offsets", got, right):
            return f"{said} The element a[{first_m}, {first_k}] lies at at[{first_k}, {first_m}]."
    return ""


@triton.jit
def _scaled_kernel(
    scaled: tl.constexpr, a_ptr, b_ptr, scale_ptr, out_ptr, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    offs_m, offs_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        mask_k = offs_k < K
        a = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :], mask=mask_k[None, :], other=0.0)
        b = tl.load(b_ptr + offs_k[:, None] * BLOCK_N + offs_n[None, :], mask=mask_k[:, None], other=0.0)
        acc = tl.dot(scaled(a, scale_ptr, offs_k, K), b, acc, input_precision="ieee")
    tl.store(out_ptr + offs_m[:, None] * BLOCK_N + offs_n[None, :], acc)


@step("03-scale", "each k scaled inside the sum, and nothing beyond K")
def scale(scaled):
    """Whole steps first, then a ragged K with NaN behind the scales."""
    generator = torch.Generator().manual_seed(3)
    for K, behind in ((32, 1.0), (20, 1.0), (20, NAN)):
        a, b = (torch.randn(*shape, generator=generator).to(runtime.device) for shape in ((16, K), (K, 16)))
        memory = torch.full((64,), behind, device=runtime.device)
        memory[:K] = torch.arange(1, K + 1)
        out = torch.empty(16, 16, device=runtime.device)
        launch(_scaled_kernel, (1,), scaled, a, b, memory, out, K, 16, 16, 16, stray=True)
        wanted = (a.double() * memory[:K].double()) @ b.double()
        if not bool(out.isfinite().all()):
            bad = int((~out.isfinite()).sum())
            return (
                f"With K = {K} and steps of 16, {bad} of {out.numel()} elements are NaN: the lanes beyond K load what lies "
                "behind the scales, and 0 · NaN is NaN; mask that load with offs_k < K"
            )
        known = {
            "The tile comes back unscaled": a.double() @ b.double(),
            "Every step uses the first step's scales: load them at scale_ptr + offs_k": (
                (a.double() * (torch.arange(K, device=a.device) % 16 + 1)) @ b.double()
            ),
            "Rows are scaled, not columns: the scales of a step lie along the tile's columns, scale[None, :]": _by_rows(
                a.double(), memory.double()
            )
            @ b.double(),
        }
        if _near(out, wanted):
            continue
        cause = next((said for said, answer in known.items() if _near(out, answer)), "")
        return cause or f"With K = {K}, out[0, 0] is {out[0, 0].item():.3g}, not {wanted[0, 0].item():.3g}"
    return ""


def _by_rows(a, scales):
    """``a`` with row i of each step's tile scaled by the step's i-th scale, 16 a step."""
    k = torch.arange(a.shape[1], device=a.device)
    return a * scales[k[None, :] // 16 * 16 + torch.arange(16, device=a.device)[:, None]]


def _near(out, answer) -> bool:
    return bool(torch.allclose(out.double(), answer, rtol=1e-4, atol=1e-4))


@step("03-order", "every tile once, and a wave as wide as its group")
def order(place):
    """Groups of columns, some of them narrower than GROUP_N."""
    for grid_m, grid_n, GROUP_N in ((4, 8, 4), (5, 10, 4), (3, 2, 4)):
        said = f"With {grid_m} × {grid_n} tiles and GROUP_N = {GROUP_N}"
        tiles = [tuple(map(int, place(pid, grid_m, grid_n, GROUP_N))) for pid in range(grid_m * grid_n)]
        outside = [t for t in tiles if not (0 <= t[0] < grid_m and 0 <= t[1] < grid_n)]
        if outside:
            pid = tiles.index(outside[0])
            return f"{said}, program {pid} gets tile {outside[0]}: the last group may have fewer columns than GROUP_N"
        twice = len(tiles) - len(set(tiles))
        if twice:
            return f"{said}, {twice} tiles are computed twice and as many never"
        first = min(GROUP_N, grid_n)
        wanted = [(i // first, i % first) for i in range(first * grid_m)]
        if tiles[: len(wanted)] == wanted:
            continue
        if tiles[: len(wanted)] == [(i % grid_m, i // grid_m) for i in range(len(wanted))]:
            return f"{said}, programs walk down whole columns: inside a group they go across its {first} columns first"
        here = next(i for i, (got, right) in enumerate(zip(tiles, wanted)) if got != right)
        return (
            f"{said}, program {here} gets tile {tiles[here]}, not {wanted[here]}: across the group, then the next row"
        )
    return ""
