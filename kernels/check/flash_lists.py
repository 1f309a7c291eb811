"""The check of exercise 06's lists of blocks: its answers, its cases, and what known mistakes would list.

``block_lists(mask, num, idx, num_t, idx_t)`` writes the last four of its tensors and takes ``BLOCK_M=, BLOCK_N=``: mask bool
[M, N], num [2, R], idx [2, R, C], num_t [2, C], idx_t [2, C, R] int32: list 0 holds the partial blocks, list 1 the full ones.
"""

import torch

from kernels.check.flash_mods import causal, dense
from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Tier
from kernels.check.tensors import UNTOUCHED, both_ends

EMPTY, PARTIAL, FULL = 0, 1, 2
AXES = {"num": "LR", "idx": "LRC", "num_t": "LC", "idx_t": "LCR", "mask": "MN"}
READ_STRIDES = "Lesson 01, step 4"
SORTED, LISTED, TURNED = "Lesson 33, step 1", "Lesson 33, step 2", "Lesson 34, step 7"
ROWS = {(tensor, axis, "after"): "" for tensor in AXES for axis in "LRC"}


def pairs(mask: torch.Tensor, BLOCK_M: int, BLOCK_N: int) -> torch.Tensor:
    """How many pairs of each block are allowed, int [R, C]."""
    M, N = mask.shape
    padded = torch.nn.functional.pad(mask.int(), (0, -N % BLOCK_N, 0, -M % BLOCK_M))
    return padded.view(-(-M // BLOCK_M), BLOCK_M, -(-N // BLOCK_N), BLOCK_N).sum((1, 3))


def kinds_of(mask: torch.Tensor, BLOCK_M: int, BLOCK_N: int) -> torch.Tensor:
    """What each block is, int [R, C]; one that reaches past M or N is never full."""
    counts = pairs(mask, BLOCK_M, BLOCK_N)
    return torch.where(counts == BLOCK_M * BLOCK_N, FULL, (counts > 0).int())


def lists_of(kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """num [2, R] and idx [2, R, C] int32, 0 in the entries that no count reaches."""
    R, C = kinds.shape
    num, idx = torch.zeros(2, R, dtype=torch.int32), torch.zeros(2, R, C, dtype=torch.int32)
    for which, kind in enumerate((PARTIAL, FULL)):
        for r in range(R):
            listed = torch.nonzero(kinds[r] == kind).flatten()
            num[which, r], idx[which, r, : len(listed)] = len(listed), listed
    return num, idx


def list_answers(kinds: torch.Tensor) -> dict[str, torch.Tensor]:
    """The four outputs."""
    return dict(zip(("num", "idx", "num_t", "idx_t"), (*lists_of(kinds), *lists_of(kinds.T))))


def list_suspects(case: Case, out: Output):
    """Known mistakes of the lists, and what they hold then."""
    mask, (BLOCK_M, BLOCK_N) = case.inputs[0].values, (case.launch["BLOCK_M"], case.launch["BLOCK_N"])
    counts, there = (pairs(x, BLOCK_M, BLOCK_N) for x in (mask, torch.ones_like(mask)))
    right, size, some = kinds_of(mask, BLOCK_M, BLOCK_N), BLOCK_M * BLOCK_N, (counts > 0).int()

    def listed(kinds):
        return list_answers(kinds)[out.name]

    yield (
        "a block that reaches past M or N is taken for full: all BLOCK_M * BLOCK_N pairs must be allowed",
        listed(torch.where(counts == there, FULL, some)),
    )
    yield "empty blocks are listed", listed(torch.where(counts == size, FULL, PARTIAL))
    yield "full blocks are listed as partial", listed(some)
    yield "list 0 holds the partial blocks, list 1 the full ones", listed((3 - right) % 3)
    both = listed(some).clone()
    both[1] = listed(right)[1]
    yield "full blocks are listed as partial too: a block is in one list", both
    if out.name.startswith("idx"):
        counts, descending = list_answers(right)[f"num{out.name[3:]}"].tolist(), listed(right).clone()
        for entries, length in zip(descending.flatten(0, 1), sum(counts, [])):
            entries[:length] = entries[:length].flip(0)
        yield "the blocks of a list are in ascending order", descending
        holes = torch.full_like(both, UNTOUCHED)  # what is never stored
        for which, kind in enumerate((PARTIAL, FULL)):
            for r, c in torch.nonzero((right if out.name == "idx" else right.T) == kind).tolist():
                holes[which, r, c] = c
        yield (
            "block c stands at place c: blocks stand side by side, each at the place that counts those before it",
            holes,
        )
    if out.name.endswith("_t") and right.shape[0] == right.shape[1]:
        yield "the keys' lists are the queries' once more: swap the strides, and the sizes", listed(right.T)


def lists(draw: Draw, mask: torch.Tensor, *, blocks=(16, 16), order="", shared="", packed=False, poison=()) -> Case:
    """One call of the builder on a mask; what is recorded is recorded on its opposite, too."""
    mask = ~mask if draw.turn == 2 else mask
    tensor = Fenced(
        "mask", "MN", mask, fence=None if packed else {"M": blocks[0], "N": blocks[1]}, order=order, shared=shared
    )
    answers, outs = list_answers(kinds_of(mask, *blocks)), []
    for name, values in answers.items():
        count = answers[f"num{name[3:]}"]
        free = torch.arange(values.shape[-1]) >= count[..., None] if name.startswith("idx") else None
        outs.append(Output(Fenced(name, AXES[name], torch.empty_like(values)), values.double(), free=free))
    return Case([tensor], outs, {"BLOCK_M": blocks[0], "BLOCK_N": blocks[1]}, poison=poison)


def _sketch(draw: Draw, kinds: list[list[int]], BLOCK_M=16, BLOCK_N=16) -> torch.Tensor:
    """A mask whose blocks are of the given kinds; partial ones lack or have a single pair, in turn."""
    R, C = len(kinds), len(kinds[0])
    mask = torch.zeros(R * BLOCK_M, C * BLOCK_N, dtype=torch.bool)
    for r in range(R):
        for c in range(C):
            block = mask[r * BLOCK_M : (r + 1) * BLOCK_M, c * BLOCK_N : (c + 1) * BLOCK_N]
            block[:] = kinds[r][c] == FULL or (kinds[r][c] == PARTIAL and (r + c) % 2 == 0)
            if kinds[r][c] == PARTIAL:
                i, j = draw.size(3, 0, BLOCK_M - 1), draw.size(5, 0, BLOCK_N - 1)
                block[i, j] = ~block[i, j]
    return mask


def _kinds(draw):
    yield lists(draw, _sketch(draw, [[PARTIAL, FULL, EMPTY, FULL, PARTIAL]]), packed=True)
    yield lists(draw, _sketch(draw, [[PARTIAL, EMPTY], [FULL, PARTIAL]]), packed=True)


def _transposed(draw):
    for kinds in (
        [[PARTIAL, EMPTY, EMPTY], [FULL, PARTIAL, EMPTY], [FULL, FULL, PARTIAL]],
        [[PARTIAL, FULL, FULL, EMPTY], [EMPTY, FULL, PARTIAL, PARTIAL]],
    ):
        yield lists(draw, _sketch(draw, kinds), packed=True)


def _ragged_lists(draw):
    for M, N in (((37, 33, 47), (41, 33, 47)), ((5, 1, 15), (20, 17, 31)), ((20, 17, 31), (3, 1, 15))):
        M, N = draw.size(*M), draw.size(*N)
        yield lists(draw, torch.ones(M, N, dtype=torch.bool), poison=both_ends("MN"))
        yield lists(draw, torch.zeros(M, N, dtype=torch.bool), poison=both_ends("MN"))
    yield lists(draw, dense(causal, draw.size(37, 33, 47), draw.size(60, 50, 63)))


def _no_pairs(draw):
    yield lists(draw, torch.zeros(32, 48, dtype=torch.bool))
    yield lists(draw, _sketch(draw, [[EMPTY, EMPTY, EMPTY], [EMPTY, FULL, PARTIAL]]))


def _list_blocks(draw):
    mask = dense(causal, draw.size(64, 64, 128, multiple_of=64), 64)
    for blocks in ((16, 32), (64, 16), (32, 32)):
        yield lists(draw, mask, blocks=blocks)


def _list_strides(draw):
    mask = _sketch(draw, [[PARTIAL, EMPTY], [FULL, PARTIAL]])
    yield lists(draw, mask)
    yield lists(draw, mask, order="NM")
    yield lists(draw, mask[:1].expand(32, 32), shared="M")


def _usual_lists(draw):
    yield lists(draw, dense(causal, 128, 128), blocks=(64, 64), packed=True)


def _costed_lists(draw):
    yield lists(draw, _sketch(draw, [[PARTIAL, EMPTY, EMPTY], [FULL, PARTIAL, EMPTY], [FULL, FULL, PARTIAL]]), packed=True)


def _list_steps(case: Case) -> int:
    """One load for each block and one store for each that is not empty, in both kernels; two counts for each list."""
    num, _, num_t, _ = (out.expected for out in case.outs)
    (_, R), (_, C) = num.shape, num_t.shape
    return 2 * (R * C + int(num.sum())) + 2 * R + 2 * C


LISTS = Exercise(
    "block_lists",
    "the kernel stores nothing yet. It needs a count for each block, and a store of the block's number in a list.",
    (
        Property(
            "partial, full, empty",
            2,
            SORTED,
            _kinds,
            "count the allowed pairs: none is empty, all BLOCK_M * BLOCK_N full, anything else partial",
        ),
        Property(
            "lists of the keys",
            2,
            TURNED,
            _transposed,
            "num_t and idx_t list, for each block of keys, blocks of queries: the lists of the transposed mask",
        ),
        Property("strides", 1, READ_STRIDES, _list_strides, "the mask has its own strides, and some are 0"),
        Property("ragged sizes", 2, SORTED, _ragged_lists, "pairs beyond M or N are not allowed"),
        Property("rows without pairs", 1, LISTED, _no_pairs, "counts of 0 are stored too"),
        Property("block sizes", 1, SORTED, _list_blocks, "block (r, c) begins at row r * BLOCK_M, column c * BLOCK_N"),
        Property.stays_inside(SORTED, _ragged_lists),
    ),
    list_suspects,
    ROWS,
    given=("at", "tile"),
    compiles=Compiles(_usual_lists, SORTED),
    cheap=Cheap(
        _costed_lists,
        _list_steps,
        (Tier(3, read=2.0, written=0.5, steps=1.1), Tier(1, read=4.0, written=2.0, steps=2.0)),
        "each list's kernel loads each block of the mask once, and stores one number for a block that is not empty",
        LISTED,
        sectors=3.0,
    ),
)
