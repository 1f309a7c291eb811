"""Lesson 12's kernel: both gradients in one walk."""

import torch

from kernels.check.lessons import LessonKernel


def _arguments(draw, lengths=(4,), D=16, W=3, RUN=4, WHOLE=False, far=0.0, dtype=torch.float32):
    """Documents of these lengths in one row, cut into runs. With ``far`` the shares of an input add up to about 0."""
    T = sum(lengths)
    dy, k = draw.normal(1, T, D), draw.normal(1, T, D, W)
    if far:  # all tokens have the same weights, which add up to 0
        dy, k = dy + far, (k - k.mean(-1, keepdim=True))[:, :1].expand(k.shape)
    return {
        "dy": dy.to(dtype),
        "x": draw.normal(1, T, D, dtype=dtype),
        "k": k.to(dtype).contiguous(),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        "RUN": RUN,
        "WHOLE": WHOLE,
        "BLOCK_D": 16,
    }


KERNELS = {
    "12-walk": LessonKernel(
        arguments=_arguments,
        cases={
            "one run": {},
            "several runs": {"lengths": (12,), "D": 19},
            "a ragged last run": {"lengths": (10,), "W": 4},
            "runs shorter than the window": {"lengths": (6,), "W": 4, "RUN": 2},
            "two documents": {"lengths": (5, 7)},
            "short and empty documents": {"lengths": (1, 0, 2, 1, 5), "W": 4},
            "one tap": {"lengths": (5,), "W": 1},
            "whole sectors": {"lengths": (6, 3), "WHOLE": True},
            "bfloat16": {"lengths": (9,), "W": 4, "dtype": torch.bfloat16},
            "shares that cancel in bfloat16": {"lengths": (9,), "far": 8.0, "dtype": torch.bfloat16},
        },
        slips=[
            (
                "X, dX = X[1:], sums[1:]",
                "pass",
                "nothing goes on to the next step: X[1:] is the window without its oldest, sums[1:] what the others have",
            ),
            (
                "dy = tl.load(dy_ptr + here, mask=mask",
                "dy = tl.load(dy_ptr + here, mask=own",
                "the run's last W - 1 inputs lack shares: tokens behind the run saw them, too, so dy and k are read there",
            ),
            (
                "k = tl.load(k_ptr + here * W + w, mask=mask",
                "k = tl.load(k_ptr + here * W + w, mask=own",
                "the run's last W - 1 inputs lack shares: tokens behind the run saw them, too, so dy and k are read there",
            ),
            (
                "sums += (dX[w] + dy * k,)",
                "sums += (dy * k,)",
                "each sum is its last share alone: what dX[w] has collected so far belongs to it",
            ),
            (
                "dk += (dy * X[w],)",
                "dk += (dy * k,)",
                "dk has the weights in it: the gradient of a weight is dy times the input that it multiplied, X[w]",
            ),
            (
                "dk += (dy * X[w],)\n            sums += (dX[w] + dy * k,)",
                "dk += (dy * k,)\n            sums += (dX[w] + dy * X[w],)",
                "k and x are exchanged: dk is dy times the input that the weight multiplied, dx sums dy times the weights",
            ),
            (
                "dk += (dy * X[w],)",
                "dk += (dy * X[W - 1 - w],)",
                "the taps of dk are turned around: X[0] is the window's oldest, which tap 0 reads",
            ),
            (
                "tl.store(dx_ptr + j * D + offs_d, sums[0]",
                "tl.store(dx_ptr + j * D + offs_d, sums[W - 1]",
                "the newest input's sum is stored, which has one share: complete is the oldest's, sums[0]",
            ),
            (
                "sums[0], mask=done",
                "dX[0], mask=done",
                "the oldest input's sum lacks its last share: this token's is in the new sums",
            ),
            (
                "sums += (dX[w] + dy * k,)",
                "sums += (dX[w] + dy * X[w],)",
                "dx has the inputs in it: an input's share is dy times the weight that multiplied it, k",
            ),
            (
                "X, dX = X[1:], sums[1:]",
                "X, dX = X[1:], sums[:-1]",
                "the sums no longer belong to their inputs: both tuples lose their oldest, the first",
            ),
            (
                "X, dX = X[1:], sums[1:]",
                "X, dX = X[:-1], sums[1:]",
                "the window loses its newest input in place of its oldest, which is the first",
            ),
            (
                "store_taps(dk_ptr + here * W, dk, own",
                "store_taps(dk_ptr + here * W, dk, mask",
                "",  # two programs store there
            ),
            (
                "sums[0], mask=done",
                "sums[0], mask=mask",
                "dx is stored for inputs before the run, whose sums are not complete here: `done` is what this run owns",
            ),
            (
                "X += (tl.load(x_ptr + here, mask=own, other=0.0).to(tl.float32),)",
                "pass",
                "with its new input and its sum the window is X[0] to X[W - 1], dX[0] to dX[W - 1]: are both added",
            ),
            (
                "mask=own, other=0.0).to(tl.float32)",
                "mask=own, other=0.0)",
                "convert what is loaded, by .to(tl.float32)",
            ),
            (
                "X, dX = X[1:], sums[1:]",
                "dX = sums[1:]",
                "the window keeps its oldest input, so X[w] stays what the walk began with: X[1:]",
            ),
            (
                "tl.store(dx_ptr + j * D + offs_d",
                "tl.store(dx_ptr + here",
                "sums[0] is of the oldest input, so it belongs at time j, W - 1 tokens before `here`",
            ),
            (
                "here * W + w, mask=mask, other=0.0",
                "here * W + W - 1 - w, mask=mask, other=0.0",
                "the taps of k are turned around: X[w] was multiplied by tap w",
            ),
            (
                "dk_ptr + here * W",
                "dk_ptr + here",
                "a token and channel has W numbers of dk, so they begin at here * W",
            ),
            (
                "k = tl.load(k_ptr + here * W + w, mask=mask, other=0.0).to(tl.float32)\n"
                "            dk += (dy * X[w],)\n            sums += (dX[w] + dy * k,)",
                "k = tl.load(k_ptr + here * W + w, mask=mask, other=0.0)\n"
                "            dk += (dy * X[w],)\n            sums += (dX[w] + dy.to(k.dtype) * k,)",
                "convert to tl.float32 right after the load",
            ),
            (
                "here * W + w, mask=mask, other=0.0",
                "here + w, mask=mask, other=0.0",
                "the weights of a token and channel begin at here * W, for each has W of them",
            ),
            (
                "here * W + w, mask=mask, other=0.0",
                "here * W, mask=mask, other=0.0",
                "every share has tap 0's weight: tap w is w further",
            ),
        ],
    ),
}
