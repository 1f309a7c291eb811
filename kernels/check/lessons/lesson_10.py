"""Lesson 10's kernels: the loop over the taps, and the same among documents and states."""

import torch

from kernels.check.lessons import LessonKernel


def _convolution(draw, B=2, T=4, D=16, W=3, far=0.0, dtype=torch.float32):
    """One tile for each sequence unless told. With inputs ``far`` from 0 the weights of a token add up to 0."""
    x, weight = draw.normal(B, T, D), draw.normal(B, T, D, W)
    if far:
        x, weight = x + far, weight - weight.mean(-1, keepdim=True)
    return {"x": x.to(dtype), "weight": weight.to(dtype), "BLOCK_T": 4, "BLOCK_D": 16}


def _packed(draw, lengths=(4, 3), D=16, W=3, with_state=True, dtype=torch.float32):
    """Documents of these lengths in one row."""
    T, N = sum(lengths), len(lengths)
    return {
        "x": draw.normal(1, T, D, dtype=dtype),
        "weight": draw.normal(1, T, D, W, dtype=dtype),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        "state": draw.normal(N, D, W - 1, dtype=dtype) if with_state else None,
        "BLOCK_T": 4,
        "BLOCK_D": 16,
    }


KERNELS = {
    "10-convolve": LessonKernel(
        arguments=_convolution,
        cases={
            "one tile": {"B": 1},
            "several tiles": {"T": 12, "D": 32},
            "ragged T and D": {"T": 10, "D": 19},
            "fewer tokens than taps": {"T": 2, "W": 4},
            "one tap": {"T": 5, "W": 1},
            "bfloat16": {"T": 9, "dtype": torch.bfloat16},
            "products that cancel in bfloat16": {"T": 9, "far": 8.0, "dtype": torch.bfloat16},
        },
        slips=[
            (
                "mask=mask & (j >= 0), other=0.0",
                "mask=mask, other=0.0",
                "nothing says that j may be below 0: the first W - 1 tokens read what is in memory before their sequence",
            ),
            ("mask & (j >= 0)", "mask & (j > 0)", "input 0 exists, too: inside is where j >= 0"),
            (
                "mask & (j >= 0)",
                "(j >= 0) & (j < T)",
                "",  # the access tells
            ),
            (
                "offs_t - (W - 1) + w",
                "offs_t - w",
                "the taps are reversed: tap 0 reads the oldest input, W - 1 tokens back, and the last tap the token's own",
            ),
            (
                "offs_t - (W - 1) + w",
                "offs_t - W + w",
                "the window is a token too old: the last tap reads the token itself",
            ),
            ("offs_t - (W - 1) + w", "offs_t + w", "the window looks ahead: tap w reads W - 1 - w tokens back"),
            (
                "(b * T + j) * D",
                "j * D",
                "every sequence reads the inputs of sequence 0: b * T tokens come before those of sequence b",
            ),
            (
                "k_ptr + here * W + w",
                "k_ptr + ((b * T + j) * D + offs_d) * W + w",
                "you read row j of the weights: they belong to the token t itself, so only the inputs move with the tap",
            ),
            (
                "x_ptr + (b * T + j) * D + offs_d",
                "x_ptr + here - (W - 1) + w",
                "a token back is D elements back in x, one for each channel",
            ),
            (
                "k_ptr + here * W + w",
                "k_ptr + here + w",
                "the weights begin at here * W: each element of x before this one has W of them",
            ),
            (
                "tl.static_range(W)",
                "tl.static_range(W - 1)",
                "the last tap is left out: there are W of them, 0 to W - 1",
            ),
            ("acc += k * X", "acc = k * X", "each tap overwrites the sum of those before it"),
            (
                ".to(tl.float32)\n        k = tl.load(k_ptr + here * W + w, mask=mask, other=0.0).to(tl.float32)",
                "\n        k = tl.load(k_ptr + here * W + w, mask=mask, other=0.0)",
                "convert to tl.float32 right after the load",
            ),
        ],
    ),
    "10-packed": LessonKernel(
        arguments=_packed,
        cases={
            "one document, in one tile": {"lengths": (4,)},
            "one document, several tiles": {"lengths": (11,), "D": 19},
            "two documents": {"lengths": (6, 5)},
            "documents shorter than the window": {"lengths": (1, 2, 1, 3), "W": 4},
            "empty documents": {"lengths": (0, 3, 0, 0, 6, 0)},
            "no state": {"lengths": (5, 2), "with_state": False},
            "one tap": {"lengths": (3, 4), "W": 1},
            "bfloat16": {"lengths": (5, 4), "dtype": torch.bfloat16},
        },
        slips=[
            (
                "inside = back <= p",
                "inside = back <= offs_t",
                "a document's first tokens read the one before it: the window ends where its own begins, p tokens back",
            ),
            (
                "inside = back <= p",
                "inside = back < p",
                "a tap that reads a document's first token is taken for outside: inside is where W - 1 - w <= p",
            ),
            (
                "mask=mask & ~inside",
                "mask=mask & (back > offs_t)",
                "only the first document gets its state: each begins with its own, wherever it is in the row",
            ),
            (
                "slot + p + w",
                "slot + w",
                "slot w is right for a document's first token alone: at place p, tap w reads slot p + w",
            ),
            (
                "slot + p + w",
                "slot + (p + w) * D",
                "a state is [N, D, W - 1]: the slots of one document and channel are side by side",
            ),
            (
                "X += tl.load(state_ptr + slot + p + w, mask=mask & ~inside, other=0.0).to(tl.float32)",
                "pass",
                "the states are not read: before a document's first token come the inputs that its state holds",
            ),
            (
                "slot + p + w",
                "slot + p + w - 1",
                "what a document's first token reads by tap 0 is in slot 0, so tap w of place p reads slot p + w",
            ),
            (
                "X += tl.load(state_ptr + slot + p + w, mask=mask & ~inside, other=0.0).to(tl.float32)\n"
                "        acc += k * X\n        if w > 0:\n            tl.store(after_ptr + slot + w - 1, X, mask=last)",
                "if w > 0:\n            tl.store(after_ptr + slot + w - 1, X, mask=last)\n"
                "        X += tl.load(state_ptr + slot + p + w, mask=mask & ~inside, other=0.0).to(tl.float32)\n"
                "        acc += k * X",
                "the new state lacks the old one's entries: of a document shorter than W - 1 it keeps some",
            ),
            ("slot + w - 1, X", "slot + w - 1, k * X", "the state holds inputs, X, and not their products with the weights"),
            (
                "slot + w - 1, X",
                "slot + w, X",
                "a state has slots 0 to W - 2, and tap 1's input belongs into slot 0: tap w's into slot w - 1",
            ),
            ("if w > 0:", "if w >= 0:", "tap 0's input leaves the window, so nothing is stored for w = 0"),
            ("here - back * D", "here - back", "`back` tokens back is D channels for each: back * D"),
            ("if w > 0:", "if w > W:", "no document leaves its new state: the last token's taps 1 to W - 1 have it"),
            (
                "if w > 0:\n            tl.store(after_ptr + slot + w - 1, X, mask=last)",
                "if w < W - 1:\n            tl.store(after_ptr + slot + w, X, mask=last)",
                "the new state has the last token's oldest input and lacks its newest: it is the window without tap 0's",
            ),
            (
                "slot + w - 1, X",
                "slot + W - 1 - w, X",
                "the new state is turned around: slot 0 has the oldest input",
            ),
            (
                "X, mask=last",
                "X, mask=mask & (offs_t + 1 == T)",
                "only the row's last document leaves a state: each one has a last token",
            ),
            (
                "X += tl.load(state_ptr",
                "X = tl.load(state_ptr",
                "the state's input, or its zero, takes the place of that of x",
            ),
            ("acc += k * X", "acc = k * X", "each tap overwrites the sum of those before it"),
            (
                "tl.static_range(W)",
                "tl.static_range(W - 1)",
                "the last tap is left out: there are W of them, 0 to W - 1",
            ),
        ],
    ),
}
