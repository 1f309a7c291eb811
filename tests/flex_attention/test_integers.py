"""Integers in a mod: sums as an index, dtypes that go round early, what is rounded, beside torch's own on the CPU."""

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import create_block_mask, flex_attention
from kernels.flex_attention.reference import flex_attention_reference
from tests.tensors import relative_error

DEVICE, M = runtime.device, 33
torch.manual_seed(11)
BYTES = torch.randint(0, 255, (M,), dtype=torch.uint8, device=DEVICE)
SIGNED = torch.randint(-128, 127, (M,), dtype=torch.int8, device=DEVICE)
TABLE = torch.randn(3 * M, 5, device=DEVICE)
FIBONACCI = [1, 1]
while sum(FIBONACCI[-2:]) < 2**31:
    FIBONACCI.append(sum(FIBONACCI[-2:]))
SLOW = torch.tensor(FIBONACCI[-M:], dtype=torch.int32, device=DEVICE)

SCORES = {
    "a sum is an index": lambda s, b, h, m, n: s + TABLE[m + n, h],
    "a sum with a number": lambda s, b, h, m, n: s + TABLE[n // 2 + 1, h + 1],
    "a sum of remainders": lambda s, b, h, m, n: s + TABLE[(m % 5 - n % 5 + 4) * 9 + (m // 5) % 9, h],
    "a sum in 64 bits": lambda s, b, h, m, n: s + TABLE.T[1, m.long() + n] + TABLE[n.long() + h, 1],
    "rounded to decimals": lambda s, b, h, m, n: s + torch.round(torch.sin(n * 1.0) * 3, decimals=1),
    "rounded to tens": lambda s, b, h, m, n: s + torch.round(n * 1.3, decimals=-1),
    "rsub with a factor": lambda s, b, h, m, n: torch.rsub(s, 1.0, 0.5) + torch.rsub(s, m, alpha=2),
    "nothing to round": lambda s, b, h, m, n: s + (torch.floor(m) - torch.ceil(n) + torch.round(m) - torch.trunc(n)) * 0.1,
    "no gradient": lambda s, b, h, m, n: s.detach(),
    "half a gradient": lambda s, b, h, m, n: s.detach() + s,
    "a power of two": lambda s, b, h, m, n: torch.ldexp(s, -(m % 3)),
    "up to a position": lambda s, b, h, m, n: s + TABLE[m.clamp(max=n - 5), h],
    "from a position on": lambda s, b, h, m, n: s + (m % 5).clamp(min=n * 1000) * 99_999 % 7,
    "what a fraction leaves": lambda s, b, h, m, n: s + ((n * 0.3) % 0.7 * -100).int() % 7,
    "divided by a fraction": lambda s, b, h, m, n: s + (n // 2.0**-17).int() * 999 % 5,
    "a greatest common divisor": lambda s, b, h, m, n: s + 0.1 * torch.gcd(m * 12, n - 9) + torch.gcd(n * m, h * 0) * 0.01,
    "a least common multiple": lambda s, b, h, m, n: s + 0.01 * torch.lcm(m % 12, n - 9) + torch.lcm(m % 5, torch.tensor(6)),
    "its sign's bit": lambda s, b, h, m, n: torch.where(torch.signbit(s) | torch.signbit(m - n), s, 2 * s),
}
MASKS = {
    "bytes divided by positions": lambda b, h, m, n: (BYTES[m] // (n + 1) + BYTES[n] % (m - 40)) % 3 < 2,
    "positions divided by bytes": lambda b, h, m, n: (m * 9 // (BYTES[n] + 1) + torch.fmod(m - n, BYTES[n] % 7 + 1)) < 3,
    "bytes divided by bytes": lambda b, h, m, n: (BYTES[m] // (BYTES[n] % 9 + 1)) % 5 < 3,
    "bytes divided by more than a byte": lambda b, h, m, n: (BYTES[m] // 300 + BYTES[n] % 300) % 5 < 3,
    "bytes divided towards zero": lambda b, h, m, n: torch.div(BYTES[m], n - 50, rounding_mode="trunc") > -5,
    "bytes made integers": lambda b, h, m, n: (BYTES[m].int() - BYTES[n].int()).abs() < 100,
    "bytes go round": lambda b, h, m, n: (BYTES[m] - BYTES[n]) < 100,
    "bytes beside larger numbers": lambda b, h, m, n: (BYTES[m] < 300) | (BYTES[n] == -1) | (m == n),
    "positions made bytes": lambda b, h, m, n: (m * 20).to(torch.uint8) >= (n * 20).to(torch.uint8),
    "conditions made bytes": lambda b, h, m, n: ((m > 5).to(torch.uint8) - (n > 9).to(torch.uint8)) < 7,
    "bytes and signed": lambda b, h, m, n: (BYTES[m] + SIGNED[n]) < 50,
    "bytes divided": lambda b, h, m, n: (BYTES[m] // 16 == BYTES[n] % 16) | (SIGNED[m] // -3 < SIGNED[n] % -7),
    "bytes and signed compared": lambda b, h, m, n: (BYTES[m] > SIGNED[n]) & (torch.maximum(BYTES[m], SIGNED[n]) < 90),
    "a product goes round": lambda b, h, m, n: (m * 1103515245 + 12345 + n) % 7 < 4,
    "a number of more bits": lambda b, h, m, n: (((m * 2654435761 + n * 40503) ^ (m << 3)) >> 5) % 4 != 0,
    "coprime": lambda b, h, m, n: (torch.gcd(m + 1, n + 1) == 1) | (m == n),
    "coprime in 64 bits": lambda b, h, m, n: torch.gcd(m.long() * 7778742049 + 3, (n + 1) * 4807526976) < 3,
    "coprime to a number": lambda b, h, m, n: torch.gcd(torch.full_like(m, 13), m + n) == 1,  # seven steps for 21
    "as slow as it gets": lambda b, h, m, n: torch.gcd(SLOW[m], SLOW[n]) < 3,
    "bytes divide": lambda b, h, m, n: (torch.gcd(BYTES[m], SIGNED[n]) < 3) & (torch.gcd(BYTES[m], BYTES[n]) < 9),
    "multiples of bytes": lambda b, h, m, n: (torch.lcm(SIGNED[m], SIGNED[n]) < 90) | (torch.lcm(BYTES[m], BYTES[n]) > 90),
    "a difference that add makes": lambda b, h, m, n: torch.add(m, n, alpha=-1) % 5 < 2,
}


def overwriting(b, h, m, n):
    near = m - n
    near //= 2
    near **= 2
    seen = near < 20
    seen |= n == 0
    seen &= m >= n
    seen ^= (m == 9) & (n == 30)
    bits = m + 0
    bits <<= 2
    bits >>= 1
    bits &= 6
    return seen & (bits != 4)


MASKS["overwriting"] = overwriting


def inputs():
    torch.manual_seed(0)
    leaves = [torch.randn(2, 2, M, 16, device=DEVICE).requires_grad_() for _ in range(3)]
    return leaves, [t.detach().double().requires_grad_() for t in leaves]


@pytest.mark.parametrize("name", SCORES)
def test_in_a_score_mod(name):
    leaves, exact = inputs()
    o, want = flex_attention(*leaves, SCORES[name]), flex_attention_reference(*exact, SCORES[name])
    do = torch.randn_like(o)
    grads, wanted = (
        torch.autograd.grad(x, of, do.to(x), materialize_grads=True, allow_unused=True)
        for x, of in ((o, leaves), (want, exact))
    )
    for what, got, expected in zip(("o", "dq", "dk", "dv"), (o, *grads), (want, *wanted), strict=True):
        assert relative_error(got, expected) <= 2e-5 or (got == expected).all(), what


@pytest.mark.share(2)
@pytest.mark.parametrize("name", MASKS)
def test_in_a_mask(name):
    leaves, exact = inputs()
    mask = create_block_mask(MASKS[name], None, None, M, M, device=DEVICE, BLOCK_SIZE=16)
    o = flex_attention(*leaves, block_mask=mask)
    assert relative_error(o, flex_attention_reference(*exact, block_mask=mask)) <= 1e-5


def test_a_float_s_bits_are_an_integer():
    (q, k, v), _ = inputs()
    o = flex_attention(q, k, v, lambda s, b, h, m, n: ((m * 0.37).view(torch.int32) & 0xFF) * 0.01)
    z = ((torch.arange(M, device=DEVICE) * 0.37).view(torch.int32) & 0xFF) * 0.01
    torch.testing.assert_close(o, torch.softmax(z[:, None].expand(M, M), -1) @ v, rtol=1e-4, atol=1e-5)
