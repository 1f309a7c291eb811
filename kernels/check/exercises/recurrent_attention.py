"""Exercise 04: gated recurrent attention, forward, backward, and the gradient of the scalar gate.

``recurrent_forward(q, k, v, g, gk, S0, o, ST)``, ``recurrent_backward(q, k, v, g, gk,
S0, do, dST, dq, dk, dv, dS0)`` and ``recurrent_gate_gradient(q, k, v, g, S0,
do, dST, dg)`` write the last of their tensors; all take ``cu_seqlens=, scale=``. The sequences lie end to end
along T: q, k, gk [T, H, K], v, o [T, H, V], g [T, H], states [N, H, K, V].
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from numpy import s_

from kernels import runtime
from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Output, Property, Size, Tier, calls
from kernels.check.shared import READ_STRIDES, STRIDES, firsts, gate_values, made, rounded_and_inside
from kernels.check.tensors import both_ends
from kernels.recurrent_attention.reference import recurrent_attention_reference

INF = float("inf")
STATES = ("S0", "ST", "dS0", "dST")
AXES = (
    dict.fromkeys(("q", "k", "gk", "dq", "dk"), "THK")
    | dict.fromkeys(("v", "o", "do", "dv"), "THV")
    | dict.fromkeys(("g", "dg"), "TH")
    | dict.fromkeys(STATES, "NHKV")
)

# The equation.


@dataclass
class Problem:
    """One call's tensors in float64 by name, each sequence's tokens in their order, and the scale."""

    x: dict[str, torch.Tensor]
    tokens: list[torch.Tensor]
    scale: float

    @classmethod
    def of(cls, case: Case) -> "Problem":
        """The problem that ``case`` sets."""
        ends = case.launch["cu_seqlens"].tolist()
        x = {tensor.name: tensor.values.double() for tensor in case.inputs}
        return cls(x, [torch.arange(*span) for span in zip(ends[:-1], ends[1:])], case.launch["scale"])

    def but(self, scale=None, tokens=None, **tensors) -> "Problem":
        """The same with something changed."""
        scale = self.scale if scale is None else scale
        return replace(self, x=self.x | tensors, tokens=tokens or self.tokens, scale=scale)

    def decays(self) -> torch.Tensor:
        """D [T, H, K, 1]."""
        return (self.x["g"][..., None, None] + self.x["gk"][..., None]).exp()


def answers(p: Problem) -> dict[str, torch.Tensor]:
    """Outputs, and where the problem has do and dST the gradients: by the reference and autograd."""
    x = {name: value.clone().requires_grad_() for name, value in p.x.items()}
    o, ST = recurrent_attention_reference(
        *(x[name][None] for name in ("q", "k", "v")),
        g=x["g"][None],
        gk=x["gk"][None] if "gk" in x else None,
        scale=p.scale,
        initial_state=x["S0"],
        output_final_state=True,
        cu_seqlens=torch.tensor([0, *map(len, p.tokens)]).cumsum(0),
    )
    found = {"o": o[0].detach(), "ST": ST.detach()}
    if "do" in x:
        names = [name for name in ("q", "k", "v", "g", "S0") if name in x]
        loss = (o[0] * p.x["do"]).sum() + (ST * p.x["dST"]).sum()
        gradients = torch.autograd.grad(loss, [x[name] for name in names], materialize_grads=True)
        found |= {f"d{name}": gradient for name, gradient in zip(names, gradients)}
    return found


def step(S: torch.Tensor, D: torch.Tensor, write: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A token's step: the state that goes on, and the one that is read."""
    return (D * S + write,) * 2


def walk(p: Problem, name: str, step: Callable = step, D: torch.Tensor | None = None) -> torch.Tensor:
    """One output, or gradient, where a token's step or decay may be mistaken: the gradient is the mistaken walk's."""
    D, grad = p.decays() if D is None else D, name[1:] if name in ("dq", "dk", "dv", "dS0") else ""
    found = torch.full_like(p.x[grad or {"o": "v", "ST": "S0"}[name]], float("nan"))
    for n, tokens in enumerate(p.tokens):
        x = {of: value[n] if of in STATES else value[tokens] for of, value in p.x.items()}
        if grad:
            x[grad].requires_grad_()
        S, reads = x["S0"], []
        for decay, k, v in zip(D[tokens], x["k"], x["v"]):
            S, read = step(S, decay, k[..., None] * v[..., None, :])
            reads.append(read)
        reads = torch.stack(reads) if reads else S.new_zeros(0, *S.shape)
        o = p.scale * torch.einsum("thkv,thk->thv", reads, x["q"])
        answer = S if name == "ST" else o
        if grad:
            loss = (o * x["do"]).sum() + (S * x["dST"]).sum() + 0 * x[grad].sum()  # which no empty sequence has
            (answer,) = torch.autograd.grad(loss, x[grad], materialize_grads=True)
        found[n if name in STATES else tokens] = answer
    return found


def passing(r, s, t, end):
    """Which pairs pass gate t: the write of s before it, the read of r behind it."""
    return (s < t) & (t <= r)


def rectangles(p: Problem, counted: Callable = passing, weight=torch.exp, turned="") -> torch.Tensor:
    """dg [T, H] as the sum of W[r, s] over the pairs that are ``counted``; those that pass gate t, unless told.

    Tokens count from 1; S0 is s = 0, dST is r = end. ``turned`` is which of them meets the tokens transposed.
    """
    dg = torch.full_like(p.x["g"], float("nan"))
    for n, tokens in enumerate(p.tokens):
        q, k, v, do, g = (p.x[name][tokens].transpose(0, 1) for name in ("q", "k", "v", "do", "g"))  # [H, L, ...]
        S0, dST, L = p.x["S0"][n], p.x["dST"][n], len(tokens)
        r, s, t = torch.arange(1, L + 2)[:, None, None], torch.arange(L + 1)[:, None], torch.arange(1, L + 1)
        W = g.new_zeros(g.shape[0], L + 1, L + 1)
        W[:, :L, 1:] = p.scale * (q @ k.mT) * (do @ v.mT)
        W[:, :L, 0] = p.scale * ((q @ (S0.mT if turned == "S0" else S0)) * do).sum(-1)
        W[:, L, 1:] = ((k @ (dST.mT if turned == "dST" else dST)) * v).sum(-1)
        W[:, L, 0] = (S0 * dST).sum((-1, -2))
        between = torch.where(passing(r, s, t, L + 1), g[:, None, None, :], 0.0).sum(-1)
        W = W * weight(between) * (s <= r)[..., 0]
        counts = counted(r, s, t, L + 1).double().expand(L + 1, L + 1, L)
        dg[tokens] = torch.einsum("hrs,rst->th", W, counts)
    return dg


# The calls.


def _call(
    inputs: str, outs: str, block: str, draw: Draw, *, lengths=(6,), H=1, K=16, V=16, BLOCK=16, gates=None,
    states=STATES, half=torch.float32, magnitude=1.0, first=1.0, apart=None, **how,
) -> Case:  # fmt: skip
    """One call of these sizes.

    ``gates`` says what g and gk are, ``states`` names those that are not zero, ``half`` is the dtype of q, k,
    v and do, ``magnitude`` multiplies them, ``first`` S0; ``apart``, gates whose gradients are judged among themselves.
    """
    lengths = [draw.size(*length) if isinstance(length, Size) else length for length in lengths]
    sizes = {"T": sum(lengths), "H": H, "K": K, "V": V, "N": len(lengths)}

    def values(name, *shape):
        if name in ("g", "gk"):
            return gate_values(draw, shape, *gates[name]) if gates else -0.25 * draw.normal(*shape).abs()
        if name in STATES:
            state = draw.normal(*shape) if name in states else torch.zeros(shape)
            return state * first if name == "S0" else state
        return draw.normal(*shape, dtype=half, scale=magnitude)

    def known(case):
        p = Problem.of(case)
        groups = {"groups": apart(p.x["g"]).int()} if apart else {}
        return {name: {"expected": answer} | groups for name, answer in answers(p).items()}

    ends = torch.tensor([sum(lengths[:n]) for n in range(len(lengths) + 1)], dtype=torch.int32)
    launch = {"cu_seqlens": ends.to(runtime.device), "scale": K**-0.5} | ({block: BLOCK} if block else {})
    fence = {"T": BLOCK, "K": 32, "V": 32, "H": 1, "N": 1}
    return made((inputs.split(), outs.split()), AXES, sizes, values, launch, known, fence=fence, **how)


NO_GATES = {"g": (0.0,), "gk": (0.0,)}
# Every third token at -20, every fourth at -inf, but not the first; of gk, some at -inf.
STRONG = {"g": (-0.05, (s_[2::3], -20.0), (s_[1::4], -INF)), "gk": (-0.05, (s_[..., ::5], -INF))}
TWO_RESETS_IN_A_ROW = dict.fromkeys(("g", "gk"), (-0.5, (0, -INF), (s_[5:7], -INF)))
ROWS, CHAIN, BACK, WALKS = "Lesson 20, step 3", "Lesson 22, step 2", "Lesson 22, step 1", "Lesson 22, step 3"
BLOCK = "Lesson 23, step 7"
O, EMPTY = {"judge": ("o",)}, {"states": (), "gates": NO_GATES, "packed": True}
RAGGED = {"lengths": (Size(5, 2, 7), 0, Size(3, 2, 7)), "H": 2, "K": Size(20, 17, 31), "V": Size(5, 3, 15)}
F16 = "products or sums are taken in float16: convert to tl.float32 right after each load"
PARTIAL = (Size(20, 17, 31), Size(3, 1, 7))  # numbers of channels that fill no block, and fewer than a block has


def _gates(call: Callable, lesson: str, otherwise: str, **judge) -> Property:
    """Gates, and those that reset, however much there is to forget."""
    large = {"gates": TWO_RESETS_IN_A_ROW, "lengths": (8,), "first": 1e20}
    cases = calls(call, {"states": ()}, {"states": (), "gates": STRONG}, large, **judge)
    return Property("gates", 1, lesson, cases, otherwise)


def _ends(call: Callable, lesson: str, otherwise: str) -> Property:
    """A first state, and one after the last token."""
    return Property("a state at both ends", 1, lesson, calls(call, lengths=(Size(4, 3, 6),), H=2), otherwise)


def _strides(call: Callable) -> Property:
    """Several heads and sequences; axes in other orders; keys and gates that all heads share; far tokens and states."""
    still = {"k": "H", "g": "H", "gk": "TH", "do": "THV", "v": "T"}
    cases = calls(
        call,
        {},
        {"orders": {"THK": "HTK", "THV": "VHT", "TH": "HT", "NHKV": "HVNK"}},
        {"out_orders": {"THK": "KTH", "THV": "HVT", "TH": "HT", "NHKV": "VNHK"}},
        {"shared": still},
        {"lengths": (2, 2, 2), "far": {name: axes[0] for name, axes in AXES.items()}},
        lengths=(Size(3, 2, 5), Size(2, 2, 5)),
        H=2,
    )
    return Property("strides", 1, READ_STRIDES, cases, STRIDES)


def _packed_and_strided(call: Callable, packed: str, masks: str, ragged_V: str) -> tuple[Property, ...]:
    """What both walks are held to: sequences end to end, a long one, empty ones first, last and in between; and so on."""
    long, empty = (2, Size(150, 130, 180)), (0, Size(2, 1, 4), 0, 0, Size(3, 1, 4), 0)
    several = [{"lengths": each} for each in ((Size(3, 2, 5), Size(2, 1, 4)), long, empty, (0, 0))]
    sequences = "sequence n has the tokens from cu_seqlens[n] up to cu_seqlens[n + 1], perhaps none"
    keys, columns = (
        calls(call, *({axis: size} for size in PARTIAL), lengths=(3,), poison=both_ends(axis)) for axis in ("K", "V")
    )
    return (
        Property("packed sequences", 1, packed, calls(call, *several), sequences),
        _strides(call),
        Property("ragged K", 1, masks, keys, "rows beyond K must stay 0 (mask_k)"),
        Property("ragged V", 1, masks, columns, ragged_V),
    )


def _exercise(
    name: str, missing: str, call: Callable, suspects: Callable, properties: tuple, usual: dict, costed: dict, cheap: tuple
) -> Exercise:  # fmt: skip
    """One of the three exercises. A head's or a sequence's end is no mask's business."""
    masks = {(tensor, axis, "after"): "" for tensor in AXES for axis in "HN"}
    compiles = Compiles(calls(call, lengths=(16,), half=torch.float16, packed=True, **usual), properties[0].lesson)
    cheap = Cheap(calls(call, lengths=(9, 7), H=2, packed=True, **costed), *cheap, sectors=2.0)
    return Exercise(name, missing, properties, suspects, masks, given=("at",), compiles=compiles, cheap=cheap)


def _programs(case: Case) -> tuple[int, int]:
    """Programs of a kernel with one for each sequence and head, and their tokens in all."""
    sizes = {axis: n for tensor in case.tensors for axis, n in zip(tensor.axes, tensor.shape)}
    return sizes["N"] * sizes["H"], sizes["T"] * sizes["H"]


def forward_steps(case: Case) -> int:
    """Five loads and a store for each token of each block of V; four more accesses for each of the programs."""
    programs, tokens = _programs(case)
    blocks = -(-case.outs[0].tensor.size("V") // case.launch["BLOCK_V"])
    return blocks * (4 * programs + 6 * tokens)


def backward_steps(case: Case) -> int:
    """On the way there five loads and a store for each token, on the way back six and two."""
    programs, tokens = _programs(case)
    return 3 * programs + 6 * tokens + 4 * programs + 8 * tokens


def gate_steps(case: Case) -> int:
    """Each program loads and stores ten times, its whole sequence at once."""
    return 10 * _programs(case)[0]


# What known mistakes give.

_SCALED = {"o": "o_t = scale * S_t^T q_t", "ST": "o_t = scale * S_t^T q_t", "dq": "dq_t = scale * S_t do_t"}
_STEPS = {
    "the decay is applied after the write: decay, then write, then read": lambda S, D, w: (D * (S + w),) * 2,
    "the query reads before the write: o_t includes token t": lambda S, D, w: (D * S + w, D * S),
    "the state is not carried from token to token: S = exp(g + gk) * S + k * v": lambda S, D, w: (w, w),
    "the state does not decay": lambda S, D, w: (S + w,) * 2,
}
_STEPS_BACK = {  # the walk forward whose gradient it is
    "dS decays by D_t before token t uses it: D_t lies between token t and the one before": (
        lambda S, D, w: (D * (S + w), S + w)
    ),
    "dS is used before scale * q_t do_t^T is added: token t reads the state it wrote": lambda S, D, w: (D * S + w, D * S),
    "dS is not carried from token to token": lambda S, D, w: (0 * S, w),
    "dS does not decay": lambda S, D, w: (S + w,) * 2,
}
_TOKENS = {
    "every sequence is taken to start at token 0: t runs from cu_seqlens[n]": lambda t, T: torch.arange(len(t)),
    "the walk ends a token early: t runs to the last before cu_seqlens[n + 1]": lambda t, T: t[:-1],
    "the walk starts a token late: t runs from cu_seqlens[n]": lambda t, T: t[1:],
    "the walk runs on into the next sequence: it ends before cu_seqlens[n + 1]": (
        lambda t, T: torch.arange(t[0] if len(t) else T, T)
    ),
}
_PAIRS = {
    "the pair of both states is left out: exp(the sum of all gates) * <S0, dST>, in every dg_t": (
        lambda r, s, t, end: passing(r, s, t, end) & ~((s == 0) & (r == end))
    ),
    "S0 is left out: it counts as an s before the first token": lambda r, s, t, end: passing(r, s, t, end) & (s > 0),
    "dST is left out: it counts as an r after the last token": lambda r, s, t, end: passing(r, s, t, end) & (r < end),
    "the boundary terms are left out: S0 counts as an s, dST as an r": (
        lambda r, s, t, end: passing(r, s, t, end) & (s > 0) & (r < end)
    ),
    "the pair s = t is counted: a token writes after its gate, s < t strictly": (
        lambda r, s, t, end: (s <= t) & (t <= r)
    ),
    "the pair r = t is left out: a token reads after its gate, r >= t": lambda r, s, t, end: (s < t) & (t < r),
    "the running sum over r starts at the first row: it starts at the last, reverse=True": (
        lambda r, s, t, end: (s < t) & (r <= t)
    ),
    "the term of dST counts s = t: a token writes after its gate, s < t strictly": (
        lambda r, s, t, end: passing(r, s, t, end) | (s == t) & (r == end)
    ),
}
_FIRSTS = {"H": ("head", "h"), "N": ("sequence", "n")}


def _decays(p: Problem):
    """Decays that a mistaken kernel may use."""
    g, gk = p.x["g"][..., None, None], p.x["gk"][..., None]
    yield "the gate g is left out of the decay, exp(g + gk)", gk.exp()
    yield "the gate gk is left out of the decay, exp(g + gk)", g.exp().expand_as(gk)
    yield "the decay grows with -g: gates are logarithms, a gate of -1 keeps exp(-1)", (-g - gk).exp()
    if p.x["k"].shape[-1] == p.x["v"].shape[-1]:
        cause = "gk decays the columns of the state: it belongs to the rows of the state, the key channels"
        yield cause, (g + gk.mT).exp()


def walk_suspects(case: Case, out: Output):
    """Known mistakes of the forward and backward kernels, and the answers they give."""
    p, name, back = Problem.of(case), out.name, out.name in ("dk", "dv", "dS0")
    T = len(p.x["g"])
    scaled = _SCALED.get(name, "each token adds scale * q_t do_t^T to dS")
    yield f"the scale is left out: {scaled}", walk(p.but(scale=1.0), name)
    end, start = ("dST", "dS starts as dST[n, h]") if back else ("S0", "S starts as S0[n, h]")
    yield f"{end} is left out: {start}", walk(p.but(**{end: torch.zeros_like(p.x[end])}), name)
    if name == "dS0":
        D = p.decays()
        for tokens in p.tokens:
            D[tokens[:1]] = 1.0
        yield "the last decay is left out: dS0 = D_1 * dS_1", walk(p, name, D=D)
    for cause, mistaken in (_STEPS_BACK if back else _STEPS).items():
        yield cause, walk(p, name, step=mistaken)
    for cause, D in _decays(p):
        yield cause, walk(p, name, D=D)
    for cause, moved in _TOKENS.items():
        yield cause, walk(p.but(tokens=[moved(tokens, T) for tokens in p.tokens]), name)
    if back:
        cause = "the walk goes from the first token to the last: dS comes from the tokens after"
        yield cause, walk(p.but(tokens=[tokens.flip(0) for tokens in p.tokens]), name)
    for cause, x in firsts(p.x, AXES, **_FIRSTS):
        yield cause, walk(p.but(**x), name)


def gate_suspects(case: Case, out: Output):
    """Known mistakes of the gate's gradient, and the answers they give."""
    p = Problem.of(case)
    yield "the scale is left out: o_r = scale * S_r^T q_r", rectangles(p.but(scale=1.0))
    for cause, counted in _PAIRS.items():
        yield cause, rectangles(p, counted)
    yield "the pairs do not decay: exp(gamma_r - gamma_s)", rectangles(p, weight=torch.ones_like)
    if p.x["S0"].shape[2] == p.x["S0"].shape[3]:
        for name, product in (("S0", "do @ S0^T"), ("dST", "v @ dST^T")):
            cause = f"{name} is not transposed in its product with the tokens: {product}"
            yield cause, rectangles(p, turned=name)
    first = [int(tokens[0]) if len(tokens) else len(p.x["g"]) for tokens in p.tokens]
    beyond = [torch.arange(t, min(t + case.launch["BLOCK_T"], len(p.x["g"]))) for t in first]
    leak = "the sums run on into the next sequence: a block ends at cu_seqlens[n + 1], not at T (mask_t)"
    yield leak, rectangles(p.but(tokens=beyond))
    for cause, x in firsts(p.x, AXES, **_FIRSTS):
        yield cause, rectangles(p.but(**x))


# The three exercises.

_forward = functools.partial(_call, "q k v g gk S0", "o ST", "BLOCK_V")
FORWARD = _exercise(
    "recurrent_forward",
    "the kernel stores nothing yet. It needs a state, a walk along the tokens, and a store of o.",
    _forward, walk_suspects,
    (
        Property(
            "whole blocks", 1, "Lesson 20, step 2",
            calls(_forward, {"lengths": (5,), "H": 3, "K": 32, "V": 32}, {"lengths": (Size(6, 4, 8),)}, **O, **EMPTY),
        ),
        _gates(_forward, "Lesson 21, step 1", "every row i of the state decays by exp(g_t + gk_t[i])", **O),
        _ends(_forward, "Lesson 21, step 3", "S starts as S0[n, h]; after the last token it is ST[n, h]"),
        *_packed_and_strided(_forward, "Lesson 21, step 5", ROWS, "mask_v must cut the last, partial block of V"),
        Property(
            "block sizes", 1, ROWS, calls(_forward, {"BLOCK": 8}, {"BLOCK": 32}, {"BLOCK": 64}, lengths=(3,), V=32),
            "the answer depends on BLOCK_V, it must not",
        ),
        *rounded_and_inside(_forward, ROWS, F16, RAGGED),
    ),
    {"K": 64, "V": 64, "BLOCK": 32}, {"V": 32},
    (
        forward_steps,
        (Tier(3, read=1.35, steps=1.1), Tier(1, read=2.7, written=3.0, steps=2.0)),
        "the state stays in registers from token to token: each token is loaded once for each block of V",
        ROWS,
    ),
)  # fmt: skip

_backward = functools.partial(_call, "q k v g gk S0 do dST", "dq dk dv dS0", "")
BACKWARD = _exercise(
    "recurrent_backward",
    "the kernels store nothing yet. They need a walk forward that stores dq, and one back that stores dk and dv.",
    _backward, walk_suspects,
    (
        Property("queries", 1, CHAIN, calls(_backward, judge=("dq",), **EMPTY)),
        Property("keys and values", 1, CHAIN, calls(_backward, judge=("dk", "dv"), **EMPTY)),
        _gates(_backward, BACK, "D_t = exp(g_t + gk_t) lies between token t and the one before it, on the way back too"),
        _ends(_backward, BACK, "dS starts as dST[n, h]; what is left before the first token is dS0[n, h]"),
        *_packed_and_strided(_backward, WALKS, WALKS, "columns beyond V must stay 0 (mask_v)"),
        *rounded_and_inside(_backward, WALKS, F16, RAGGED),
    ),
    {"K": 64, "V": 64}, {},
    (
        backward_steps,
        (Tier(3, read=1.46, steps=1.1), Tier(1, read=2.9, written=3.0, steps=2.0)),
        "two walks load each token twice: states are made anew, not stored, and each gradient is stored once",
        WALKS,
    ),
)  # fmt: skip

_gate = functools.partial(_call, "q k v g S0 do dST", "dg", "BLOCK_T")
GATE = _exercise(
    "recurrent_gate_gradient",
    "the kernel stores nothing yet. It needs W, its sums over s < t <= r, the two states' terms, and a store of dg.",
    _gate, gate_suspects,
    (
        Property(
            "one block", 1, "Lesson 23, step 4", calls(_gate, lengths=(16,), states=(), packed=True),
            "dg_t is the sum of W[r, s] over s < t <= r",
        ),
        Property(
            "the states' terms", 2, "Lesson 23, step 5", calls(_gate, lengths=(16,)),
            "S_0 counts as an s before the first token, the gradient of S_T as an r after the last",
        ),
        Property(  # strong gates are judged among themselves: their gradients are smaller than the others' rounding
            "strong decay", 1, "Lesson 23, step 3",
            calls(
                _gate,
                *({"gates": {"g": g}} for g in ((-0.05, (s_[2::4], -20.0)), (None,), (-20.0,))),
                lengths=(16,), apart=lambda g: g <= -15, tolerance=1e-3,
            ),
            "large terms cancel: add up the pairs with s < t <= r and subtract nothing",
            not_finite="a positive number is exponentiated: only differences gamma_r - gamma_s <= 0 may be",
            exponents=True,
        ),
        Property(  # a reset's gradient is exactly 0: among themselves, resets leave no room for rounding
            "resets", 1, "Lesson 23, step 6",
            calls(
                _gate, {"gates": {"g": (-0.05, (s_[2::4], -INF))}}, {"gates": TWO_RESETS_IN_A_ROW},
                lengths=(16,), apart=lambda g: g == -INF,
            ),
            "a pair with a gate of -inf between its tokens gives exactly 0: their counts of resets differ",
            not_finite="-inf - -inf is NaN: put 0 for a gate of -inf into gamma, and count the resets instead",
        ),
        Property(
            "packed sequences", 1, "Lesson 23, step 5",
            calls(_gate, {"lengths": (5, 11)}, {"lengths": (0, Size(11, 9, 15), 0, Size(3, 1, 4), 0)}),
            "each sequence has its own sums and its own states",
        ),
        Property(
            "ragged sizes", 1, BLOCK,
            calls(
                _gate,
                {"lengths": (Size(13, 9, 15),), "K": 20, "V": 5},
                {"lengths": (Size(3, 1, 4),), "K": 3, "V": 20},
                {"lengths": (Size(20, 17, 31),), "BLOCK": 32},
                poison=None,
            ),
            "rows beyond the end add nothing, and are not stored",
        ),
        _strides(_gate),
        *rounded_and_inside(_gate, BLOCK, F16, RAGGED),
    ),
    {"K": 32, "V": 32}, {},
    (
        gate_steps,
        (Tier(3, read=1.0, steps=1.2), Tier(1, read=2.0, written=2.0, steps=3.0)),
        "one block has the whole sequence: each tensor is loaded once, and dg stored once",
        BLOCK,
    ),
)  # fmt: skip
