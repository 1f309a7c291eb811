"""The classes of shapes that the table of configurations knows, and the lengths of the runs that its options say."""

import torch

from kernels.common.configs import declare
from kernels.common.gpu import multiprocessors
from kernels.common.math import bits, cdiv
from kernels.dynamic_conv import cost

MANY = "many taps"  # more than 8


def size_class(W, dtype, static=False, packed=False):
    """The key of a launch configuration: taps, bits per element, whether all tokens share one kernel, whether packed."""
    return MANY if W > 8 else f"W{W} {bits(dtype)}" + " static" * static + " packed" * packed


CLASSES = {
    kernel: {
        size_class(W, dtype, static, packed)
        for W in range(1, 10)
        for dtype in (torch.float16, torch.float32)
        for static in ((False, True) if kernel == "step" else (False,))
        for packed in ((False, True) if kernel == "backward" else (False,))
    }
    for kernel in ("forward", "backward", "static forward", "static backward", "step")
}
declare("dynamic_conv", CLASSES)


def pop_run(options, T, B, packed, words, W, device):
    """``(RUN, {candidate: predicted time})``; of the WALKS that ``options`` may hold, the chosen one's tile replaces them.

    Args:
        options: a configuration, which loses ``RUN``, ``WARPS`` and ``WALKS``.
        T: tokens along time.
        B: batch rows.
        packed: how many sequences share the row, or ``None``.
        words: in a row of channels.
        W: taps.
        device: of the tensors.
    """
    walks = options.pop("WALKS", None)
    if not walks:
        # WARPS: where runs so short would leave more for every multiprocessor, the run grows
        run, warps = options.pop("RUN"), options.pop("WARPS", 0)
        if warps:
            all_tokens = B * T * cdiv(words, options["BLOCK"]) * options["num_warps"] // options["ROWS"]
            run = max(run, cdiv(all_tokens, warps * multiprocessors(device)))
        return run, {}
    walk, run, times = cost.fastest(walks, T, B, packed or 0, words, W, multiprocessors(device))
    options |= {name: value for name, value in walk.items() if name not in cost.MODEL}
    return run, times
