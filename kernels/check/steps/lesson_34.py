"""Lesson 34's "Your turn" cells: a softmax with a sink, the walk down a causal column, a bias that heads share."""

import itertools
import re

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.check.steps import Diagnosis, described, step
from kernels.check.steps.helpers import difference, launch


@step("34-sink", "the gradients of a softmax with a sink")
def sink(answer):
    """Three rows of five keys, one of them forbidden, against autograd in float64; a gradient arrives at the lse, too."""
    draw = torch.Generator().manual_seed(34)
    z, v, do, dlse = (torch.randn(*n, generator=draw, dtype=torch.float64) for n in ((3, 5), (5, 4), (3, 4), (3,)))
    z[1, 2] = -torch.inf
    b = torch.tensor(0.3, dtype=torch.float64)
    z.requires_grad_(), b.requires_grad_()
    lse = torch.logaddexp(z.logsumexp(1), b)
    p, p_sink = (z - lse[:, None]).exp(), (b - lse).exp()
    o = p @ v
    right_dz, right_db = torch.autograd.grad((o, lse), (z, b), (do, dlse))
    p, p_sink, dp, o = p.detach(), p_sink.detach(), do @ v.T, o.detach()
    got = answer(*(x.clone() for x in (p, p_sink, dp, o, do, dlse)))
    if not isinstance(got, tuple) or len(got) != 2:
        return f"It must return dz and dz_sink, and returns {described(got)}"
    dz, db = (torch.as_tensor(one, dtype=torch.float64) for one in got)
    plain = (o * do).sum(1)

    def near(got, wanted):
        return got.shape == wanted.shape and torch.allclose(got, wanted, atol=1e-9)

    if not near(dz, right_dz):
        known = {
            "Your dz lacks what arrives at the lse: subtract dlse from Δ": p * (dp - plain[:, None]),
            "In Δ stands dlse with a minus, so that dz has it with a plus": p * (dp - (plain + dlse)[:, None]),
            "You divide the average by what the keys' probabilities add up to. The sink is a key as well, with a value of 0, "
            "and o has it in already": p * (dp - (plain / p.sum(1) - dlse)[:, None]),
            "You subtract the sink's share from Δ. The sink's value is 0, so it adds nothing to the average": p
            * (dp - (plain - dlse - p_sink)[:, None]),
        }
        return (
            next((said for said, wrong in known.items() if near(dz, wrong)), "")
            or f"Your {difference('dz', dz, right_dz)}"
        )
    if db.shape == (3,):
        return "Your dz_sink has a number for each row. All rows read one sink, so its gradient is their sum"
    delta = plain - dlse
    known = {
        "Your dz_sink has the wrong sign: the sink's value is 0, so its merit over the average is 0 − Δ": (
            p_sink * delta
        ).sum(),
        "Your dz_sink lacks what arrives at the lse: it is part of Δ": -(p_sink * plain).sum(),
        "Your dz_sink lacks the factor p_sink: dz = p (dp − Δ) holds for the sink, too": -delta.sum(),
        "Raising the sink's logit is not without effect: it takes probability from every key": torch.zeros_like(right_db),
    }
    if near(db, right_db):
        return ""
    return (
        next((said for said, wrong in known.items() if near(db, wrong)), "") or f"Your {difference('dz_sink', db, right_db)}"
    )


@step("34-walk", "the walk down a causal column")
def walk(answer):
    """Tiles higher than wide and wider than high; every pair of every tile decides."""
    for (BM, BN), M, J in itertools.product(
        ((16, 16), (16, 32), (32, 16), (64, 16), (16, 48)), (96, 192, 112), range(6)
    ):
        if J * BN >= M:
            continue
        got = answer(J, M, BM, BN)
        if not isinstance(got, tuple) or len(got) != 3 or not all(type(one) is int for one in got):
            return f"It must return three integers, first, first_full and end, and returns {described(got)}: {got!r}"
        first, first_full, end = got
        tiles = -(-M // BM)
        n0, n1 = J * BN, J * BN + BN - 1
        some = [i for i in range(tiles) if min(i * BM + BM, M) - 1 >= n0]
        full = [i for i in range(tiles) if i * BM >= n1]
        case = f"With tiles of {BM} queries, {BN} keys, M = {M} and J = {J}, whose keys are {n0} to {n1}"
        walked = list(range(first, end))
        if missing := [i for i in some if i not in walked]:
            i = missing[-1] if missing[-1] >= end else missing[0]
            return f"{case}, tile {i} is left out: its last query, {min(i * BM + BM, M) - 1}, sees key {n0}. " + (
                "The walk goes on to the last query" if i >= end else "Round down: the first tile holds query J · BN"
            )
        if vain := [i for i in walked if i not in some]:
            if vain[0] >= tiles:
                return f"{case}, tile {vain[0]} is walked, and there are only {tiles}: {M} queries"
            return f"{case}, tile {vain[0]} is walked in vain: none of its queries, up to {vain[0] * BM + BM - 1}, sees a key"
        walked_full = [i for i in walked if i >= first_full]
        if wrong := [i for i in walked_full if i not in full]:
            return (
                f"{case}, tile {wrong[0]} is not masked, and its first query, {wrong[0] * BM}, must not see key {n1}: a "
                "whole tile is allowed only if its first query sees the *last* key"
            )
        if vain := [i for i in full if i not in walked_full]:
            return f"{case}, tile {vain[0]} is masked in vain: even its first query, {vain[0] * BM}, sees the last key, {n1}"
    return ""


@triton.jit
def _bias_kernel(sink: tl.constexpr, dz_ptr, sink_ptr, m0, n0):
    h = tl.program_id(0)
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 32)[None, :]
    sink(tl.load(dz_ptr + h * 512 + i * 32 + j), h, m0 + i, n0 + j, sink_ptr)


def _misfit(raised: Exception) -> str:
    """Why the addresses and values of an addition do not fit; empty if it is something else."""
    said = str(raised.__cause__ or raised)
    found = re.search(r"to have shape (.*) but got (.*)", said)  # what both give, and the addresses
    older = re.search(r"Cannot broadcast, .*: (\[.*\]), (\[.*\])", said)  # Triton 3.7: the values, and the addresses
    shapes = (found or older).groups() if found or older else ("", "")
    both, addresses = (tuple(map(int, re.findall(r"\d+", shape))) for shape in shapes)
    if len(addresses) == 3:
        return "m is a column already, and n a row: with another [:, None] the addresses have three axes"
    if both and both in (addresses[:1], addresses[:1] * 2):
        return (
            "The sum over the keys leaves one number for each query, a row of them: stand them up with [:, None], because "
            "the addresses are a column"
        )
    if 32 in both or "16 and 32" in said:
        return "The values have an entry for each key, the addresses one for each query: sum over the keys, which are axis 1"
    return ""


@step("34-bias", "a bias by query that heads share")
def bias(helper):
    """Four heads, whole numbers, a tile that begins at query 24 and key 8; how many additions go to memory is counted."""
    dz = torch.randint(-8, 9, (4, 16, 32), generator=torch.Generator().manual_seed(3)).float()
    out = torch.zeros(2, 64, device=runtime.device)
    try:
        recorded = launch(_bias_kernel, (4,), helper, dz.to(runtime.device), out, 24, 8)
    except Exception as raised:
        if why := _misfit(raised):
            raise Diagnosis(why) from raised
        raise
    out = out.cpu()
    right = torch.zeros(2, 64)
    right[:, 24:40] = dz.view(2, 2, 16, 32).sum((1, 3))
    if not torch.equal(out, right):
        by_key = torch.zeros(2, 64)
        by_key[:, 8:40] = dz.view(2, 2, 16, 32).sum((1, 2))
        if torch.equal(out, by_key):
            return (
                "That is the bias by key of `to_bias`. This one has an entry for each *query*: sum over the other axis"
            )
        whole = torch.zeros(2, 64)
        whole[:, 24:40] = dz.view(2, 2, -1).sum((1, 2))[:, None]
        if torch.equal(out, whole):
            return "The whole tile is summed into one number, which every query gets: sum over the keys alone, axis 1"
        if not out.any():
            return "Nothing was added: tl.atomic_add(address, value) writes to `sink_ptr`"
        return (
            f"Your {difference('dbias', out, right)} Heads 0 and 1 share row 0 of the bias, 2 and 3 row 1, and a row has 64 "
            "entries, one for each query"
        )
    count = sum(a.offsets.size for a in recorded.accesses if a.kind == "atomic")
    if count > 64:
        return (
            f"The sums are right, but {count // 4} additions of a tile go to memory where 16 do: sum over the axis that the "
            "index does not contain first"
        )
    return ""
