"""The checks of exercise 06: lists of blocks, attention forward over them, and its gradients.

``block_lists(mask, num, idx, num_t, idx_t)``, ``flash_forward(q, k, v, tau, num, idx, o, lse)`` and ``flash_backward(q, k,
v, tau, o, lse, do, num, idx, num_t, idx_t, delta, dq, dk, dv, dtau)`` write the last of their tensors; all
take ``BLOCK_M=, BLOCK_N=``, the latter two ``scale=, score_mod=, mask_mod=``, and the last ``score_gradient=``.
q, o [H, M, D or V], k, v [J, N, D or V], tau, lse, delta, dtau [H, M], mask bool [M, N], num [2, R], idx [2, R, C],
num_t [2, C], idx_t [2, C, R] int32: list 0 holds the partial blocks, list 1 the full ones.
"""

import torch

from kernels import runtime  # noqa: F401  before triton: this import decides where kernels run
from kernels.check import flash_mistakes as fm
from kernels.check.flash_mistakes import AXES, EMPTY, FULL, PARTIAL, Problem, answers, kinds_of, lists_of
from kernels.check.framework import (
    ADDRESSES,
    Case,
    Cheap,
    Compiles,
    Draw,
    Exercise,
    Fenced,
    Output,
    Property,
    Tier,
)

ENDS = {axis: ((axis, "before"), (axis, "after")) for axis in "MNDV"}


def _fence(BLOCK_M, BLOCK_N):
    return {"M": BLOCK_M, "N": BLOCK_N, "D": 32, "V": 32, "H": 1, "J": 1}


def attention(
    draw: Draw, *, backward=False, M=32, N=32, H=1, G=1, D=16, V=16, blocks=(16, 16), mask=fm.causal, mod=fm.same, **how
) -> Case:
    """One call of the forward or backward launcher.

    ``how``: ``kinds(kinds)`` changes what the lists say each block is; ``half`` is the dtype of q, k, v and do,
    ``magnitude`` multiplies q and k; ``orders``, ``shared``, ``out_orders`` and ``packed`` say how tensors lie in memory;
    ``poison``, ``tolerance`` and ``judge``, the outputs that are judged, go to the case and its outputs.
    """
    sizes = {"H": H, "J": H // G, "M": M, "N": N, "D": D, "V": V}
    fence = None if how.get("packed") else _fence(*blocks)
    half, magnitude = how.get("half", torch.float32), how.get("magnitude", 1.0)

    def fenced(name, values=None):
        still = how.get("shared", {}).get(name, "")
        if values is None:
            one = [1 if axis in still else sizes[axis] for axis in AXES[name]]
            scale = magnitude if name in ("q", "k") else 1.0
            values = draw.normal(*one, dtype=torch.float32 if name == "tau" else half, scale=scale)
            if name == "tau":
                values = 1 + 0.5 * values
                values[..., 1::7] = 1.0 if mod is fm.log_abs else 0.0  # a score of 0 has no logarithm
            values = values.expand([sizes[axis] for axis in AXES[name]])
        order = how.get("orders", {}).get(AXES[name], "")
        return Fenced(name, AXES[name], values, fence=fence, order=order, shared=still)

    kinds = how.get("kinds", lambda kinds: kinds)(kinds_of(fm.dense(mask, M, N), *blocks))
    num, idx = lists_of(kinds)
    lists = [Fenced("num", "LR", num), Fenced("idx", "LRC", idx)]
    if backward:
        num_t, idx_t = lists_of(kinds.T)
        lists += [Fenced("num_t", "LC", num_t), Fenced("idx_t", "LCR", idx_t)]
    inputs = [fenced(name) for name in ("q", "k", "v", "tau")]
    launch = {"scale": how.get("scale", D**-0.5), "score_mod": mod, "mask_mod": mask}
    launch |= {"score_gradient": fm.GRADIENTS.get(mod, fm.same_gradient)} if backward else {}
    launch |= {"BLOCK_M": blocks[0], "BLOCK_N": blocks[1]}
    case = Case([*inputs, *lists], [], launch, poison=how.get("poison", ()))
    expected = answers(Problem.of(case))
    if backward:
        inputs += [fenced("o", expected["o"].float()), fenced("lse", expected["lse"].float()), fenced("do")]
        case.inputs = [*inputs, *lists]
        expected = answers(Problem.of(case))
    for name in ("delta", "dq", "dk", "dv", "dtau") if backward else ("o", "lse"):
        order = how.get("out_orders", {}).get(AXES[name], "")
        out = Fenced(name, AXES[name], torch.empty([sizes[axis] for axis in AXES[name]]), fence=fence, order=order)
        # log |tau s| moves all logits of a row alike, so that its dtau is rounding alone.
        judged = name in how.get("judge", (name,)) and not (name == "dtau" and mod is fm.log_abs)
        answer = expected[name] if judged else None
        # The precision property alone looks at the last digits.
        case.outs.append(Output(out, answer, tolerance=how.get("tolerance", 5e-3)))
    return case


def forward(draw, **how):
    """One forward call."""
    return attention(draw, **how)


def backward(draw, **how):
    """One backward call."""
    return attention(draw, backward=True, **how)


# Lists of blocks.


def lists(draw: Draw, mask: torch.Tensor, *, blocks=(16, 16), order="", shared="", packed=False, poison=()) -> Case:
    """One call of the builder on a mask."""
    tensor = Fenced("mask", "MN", mask, fence=None if packed else _fence(*blocks), order=order, shared=shared)
    kinds = kinds_of(mask, *blocks)
    outs = []
    for name, values in fm.list_answers(mask, kinds).items():
        count = fm.list_answers(mask, kinds)[f"num{name[3:]}"]
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
        yield lists(draw, torch.ones(M, N, dtype=torch.bool), poison=ENDS["M"] + ENDS["N"])
        yield lists(draw, torch.zeros(M, N, dtype=torch.bool), poison=ENDS["M"] + ENDS["N"])
    yield lists(draw, fm.dense(fm.causal, draw.size(37, 33, 47), draw.size(60, 50, 63)))


def _no_pairs(draw):
    yield lists(draw, torch.zeros(32, 48, dtype=torch.bool))
    yield lists(draw, _sketch(draw, [[EMPTY, EMPTY, EMPTY], [EMPTY, FULL, PARTIAL]]))


def _list_blocks(draw):
    mask = fm.dense(fm.causal, draw.size(64, 64, 128, multiple_of=64), 64)
    for blocks in ((16, 32), (64, 16), (32, 32)):
        yield lists(draw, mask, blocks=blocks)


def _list_strides(draw):
    mask = _sketch(draw, [[PARTIAL, EMPTY], [FULL, PARTIAL]])
    yield lists(draw, mask)
    yield lists(draw, mask, order="NM")
    yield lists(draw, mask[:1].expand(32, 32), shared="M")


READ_STRIDES = "Lesson 01, step 4"
SORTED, LISTED, TURNED = "Lesson 33, step 1", "Lesson 33, step 2", "Lesson 34, step 7"

_ROWS = {(tensor, axis, "after"): "" for tensor in AXES for axis in "HJLRC"}


def _usual_lists(draw):
    yield lists(draw, fm.dense(fm.causal, 128, 128), blocks=(64, 64), packed=True)


def _costed_lists(draw):
    yield lists(
        draw, _sketch(draw, [[PARTIAL, EMPTY, EMPTY], [FULL, PARTIAL, EMPTY], [FULL, FULL, PARTIAL]]), packed=True
    )


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
        Property(
            "stays inside its tensors",
            1,
            SORTED,
            _ragged_lists,
            ADDRESSES,
            needs="the interpreter",
            addresses=True,
        ),
    ),
    fm.list_suspects,
    _ROWS,
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

# Attention: what both directions are held to, each by its own case.


def _reversed(kinds):
    """What no mask would give: empty blocks are full, full ones empty or partial, partial ones full or left out."""
    R, C = kinds.shape
    turn = (torch.arange(R)[:, None] + torch.arange(C)) % 3
    return torch.where(turn == 0, FULL, torch.where(turn == 1, PARTIAL, EMPTY)).int()


def _listed(case):
    def cases(draw):
        M = draw.size(48, 48, 80, multiple_of=16)
        yield case(draw, M=M, N=M, packed=True)
        yield case(draw, M=M, N=M, kinds=_reversed)
        yield case(draw, M=48, N=32, mask=fm.every_pair, kinds=lambda kinds: kinds * torch.tensor([[0], [1], [0]]))

    return cases


def _modified(case):
    def cases(draw):
        M, N = draw.size(32, 16, 48, multiple_of=16), draw.size(48, 32, 64, multiple_of=16)
        for mod in (fm.softcap, fm.alibi):
            yield case(draw, M=M, N=N, mask=fm.every_pair, mod=mod, scale=0.7)

    return cases


def _without_keys(case):
    def cases(draw):
        yield case(draw, M=32, N=48, mask=fm.dead_rows)
        yield case(draw, M=48, N=48, mask=fm.window)
        yield case(draw, M=16, N=32, kinds=lambda kinds: 0 * kinds)
        yield case(draw, M=16, N=0)

    return cases


def _ragged(case):
    def cases(draw):
        ends = ENDS["M"] + ENDS["N"] + ENDS["D"] + ENDS["V"]
        for mask, mod in ((fm.causal, fm.same), (fm.every_pair, fm.plus_100), (fm.every_pair, fm.log_abs)):
            M, N = draw.size(37, 33, 47), draw.size(41, 33, 47)
            yield case(draw, M=M, N=N, D=draw.size(20, 17, 31), V=draw.size(5, 1, 15), mask=mask, mod=mod, poison=ends)
        M, N = draw.size(5, 1, 15), draw.size(3, 1, 15)
        yield case(draw, M=M, N=N, D=3, V=draw.size(20, 17, 31), mask=fm.every_pair, mod=fm.plus_100, poison=ends)

    return cases


def _strided(case):
    def cases(draw):
        sizes = {"H": 4, "G": 2, "M": 16, "N": draw.size(32, 16, 48, multiple_of=16)}
        yield case(draw, **sizes)
        orders = {"HMD": "DMH", "JND": "NJD", "JNV": "VNJ", "HMV": "MVH", "HM": "MH"}
        yield case(draw, **sizes, orders=orders)
        yield case(draw, **sizes, out_orders={"HMD": "MDH", "JND": "DNJ", "JNV": "NVJ", "HMV": "VHM", "HM": "MH"})
        yield case(draw, **sizes, shared={"q": "H", "k": "J", "v": "V", "do": "HMV", "tau": "H"})

    return cases


def _blocks(case):
    def cases(draw):
        M = draw.size(64, 64, 128, multiple_of=64)
        for blocks in ((16, 32), (32, 16)):
            yield case(draw, M=M, N=64, blocks=blocks)

    return cases


def _half(case):
    def cases(draw):
        """float16 values, whose products float16 cannot hold, then some whose last digits it cannot."""
        for magnitude, scale in ((100.0, 1e-4), (1.0, 0.25)):
            yield case(draw, half=torch.float16, magnitude=magnitude, scale=scale, tolerance=2e-5)

    return cases


def _bfloat(case):
    return lambda draw: iter([case(draw, half=torch.bfloat16)])


def _everything(case):
    def cases(draw):
        sizes = {"M": draw.size(20, 17, 31), "N": draw.size(37, 33, 47), "D": draw.size(20, 17, 31)}
        yield case(draw, H=2, G=2, **sizes, V=draw.size(5, 1, 15), mask=fm.dead_rows)

    return cases


def _usual(case):
    return lambda draw: iter([case(draw, M=64, N=64, D=32, V=32, blocks=(32, 32), half=torch.float16, packed=True)])


def _costed(case):
    """Three blocks of queries and of keys, below the diagonal; two heads share the keys."""
    return lambda draw: iter([case(draw, M=48, N=48, H=2, G=2, packed=True)])


def _listed_blocks(case: Case) -> tuple[int, int, int, int, int]:
    """Query heads, key heads, blocks of queries and of keys, and the blocks that the lists name."""
    tensors = {tensor.name: tensor for tensor in case.inputs}
    _, R, C = tensors["idx"].shape
    return tensors["q"].size("H"), tensors["k"].size("J"), R, C, int(tensors["num"].values.sum())


def _forward_steps(case: Case) -> int:
    """For each block of queries q, tau, two counts, o and lse; for each listed block its number, keys and values."""
    H, _, R, _, listed = _listed_blocks(case)
    return H * (6 * R + 3 * listed)


def _backward_steps(case: Case) -> int:
    """For dq also o, do, lse, delta and dtau; for dk and dv each listed block's number, q, tau, do, lse and delta."""
    H, J, R, C, listed = _listed_blocks(case)
    return H * (10 * R + 3 * listed) + J * 4 * C + H * (2 * C + 6 * listed)


def _keys_in_blocks(draw):
    M = draw.size(32, 16, 32, multiple_of=16)
    for N in (16, 64):
        yield forward(draw, M=M, N=N, H=3, mask=fm.every_pair, packed=True, scale=1.0)


def _large(draw):
    """Logits around 1e4 and -1e4, in blocks whose maxima rise and fall."""
    for scale in (30.0, 1000.0):
        yield forward(draw, M=32, N=64, mask=fm.every_pair, scale=scale)
    yield forward(draw, M=32, N=64, mod=fm.plus_100, mask=fm.every_pair)


STRIDES = "query head h reads key head h // G, and each tensor has its own strides, some of them 0: at(stride_x, ...)"
F16 = "something is rounded to float16: tile gives float32, and all sums stay float32"
BLOCK_SIZES = "the answer depends on BLOCK_M or BLOCK_N, it must not"
ONLINE, DEAD, WALK, HEADS = "Lesson 30, step 2", "Lesson 30, step 4", "Lesson 30, step 5", "Lesson 33, step 8"

FORWARD = Exercise(
    "flash_forward",
    "the kernel stores nothing yet. It needs a walk along two lists of blocks, and a store of o and of lse.",
    (
        Property(
            "blocks of keys",
            1,
            ONLINE,
            _keys_in_blocks,
            "o = acc / l and lse = top + log l, where all three are carried from block to block",
        ),
        Property(
            "large logits",
            1,
            ONLINE,
            _large,
            "exponentiate z - top and top - new_top only, neither of which is positive",
            not_finite="a positive number is exponentiated: top is the largest logit so far, it never falls",
        ),
        Property(
            "rows without keys",
            1,
            DEAD,
            _without_keys(forward),
            "a row without keys has o = 0 and lse = -inf",
            not_finite="-inf - -inf or 0 / 0 is NaN: shift by 0 where the maximum is -inf, divide by 1 where l is 0",
        ),
        Property(
            "block lists",
            1,
            "Lesson 33, step 6",
            _listed(forward),
            "row r visits what its lists name, the mask counts in list 0 only",
        ),
        Property(
            "score mods",
            1,
            "Lesson 31, step 4",
            _modified(forward),
            "z = SCORE_MOD(s, m, n), m a column of rows' numbers, n a row",
        ),
        Property("heads and strides", 1, HEADS, _strided(forward), STRIDES),
        Property(
            "ragged sizes",
            1,
            WALK,
            _ragged(forward),
            "pairs beyond M or N do not count (logits), and rows beyond M are not stored (mask_m)",
            not_finite="pairs beyond M or N do not count: z is -inf there, whatever the score mod makes of a zero",
        ),
        Property("block sizes", 1, WALK, _blocks(forward), BLOCK_SIZES),
        Property("float16", 1, WALK, _half(forward), F16),
        Property(
            "stays inside its tensors",
            1,
            WALK,
            _everything(forward),
            ADDRESSES,
            needs="the interpreter",
            addresses=True,
        ),
        Property("bfloat16", 0, WALK, _bfloat(forward), needs="a GPU"),
    ),
    fm.forward_suspects,
    _ROWS,
    given=("at", "tile"),
    compiles=Compiles(_usual(forward), WALK),
    cheap=Cheap(
        _costed(forward),
        _forward_steps,
        (Tier(3, read=2.5, steps=1.1), Tier(1, read=5.0, written=4.0, steps=2.0)),
        "a program loads its queries once, each listed block of keys and values once, and stores o and lse after the last",
        WALK,
        sectors=2.0,
    ),
)


def _queries(draw):
    yield backward(
        draw, M=16, N=draw.size(32, 16, 48, multiple_of=16), mask=fm.every_pair, judge=("delta", "dq", "dtau"), packed=True
    )


def _keys(draw):
    M = draw.size(32, 32, 48, multiple_of=16)
    yield backward(draw, M=M, N=M, mask=fm.every_pair, judge=("dk", "dv"), packed=True)


BACK, CHAIN = "Lesson 34, step 8", "Lesson 34, step 5"

BACKWARD = Exercise(
    "flash_backward",
    "the kernels store nothing yet. They need delta, dq and dtau along the queries' lists, dk and dv along the keys'.",
    (
        Property(
            "queries",
            1,
            "Lesson 34, step 3",
            _queries,
            "dq = tau * scale * ds k, dtau = scale * q · (ds k), ds = p * (do v^T - delta) where there is no score mod",
        ),
        Property("keys and values", 1, CHAIN, _keys, "dk = scale * ds^T (tau q), dv = p^T do"),
        Property(
            "rows without keys",
            1,
            BACK,
            _without_keys(backward),
            "a row without keys gives no gradient",
            not_finite="a row without keys has z = lse = -inf, and -inf - -inf is NaN: take 0 for such an lse",
        ),
        Property(
            "block lists",
            1,
            TURNED,
            _listed(backward),
            "dq walks along num and idx, dk and dv along num_t and idx_t",
        ),
        Property(
            "score mods",
            1,
            CHAIN,
            _modified(backward),
            "ds = SCORE_GRADIENT(s, m, n, dz), at the same s as the score mod",
        ),
        Property("heads and strides", 1, CHAIN, _strided(backward), STRIDES),
        Property(
            "ragged sizes",
            1,
            BACK,
            _ragged(backward),
            "pairs beyond M or N give no gradient: ds is 0 there",
            not_finite="rows beyond M count: z must be -inf there, and ds 0 wherever z is -inf, whatever the gradient is",
        ),
        Property("block sizes", 1, BACK, _blocks(backward), BLOCK_SIZES),
        Property("float16", 1, BACK, _half(backward), F16),
        Property(
            "stays inside its tensors",
            1,
            BACK,
            _everything(backward),
            ADDRESSES,
            needs="the interpreter",
            addresses=True,
        ),
        Property("bfloat16", 0, BACK, _bfloat(backward), needs="a GPU"),
    ),
    fm.backward_suspects,
    _ROWS,
    given=("at", "tile"),
    compiles=Compiles(_usual(backward), BACK, own_blocks=True),
    cheap=Cheap(
        _costed(backward),
        _backward_steps,
        (Tier(3, read=3.05, steps=1.1), Tier(1, read=6.1, written=4.0, steps=2.0)),
        "each kernel loads what it keeps once, what it walks over once for each listed block, and stores after the last",
        BACK,
        sectors=2.0,
    ),
)


def _temperatures(draw):
    """Dense attention, for a derivation: every pair counts, each head has its own keys."""
    for H, M, N, D, V in ((1, 3, 4, 2, 2), (2, draw.size(5, 3, 9), 7, 3, 5)):
        shapes = {"q": (H, M, D), "k": (H, N, D), "v": (H, N, V), "tau": (H, M), "do": (H, M, V)}
        x = {name: draw.normal(*shape) for name, shape in shapes.items()}
        x["tau"][:, 1] = 0.0
        axes = AXES | {"k": "HND", "v": "HNV"}
        answer = fm.temperature({name: values.double() for name, values in x.items()}, 0.7)
        out = Output(Fenced("dtau", "HM", torch.empty(H, M)), answer)
        yield Case([Fenced(name, axes[name], values) for name, values in x.items()], [out], {"scale": 0.7})


# What check.derivation holds a formula of the temperature's gradient to; no kernel is checked with it.
TEMPERATURE = Exercise(
    "flash_dtau",
    "the function returns nothing yet.",
    (Property("temperature", 0, CHAIN, _temperatures),),
    fm.temperature_suspects,
)
