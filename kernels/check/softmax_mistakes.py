"""What known mistakes make of the rows of exercise 01 and of their entropies, as formulas."""

import math

import torch

from kernels.check.framework import Case

LN2 = math.log(2.0)


def softmaxes(case: Case):
    """Known mistakes, and the probabilities that they give."""
    x = case.inputs[0].values.float()
    N = x.shape[1]
    block = case.launch.get("BLOCK_N", min(1 << (N - 1).bit_length(), 1024))
    parts, lanes = x.split(block, dim=1), -(-N // block) * block
    top = x.amax(dim=1, keepdim=True)
    top0 = top.clamp(min=0.0)

    def over_sum(p, extra=0.0):
        return p / (p.sum(dim=1, keepdim=True) + extra)

    empty = over_sum(torch.exp(x - top))
    yield "a row of -inf gives inf - inf or 0 / 0: the specification asks for zeros", empty
    padding = (lanes - N) * torch.exp(-top0)
    yield "the masked lanes count as zeros: their `other` must be -inf", over_sum(torch.exp(x - top0), padding)
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
        again = "every step adds the first block again: the lanes of a block begin at start, start + lanes"
        yield again, torch.exp(x - top) / (len(parts) * sums[0])
        yield "each block's sum is taken against its own maximum", torch.exp(x - top) / sum(own)
        yield "what is subtracted is the maximum of the last block alone", over_sum(torch.exp(x - tops[-1]))
        yield "what is subtracted is the maximum of the first block alone", over_sum(torch.exp(x - tops[0]))
    yield "the row is not divided by its sum", torch.exp(x - top)
    yield "the sum runs down the columns, it must run along the row", torch.softmax(x, dim=0)
    yield "exp2 needs the factor log2(e)", over_sum(torch.exp2(x - top))
    yield "the values are divided by the block's length, not by their sum", torch.exp(x - top) / block


def entropies(case: Case, right: torch.Tensor):
    """Known mistakes in the entropy of rows whose softmax is right, and the entropies that they give."""
    x = case.inputs[0].values.double()
    excluded, top = torch.isneginf(x), x.amax(dim=1, keepdim=True).nan_to_num(neginf=0.0)
    d = (x - top).masked_fill(excluded, 0.0)
    power = torch.exp(x - top)
    total = power.sum(dim=1).clamp(min=1.0)
    log_sum, parts = total.log(), power * d
    mean = parts.sum(dim=1) / total
    block = case.launch.get("BLOCK_N", min(1 << (x.shape[1] - 1).bit_length(), 1024))
    nan, empty = float("nan"), excluded.all(dim=1)
    zero = "0 · -inf is NaN: where a power is 0, {}, its part of the entropy must be made 0 before it is added"
    if x.shape[1] % block:
        yield zero.format("as in the lanes beyond N"), right * nan
    yield zero.format("as for an excluded entry"), right.masked_fill(excluded.any(dim=1), nan)
    nothing = "a row in which nothing takes part has no sum, and no logarithm of it: its entropy is 0"
    yield from ((nothing, right.masked_fill(empty, value)) for value in (nan, float("inf"), -float("inf")))
    yield "the sign is wrong: ln p is never positive, so minus the sum is what is asked", -right
    yield "this is the logarithm of the sum alone: ln p is the exponent minus that", log_sum
    yield "the logarithm of the sum is missing: ln p is the exponent minus that", -mean
    yield "the sum of the powers times their exponents is not divided by the sum of the powers", log_sum - mean * total
    yield "the exponents are added up without their powers", log_sum - d.sum(dim=1) / total
    yield "the mean of the exponents is added to the logarithm of the sum, it must be subtracted", log_sum + mean
    yield "this is in bits, and asked is nats", right / LN2
    both = "one of the two is in nats and the other in bits: exponents and the logarithm of the sum need one base"
    yield from ((both, log_sum / a - mean / b) for a, b in ((LN2, 1.0), (1.0, LN2)))
    once = "the maximum is subtracted in one of the two sums and not in the other: either both have it, or none"
    yield from ((once, right + sign * top[:, 0]) for sign in (-1, 1))
    for which, part in (("last", parts.split(block, dim=1)[-1]), ("first", parts.split(block, dim=1)[0])):
        yield (
            f"the sum of the powers times their exponents is that of the {which} block alone",
            log_sum - part.sum(dim=1) / total,
        )
