"""What known mistakes make of the rows of exercise 01, as formulas."""

import torch

from kernels.check.framework import Case


def softmaxes(task, case: Case):
    """Known mistakes, and the probabilities that they give."""
    x = task.exponents(case.inputs[0].values.float())
    N = x.shape[1]
    block = case.launch.get("BLOCK_N", min(1 << (N - 1).bit_length(), 1024))
    parts, lanes = x.split(block, dim=1), -(-N // block) * block
    top = x.amax(dim=1, keepdim=True)
    top0 = top.clamp(min=0.0)

    def over_sum(p, extra=0.0):
        return p / (p.sum(dim=1, keepdim=True) + extra)

    empty = over_sum(torch.exp(x - top))
    nothing, zeros = f"{task.nothing}", "-inf throughout" if task.log else "zeros"
    yield f"a row of {nothing} gives inf - inf or 0 / 0: the specification asks for {zeros}", empty
    padding = (lanes - N) * torch.exp(-top0)
    yield (
        f"the masked lanes count as zeros: their `other` must be {nothing}",
        over_sum(torch.exp(x - top0), padding),
    )
    for zero in (float("nan"), 0.0):  # what becomes of 0 / 0: a kernel may guard against it
        bare = over_sum(torch.exp(x)).where(torch.exp(x).sum(1, keepdim=True) > 0, torch.tensor(zero))
        low = over_sum(torch.exp(x - top0)).where(torch.exp(x - top0).sum(1, keepdim=True) > 0, torch.tensor(zero))
        yield "exp overflows, or is zero all along a row: subtract the row's maximum first", bare
        yield "what is subtracted is not the maximum of a row that is negative throughout", low
    if len(parts) > 1:
        tops = [part.amax(dim=1, keepdim=True) for part in parts]
        sums = [torch.exp(part - top).sum(dim=1, keepdim=True) for part in parts]
        own = [torch.exp(part - peak).sum(dim=1, keepdim=True) for part, peak in zip(parts, tops)]
        yield "the sum is that of the last block alone", torch.exp(x - top) / sums[-1]
        yield "the sum is that of the first block alone", torch.exp(x - top) / sums[0]
        yield "each block's sum is taken against its own maximum", torch.exp(x - top) / sum(own)
        yield "what is subtracted is the maximum of the last block alone", over_sum(torch.exp(x - tops[-1]))
        yield "what is subtracted is the maximum of the first block alone", over_sum(torch.exp(x - tops[0]))
    if task.log:
        vanished = over_sum(torch.exp(x - top0)).masked_fill(torch.isneginf(top), 0.0)
        yield "a quotient that vanishes has no logarithm: subtract the logarithm of the sum instead", vanished
        yield "the logarithm of the sum is not subtracted", torch.exp((x - top).double())
    yield "the row is not divided by its sum", torch.exp(x - top)
    yield "the sum runs down the columns, it must run along the row", torch.softmax(x, dim=0)
    if task.base == "e":
        yield "exp2 needs the factor log2(e)", over_sum(torch.exp2(x - top))
    yield "the values are divided by the block's length, not by their sum", torch.exp(x - top) / block
