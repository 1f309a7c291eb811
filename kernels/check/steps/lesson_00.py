"""Lesson 00: reversed loads, a mask for each load, one number from each program."""

import torch

from kernels.check.steps import Diagnosis, step
from kernels.check.steps.helpers import difference, empty, launch, values


def explained(hint: str, kernel, grid, *arguments, **constants):
    """``launch``; a stray access is named, and ``hint`` says what to think about."""
    try:
        return launch(kernel, grid, *arguments, **constants)
    except Diagnosis as stray:
        raise Diagnosis(f"{stray} {hint}") from None


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


@step("00-pair", "a load with a mask of its own")
def pair(kernel):
    """``kernel[grid](x, out, N, BLOCK)``: out[i] = x[i] + x[i + 1], and x[N] counts as 0."""
    for N in (13, 16):
        x, out = values(N, seed=1), empty(N)
        right = torch.cat([x[1:], x.new_zeros(1)])
        hint = "The mask must ask about the element that this line loads, offs + 1."
        explained(hint, kernel, (4,), x, out, N, BLOCK=4)
        if torch.equal(out, x + x.roll(-1)):
            return f"out[{N - 1}] has x[0] in it: past the end there are zeros, not the first element again."
        if torch.equal(out, torch.where(right == x.roll(-1), 2 * x, out)):
            return "The lanes load their own element again: the right neighbour is at offs + 1."
        if torch.equal(out, x + (x + 1)):
            return "The 1 is added to the number that was loaded: add it to the address, x_ptr + offs + 1."
        if said := difference("out", out, x + right):
            return f"With N = {N}, {said}"
    return ""


@step("00-block-sums", "one number from each program")
def block_sums(kernel):
    """``kernel[grid](x, out, N, BLOCK)``: out[p] is the sum of block p of x."""
    for N, BLOCK in ((16, 4), (13, 4), (13, 8)):
        P = -(-N // BLOCK)
        x, out = values(N, seed=2), empty(P)
        sums = torch.stack([part.sum() for part in x.split(BLOCK)])
        recorded = launch(kernel, (P,), x, out, N, BLOCK=BLOCK, stray=True)
        for access in recorded.outside():
            if access.kind == "load":
                return (
                    f"With N = {N} and BLOCK = {BLOCK}, `{access.source}` loads beyond the end of x: it needs a mask."
                )
            return f"`{access.source}` reaches outside out, which has one place for each program: out_ptr + pid."
        if P > 1 and out[1:].isnan().all():
            return "Only out[0] was stored: each program has a place of its own, out_ptr + pid."
        if said := difference("out", out, sums):
            return f"With N = {N} and BLOCK = {BLOCK}, {said} Lanes beyond N must add nothing."
    return ""
