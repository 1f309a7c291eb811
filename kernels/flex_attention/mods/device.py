"""What Triton lacks of torch's arithmetic: the functions that generated mods call."""

import triton
import triton.language as tl

from kernels import runtime

COMPILED = tl.constexpr(not runtime.interpreted)


@triton.jit
def unchanged(score, b, h, q_idx, kv_idx, tables):
    """The score mod that changes nothing."""
    return score


@triton.jit
def unchanged_gradient(score, b, h, q_idx, kv_idx, grad, tables):
    """Its derivative."""
    return grad


@triton.jit
def whole_abs(x):
    """|x| of integers, by the instruction.

    LLVM writes the absolute values of a vector as max(x, -x), and of two of those compared with one bound it makes one
    maximum of four; from it ptxas 12.8 and 12.9 build a three-way maximum for sm_90 that has lost the minus sign: of
    ``(abs(y) <= 1) & (abs(x) <= 1)`` only y < -1 is still noticed. An instruction that LLVM cannot see through stays whole.
    """
    if COMPILED and x.dtype.primitive_bitwidth == 64:
        return tl.inline_asm_elementwise("abs.s64 $0, $1;", "=l,l", [x], tl.int64, is_pure=True, pack=1)
    elif COMPILED:
        return tl.inline_asm_elementwise("abs.s32 $0, $1;", "=r,r", [x.to(tl.int32)], tl.int32, is_pure=True, pack=1)
    else:
        return tl.abs(x)


@triton.jit
def floor_divide(a, b):
    """Integer division that rounds down, as in Python; Triton's rounds towards zero."""
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def remainder(a, b):
    """What ``floor_divide`` leaves: it has the sign of b, as in Python."""
    return a - floor_divide(a, b) * b


@triton.jit
def gcd(a, b, STEPS: tl.constexpr):
    """The greatest common divisor of integers of one type, by Euclid's algorithm: STEPS are as many as any of them needs."""
    a, b = whole_abs(a + b * 0), whole_abs(b + a * 0)
    for _ in range(STEPS):
        done = b == 0
        a, b = tl.where(done, a, b), a % tl.where(done, 1, b)
    return a


@triton.jit
def float_remainder(a, b):
    """a - floor(a / b) b."""
    return a - tl.floor(a / b) * b


@triton.jit
def truncate(x):
    """Towards zero."""
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def round_half_even(x):
    """To the nearest integer, halves to the even one."""
    down = tl.floor(x)
    rest = x - down
    odd = down - 2 * tl.floor(down * 0.5)
    return tl.where((rest > 0.5) | ((rest == 0.5) & (odd == 1)), down + 1, down)


@triton.jit
def reciprocal(x):
    """1 / x of float32, to one bit: one instruction where a quotient takes eight."""
    if COMPILED:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / x


@triton.jit
def tanh(x):
    """1 - 2 / (1 + e^2x): two special-function instructions, absolute error 1e-7."""
    return 1.0 - 2.0 * reciprocal(1.0 + tl.exp2(x * 2.8853900817779268))  # 2 log2 e


@triton.jit
def log1p(x):
    """log(1 + x), exact for small x: the rounding of 1 + x is divided out again."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def expm1(x):
    """e^x - 1, exact for small x: the rounding of e^x is divided out again."""
    u = tl.exp(x)
    small = (u - 1.0) * (x / tl.where(u == 1.0, 1.0, tl.log(u)))
    return tl.where(u == 1.0, x, tl.where((u == 0.0) | (x > 16.0), u - 1.0, small))


@triton.jit
def atan(x):
    """Cephes' arctangent of float32: folded to [0, tan(pi/8)], then a polynomial in x^2; 2 units in the last place."""
    size = tl.abs(x)
    far, near = size > 2.414213562373095, size > 0.4142135623730950
    turned = tl.where(far, 1.5707963267948966, tl.where(near, 0.7853981633974483, 0.0))
    safe = tl.where(size == 0.0, 1.0, size)
    x0 = tl.where(far, -1.0 / safe, tl.where(near, (size - 1.0) / (size + 1.0), size))
    z = x0 * x0
    p = ((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1
    angle = turned + (p * z * x0 + x0)
    return tl.where(x < 0.0, -angle, angle)


@triton.jit
def atan2(y, x):
    """The angle of the point (x, y), from -pi to pi."""
    steep = tl.where(x == 0.0, 1.0, x)
    angle = atan(y / steep)
    angle = tl.where(x < 0.0, angle + tl.where(y < 0.0, -3.141592653589793, 3.141592653589793), angle)
    upright = tl.where(y > 0.0, 1.5707963267948966, tl.where(y < 0.0, -1.5707963267948966, 0.0))
    return tl.where((x != x) | (y != y), float("nan"), tl.where(x == 0.0, upright, angle))


@triton.jit
def sign_bit(x):
    """Whether x is negative, -0 included."""
    return (x < 0.0) | ((x == 0.0) & (1.0 / x < 0.0))


@triton.jit
def power(a, b):
    """a^b; of a negative a for whole b."""
    whole = b == tl.floor(b)
    odd = b - 2 * tl.floor(b * 0.5) == 1
    size = tl.exp2(b * tl.log2(tl.abs(a)))
    signed = tl.where(whole, tl.where(odd, -size, size), float("nan"))
    return tl.where(b == 0.0, 1.0, tl.where(a < 0.0, signed, size))


@triton.jit
def whole_power(a, b):
    """a^b of integers, b >= 0, by squaring."""
    result = a * 0 + 1
    for bit in tl.static_range(31):  # of an int32 that is not negative; a base of 1 or -1 may have any exponent
        result = tl.where(((b >> bit) & 1) != 0, result * a, result)
        a = a * a
    return result


@triton.jit
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0, 1, tl.where(x < 0, -1, 0))


@triton.jit
def wrap(index, size):
    """An index counted from the end where it is negative."""
    return tl.where(index < 0, index + size, index)


@triton.jit
def add_to_sink(sink, index, value, live, OVER_Q: tl.constexpr, OVER_KV: tl.constexpr, PASS: tl.constexpr):
    """Add ``value`` to ``sink[index]`` wherever ``live``, summed first along the axes that the index does not depend on.

    sink is ``(sums, scale, rest)``. PASS ``"add"``: sums are float32 and the order of the additions is free. Two more passes
    give the same bits every time, because integers can be added in any order: ``"measure"`` keeps the largest finite addend
    in scale, ``"count"`` adds ``value * scale`` to int64 sums, and what is not finite to the float32 rest, whose sum (an
    infinity, or NaN) does not depend on the order either.
    """
    value = tl.where(live, value, 0.0)
    if OVER_Q:
        value = tl.sum(value, 0, keep_dims=True)
    if OVER_KV:
        value = tl.sum(value, 1, keep_dims=True)
    index = tl.zeros(value.shape, tl.int32) + index
    finite = tl.abs(value) < float("inf")  # NaN is not
    if PASS == "measure":
        tl.atomic_max(sink[1], tl.max(tl.where(finite, tl.abs(value), 0.0)), sem="relaxed")
    elif PASS == "count":
        counts = (tl.where(finite, value, 0.0) * tl.load(sink[1])).to(tl.int64)
        tl.atomic_add(sink[0] + index, counts, mask=counts != 0, sem="relaxed")
        tl.atomic_add(sink[2] + index, value, mask=finite == 0, sem="relaxed")
    else:
        tl.atomic_add(sink[0] + index, value, mask=value != 0, sem="relaxed")
