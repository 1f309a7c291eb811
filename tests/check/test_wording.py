"""Conditions on blocks that Python reads otherwise than they are meant, told by the kernel's text."""

import pytest
import torch

from kernels.check.tensors import Fenced
from kernels.check.wording import (
    exchanged_axes,
    exchanged_indices,
    exchanged_strides,
    foreign_strides,
    is_pythonic,
    misread,
    odd_lanes,
    otherwise_compiled,
)

KERNEL = """
    @triton.jit
    def kernel(x_ptr, N, M, given, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        offs = row * BLOCK + tl.arange(0, BLOCK)
        later = offs[:, None] + 1
        mask = {}
"""


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("offs >= 0 & offs < N", "`&` binds tighter than `>=`"),
        ("offs < N & (row < M)", "`&` binds tighter than `<`"),
        ("(row < M) | offs == N", "`|` binds tighter than `==`"),
        ("(offs < N) and (offs >= 0)", "lane by lane it is `&`"),
        ("(row < M) and (later < N)", "lane by lane it is `&`"),
        ("(later < N) or row < M", "lane by lane it is `|`"),
        ("not (offs >= N)", "lane by lane it is `~`"),
        ("tl.load(x_ptr + offs) > 0 and row < M", "lane by lane it is `&`"),
        ("(given[:, None] < N) and row < M", "lane by lane it is `&`"),
    ],
)
def test_a_misread_condition_is_quoted_and_named(condition, says):
    ((quoted, said),) = misread([KERNEL.format(condition)])
    assert quoted == condition and says in said


@pytest.mark.parametrize(
    "condition",
    [
        "(offs >= 0) & (offs < N)",
        "(offs & 1) == 0",
        "row < M and row >= 0",
        "not row",
        "tl.sum(offs, 0) > 3 and row < M",
        "(offs < N)[:, None] & (row < M)",
        "0 <= row < M",
        "M if row < N else N",
    ],
)
def test_what_is_right_is_left_alone(condition):
    assert not list(misread([KERNEL.format(condition)]))


@pytest.mark.parametrize("line", ["if offs < N:\n            pass", "while offs < N:\n            pass"])
def test_a_question_to_a_block_is_named(line):
    ((quoted, said),) = misread([KERNEL.replace("mask = {}", line)])
    assert quoted == "offs < N" and "this is a block of answers: tl.where" in said


ADDRESSES = """
    @triton.jit
    def kernel(x_ptr, out_ptr, stride_xm, stride_xn, stride_om, stride_on):
        x = tl.load(x_ptr + offs_m * stride_xm + offs_n * {}, mask=mask, other={})
        tl.store(out_ptr + offs_m * stride_om + offs_n * stride_on, x, mask=mask)
"""


def test_a_stride_of_another_tensor_is_quoted_and_named():
    ((quoted, said),) = foreign_strides([ADDRESSES.format("stride_on", 0.0)])
    assert quoted == "offs_n * stride_on" and "stride_on is a stride of out, and this is an address of x" in said
    for right in ("stride_xn", "stride_row", "4"):  # whose the second is, no other address tells
        assert not list(foreign_strides([ADDRESSES.format(right, 0.0)]))


def test_lanes_that_hold_another_number_than_zero_are_odd():
    assert [shown for shown, _ in odd_lanes([ADDRESSES.format("stride_xn", 1.0)])] == ["other=1.0"]
    for neutral in (0, 0.0, '-float("inf")'):
        assert not list(odd_lanes([ADDRESSES.format("stride_xn", neutral)]))


CALL = """
    @triton.jit
    def kernel(x_ptr, out_ptr, stride_xm, stride_xn, stride_out):
        x = tl.load(x_ptr + offs_m * stride_xm + offs_n * stride_xn)
        tl.store(out_ptr + at(stride_out, {}), x)
"""


def call():
    """x is [3, 5], out [3, 4, 5]."""
    return [Fenced("x", "MN", torch.ones(3, 5)), Fenced("out", "MKN", torch.ones(3, 4, 5))]


def test_strides_that_a_launch_exchanges_are_named():
    text, given = CALL.format("offs_m, k, offs_n"), {"stride_xm": 1, "stride_xn": 5}
    found = dict(exchanged_strides([text], [("kernel", given)], call()))
    assert found.keys() == {"stride_xm", "stride_xn"}
    assert "gives it 1, x's stride along N, and x's stride along M is 5" in found["stride_xm"]
    (said,) = dict(exchanged_strides([text], [("kernel", {"stride_xm": 20})], call())).values()
    assert "gives it 20, out's stride along M" in said
    for right in ({"stride_xm": 5, "stride_xn": 1}, {"stride_xm": 77}, {}):  # a number of nobody's is another mistake
        assert not list(exchanged_strides([text], [("kernel", right), ("other", given)], call()))


def test_an_address_by_anothers_strides_is_not_the_launchs_fault():
    text = CALL.format("k").replace("x_ptr + offs_m", "z_ptr + offs_m").replace("x_ptr, out", "z_ptr, out")
    tensors = [Fenced("z", "MN", torch.ones(3, 7)), *call()]
    assert not list(exchanged_strides([text], [("kernel", {"stride_xm": 5, "stride_xn": 1})], tensors))  # x's own
    assert list(
        exchanged_strides([text], [("kernel", {"stride_xm": 1, "stride_xn": 5})], tensors)
    )  # nobody's, in this order


def test_indices_in_another_order_are_quoted_and_named():
    ((quoted, said),) = exchanged_indices([CALL.format("offs_m[:, None], offs_n, k")], call())
    assert quoted == "at(stride_out, offs_m[:, None], offs_n, k)" and "the one of N stands where K's belongs" in said
    for right in ("offs_m, k, offs_n", "offs_m, 0, offs_n", "row, rest, column", "offs_m, offs_m, k", "m // N, k, n"):
        assert not list(exchanged_indices([CALL.format(right)], call()))


def test_indices_with_each_others_strides_are_quoted_and_named():
    given = CALL.format("offs_m, k, offs_n")
    swapped = given.replace(
        "offs_m * stride_xm + offs_n * stride_xn", "offs_m[:, None] * stride_xn + stride_xm * offs_n[None, :]"
    )
    found = dict(exchanged_axes([swapped], call()))
    assert found.keys() == {"offs_m[:, None] * stride_xn", "stride_xm * offs_n[None, :]"}
    assert "counts along M, and this is x's stride along N" in found["offs_m[:, None] * stride_xn"]
    row = given.replace("offs_m *", "row *")  # no axis' name
    twice = given.replace("offs_n *", "offs_m *")  # another mistake
    for right in (
        given,
        row,
        twice,
        swapped.replace("x_ptr + offs", "z_ptr + offs"),
        CALL.format("0").replace("+ offs_m * stride_xm", ""),
    ):
        assert not list(exchanged_axes([right], call()))


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("offs if tl.constexpr(1) is 1 else row", "tl.constexpr(1) is 1"),
        ("offs if given is not True else row", "given is not True"),
        ("offs if f'{N}' == '1' else row", "f'{N}' == '1'"),
        ("offs if given is None else row", ""),
        ("offs if given == 1 else row", ""),
    ],
)
def test_what_is_another_comparison_when_it_is_compiled(condition, found):
    assert otherwise_compiled(KERNEL.format(condition)) == found and otherwise_compiled("def kernel(:") == ""


def test_what_is_pythons_alone():
    for mask in ("[row for _ in range(1)][0]", "offs.append(1)", "lambda: offs", "sum(zip(offs, offs))"):
        assert is_pythonic(KERNEL.format(mask))
    assert not is_pythonic(KERNEL.format("tl.zeros([16], tl.float32) < offs"))
