"""Gradients of captured tensors: the sums over all queries and keys that the score mod's sinks collect."""

import torch

from kernels.flex_attention.portable.dq import launch_dq


def sums_of_sinks(p, x, do, lse, delta, dq):
    """The sums, float32, from one run of the queries' kernel that adds or two that count; dq comes with them.

    Two runs: the first measures the largest addend of each sink; in the second every addend becomes a whole number of the
    smallest unit whose sums cannot overflow 64 bits, and integers can be added in any order.
    """
    run = lambda sinks, PASS: launch_dq(p, x, do, lse, delta, dq, sinks, PASS)  # noqa: E731
    shapes = p.score.target_shapes
    new = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=p.device)  # noqa: E731
    if not shapes:
        run((), "add")
        return []
    if not p.options["DETERMINISTIC"]:
        sums = [new(shape, torch.float32) for shape in shapes]
        run(tuple((s, s, s) for s in sums), "add")
        return sums
    largest = new(len(shapes), torch.float32)
    run(tuple((largest[i],) * 3 for i in range(len(shapes))), "measure")
    addends = max(1, p.B * p.Hq * p.M * p.N)
    # 2^k with largest * addends * 2^k < 2^62; a power of two, so that scaling rounds nothing
    exponent = 62 - addends.bit_length() - torch.frexp(largest).exponent
    unit = torch.exp2(exponent.clamp(-126, 126).float())
    counts = [new(shape, torch.int64) for shape in shapes]
    infinite = [new(shape, torch.float32) for shape in shapes]  # the sum of addends that are not finite
    run(tuple((count, unit[i], infinite[i]) for i, count in enumerate(counts)), "count")
    return [(count.double() / unit[i]).float() + infinite[i] for i, count in enumerate(counts)]
