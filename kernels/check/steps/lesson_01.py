"""Lesson 01: two masks for one tile, strides that overlap, two reductions of a row in one walk."""

import ast

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import calls_of, difference, empty, launch, outside, strided, values


@step("01-lower", "a load and a store with different masks")
def lower(kernel):
    """``kernel[grid](x, out, N, BLOCK)``: out = tril(x), zeros above the diagonal."""
    for N in (8, 6):
        x, out = values(N, N), empty(N, N)
        recorded = launch(kernel, (2, 2), x, out, N, BLOCK=4, stray=True)
        if said := outside(recorded):
            return f"With N = {N}: {said} The triangle alone doesn't know where the matrix ends: keep `inside` too."
        if torch.equal(out, x.triu()):
            return "This is the upper triangle: below the diagonal the column is less than the row, offs_n < offs_m."
        if torch.equal(out, x):
            return "Everything is copied: the load's mask must leave out what lies above the diagonal."
        if torch.equal(out.nan_to_num(0.0), x.tril()) and out.isnan().any():
            return "Above the diagonal nothing was stored, so out keeps whatever it held. Zeros must be written there."
        if torch.equal(out, x.tril(-1)):
            return "The diagonal is missing: an element with offs_n == offs_m belongs to the triangle."
        if said := difference("out", out, x.tril()):
            row, column = (~torch.isclose(out, x.tril())).nonzero()[0].tolist()
            return f"With N = {N}, {said} What does each of the two masks say at row {row}, column {column}?"
        loaded = sum(len(elements) for elements in recorded.launches[0].programs("x_ptr", "load").values())
        if loaded > N * (N + 1) // 2:
            enough = N * (N + 1) // 2
            return f"The result is right, but {loaded} elements are loaded where {enough} are enough: mask the load too."
    return ""


@step("01-windows", "strides that overlap")
def windows(function):
    """``function(x, W)``: the view [N - W + 1, W] of all windows of a vector with any stride."""
    packed = values(40, seed=1)[:7]
    for x, how in ((packed, "a vector of 7"), (strided(packed), "a vector of 7 whose stride is 2")):
        for W in (3, 1, 7):
            expected = x.unfold(0, W, 1)
            got = function(x, W)
            where = f"With {how} and W = {W}, "
            if not isinstance(got, torch.Tensor):
                return f"{where}the function returns {type(got).__name__}, not a tensor."
            if got.shape != expected.shape:
                return f"{where}the shape is {tuple(got.shape)}, expected {tuple(expected.shape)}: N - W + 1 windows."
            if said := difference("the view", got, expected):
                if got.stride(0) == W * x.stride(0):
                    return f"{where}the windows lie side by side. The next one begins one element further, not W."
                own = (
                    " A vector's own stride needn't be 1: x.stride(0)."
                    if x.stride(0) != 1
                    else f" Your strides are {got.stride()}: how far is it in x from a window to the next, and within one?"
                )
                return f"{where}{said}{own}"
            if got.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
                return f"{where}the numbers are right, but they were copied: a view shares the vector's memory."
    return ""


@step("01-spans", "two reductions that the padding leaves alone")
def spans(kernel):
    """``kernel[grid](x, out, N, stride_xm, BLOCK_N)``: out[m] = max(x[m]) - min(x[m])."""
    base = values(3, 37, seed=2)
    huge = (base + 9) * torch.tensor([[1e30], [-1e30], [1e30]], device=base.device)  # beyond any large number of one's own
    for x, how in ((base + 9, "positive"), (base - 9, "negative"), (base, "mixed"), (huge, "huge")):
        for BLOCK_N in (16, 64):
            out = empty(3)
            launch(kernel, (3,), x, out, 37, x.stride(0), BLOCK_N=BLOCK_N)
            where = f"With rows of 37 {how} numbers and BLOCK_N = {BLOCK_N}, "
            last = x[:, 32:] if BLOCK_N == 16 else x
            if BLOCK_N == 16 and torch.allclose(out, last.amax(1) - last.amin(1)):
                return f"{where}only the last block counts: compare with what high and low held before."
            expected = x.amax(1) - x.amin(1)
            if not torch.allclose(out, expected):
                if torch.allclose(out, x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)):
                    said = difference("out", out, expected).split(" (")[0].rstrip(".")
                    why = "The padding, or what an accumulator starts with, isn't neutral."
                    return f"{where}{said}: your span reaches to 0. {why}"
                if out.isinf().any():
                    return f"{where}out[0] is {out[0].item()}: high or low still holds an infinity after the walk."
                plain = [text for node, text in calls_of(kernel, "max", "min") if isinstance(node.func, ast.Name)]
                why = f" `{plain[0]}` is Python's, and keeps one of two blocks: tl.maximum, tl.minimum." if plain else ""
                return f"{where}{difference('out', out, expected)}{why}"
    return ""
