"""``check.your_kernel``: a right kernel passes, and each mistake fails the property that is there for it."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import check, runtime


@triton.jit
def _column_sums(
    x_ptr, out_ptr, M, N, stride_m, stride_n, stride_o,
    LOAD: tl.constexpr, STORE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32 if WIDE else x_ptr.dtype.element_ty)
    for m in range(M):
        x = tl.load(x_ptr + m * stride_m + n * stride_n, mask=n < (N if LOAD else N + BLOCK), other=0.0)
        total += x.to(total.dtype)
    tl.store(out_ptr + n * stride_o, total.to(out_ptr.dtype.element_ty), mask=n < (N if STORE else N + BLOCK))


def sums(load=True, store=True, wide=True, strides=True, blocks=True, last=True):
    def column_sums(x, out, BLOCK=16):
        (M, N), step = x.shape, BLOCK if blocks else 16
        grid = (triton.cdiv(N, step) if last else max(N // step, 1),)
        _column_sums[grid](x, out, M, N, *(x.stride() if strides else (N, 1)), out.stride(0), load, store, wide, BLOCK)

    return column_sums


def held(fn, **more):
    options = dict(inputs={"x": "MN"}, outputs={"out": "N"}, blocks={"BLOCK": (16, 64, 8)}) | more
    return check.your_kernel(fn, lambda x: x.sum(0), **options)


def test_a_right_kernel_passes(capsys):
    assert held(sums())
    lines = capsys.readouterr().out.splitlines()
    all_of_them = 8 if runtime.interpreted else 6  # two are seen by the addresses
    assert lines[-2] == f"column_sums: {all_of_them} of {all_of_them} properties"
    assert not any("FAILED" in line for line in lines)
    told = "loads ask for 1 times the inputs' bytes, stores write 1 times the outputs'; cheap=(1, 1) holds it to that"
    assert lines[-1] == f"not judged: cheap ({told})"


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "mistake, failed, said",
    [
        ({"store": False}, "ragged sizes", "the store of out is not masked along N"),
        ({"strides": False}, "strides", "each address is made of the strides of its own tensor"),
        ({"blocks": False}, "block sizes", ""),
        ({"last": False}, "ragged sizes", "no program stores them"),
        ({"wide": False}, "other dtypes", "convert to tl.float32 right after the load"),
    ],
)
def test_a_mistake_fails_the_property_that_is_there_for_it(capsys, mistake, failed, said):
    many = dict(sizes={"M": 400}, values={"x": torch.rand}) if "wide" in mistake else {}
    assert not held(sums(**mistake), **many)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert any(line.startswith(f"FAILED  {failed}: ") and said in line for line in lines), lines


@pytest.mark.skipif(not runtime.interpreted, reason="addresses are seen in the interpreter")
def test_a_load_beyond_its_tensor_is_seen_by_its_address(capsys):
    assert not held(sums(load=False)), "what is read there is never stored, but it is read"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert line.startswith("FAILED  stays inside its tensors: ") and "the load of x is not masked along N" in line


@pytest.mark.skipif(not runtime.interpreted, reason="addresses are seen in the interpreter")
def test_a_race_inside_a_program_fails_what_is_right_but_for_it(cell, capsys):
    source = """
    @triton.jit
    def reverse(x_ptr, out_ptr, N, stride_x, stride_o, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i * stride_x, mask=i < N, other=0.0)
        tl.store(out_ptr + (N - 1 - i) * stride_o, x, mask=i < N)
        {}
        back = tl.load(out_ptr + i * stride_o, mask=i < N, other=0.0)
        tl.store(out_ptr + i * stride_o, back + x, mask=i < N)


    def palindrome(x, out):
        reverse[(1,)](x, out, len(x), x.stride(0), out.stride(0), BLOCK=triton.next_power_of_2(len(x)))
    """
    asked = dict(inputs={"x": "N"}, outputs={"out": "N"}, dtypes=torch.float32, verdicts="right")
    for barrier in ("pass", "tl.debug_barrier()"):
        good = check.your_kernel(cell(source.format(barrier))["palindrome"], lambda x: x + x.flip(0), **asked)
        said = capsys.readouterr().out
        assert good == ("debug" in barrier) == ("is stored by one lane of a program and then loaded" not in said), said


def test_integers_and_pinned_sizes():
    @triton.jit
    def gather(x_ptr, ids_ptr, out_ptr, stride_x, stride_i, stride_o):
        i = tl.program_id(0)
        tl.store(out_ptr + i * stride_o, tl.load(x_ptr + tl.load(ids_ptr + i * stride_i) * stride_x))

    def pick(x, ids, out):
        gather[(len(ids),)](x, ids, out, x.stride(0), ids.stride(0), out.stride(0))

    draw = {"ids": lambda M: torch.arange(M, dtype=torch.int32) * 5 % 8}
    inputs, outputs = {"x": "K", "ids": "M"}, {"out": "M"}
    assert check.your_kernel(pick, lambda x, ids: x[ids], inputs, outputs, values=draw, sizes={"K": 8})


def test_an_axis_that_no_tensor_has():
    with pytest.raises(ValueError, match="sizes names K = 3, the tensors have the axes M, N"):
        held(sums(), sizes={"K": 3})


def test_the_three_verdicts(capsys):
    assert held(sums(), cheap=(1, 1)) and "passed  cheap\ncolumn_sums: " in capsys.readouterr().out
    assert not held(sums(), cheap=(0.5, 1), verdicts=("compiles", "cheap"))
    said = capsys.readouterr().out
    assert "passed  compiles" in said and "loads ask for 1 times the inputs' bytes, and 0.5 times do" in said
    assert held(sums(), verdicts="compiles") and capsys.readouterr().out.count("passed") == 1


def test_a_product_in_tf32_is_asked_about(cell, capsys):
    source = """
    @triton.jit
    def kernel(a_ptr, b_ptr, out_ptr, sa, sb, so, BLOCK: tl.constexpr):
        i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
        a = tl.load(a_ptr + i * sa[0] + j * sa[1]).to(tl.float32)
        b = tl.load(b_ptr + i * sb[0] + j * sb[1]).to(tl.float32)
        tl.store(out_ptr + i * so[0] + j * so[1], tl.dot(a, b))


    def product(a, b, out):
        kernel[(1,)](a, b, out, a.stride(), b.stride(), out.stride(), 32)
    """
    how = dict(
        inputs={"a": "MK", "b": "KN"}, outputs={"out": "MN"}, sizes=dict.fromkeys("MKN", 32), dtypes=(torch.float32,)
    )
    product = cell(source)["product"]
    assert not check.your_kernel(product, torch.matmul, **how, tolerance=1e-5)
    assert "rounds float32 operands to TF32" in capsys.readouterr().out
    assert check.your_kernel(product, torch.matmul, **how, tolerance=1e-5, tf32=True)
