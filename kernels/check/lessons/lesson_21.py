"""What lesson 21's reader writes: where walls stand, and the loop over one text among many, in either direction."""

import torch

from kernels.check.lessons import LessonKernel, Turn


def _arguments(draw, B=1, T=6, H=2, K=5, V=6, lengths=None, reverse=False, states=False, dtype=torch.float32):
    q, k, v = (draw.normal(B, T, H, size, dtype=dtype) for size in (K, K, V))
    given = {"q": q, "k": k, "v": v, "g": -draw.normal(B, T, H).abs(), "reverse": reverse}
    if lengths is not None:
        given["cu_seqlens"] = torch.tensor([0, *lengths]).cumsum(0)
    if states:
        given["first"] = draw.normal(B if lengths is None else len(lengths), H, K, V)
    return given


def _walls(draw, lengths, reverse):
    return {"lengths": list(lengths), "reverse": reverse}


KERNELS = {
    "21-texts": LessonKernel(
        arguments=_arguments,
        cases={
            "two rows of one length": {"B": 2, "T": 3},
            "two rows, last token first": {"B": 2, "T": 3, "reverse": True},
            "a state at both ends": {"B": 2, "T": 3, "states": True},
            "packed texts": {"lengths": (2, 1, 3)},
            "packed texts, last token first": {"lengths": (2, 1, 3), "reverse": True},
            "packed, with states, one text empty": {"lengths": (2, 0, 4), "states": True, "reverse": True},
            "bfloat16": {"lengths": (2, 4), "dtype": torch.bfloat16},
        },
        slips=[
            ("begin, L = n * T, T", "begin, L = n * 0, T", "row n of a batch begins at token n T: every program takes row 0"),
            (
                "L = tl.load(cu_ptr + n + 1) - begin",
                "L = T",
                "a packed text has its own length, cu[n + 1] - cu[n]: it does not go on to the end of the row",
            ),
            (
                "L = tl.load(cu_ptr + n + 1) - begin",
                "L = tl.load(cu_ptr + n + 1)",
                "cu[n + 1] is where the text ends, not its length: take its begin off",
            ),
            ("(L - 1 - i if REVERSE else i)", "i", "REVERSE changes nothing: the last token comes first then"),
            ("L - 1 - i if REVERSE", "L - i if REVERSE", "one token too far: the last one is begin + L - 1"),
            ("L - 1 - i if REVERSE", "T - 1 - i if REVERSE", "backwards the text's own length counts, L, not the row's T"),
            (
                "begin + (L - 1 - i if REVERSE else i)",
                "(L - 1 - i if REVERSE else i)",
                "tokens are counted from the row's beginning: the text's own begin is missing",
            ),
            ("S = tl.load(first_ptr + offs_s, mask=mask_s, other=0.0)", "pass", "the initial state is not read"),
            ("    tl.store(last_ptr + offs_s, S, mask=mask_s)", "", ""),
            (
                "    tl.store(last_ptr",
                "        tl.store(last_ptr",
                "an empty text hands its state on, too: store behind the loop, whatever L is",
            ),
            (
                "if cu_ptr is not None",
                "if True",
                "cu_ptr and first_ptr may be None: load what they point to inside `if ... is not None`",
            ),
            ("first_ptr + offs_s, mask=mask_s, other=0.0", "first_ptr + offs_s", ""),
            ("last_ptr + offs_s, S, mask=mask_s", "last_ptr + offs_s, S", ""),
            ("        S = token(", "        token(", "what the token leaves of the state is lost: S = token(...)"),
            ("in range(L)", "in range(L // 2)", ""),
        ],
    )
}

TURNS = {
    "21-walls": Turn(
        "on which tokens walls stand, in both directions",
        arguments=_walls,
        cases={
            "texts of 3, 1 and 4 tokens, first to last": {"lengths": (3, 1, 4), "reverse": False},
            "texts of 3, 1 and 4 tokens, last to first": {"lengths": (3, 1, 4), "reverse": True},
        },
        slips=[
            (
                "ends[:-1] - 1 if reverse else ends[:-1]",
                "ends[:-1]",
                "from last to first the new text is entered at its last token: the wall stands there, one before",
            ),
            (
                "ends[:-1] - 1 if reverse else ends[:-1]",
                "ends[:-1] - 1",
                "from first to last the new text is entered at its first token, one behind the last of the text before",
            ),
            (
                "ends[:-1] - 1 if reverse",
                "ends[1:] - 1 if reverse",
                "the walk begins at the last token of the last text, where no wall is needed, and enters the others later",
            ),
            (
                "ends[:-1] - 1 if reverse else ends[:-1]",
                "ends - 1 if reverse else ends - torch.tensor(lengths)",
                "where the walk begins nothing has been written: that wall wipes only an initial state, and is one too many",
            ),
        ],
    )
}
