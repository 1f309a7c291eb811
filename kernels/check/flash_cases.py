"""The calls that the checks of exercise 06 make, forward and backward, each by its own case."""

import functools

import torch

from kernels.check import flash_mods as fm
from kernels.check.flash_lists import EMPTY, FULL, PARTIAL, kinds_of, lists_of
from kernels.check.flash_problem import Problem, answers, rounding
from kernels.check.framework import Case, Draw, Fenced, Output
from kernels.check.tensors import both_ends

AXES = (
    dict.fromkeys(("q", "dq"), "HMD")
    | dict.fromkeys(("k", "dk"), "JND")
    | dict.fromkeys(("v", "dv"), "JNV")
    | dict.fromkeys(("o", "do"), "HMV")
    | dict.fromkeys(("lse", "delta"), "HM")
    | dict.fromkeys(("tau", "dtau"), "HM")
)


def attention(
    draw: Draw, *, backward=False, M=32, N=32, H=1, G=1, D=16, V=16, blocks=(16, 16), mask=fm.causal, mod=fm.same, **how
) -> Case:
    """One call of the forward or backward launcher.

    ``how``: ``kinds(kinds)`` changes what the lists say each block is; ``half`` is the dtype of q, k, v and do,
    ``magnitude`` multiplies q and k; ``orders``, ``shared``, ``out_orders`` and ``packed`` say how tensors lie in memory;
    ``poison``, ``tolerance`` and ``judge``, the outputs that are judged, go to the case and its outputs.
    """
    sizes = {"H": H, "J": H // G, "M": M, "N": N, "D": D, "V": V}
    fence = None if how.get("packed") else {"M": blocks[0], "N": blocks[1], "D": 32, "V": 32, "H": 1, "J": 1}
    half, magnitude = how.get("half", torch.float32), how.get("magnitude", 1.0)

    def values(name, *shape):
        if name == "tau":
            tau = 1 + 0.5 * draw.normal(*shape)
            tau[..., 1::7] = 1.0 if mod is fm.log_abs else 0.0  # 0 has no logarithm
            return tau
        return draw.normal(*shape, dtype=half, scale=magnitude if name in ("q", "k") else 1.0)

    def fenced(name, make=None):
        axes, still = AXES[name], how.get("shared", {}).get(name, "")
        order, make = how.get("orders", {}).get(axes, ""), make or functools.partial(values, name)
        return Fenced.of(name, axes, sizes, make, fence=fence, order=order, shared=still)

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
    expected, slack = answers(Problem.of(case)), {}
    if backward:
        inputs += [fenced(name, lambda *shape, name=name: expected[name].float()) for name in ("o", "lse")]
        inputs.append(fenced("do"))
        case.inputs = [*inputs, *lists]
        expected, slack = answers(p := Problem.of(case)), rounding(p)
    for name in ("delta", "dq", "dk", "dv", "dtau") if backward else ("o", "lse"):
        order = how.get("out_orders", {}).get(AXES[name], "")
        out = Fenced.of(name, AXES[name], sizes, torch.empty, fence=fence, order=order)
        # log |tau s| moves all logits of a row alike, so that its dtau is rounding alone.
        judged = name in how.get("judge", (name,)) and not (name == "dtau" and mod is fm.log_abs)
        answer = expected[name] if judged else None
        # The precision property alone looks at the last digits.
        case.outs.append(Output(out, answer, tolerance=how.get("tolerance", 5e-3), slack=slack.get(name)))
    return case


def turned(kinds):
    """What no mask would give: empty blocks are full, full ones empty or partial, partial ones full or left out."""
    R, C = kinds.shape
    turn = (torch.arange(R)[:, None] + torch.arange(C)) % 3
    return torch.where(turn == 0, FULL, torch.where(turn == 1, PARTIAL, EMPTY)).int()


def listed(case, draw):
    """Lists that a mask gives, lists that none would give, and rows of blocks that none names."""
    M = draw.size(48, 48, 80, multiple_of=16)
    yield case(draw, M=M, N=M, packed=True)
    yield case(draw, M=M, N=M, kinds=turned)
    yield case(draw, M=48, N=32, mask=fm.every_pair, kinds=lambda kinds: kinds * torch.tensor([[0], [1], [0]]))


def modified(case, draw):
    """Score mods with a derivative, with positions, and one that leaves nothing of some full blocks' rows."""
    M, N = draw.size(32, 16, 48, multiple_of=16), draw.size(48, 32, 64, multiple_of=16)
    for mod in (fm.softcap, fm.alibi):
        yield case(draw, M=M, N=N, mask=fm.every_pair, mod=mod, scale=0.7)
    yield case(draw, M=M, N=M + 16, mask=fm.every_pair, mod=fm.ahead)


def without_keys(case, draw):
    """Queries without any key, alone and all of them."""
    yield case(draw, M=32, N=48, mask=fm.dead_rows)
    yield case(draw, M=48, N=48, mask=fm.window)
    yield case(draw, M=16, N=32, kinds=lambda kinds: 0 * kinds)
    yield case(draw, M=16, N=0)


def ragged(case, draw):
    """Sizes that fill no block, with what a score mod makes of a zero; one beyond a block, and heads wider than any."""
    ends = both_ends("MNDV")
    for mask, mod in ((fm.causal, fm.same), (fm.every_pair, fm.plus_100), (fm.every_pair, fm.log_abs)):
        M, N = draw.size(37, 33, 47), draw.size(41, 33, 47)
        yield case(draw, M=M, N=N, D=draw.size(20, 17, 31), V=draw.size(5, 1, 15), mask=mask, mod=mod, poison=ends)
    yield case(draw, M=17, N=33, D=draw.size(140, 129, 160), V=draw.size(130, 129, 160), poison=ends)
    M, N = draw.size(5, 1, 15), draw.size(3, 2, 15)  # with one key every score gets a gradient of 0, and rounding
    yield case(draw, M=M, N=N, D=3, V=draw.size(20, 17, 31), mask=fm.every_pair, mod=fm.plus_100, poison=ends)


def strided(case, draw):
    """Heads that share keys; axes in other orders; inputs that stand still."""
    sizes = {"H": 4, "G": 2, "M": 16, "N": draw.size(32, 16, 48, multiple_of=16)}
    yield case(draw, **sizes)
    orders = {"HMD": "DMH", "JND": "NJD", "JNV": "VNJ", "HMV": "MVH", "HM": "MH"}
    yield case(draw, **sizes, orders=orders)
    yield case(draw, **sizes, out_orders={"HMD": "MDH", "JND": "DNJ", "JNV": "NVJ", "HMV": "VHM", "HM": "MH"})
    yield case(draw, **sizes, shared={"q": "H", "k": "J", "v": "V", "do": "HMV", "tau": "H"})
    far = dict.fromkeys(("q", "o", "do", "dq"), "H") | dict.fromkeys(("k", "v", "dk", "dv"), "J")
    yield case(draw, H=3, M=16, N=16).stretched(**far)


def blocks(case, draw):
    """The same sizes in other blocks."""
    M = draw.size(64, 64, 128, multiple_of=64)
    for blocks in ((16, 32), (32, 16)):
        yield case(draw, M=M, N=64, blocks=blocks)


def half(case, draw):
    """float16 values, whose products float16 cannot hold, then some whose last digits it cannot."""
    for magnitude, scale in ((100.0, 1e-4), (1.0, 0.25)):
        yield case(draw, half=torch.float16, magnitude=magnitude, scale=scale, tolerance=2e-5)


def bfloat(case, draw):
    """bfloat16 values."""
    yield case(draw, half=torch.bfloat16)


def everything(case, draw):
    """Everything ragged at once, for the addresses."""
    sizes = {"M": draw.size(20, 17, 31), "N": draw.size(37, 33, 47), "D": draw.size(20, 17, 31)}
    yield case(draw, H=2, G=2, **sizes, V=draw.size(5, 1, 15), mask=fm.dead_rows)


def usual(case, draw):
    """Blocks as a GPU has them."""
    yield case(draw, M=64, N=64, D=32, V=32, blocks=(32, 32), half=torch.float16, packed=True)


def in_one_block(case, draw):
    """As many queries and keys as the smallest block has: whatever the learner's own blocks are, the lists name one."""
    return case(draw, M=16, N=16, D=32, V=32, half=torch.float16, packed=True)


def costed(case, draw):
    """Three blocks of queries and of keys, below the diagonal; two heads share the keys."""
    yield case(draw, M=48, N=48, H=2, G=2, packed=True)


def listed_blocks(case: Case) -> tuple[int, int, int, int, int]:
    """Query heads, key heads, blocks of queries and of keys, and the blocks that the lists name."""
    tensors = {tensor.name: tensor for tensor in case.inputs}
    _, R, C = tensors["idx"].shape
    return tensors["q"].size("H"), tensors["k"].size("J"), R, C, int(tensors["num"].values.sum())


def forward_steps(case: Case) -> int:
    """For each block of queries q, tau, two counts, o and lse; for each listed block its number, keys and values."""
    H, _, R, _, listed = listed_blocks(case)
    return H * (6 * R + 3 * listed)


def backward_steps(case: Case) -> int:
    """For dq also o, do, lse, delta and dtau; for dk and dv each listed block's number, q, tau, do, lse and delta."""
    H, J, R, C, listed = listed_blocks(case)
    return H * (10 * R + 3 * listed) + J * 4 * C + H * (2 * C + 6 * listed)
