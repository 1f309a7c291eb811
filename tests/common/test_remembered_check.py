"""A check's answer is remembered by all that it looks at, and an error never."""

import pytest
import torch

from kernels import runtime
from kernels.common import plan
from kernels.common.checks import remembered_check


@pytest.fixture
def check():
    """``(the check, what it was asked)``; it answers with how often it was."""
    asked = []

    @remembered_check
    def look(x, option=None):
        asked.append((x, option))
        if option == "wrong":
            raise ValueError("option is wrong")
        return len(asked)

    return look, asked


def test_tensors_alike_are_checked_once_and_others_again(check):
    look, asked = check
    x = torch.zeros(2, 3)
    assert [look(x), look(x + 1), look(x.t().contiguous().t()), look(torch.nn.Parameter(x))] == [1] * 4
    others = [x.half(), x[:1], x[None], x.to("meta"), None]
    assert [look(other) for other in others] == [2, 3, 4, 5, 6] == [look(other) for other in others]
    assert len(asked) == 6


def test_options_are_told_apart_by_type(check):
    look, _ = check
    x = torch.zeros(2)
    options = [1, True, 1.0, "1", None, (1, 2), (2, 1)]
    assert [look(x, option) for option in options] == [1, 2, 3, 4, 5, 6, 7] == [look(x, option) for option in options]


def test_what_is_neither_is_checked_every_time(check):
    look, _ = check
    x = torch.zeros(2)
    subclass = x.as_subclass(type("Sub", (torch.Tensor,), {}))
    given = [(subclass,), (x, [1]), (x, (1.0,)), (x, x.numpy()[0]), (3j,)]
    assert [look(*args) for args in given for _ in range(2)] == list(range(1, 11))


def test_an_error_comes_every_time(check):
    look, asked = check
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            look(torch.zeros(2), "wrong")
    assert len(asked) == 2


def test_the_mode_belongs_to_it_and_what_is_kept_is_bounded(check, monkeypatch):
    look, asked = check
    x = torch.zeros(2)
    look(x)
    monkeypatch.setattr(runtime, "interpreted", not runtime.interpreted)
    assert look(x) == 2
    monkeypatch.setattr(plan, "MOST", 2)
    assert look(x, 1) == 3 and look(x) == 4 and look(x) == 4
