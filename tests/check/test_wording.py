"""Conditions on blocks that Python reads otherwise than they are meant, told by the kernel's text."""

import pytest

from kernels.check.wording import misread

KERNEL = """
    @triton.jit
    def kernel(x_ptr, N, M, BLOCK: tl.constexpr):
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
    ],
)
def test_what_is_right_is_left_alone(condition):
    assert not list(misread([KERNEL.format(condition)]))
