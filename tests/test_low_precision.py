"""bfloat16 and 8-bit floats in Triton's interpreter, held to what a card gave, and to torch."""

import random

import pytest
import torch
import triton
import triton.language as tl

from benchmarks import harness, small_kernels
from kernels import runtime

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="the interpreter is not in use")

CASES = {case.name: case for case in small_kernels.cases()}
RECORDED = {(row["triton"], row["kernel"]): row["output"] for row in harness.read(small_kernels.NAME)["rows"]}
VERSIONS = sorted({version for version, _ in RECORDED})


def recorded(name):
    """What a card gave with this Triton; with one that was not recorded, what it gave with both ends of the range."""
    if (triton.__version__, name) in RECORDED:
        return RECORDED[triton.__version__, name]
    outputs = {RECORDED[version, name] for version in VERSIONS}
    if len(outputs) > 1:
        pytest.skip(f"Triton {VERSIONS[0]} and {VERSIONS[-1]} differ here, and {triton.__version__} was not recorded")
    return outputs.pop()


@pytest.mark.parametrize("name", CASES)
def test_as_on_a_card(name):
    case, expected = CASES[name], recorded(name)
    if expected.startswith("refused"):
        with pytest.raises(Exception, match="NVIDIA's compiler|cannot cast|get_fp8"):
            small_kernels.run(case, "cpu")
        return
    got = small_kernels.run(case, "cpu")
    wanted = torch.frombuffer(bytearray.fromhex(expected), dtype=torch.uint8).view(got.dtype)
    if not got.dtype.is_floating_point:
        assert torch.equal(got, wanted)
        return
    nan = wanted.float().isnan()
    assert torch.equal(got.float().isnan(), nan)
    if not case.tolerance:
        assert torch.equal(got[~nan].view(torch.uint8), wanted[~nan].view(torch.uint8))  # signs of zeros, too
        return
    finite = wanted.double().isfinite()
    assert torch.equal(got[~finite & ~nan], wanted[~finite & ~nan])
    got, wanted = got.double()[finite], wanted.double()[finite]
    size = wanted.abs() if case.patterns else wanted.abs().max()
    assert ((got - wanted).abs() <= case.tolerance * size).all()


BF16, F16, F32, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
LANGUAGE = {BF16: "tl.bfloat16", F16: "tl.float16", F32: "tl.float32", E4M3: "tl.float8e4nv", E5M2: "tl.float8e5"}


def cast(x, dtype):
    """As a GPU does: to 8 bits by way of float32, what is too large as the largest."""
    if dtype in (E4M3, E5M2):
        largest = torch.finfo(dtype).max
        x = x.float().clamp(-largest, largest)
    return x.to(dtype)


class Expression:
    """A random expression, as Triton's text and as torch's value, by Triton's rules of types."""

    def __init__(self, draw, inputs):
        self.draw, self.inputs = draw, inputs

    def any(self, depth):
        if depth == 0:
            name = self.draw.choice(list(self.inputs))
            text, value = name, self.inputs[name]
            return (f"{text}.to(tl.float32)", value.float()) if value.dtype in (E4M3, E5M2) else (text, value)
        return self.draw.choice([self.binary, self.binary, self.unary, self.chosen, self.cast, self.scaled])(depth - 1)

    def binary(self, depth):
        (a, x), (b, y) = self.any(depth), self.any(depth)
        sign = self.draw.choice("+-*")
        dtypes = {x.dtype, y.dtype}
        dtype = F32 if F32 in dtypes else F16 if F16 in dtypes else BF16
        x, y = x.to(dtype), y.to(dtype)
        return f"({a} {sign} {b})", {"+": x + y, "-": x - y, "*": x * y}[sign]

    def unary(self, depth):
        a, x = self.any(depth)
        return self.draw.choice([(f"(-{a})", -x), (f"tl.abs({a})", x.abs())])

    def scaled(self, depth):
        a, x = self.any(depth)
        number = self.draw.choice([2, -3, 0.5, 0.1])
        return f"({a} * {number})", x * torch.tensor(number, dtype=x.dtype)

    def chosen(self, depth):
        (a, x), (b, y), (c, z) = self.any(depth), self.any(0), self.any(0)
        y, z = y.to(F32), z.to(F32)
        return f"tl.where({b}.to(tl.float32) < {c}.to(tl.float32), {a}, {a} * 2)", torch.where(y < z, x, x * 2)

    def cast(self, depth):
        a, x = self.any(depth)
        dtype = self.draw.choice(list(LANGUAGE))
        x = cast(x, dtype)
        text = f"{a}.to({LANGUAGE[dtype]})"
        return (f"{text}.to(tl.float32)", x.float()) if dtype in (E4M3, E5M2) else (text, x)


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_random_kernels(seed):
    draw, count = random.Random(seed), 64
    generator = torch.Generator().manual_seed(seed)
    inputs = {name: torch.randn(count, generator=generator) for name in ("x", "y", "z")}
    for _ in range(100):
        typed = {name: cast(value * 2 ** draw.randint(-4, 4), draw.choice(list(LANGUAGE))) for name, value in inputs.items()}
        text, expected = Expression(draw, typed).any(draw.randint(1, 4))
        out = torch.zeros(count, dtype=expected.dtype)
        small_kernels.kernel(small_kernels._ELEMENTWISE.format(expression=text))[(1,)](*typed.values(), out, N=count)
        assert torch.equal(out.float().nan_to_num(nan=0.25), expected.float().nan_to_num(nan=0.25)), text


ELEMENTWISE = {
    "x + y": torch.add,
    "x - y": torch.sub,
    "x * y": torch.mul,
    "-x": lambda x, y: -x,
    "tl.abs(x)": lambda x, y: x.abs(),
    "tl.maximum(x, y)": lambda x, y: torch.where(x.isnan(), y, torch.where((x > y) | y.isnan(), x, y)),
    "tl.minimum(x, y)": lambda x, y: torch.where(x.isnan(), y, torch.where((x < y) | y.isnan(), x, y)),
    "tl.where(x > y, x, y)": lambda x, y: torch.where(x > y, x, y),
}


@pytest.mark.parametrize("text", ELEMENTWISE)
def test_elementwise_operations_of_every_pattern(text):
    """All 65,536 of bfloat16, beside another one each, as torch, which does IEEE's operation and rounds once."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(BF16)
    y = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    out = torch.zeros_like(x)
    small_kernels.kernel(small_kernels._ELEMENTWISE.format(expression=text))[(1,)](x, y, y, out, N=len(x))
    expected = ELEMENTWISE[text](x, y)
    nan = expected.isnan()
    assert torch.equal(out.isnan(), nan) and torch.equal(out[~nan], expected[~nan])


@triton.jit
def masked_kernel(x_ptr, out_ptr, seen_ptr, n, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs, mask=offs < n, other=7.0)
    tl.store(out_ptr + offs, x + x, mask=offs < n + 1)
    tl.store(seen_ptr + offs, tl.atomic_add(x_ptr + offs, x, mask=offs < n))


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_masks_and_what_an_atomic_sum_has_seen(dtype):
    x, out, seen = torch.arange(8).to(dtype), torch.zeros(8, dtype=dtype), torch.zeros(8, dtype=dtype)
    masked_kernel[(1,)](x, out, seen, 5, N=8)
    assert out.tolist() == [0, 2, 4, 6, 8, 14, 0, 0] and seen.tolist()[:5] == [0, 1, 2, 3, 4]
    assert x.tolist() == [0, 2, 4, 6, 8, 5, 6, 7]


@triton.jit
def atomic_kernel(where_ptr, x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.atomic_add(out_ptr + tl.load(where_ptr + offs), tl.load(x_ptr + offs), mask=offs < N - 3)


def test_atomic_sums_at_any_addresses():
    """Small integers, whose sums are exact in any order."""
    draw = torch.Generator().manual_seed(0)
    where, x = torch.randint(0, 7, (64,), generator=draw), torch.randint(-3, 4, (64,), generator=draw)
    out = torch.zeros(7, dtype=BF16)
    atomic_kernel[(1,)](where, x.to(BF16), out, N=64)
    assert torch.equal(out, torch.zeros(7, dtype=torch.int64).index_add(0, where[:61], x[:61]).to(BF16))


@triton.jit
def reductions_kernel(x_ptr, sums_ptr, running_ptr, best_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(sums_ptr, tl.sum(x))
    tl.store(sums_ptr + 1, tl.max(x, 0))
    tl.store(running_ptr + offs, tl.cumsum(x, 0))
    tl.store(running_ptr + N + offs, tl.cumsum(x, 0, reverse=True))
    tl.store(best_ptr, tl.argmax(x, 0))
    best, where = tl.min(x, 0, return_indices=True)
    tl.store(sums_ptr + 2, best)
    tl.store(best_ptr + 1, where)


def test_sums_do_not_stop_at_256():
    x = torch.ones(4096, dtype=BF16)
    x[77], x[99] = 2, 0.5
    sums, running, best = torch.zeros(3), torch.zeros(2, 4096), torch.zeros(2, dtype=torch.int32)
    reductions_kernel[(1,)](x, sums, running, best, N=4096)
    exact = torch.stack([x.double().cumsum(0), x.double().flip(0).cumsum(0).flip(0)])
    assert sums.tolist() == [4096, 2, 0.5] and best.tolist() == [77, 99]
    assert ((running - exact).abs() <= 12 * 2**-8 * exact).all()  # 12 roundings


@triton.jit
def descriptor_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [M - 3, N], [N, 1], [M, N])
    out = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [M, N])
    out.store([0, 0], x.load([0, 0]) * 3)


def test_descriptors():
    x, out = torch.randn(8, 16).to(BF16), torch.zeros(8, 16, dtype=BF16)
    descriptor_kernel[(1,)](x, out, M=8, N=16)
    assert torch.equal(out[:5], x[:5] * 3) and not out[5:].any()


def test_what_has_no_numbers_is_refused_by_name():
    source = small_kernels._ELEMENTWISE.format(expression="x.to(tl.float8e4b15).to(tl.float32)")
    x, out = torch.zeros(64), torch.zeros(64)
    with pytest.raises(Exception, match="float8e4b15 has no numbers in Triton's interpreter"):
        small_kernels.kernel(source)[(1,)](x, x, x, out, N=64)


def _tuned(**options):
    configs = [triton.Config({"BLOCK": size}) for size in (16, 32, 64)]

    @triton.autotune(configs=configs, key=["n"], **options)
    @triton.jit
    def block_kernel(out_ptr, n, BLOCK: tl.constexpr):
        tl.atomic_add(out_ptr + tl.arange(0, BLOCK), 1.0)

    return block_kernel


@pytest.mark.parametrize("kept, first", [(slice(None), 16), (slice(1, None), 32)])
def test_an_autotuner_takes_the_first_configuration(kept, first):
    prune = lambda configs, named_args, **kwargs: configs[kept]  # noqa: E731
    kernel, out = _tuned(prune_configs_by={"early_config_prune": prune}), torch.zeros(64)
    for _ in range(2):
        kernel[lambda meta: (1,)](out, 5)
    assert out.tolist() == [2] * first + [0] * (64 - first) and len(kernel.configs) == 3
    assert kernel.best_config.kwargs == {"BLOCK": first}


scaled = pytest.mark.skipif(not hasattr(triton.runtime.interpreter, "_mxfp_value_handle_to_float32"), reason="newer Triton")


@scaled
@pytest.mark.parametrize("dtype, format", [(E4M3, "e4m3"), (E5M2, "e5m2"), (BF16, "bf16")])
def test_scaled_products(dtype, format):
    source = f"""
@triton.jit
def small_kernel(x_ptr, y_ptr, scale_ptr, out_ptr, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    x, y = tl.load(x_ptr + rows * N + columns), tl.load(y_ptr + rows * N + columns)
    scale = tl.load(scale_ptr + rows * (N // 32) + tl.arange(0, N // 32)[None, :])
    tl.store(out_ptr + rows * N + columns, tl.dot_scaled(x, scale, "{format}", y, None, "{format}"))
"""
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=draw).to(dtype) for _ in range(2))
    powers, out = torch.randint(125, 130, (64, 2), dtype=torch.uint8, generator=draw), torch.zeros(64, 64)
    small_kernels.kernel(source)[(1,)](x, y, powers, out, N=64)
    scale = torch.exp2(powers.float() - 127).repeat_interleave(32, 1)
    torch.testing.assert_close(out, (x.float() * scale) @ y.float())
