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
    assert lines[-1] == "column_sums: 5 of 5 properties" and not any("FAILED" in line for line in lines)


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
    assert held(sums(load=False)), "what is read there is never stored"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert line.startswith("FAILED  stays inside its tensors: ") and "the load of x is not masked along N" in line


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
