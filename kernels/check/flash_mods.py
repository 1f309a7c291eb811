"""The score mods and mask mods of exercise 06's checks, which a learner's launcher is called with: no answer stands here."""

import triton
import triton.language as tl


@triton.jit
def same(s, m, n):
    """The score itself."""
    return s


@triton.jit
def same_gradient(s, m, n, dz):
    return dz


@triton.jit
def plus_100(s, m, n):
    """A padded row, whose q is 0, has scores of 100: exp overflows there."""
    return s + 100.0


@triton.jit
def alibi(s, m, n):
    """A bias that grows with the key's position."""
    return s + 0.25 * (n - m)


@triton.jit
def softcap(s, m, n):
    """2 tanh(s / 2)."""
    return 4.0 * tl.sigmoid(s) - 2.0


@triton.jit
def softcap_gradient(s, m, n, dz):
    t = 2.0 * tl.sigmoid(s) - 1.0
    return dz * (1.0 - t * t)


@triton.jit
def ahead(s, m, n):
    """The keys behind the query's place: in a full block, too, a row may be left with none."""
    return tl.where(n > m, s, -float("inf"))


@triton.jit
def ahead_gradient(s, m, n, dz):
    return tl.where(n > m, dz, 0.0)


@triton.jit
def log_abs(s, m, n):
    """A padded row, whose q is 0, has no derivative."""
    return tl.log(tl.abs(s))


@triton.jit
def log_abs_gradient(s, m, n, dz):
    return dz / s


@triton.jit
def every_pair(m, n):
    """No mask."""
    return (m >= 0) & (n >= 0)


@triton.jit
def causal(m, n):
    """Keys up to the query."""
    return n <= m


@triton.jit
def window(m, n):
    """The twelve keys up to the query: in a block of 16, some rows have none."""
    return (n <= m) & (m - n < 12)


@triton.jit
def dead_rows(m, n):
    """Every third query has no key."""
    return (m % 3 != 1) & (n <= m + 5)


GRADIENTS = {plus_100: same_gradient, alibi: same_gradient, softcap: softcap_gradient}
GRADIENTS |= {ahead: ahead_gradient, log_abs: log_abs_gradient}
