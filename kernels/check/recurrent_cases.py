"""The calls that the checks of exercise 04 make: how each of the three functions is called, property by property."""

import functools
from dataclasses import dataclass

import torch

from kernels import runtime
from kernels.check.framework import Case, Draw, Fenced, Output
from kernels.check.recurrent_problem import AXES, STATES, Problem, answers
from kernels.check.tensors import both_ends

INF = float("inf")

_SHARED = {"k": "H", "g": "H", "gk": "TH", "do": "THV", "v": "T"}


@dataclass(frozen=True)
class Function:
    """One of the three functions: its tensors, its block size if it has one."""

    inputs: tuple[str, ...]
    outs: tuple[str, ...]
    block: str = ""

    def case(self, draw: Draw, *, lengths=(6,), H=1, K=16, V=16, BLOCK=16, poison=(), judge=None, **how) -> Case:
        """One call of these sizes; ``judge`` names the outputs that are judged, all unless told.

        ``how``: ``gates(name, shape)`` makes g and gk, ``states`` names those that are not zero, ``half``
        is the dtype of q, k, v and do, ``magnitude`` multiplies them, ``first`` S0; ``orders``, ``shared`` and ``packed`` say
        how tensors lie in memory; ``tolerance`` and ``apart``, gates whose gradients are judged among themselves, go to the
        outputs.
        """
        sizes = {"T": sum(lengths), "H": H, "K": K, "V": V, "N": len(lengths)}
        fence = None if how.get("packed") else {"T": BLOCK, "K": 32, "V": 32, "H": 1, "N": 1}

        def values(name, *shape):
            if name in ("g", "gk"):
                return how["gates"](name, shape) if "gates" in how else -0.25 * draw.normal(*shape).abs()
            if name in STATES:
                state = draw.normal(*shape) if name in how.get("states", STATES) else torch.zeros(shape)
                return state * how.get("first", 1.0) if name == "S0" else state
            return draw.normal(*shape, dtype=how.get("half", torch.float32), scale=how.get("magnitude", 1.0))

        tensors = []
        for name in self.inputs:
            axes, still = AXES[name], how.get("shared", {}).get(name, "")
            order, make = how.get("orders", {}).get(axes, ""), functools.partial(values, name)
            tensors.append(Fenced.of(name, axes, sizes, make, fence=fence, order=order, shared=still))
        ends = torch.tensor([sum(lengths[:n]) for n in range(len(lengths) + 1)], dtype=torch.int32)
        launch = {"cu_seqlens": ends.to(runtime.device), "scale": how.get("scale", K**-0.5)}
        case = Case(tensors, [], launch | ({self.block: BLOCK} if self.block else {}), poison=poison)
        expected = answers(p := Problem.of(case))
        groups = how["apart"](p.x["g"]).int() if "apart" in how else None
        for name in self.outs:
            order = how.get("out_orders", {}).get(AXES[name], "")
            tensor = Fenced.of(name, AXES[name], sizes, torch.empty, fence=fence, order=order)
            answer = expected[name] if judge is None or name in judge else None
            # The precision property alone looks at the last digits.
            case.outs.append(Output(tensor, answer, groups, how.get("tolerance", 5e-3)))
        return case

    # What more than one of the three is held to.

    def usual(self, draw):
        """Channels as a GPU has them; a block of tokens, where there is one, that leaves its products in registers."""
        block, wide = (16, 32) if self.block == "BLOCK_T" else (32, 64)
        yield self.case(draw, lengths=(16,), K=wide, V=wide, BLOCK=block, half=torch.float16, packed=True)

    def costed(self, draw):
        """Two heads and two sequences; where there are blocks of V, two of them."""
        V = 32 if self.block == "BLOCK_V" else 16
        yield self.case(draw, lengths=(9, 7), H=2, V=V, packed=True)

    def ends(self, draw):
        """A first state, and one after the last token."""
        yield self.case(draw, lengths=(draw.size(4, 3, 6),), H=2)

    def strides(self, draw):
        """Several heads and sequences; axes in other orders; keys and gates that all heads share; far tokens and states."""
        lengths = (draw.size(3, 2, 5), draw.size(2, 2, 5))
        yield self.case(draw, lengths=lengths, H=2)
        yield self.case(draw, lengths=lengths, H=2, orders={"THK": "HTK", "THV": "VHT", "TH": "HT", "NHKV": "HVNK"})
        yield self.case(draw, lengths=lengths, H=2, out_orders={"THK": "KTH", "THV": "HVT", "TH": "HT", "NHKV": "VNHK"})
        yield self.case(draw, lengths=lengths, H=2, shared=_SHARED)
        case = self.case(draw, lengths=(2, 2, 2), H=2)
        yield case.stretched(**{tensor.name: tensor.axes[0] for tensor in case.tensors})

    def sequences(self, draw):
        """Sequences end to end, a long one, empty ones first, last and in between; nothing but empty ones."""
        yield self.case(draw, lengths=(draw.size(3, 2, 5), draw.size(2, 1, 4)))
        yield self.case(draw, lengths=(2, draw.size(150, 130, 180)), H=1)
        yield self.case(draw, lengths=(0, draw.size(2, 1, 4), 0, 0, draw.size(3, 1, 4), 0), H=1)
        yield self.case(draw, lengths=(0, 0))

    def keys(self, draw):
        """Numbers of key channels that fill no block, and fewer than a block has."""
        for shown, low, high in ((20, 17, 31), (3, 1, 7)):
            yield self.case(draw, lengths=(3,), K=draw.size(shown, low, high), poison=both_ends("K"))

    def values(self, draw):
        """The same for value channels."""
        for shown, low, high in ((20, 17, 31), (3, 1, 7)):
            yield self.case(draw, lengths=(3,), V=draw.size(shown, low, high), poison=both_ends("V"))

    def half(self, draw):
        """float16 values, whose products float16 cannot hold, then some whose last digits it cannot."""
        yield self.case(draw, half=torch.float16, magnitude=300.0, tolerance=2e-5)
        yield self.case(draw, half=torch.float16, tolerance=2e-5)

    def bfloat(self, draw):
        """bfloat16 values."""
        yield self.case(draw, half=torch.bfloat16)

    def everything(self, draw):
        """Everything ragged at once, for the addresses."""
        lengths = (draw.size(5, 2, 7), 0, draw.size(3, 2, 7))
        yield self.case(draw, lengths=lengths, H=2, K=draw.size(20, 17, 31), V=draw.size(5, 3, 15))


def no_gates(name, shape):
    """Gates that keep everything."""
    return torch.zeros(shape)


def strong_gates(name, shape):
    """Every third token at -20, every fourth at -inf, but not the first; of gk, some at -inf."""
    gates = torch.full(shape, -0.05)
    if name == "g":
        gates[2::3], gates[1::4] = -20.0, -INF
    else:
        gates[:, :, ::5] = -INF
    return gates


def _constant(name, shape):
    return torch.full(shape, -20.0)


def _one_in_four(gate):
    def gates(name, shape):
        values = torch.full(shape, -0.05)
        values[2::4] = gate
        return values

    return gates


def _two_in_a_row(name, shape):
    values = torch.full(shape, -0.5)
    values[0], values[5:7] = -INF, -INF
    return values


class Forward(Function):
    """o and the final state."""

    def whole(self, draw):
        """A walk along the tokens alone: no gates, no state."""
        yield self.case(draw, lengths=(5,), H=3, K=32, V=32, gates=no_gates, states=(), judge=("o",), packed=True)
        yield self.case(draw, lengths=(draw.size(6, 4, 8),), gates=no_gates, states=(), judge=("o",), packed=True)

    def gated(self, draw):
        """Gates, and those that reset, however much there is to forget."""
        yield self.case(draw, states=(), judge=("o",))
        yield self.case(draw, states=(), judge=("o",), gates=strong_gates)
        yield self.case(draw, judge=("o",), gates=_two_in_a_row, lengths=(8,), first=1e20)

    def blocks(self, draw):
        """Blocks of V larger and smaller than V."""
        for BLOCK_V in (8, 32, 64):
            yield self.case(draw, lengths=(3,), V=32, BLOCK=BLOCK_V)


class Backward(Function):
    """The gradients of q, k, v and the first state."""

    def queries(self, draw):
        """dq, which needs the walk forward alone."""
        yield self.case(draw, gates=no_gates, states=(), judge=("dq",), packed=True)

    def keys_and_values(self, draw):
        """dk and dv, which need the walk back."""
        yield self.case(draw, gates=no_gates, states=(), judge=("dk", "dv"), packed=True)

    def gated(self, draw):
        """Gates, and those that reset, however much there is to forget."""
        yield self.case(draw, states=())
        yield self.case(draw, states=(), gates=strong_gates)
        yield self.case(draw, gates=_two_in_a_row, lengths=(8,), first=1e20)


class Gate(Function):
    """The gradient of the scalar gate."""

    def one_block(self, draw):
        """The sums of one block, without states."""
        yield self.case(draw, lengths=(16,), states=(), packed=True)

    def both_states(self, draw):
        """The same with a state at both ends."""
        yield self.case(draw, lengths=(16,))

    def strong(self, draw):
        """Each strong gate is judged among strong gates: their gradients are smaller than the others' rounding."""
        spread = -25 * torch.distributions.Normal(0, 1).cdf(draw.normal(16, 1))
        for gates in (_one_in_four(-20.0), lambda name, shape: spread, _constant):
            yield self.case(draw, lengths=(16,), gates=gates, apart=lambda g: g <= -15, tolerance=1e-3)

    def resets(self, draw):
        """A reset's gradient is exactly 0: among themselves, resets leave no room for rounding."""
        for gates in (_one_in_four(-INF), _two_in_a_row):
            yield self.case(draw, lengths=(16,), gates=gates, apart=lambda g: g == -INF)

    def packed(self, draw):
        """Sequences end to end, the second within the first's block; empty ones."""
        short = draw.size(5, 2, 7)
        yield self.case(draw, lengths=(short, 16 - short))
        yield self.case(draw, lengths=(0, draw.size(11, 9, 15), 0, draw.size(3, 1, 4), 0))

    def ragged(self, draw):
        """Tokens, key and value channels that fill no block."""
        for lengths, K, V, BLOCK in (((13, 9, 15), 20, 5, 16), ((3, 1, 4), 3, 20, 16), ((20, 17, 31), 16, 16, 32)):
            yield self.case(draw, lengths=(draw.size(*lengths),), K=K, V=V, BLOCK=BLOCK, poison=None)


def walked(case: Case) -> tuple[int, int]:
    """Programs of a kernel with one for each sequence and head, and their tokens in all."""
    tensors = {tensor.name: tensor for tensor in case.tensors}
    H = tensors["g"].size("H")
    return tensors["S0"].size("N") * H, tensors["g"].size("T") * H


def forward_steps(case: Case) -> int:
    """Five loads and a store for each token of each block of V; four more accesses for each of the programs."""
    programs, tokens = walked(case)
    blocks = -(-case.outs[0].tensor.size("V") // case.launch["BLOCK_V"])
    return blocks * (4 * programs + 6 * tokens)


def backward_steps(case: Case) -> int:
    """On the way there five loads and a store for each token, on the way back six and two."""
    programs, tokens = walked(case)
    return 3 * programs + 6 * tokens + 4 * programs + 8 * tokens


def gate_steps(case: Case) -> int:
    """Each program loads and stores ten times, its whole sequence at once."""
    return 10 * walked(case)[0]
