"""Lesson 31's turns: a nested gather, the address of a shared bias, softcap's gradient by its cap."""

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.check.lessons import Turn, as_given


@triton.jit
def _changed_kernel(score_ptr, out_ptr, speaker_ptr, bias_ptr, T, mod: tl.constexpr):
    m, n = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    inside = (m < T) & (n < T)
    score = tl.load(score_ptr + m * T + n, mask=inside, other=0.0)
    tl.store(out_ptr + m * T + n, mod(score, 0, 0, m % T, n % T, (speaker_ptr, bias_ptr)), mask=inside)


def _changed(mod, score, speaker, bias):
    changed_score = torch.empty_like(score)
    _changed_kernel[(1,)](score, changed_score, speaker, bias, len(score), mod)
    return changed_score


@triton.jit
def _address_kernel(at_ptr, h, M, N, SHARE, stride, address: tl.constexpr):
    m, n = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    tl.store(at_ptr + m * 8 + n, address(m, n, h, M, N, SHARE, stride))


def _addresses(address, h, M, N, SHARE, stride):
    at = torch.empty(8, 8, dtype=torch.int64, device=runtime.device)
    _address_kernel[(1,)](at, h, M, N, SHARE, stride, address)
    entry = at - h // SHARE * stride
    inside_the_row = bool(((entry >= 0) & (entry < M + N - 1)).all())
    at = at[:M, :N]
    return at, inside_the_row


def _capped(draw, dead):
    live = torch.ones(4, 5, dtype=torch.bool)
    live[3], live[:, 4] = False, False
    s, grad = (draw.normal(2, 3, 4, 5, dtype=torch.float64, scale=3.0) for _ in range(2))
    cap = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    return {"s": s.masked_fill(~live, dead), "grad": grad, "cap": cap, "live": live}


ENTRY = "n - m + M - 1"
DS = "(1 - u * u) * grad, 0.0)\n"
SHARE = "u - s / kappa * (1 - u * u)"
BY_CAP = f"torch.where(live, ({SHARE}) * grad, 0.0)"
TURNS = {
    "31-speaker": Turn(
        "a bias by who asks whom, in Triton",
        arguments=lambda draw: {
            "score": draw.normal(7, 7),
            "speaker": torch.tensor([0, 2, 2, 1, 0, 1, 2]),
            "bias": draw.normal(3, 3),
        },
        cases={"three speakers": {}},
        slips=(
            ("asks * 3 + asked", "asked * 3 + asks", "the two are exchanged: the row is that of who asks"),
            ("score + tl", "tl", "the score is gone: the bias is added to it"),
            ("score + tl", "score * tl", "the score is multiplied by the bias, which is added to it"),
            ("asks * 3 + asked", "asks + asked", "rows of bias are 3 apart: row a begins at entry 3 a"),
            ("asks * 3 + asked", "asks * 3", "every key gets the first entry of its row: add who is asked"),
            ("+ kv_idx", "+ q_idx", "both indices are the query's speaker: who is asked stands at kv_idx"),
            ("tl.load(tables[0] + kv_idx)", "kv_idx", ""),
            ("asks * 3 + asked", "asks[:, None] * 3 + asked[None, :]", "a column and a row have both axes already"),
            ("asked = tl.load(tables[0]", "asked = tl.load(tables[1]", "tables[0] is speaker, tables[1] is bias"),
        ),
        run=_changed,
    ),
    "31-shared": Turn(
        "the address of a bias that heads share, in bounds in every lane",
        arguments=as_given,
        cases={f"head {h}": {"h": h, "M": 5, "N": 6, "SHARE": 2, "stride": 13} for h in (0, 3, 5)},
        slips=(
            ("h // SHARE", "h", "neighbours share a row of the table, so it is row h // SHARE"),
            ("h // SHARE", "h % SHARE", "row h % SHARE is read: neighbours share one, so it is row h // SHARE"),
            (ENTRY, "m - n + N - 1", "the distances are mirrored: entry 0 is that of key 0 seen from the last query"),
            (ENTRY, "n - m", "entry n - m is below 0 for keys before the query: distances begin at -(M - 1)"),
            (ENTRY, "n - m + M", "that is one entry too far on: n - m is at least -(M - 1)"),
            (ENTRY, "m * N + n", "the table is read as if it had an entry for each pair: it has one for each distance"),
            (
                "offs_m % M, offs_n % N",
                "offs_m, offs_n",
                "lanes of queries and keys that don't exist read outside of the row: fold indices first, m % M, n % N",
            ),
            ("SHARE * stride", "SHARE * (M + N - 1)", "the rows of the table lie stride apart"),
        ),
        run=_addresses,
    ),
    "31-cap": Turn(
        "softcap's gradient, by the score and by a learned cap",
        arguments=_capped,
        cases={"1 where live is false": {"dead": 1.0}, "infinity where live is false": {"dead": torch.inf}},
        slips=(
            (DS, DS.replace(" * grad", " / kappa * grad"), "by the score, the outer cap cancels the inner one"),
            (DS, "u * grad, 0.0)\n", "by the score it has tanh for its factor: tanh's derivative is 1 - tanh²"),
            (SHARE, "u", "this is the outer cap's share alone: s / cap depends on it, too"),
            (SHARE, SHARE.replace("-", "+", 1), "the inner share has a minus: s / cap falls where the cap rises"),
            (SHARE, "u - s * (1 - u * u)", "the derivative of s / cap is -s / cap², and the outer cap cancels one"),
            (SHARE, "-s / kappa * (1 - u * u)", "this is the inner cap's share alone: it is a factor of tanh, too"),
            (BY_CAP, f"(({SHARE}) * grad * live)", "infinity times 0 is NaN: put 0 there with torch.where"),
            (BY_CAP, f"(({SHARE}) * grad)", "positions that don't exist are counted: there every share is 0"),
            (".sum((0, 2, 3))", ".sum((2, 3))", "each head has one cap: sum over b, m and n"),
        ),
    ),
}
