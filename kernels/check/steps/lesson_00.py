"""Lesson 00: loads that run backwards."""

import torch

from kernels.check.steps import Diagnosis, step
from kernels.check.steps.helpers import difference, empty, launch, values


def explained(hint: str, kernel, grid, *arguments, **constants):
    """``launch``; an access out of bounds is named, and ``hint`` says what to think about."""
    try:
        return launch(kernel, grid, *arguments, **constants)
    except Diagnosis as beyond:
        raise Diagnosis(f"{beyond} {hint}") from None


@step("00-reverse", "a copy that runs backwards")
def reverse(kernel):
    """``kernel[grid](x, out, N, BLOCK)``: out[i] = x[N - 1 - i]."""
    for N in (16, 8):
        x, out = values(N), empty(N)
        explained("Which element does place 0 of out want?", kernel, (N // 4,), x, out, N, BLOCK=4)
        blocks = x.view(-1, 4)
        if torch.equal(out, x):
            return "Nothing is reversed, x is copied as it is: the load has to run the other way."
        if torch.equal(out, blocks.flip(1).flatten()):
            return "Each block is reversed, but the blocks are still in their old order: count from the end of x."
        if torch.equal(out, blocks.flip(0).flatten()):
            return "The blocks have changed places, but in each the order is still the old one: count from the end of x."
        if torch.equal(out, x.flip(0)[:4].repeat(N // 4)):
            return "Every program loads the same four elements: count with offs, for lanes alone don't know their program."
        if said := difference("out", out, x.flip(0)):
            return f"With N = {N}, {said}"
    return ""
