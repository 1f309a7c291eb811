"""The steps of lesson 04: a tile of a transposed matrix, the loop along K, an order along columns."""

import ast

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.check.steps import step
from kernels.check.steps.helpers import block, calls_of, difference, launch

NAN = float("nan")


@step("04-transposed", "where a tile of a transposed matrix lies")
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
        if torch.equal(got, got[:1].expand_as(got)):
            return "All rows are the same: a block of one axis is a row. Make m a column, offs_m[:, None], before they meet."
        if said := difference("offsets", got, right):
            return f"{said} The element a[{first_m}, {first_k}] lies at at[{first_k}, {first_m}]."
    return ""


@triton.jit
def _loop_kernel(
    loop: tl.constexpr, a_ptr, b_ptr, scale_ptr, out_ptr, K, stride_am, stride_bk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    offs_m, offs_n = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
    acc = loop(a_ptr, b_ptr, scale_ptr, offs_m, offs_n, K, stride_am, stride_bk, BLOCK_M, BLOCK_N, BLOCK_K)
    tl.store(out_ptr + offs_m * BLOCK_N + offs_n, acc)


@step("04-loop", "a loop along K that scales, masks and adds in float32")
def loop(scaled_loop):
    """Whole steps, then rows that lie apart, then a ragged K with NaN behind everything, then a long sum."""
    if said := _unmasked_value(scaled_loop) or _short_accumulator(scaled_loop):
        return said
    for K, apart in ((32, 0), (32, 7), (20, 7)):
        a, b, scale, memory = _loop_inputs(K, apart, NAN if K % 16 else 3.0)
        out = _run_loop(scaled_loop, a, b, memory, K)
        wanted = (a.double() * scale) @ b.double()
        if _near(out, wanted):
            continue
        if K % 16 and not bool(out.isfinite().all()):
            return (
                f"With K = {K} and steps of 16, {int((~out.isfinite()).sum())} of {out.numel()} elements are NaN: the second "
                "step's lanes beyond K load what lies behind a, b and the scales, and 0 · NaN is NaN; give each of the "
                "three loads a mask along K and other=0.0"
            )
        if apart and not K % 16:
            return (
                f"Right while rows follow one another, wrong where they lie apart (a's rows {a.stride(0)} elements, "
                f"b's {b.stride(0)}): m moves by stride_am in a, k by stride_bk in b"
            )
        cause = _known_loop(a.double(), b.double(), scale, out)
        return cause or f"With K = {K}, {difference('acc', out, wanted, tolerance=2e-3)}"
    a, b, scale, memory = _loop_inputs(128, 0, 3.0)
    for tensor, value in ((a, 1 / 16), (b, 1), (memory, 1)):
        tensor.fill_(value)
    a[:, :16] = 128  # the first step gives 2048, each later one 1
    out = _run_loop(scaled_loop, a, b, memory, 128)
    if float(out[0, 0]) != 2055:
        return (
            f"A step of 2048 and seven steps of 1 make 2055, and here {out[0, 0].item():.0f}: the sum is kept in 16 bits; "
            "let the accumulator be float32, and leave out tl.dot's out_dtype, which is float32 unless you say otherwise"
        )
    for of_a, of_b in ((512, 2.0**-10), (2.0**-10, 512)):
        for tensor, value in ((a, of_a), (b, of_b), (memory, 256)):
            tensor.fill_(value)
        if not _run_loop(scaled_loop, a, b, memory, 128).isfinite().all():
            return (
                "512 times a scale of 256 is more than float16 holds, and the product comes back infinite: let the numbers "
                "and their scales be float32 before they are multiplied"
            )
    return _rounded_tiles(scaled_loop)


def _loop_inputs(K: int, apart: int, behind: float):
    """Float16 a, b and scales: rows ``apart`` elements further apart than they are long, ``behind`` wherever they end."""
    generator = torch.Generator().manual_seed(3)
    half = {"dtype": torch.float16, "device": runtime.device}
    rows = torch.full((17, K + apart + 16 * bool(apart)), behind, **half)
    columns = torch.full((K + 16, 16 + apart), behind, **half)
    memory = torch.full((K + 16,), behind, **half)
    a, b = rows[:16, :K], columns[:K, :16]
    a.copy_(torch.randn(16, K, generator=generator))
    b.copy_(torch.randn(K, 16, generator=generator))
    memory[:K] = 2.0 ** (torch.arange(K) % 5 - torch.arange(K) // 16)  # powers of two: nothing is rounded
    return a, b, memory[:K].double(), memory


def _run_loop(scaled_loop, a, b, memory, K: int):
    out = torch.empty(16, 16, device=runtime.device)
    launch(_loop_kernel, (1,), scaled_loop, a, b, memory, out, K, a.stride(0), b.stride(0), 16, 16, 16, stray=True)
    return out


def _known_loop(a, b, scale, out) -> str:
    """What a loop did whose product of whole, packed steps is wrong."""
    k = torch.arange(a.shape[1], device=a.device)
    by_rows = a * scale[(k[None, :] // 16 * 16 + torch.arange(16, device=a.device)[:, None]).clamp(max=len(k) - 1)]
    whole = len(k) // 16 * 16
    known = {
        "The product comes back unscaled: multiply one of the tiles by the scales before tl.dot": a @ b,
        "Only the last step's product is left: hand acc to tl.dot, or add to it": (a * scale)[:, -16:] @ b[-16:],
        f"Only whole steps are added, and the terms from {whole} on are missing": (a * scale)[:, :whole] @ b[:whole],
        "Every step reads the first step's numbers: offs_k begins at start": 2 * (a * scale)[:, :16] @ b[:16],
        "Every step uses the first step's scales: load them at scale_ptr + offs_k": (a * scale[k % 16]) @ b,
        "Rows are scaled, not columns: k runs along the columns of a's tile, so the scales are scale[None, :]": by_rows @ b,
    }
    return next((said for said, answer in known.items() if _near(out, answer)), "")


def _near(out, answer) -> bool:
    return bool(torch.allclose(out.double(), answer, rtol=2e-3, atol=2e-3 * float(answer.abs().max())))


def _unmasked_value(helper) -> str:
    """A load with a mask and without ``other``: on a GPU its lanes beyond the mask hold anything."""
    if any(calls_of(helper, "where")):
        return ""  # may put the zeros there itself; the result will tell
    for node, text in calls_of(helper, "load"):
        given = {keyword.arg for keyword in node.keywords}
        if ("mask" in given or len(node.args) > 1) and "other" not in given and len(node.args) < 3:
            return (
                f"`{' '.join(text.split())}` has a mask and no `other`: what its lanes beyond K hold is undefined on a GPU, "
                "even if it is 0 here, and all of them are added; say other=0.0"
            )
    return ""


def _short_accumulator(helper) -> str:
    """An accumulator that is made in 16 bits; ``acc += tl.dot(…)`` would hide it from the interpreter alone."""
    for _, text in calls_of(helper, "zeros", "full"):
        if "float16" in text or "element_ty" in text:
            return f"`{text}` is an accumulator of 16 bits: from 2048 on, adding 1 changes nothing; make it float32"
    return ""


def _rounded_tiles(helper) -> str:
    """A product of float32 tiles that tensor cores may round to TF32; in the interpreter it is exact all the same."""
    exact = {"ieee", "tf32x3", "bf16x6"}
    for node, text in calls_of(helper, "dot"):
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        precision = given.get("input_precision", node.args[3] if len(node.args) > 3 else None)
        said = getattr(precision, "value", None) if isinstance(precision, ast.Constant) else precision
        forbidden = getattr(given.get("allow_tf32"), "value", None) is False
        if forbidden or said in exact or isinstance(said, ast.expr):
            continue
        return (
            f"All numbers are right here, but `{' '.join(text.split())}` lets a GPU's tensor cores round both tiles to TF32, "
            "10 bits of fraction instead of 23, and a number of 11 bits times a scale of 11 may need 22. Say "
            "input_precision=\"ieee\", as in step 2 (step 6 says why)"
        )
    return ""


def _place(pid: int, grid_m: int, grid_n: int, GROUP_N: int) -> tuple[int, int]:
    first = pid // (GROUP_N * grid_m) * GROUP_N
    columns, here = min(grid_n - first, GROUP_N), pid % (GROUP_N * grid_m)
    return here // columns, first + here % columns


@step("04-order", "every tile once, and a wave as wide as its group")
def order(place):
    """Groups of columns, some of them narrower than GROUP_N."""
    for grid_m, grid_n, GROUP_N in ((6, 8, 4), (5, 10, 4), (3, 2, 4)):
        said = f"With {grid_m} × {grid_n} tiles and GROUP_N = {GROUP_N}"
        tiles = [tuple(map(int, place(pid, grid_m, grid_n, GROUP_N))) for pid in range(grid_m * grid_n)]
        right = [_place(pid, grid_m, grid_n, GROUP_N) for pid in range(grid_m * grid_n)]
        if tiles != right and [(m, n) for n, m in tiles] == right:
            return f"{said}, row and column are swapped: return the tile's row first, then its column"
        walked = [(n - first, first + m) for (m, n), first in zip(right, (n // GROUP_N * GROUP_N for _, n in right))]
        if tiles != right and tiles == walked:
            return (
                f"{said}, row and column are swapped inside a group: the remainder by its columns is the step across, and "
                "belongs to the column; the quotient is the row"
            )
        outside = [t for t in tiles if not (0 <= t[0] < grid_m and 0 <= t[1] < grid_n)]
        if outside:
            pid = tiles.index(outside[0])
            if grid_n % GROUP_N:
                return f"{said}, program {pid} gets tile {outside[0]}: the last group may have fewer columns than GROUP_N"
            return (
                f"{said}, program {pid} gets tile {outside[0]}, which does not exist. Every group has {GROUP_N} columns "
                "here, and inside a group it is pid % programs that counts"
            )
        twice = len(tiles) - len(set(tiles))
        if twice:
            again = next(tile for i, tile in enumerate(tiles) if tile in tiles[:i])
            pids = [pid for pid, tile in enumerate(tiles) if tile == again]
            return (
                f"{said}, programs {pids[0]} and {pids[1]} both get tile {again}, and others are never computed: "
                f"each group has {GROUP_N} columns of its own, from its first one on"
            )
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
