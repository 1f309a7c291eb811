"""What calls that are alike have in common is made once, and whatever kernels depend on makes them others."""

import pytest
import torch

from kernels.common import alike, launch


@pytest.fixture
def launched(monkeypatch):
    """What is launched, in place of launching it."""
    seen = []

    def note(kernel, grid, *args, constants=None, **meta):
        seen.append((kernel, grid, args, constants, meta))

    monkeypatch.setattr(launch, "launch", note)
    return seen


def test_a_kernel_is_told_once(launched):
    x, y, told = torch.zeros(2), torch.zeros(2), []

    def of(n):
        return lambda: told.append(n) or ((n,), [n, 0.5], {"BLOCK": 8})

    for way in (launch.launch_anew, launch.Launches()):
        way("kernel", of(3), x, None)
        way("kernel", of(4), y, None)
        way("kernel", of(5), y, None, which="other")
    assert told == [3, 4, 5, 3, 5]  # of those that are alike the second was not asked for
    assert [(grid, args[1:]) for _, grid, args, _, _ in launched[:3]] == [((n,), (None, n, 0.5)) for n in (3, 4, 5)]
    first, second, other = launched[3:]
    assert second[1] == (3,) and second[2][0] is y and second[2][1:] == (None, 3, 0.5) and second[3] is first[3]
    assert first[3].settle_all and first[3].meta == {"BLOCK": 8} and other[3] is not first[3]


def test_tensors_lie_in_the_same_way():
    x = torch.zeros(4, 8)
    same = alike.lie([x, None])
    assert same == alike.lie([torch.ones(4, 8), None]) and hash(same) == hash(alike.lie([x + 1, None]))
    others = [x[None], x.mT.contiguous().mT, x.half(), x.to("meta"), None]
    assert all(alike.lie([other, None]) not in (same, None) for other in others) and alike.lie([x, x]) != same
    assert alike.lie([x, torch.zeros(33)[1:].view(4, 8)]) is None


def test_passes_get_launches_by_all_that_they_depend_on():
    seen, on = [], [False]

    def forward(*args, launches):
        seen.append(launches)

    def backward(*args, launches):
        seen.append(launches)
        assert args[2:] == (0.5, "mode", (True,))

    passes = alike.Passes(forward, backward, (0.5, "mode"), lambda: on[0])
    x, do = torch.zeros(4, 8), torch.zeros(4, 8)
    passes.forward(x), passes.forward(x)
    run = passes.backward_of(do, x)
    run(do, x, (True,)), passes.backward_of(torch.ones(4, 8), x)(do, x, (True,))
    assert seen[0] is seen[1] and seen[2] is seen[3] and seen[2] is not seen[0]
    passes.backward_of(do.mT.contiguous().mT, x)(do, x, (True,))
    on[0] = True
    passes.forward(x)
    passes.backward_of(do, x)(do, x, (True,))
    assert len(set(map(id, seen))) == 5
    with pytest.raises(AssertionError):
        run(do, x, (False,))
    assert seen[-1] is not seen[2]
    assert passes.backward_of(torch.zeros(33)[1:].view(4, 8), x) is None
