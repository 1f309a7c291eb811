"""bfloat16, 8-bit floats and autotuning in Triton's interpreter, as on a GPU.

Triton's interpreter keeps bfloat16 and the 8-bit floats as integers and computes on their bits. After ``install`` they are
numpy's numbers, by ``ml_dtypes``: an operation is done in float32 and rounded once, to nearest even. Where a GPU's rule is
another one than numpy's, it is the GPU's:

* what is too large for an 8-bit float becomes its largest number, an infinity too, and what is too large for an integer the
  last of 16, 32 or 64 bits (numpy's casts give what the CPU happens to);
* from float8e5 to bfloat16 an infinity is 65536, and NaNs follow it: the compiler's code scales bits;
* float64 is rounded to bfloat16 once, and not by way of float32;
* sums of bfloat16 go up a tree, as they do among a GPU's threads: one after the other would stop at 256 ones;
* what NVIDIA's compiler refuses is refused by name: arithmetic, comparisons and constants of 8-bit floats.

Which type an operation has is said by Triton's own code, so that versions differ here as they do on a GPU. What cards give
with Triton 3.6 and 3.9 is in benchmarks/results/small_kernels.json, and tests/test_low_precision.py holds the interpreter to
it. The replaced names are the same in Triton 3.6 to 3.9, but for those marked optional.
"""

import functools

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, ScanOps, TensorHandle

NUMBERS = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
}
_BITS = {number: np.dtype(f"uint{8 * number.itemsize}") for number in NUMBERS.values()}
_LARGEST = {number: np.float32(ml_dtypes.finfo(number).max) for number in NUMBERS.values() if number.itemsize == 1}


def bits(data):
    """The same bits as integers, for Triton's C++, which doesn't know the type."""
    return data.view(_BITS[data.dtype]) if data.dtype in _BITS else data


def wide(data):
    """The same numbers as float32, exactly."""
    return data.astype(np.float32) if data.dtype in _BITS else data


def rounded(data, number, to_zero=False):
    """Numbers, or integers, as one of ``NUMBERS``."""
    data = _to_odd(data) if data.dtype == np.float64 else wide(data).astype(np.float32, copy=False)
    if number in _LARGEST:
        data = np.clip(data, -_LARGEST[number], _LARGEST[number])  # NaN stays
    near = data.astype(number)
    if to_zero:
        near = (near.view(_BITS[number]) - (np.abs(wide(near)) > np.abs(data))).view(number)  # bits less one: next to zero
    return near


def _to_odd(data):
    """float64 as float32 whose last bit is set where anything is lost: another rounding then gives what one would have."""
    near = data.astype(np.float32)
    back = near.astype(np.float64)
    return (near.view(np.uint32) - (np.abs(back) > np.abs(data)) | (back != data)).view(np.float32)


def _tree(data, axis, keepdims):
    """The sum up a tree, each of its additions rounded."""
    shape = data.shape
    data = data.reshape(-1) if axis is None else np.moveaxis(data, axis, 0)
    while len(data) > 1:
        half = len(data) // 2
        data = np.concatenate([data[:half] + data[half : 2 * half], data[2 * half :]])
    data = data[0]
    return data.reshape([1 if axis in (None, d) else size for d, size in enumerate(shape)]) if keepdims else data


def _doubling(operation, data, axis):
    """The running sum, or product, from neighbours at distances 1, 2, 4, …: as many roundings as there are distances."""
    data, distance = np.moveaxis(data, axis, 0).copy(), 1
    while distance < len(data):
        data[distance:] = operation(data[distance:], data[:-distance])
        distance *= 2
    return np.moveaxis(data, 0, axis)


def _turns(addresses, mask):
    """Arrays of lanes, together every unmasked one once: in none two of one address, which come in their order."""
    lanes = np.flatnonzero(mask)
    lanes = lanes[np.argsort(addresses[lanes], kind="stable")]
    first = np.flatnonzero(np.diff(addresses[lanes], prepend=np.uint64(0)))
    turn = np.arange(len(lanes)) - np.repeat(first, np.diff(np.append(first, len(lanes))))
    return [lanes[turn == t] for t in range(turn.max(initial=-1) + 1)]


_REPLACED = []


def _replaces(owner, name=None, optional=False):
    """What stands below takes the place of the owner's function of this name, and gets it as its first argument."""

    def noted(function):
        _REPLACED.append((owner, name or function.__name__, function, optional))
        return function

    return noted


@functools.cache
def install() -> None:
    """Put the interpreter's numbers right, once."""
    for owner, name, function, optional in _REPLACED:
        if not optional or hasattr(owner, name):
            setattr(owner, name, _bound(function, getattr(owner, name, None)))


def _bound(function, original):
    @functools.wraps(function)
    def replacement(*args, **kwargs):
        return function(original, *args, **kwargs)

    return replacement


@_replaces(interpreter)
def _get_np_dtype(original, tt_dtype):
    name = tt_dtype.scalar.name
    if name == "fp8e4b15":
        raise TypeError("float8e4b15 has no numbers in Triton's interpreter: use float8e4nv or float8e5")
    return NUMBERS.get(name) or original(tt_dtype)


@_replaces(InterpreterBuilder)
def create_masked_load(original, self, ptrs, mask, other, *rest, **named):
    dtype = ptrs.get_element_ty()
    number = NUMBERS.get(dtype.name)
    if number is None:
        return original(self, ptrs, mask, other, *rest, **named)
    other = np.zeros(ptrs.data.shape, _BITS[number]) if other is None else bits(other.data)
    return TensorHandle(interpreter._interpreter.load(ptrs.data, mask.data, other, _BITS[number]).view(number), dtype)


@_replaces(InterpreterBuilder)
def create_masked_store(original, self, ptrs, value, mask, *rest, **named):
    return original(self, ptrs, TensorHandle(bits(value.data), value.dtype), mask, *rest, **named)


@_replaces(InterpreterBuilder)
def cast_impl(original, self, src, dst_type, to_zero=False):
    data, dtype = src.data, dst_type.scalar
    if dtype.name == "bf16" and src.dtype.scalar.name == "fp8e5":
        data = np.where(np.isfinite(data), wide(data), _as_if_finite(data))
    if dtype.name in NUMBERS:
        return TensorHandle(rounded(data, NUMBERS[dtype.name], to_zero), dtype)
    data = wide(data)
    if dtype.is_int() and data.dtype.kind == "f":
        return TensorHandle(_to_integers(data, interpreter._get_np_dtype(dtype)), dtype)
    return original(self, src if data is src.data else TensorHandle(data, tl.float32), dst_type)


def _to_integers(data, target):
    """Cut off behind the point; beyond the ends of 16, 32 or 64 bits the last integer, of which 8 bits are cut; 0 for NaN."""
    if target.kind == "b":
        return data != 0
    between = np.dtype(f"{target.kind}{max(2, target.itemsize)}")
    ends = np.iinfo(between)
    inside = (data >= float(ends.min)) & (data < float(ends.max))
    last = np.where(data > 0, ends.max, np.where(data < 0, ends.min, 0)).astype(between)
    return np.where(inside, np.where(inside, data, 0).astype(between), last).astype(target)


def _as_if_finite(data):
    """float8e5 whose exponent is the largest, read as a number."""
    patterns = bits(data)
    size = 2.0**16 * (1 + (patterns & 3) / 4)
    return np.where(patterns >> 7, -size, size).astype(np.float32)


@_replaces(InterpreterBuilder)
def create_fp_trunc(original, self, src, dst_type):
    """Among 8-bit floats of constants alone, which the compiler takes where they are exact."""
    short = original(self, src, dst_type)
    if short.data.dtype in _LARGEST and (wide(short.data) != src.data).any():
        raise TypeError(f"NVIDIA's compiler knows no constant {src.data.item()} of {dst_type.scalar}: cast a float32")
    return short


@_replaces(InterpreterBuilder)
def create_fp_to_fp(original, self, src, dst_type, rounding_mode):
    source, target = src.dtype.scalar.name, dst_type.scalar.name
    to_zero = rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ
    if target.startswith("fp8") and (source == "fp64" or to_zero and (source, target) != ("fp32", "fp8e5")):
        how = " toward zero" if to_zero else ""
        raise TypeError(f"NVIDIA's compiler does not round {source} to {target}{how}: write .to(tl.float32) between")
    if {source, target} & NUMBERS.keys():
        return self.cast_impl(src, dst_type, to_zero)
    return original(self, src, dst_type, rounding_mode)


def _refuse(operation, *handles):
    for handle in handles:
        if handle.data.dtype in _LARGEST:
            raise TypeError(f"NVIDIA's compiler knows no {operation} of {handle.dtype.scalar}: write .to(tl.float32) first")


@_replaces(InterpreterBuilder)
def binary_op(original, self, lhs, rhs, op):
    _refuse(op.__name__, lhs, rhs)
    return original(self, lhs, rhs, op)


@_replaces(InterpreterBuilder)
def create_maxnumf(original, self, lhs, rhs):
    """Of a number and NaN the number; before Triton 3.8 the interpreter gave NaN."""
    return self.binary_op(lhs, rhs, np.fmax)


@_replaces(InterpreterBuilder)
def create_minnumf(original, self, lhs, rhs):
    return self.binary_op(lhs, rhs, np.fmin)


@_replaces(InterpreterBuilder)
def unary_op(original, self, arg, op):
    _refuse(op.__name__, arg)
    return original(self, arg, op)


@_replaces(InterpreterBuilder)
def create_fma(original, self, x, y, z):
    if z.data.dtype not in _BITS:
        return original(self, x, y, z)
    _refuse("fma", z)
    product = x.data.astype(np.float64) * y.data.astype(np.float64)
    return TensorHandle(rounded(product + z.data.astype(np.float64), z.data.dtype), z.dtype.scalar)


@_replaces(InterpreterBuilder)
def create_dot(original, self, a, b, d, *rest):
    a, b = (TensorHandle(x.data.astype(d.data.dtype), d.dtype) if x.data.dtype in _BITS else x for x in (a, b))
    return original(self, a, b, d, *rest)


@_replaces(interpreter, optional=True)
def _mxfp_value_handle_to_float32(original, handle):
    return wide(handle.data) if handle.data.dtype in _BITS else original(handle)


@_replaces(InterpreterBuilder)
def create_atomic_cas(original, self, ptr, cmp, val, *rest):
    cmp, new = (TensorHandle(bits(x.data), x.dtype) for x in (cmp, val))
    seen = original(self, ptr, cmp, new, *rest)
    return TensorHandle(seen.data.view(val.data.dtype), seen.dtype)


@_replaces(InterpreterBuilder)
def create_atomic_rmw(original, self, operation, ptr, val, mask, *rest):
    number, kinds = val.data.dtype, interpreter._ir.ATOMIC_OP
    if number not in _BITS:
        return original(self, operation, ptr, val, mask, *rest)
    if operation != kinds.FADD or number in _LARGEST:
        raise TypeError(f"NVIDIA's compiler knows no atomic {operation} of {val.dtype.scalar}")
    addresses, values = ptr.data.reshape(-1), val.data.reshape(-1)
    seen = np.zeros(values.shape, number)
    for lanes in _turns(addresses, np.broadcast_to(mask.data, val.data.shape).reshape(-1)):
        everywhere, zeros = np.ones(len(lanes), bool), np.zeros(len(lanes), _BITS[number])
        old = interpreter._interpreter.load(addresses[lanes], everywhere, zeros, zeros.dtype).view(number)
        interpreter._interpreter.store(addresses[lanes], bits(old + values[lanes]), everywhere)
        seen[lanes] = old
    return TensorHandle(seen.reshape(val.data.shape), val.dtype.scalar)


@_replaces(InterpreterBuilder)
def get_bf16(original, self, value):
    return TensorHandle(rounded(np.array([value], np.float32), NUMBERS["bf16"]), tl.bfloat16)


@_replaces(ReduceOps)
def sum(original, self, input):
    data = input.handle.data
    if data.dtype not in _BITS:
        return original(self, input)
    return self.to_tensor(_tree(data, self.axis, self.keep_dims), input.dtype)


def _running(operation, original, self, input):
    data = input.handle.data
    if data.dtype not in _BITS:
        return original(self, input)
    return [self.to_tensor(_doubling(operation, data, self.axis), input.dtype)]


@_replaces(ScanOps)
def cumsum(original, self, input):
    return _running(np.add, original, self, input)


@_replaces(ScanOps)
def cumprod(original, self, input):
    return _running(np.multiply, original, self, input)


@_replaces(Autotuner)
def run(original, self, *args, **kwargs):
    """The first configuration of those that the kernel's own pruning leaves: there is no GPU to time them on."""
    configs = self.configs
    self.nargs = dict(zip(self.arg_names, args))
    try:
        self.configs = self.prune_configs(kwargs)[:1]
        return original(self, *args, **kwargs)
    finally:
        self.configs = configs
