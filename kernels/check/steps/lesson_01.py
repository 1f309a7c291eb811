"""Lesson 01: strides that overlap."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, strided, values


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
