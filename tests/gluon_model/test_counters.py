"""Programs that wait for each other by counters in global memory: what orders their sums, and what keeps them waiting."""

import pytest
import torch
import triton

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):
    pytest.skip("the model needs Triton 3.8", allow_module_level=True)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels import gluon_model
from tests.gluon_model import gluon_kernels
from tests.gluon_model.cases import descriptor, planted

SCHEDULES = [("round-robin", 0), ("greedy", 0), ("eager", 0), ("random", 0), ("random", 1)]


LAYOUT = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])


def launch(schedule, seed, kernel=gluon_kernels.add_in_turn, programs=4, tiles=3):
    """``(what the model found, the sums, the addends [programs, tiles * 8, 32])``."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(programs, tiles * 8, 32, generator=generator) * 10.0 ** torch.arange(programs)[:, None, None]
    total, counter = torch.zeros(tiles * 8, 32), torch.zeros(tiles, dtype=torch.int32)
    result = gluon_model.run(
        kernel, programs, x, descriptor(total, [8, 32]), counter, tiles, 8, LAYOUT, schedule=schedule, seed=seed
    )
    return result, total, x


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_sums_come_in_the_order_of_the_counters(schedule, seed):
    result, total, x = launch(schedule, seed)
    assert result.ok, result
    assert torch.equal(total, ((x[3] + x[2]) + x[1]) + x[0])
    assert not torch.equal(total, ((x[0] + x[1]) + x[2]) + x[3])


WAIT = 'while gl.atomic_add(counter + tile, 0, sem="acquire") != rank:\n            pass'
RELEASE = 'gl.atomic_add(counter + tile, 1, sem="release")'


@pytest.mark.parametrize(
    ("old", "new", "kind", "words"),
    [
        (WAIT, "pass", "order of sums", "nothing says which comes first"),
        (WAIT, WAIT.replace("acquire", "relaxed"), "order of sums", "sums of floats depend on their order"),
        (RELEASE, RELEASE.replace("release", "relaxed"), "order of sums", "has released a counter"),
        ("store_wait(0, read_only=False)", "store_wait(0)", "order of sums", "store_wait(0, read_only=False)"),
        (RELEASE, "pass", "deadlock", "polls counter, which stands at 0"),
        ("!= rank", "!= rank + 1", "deadlock", "nobody moves one on"),
        ("counter + tile, 1", "counter, 1", "deadlock", "all programs that run poll for counters"),
    ],
)
def test_a_planted_fault_is_found_under_every_schedule(old, new, kind, words):
    copy = planted(gluon_kernels, "add_in_turn", old, new)
    for schedule, seed in SCHEDULES:
        result, _, _ = launch(schedule, seed, copy["add_in_turn"])
        fitting = [f for f in result.findings if f.kind == kind and words in f.message]
        assert fitting and fitting[0].partition == "add_in_turn", f"{schedule}, {seed}:\n{result}"
        assert result.completed == (kind != "deadlock")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ('gl.atomic_add(counter, 1, sem="release")', 'gl.atomic_add(counter, 1, sem="relaxed")'),
        ('gl.atomic_add(counter, 0, sem="acquire")', 'gl.atomic_add(counter, 0, sem="relaxed")'),
        ('while gl.atomic_add(counter, 0, sem="acquire") != 1:\n            pass', "pass"),
        ("numbers + 1, 2", "numbers, 2"),
    ],
)
def test_what_one_program_stores_and_another_loads_needs_an_order(old, new):
    kernel = gluon_kernels.hand_over
    kernel = planted(gluon_kernels, "hand_over", old, new)["hand_over"] if old else kernel
    for schedule, seed in SCHEDULES:
        numbers, counter = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        result = gluon_model.run(kernel, 2, numbers, counter, schedule=schedule, seed=seed)
        if not old or old.startswith("numbers"):
            assert result.ok and 14 in numbers.tolist(), result
        else:
            assert [finding.kind for finding in result.findings] == ["race"], f"{schedule}, {seed}:\n{result}"
            assert "elements of numbers are touched by hand_over and hand_over" in str(result)


@pytest.mark.parametrize("number", [7.0, float("nan")])
def test_who_stores_what_is_there_already_needs_none(number):
    @gluon.jit
    def kernel(to, number):
        gl.store(to, gl.load(number))

    to = torch.zeros(1)
    result = gluon_model.run(kernel, 2, to, torch.tensor([number]))
    assert result.ok and torch.equal(to.isnan(), torch.tensor([number]).isnan()), result


def test_a_failure_in_one_program_ends_the_others():
    @gluon.jit
    def kernel(counter):
        if gl.program_id(0) == 2:
            gl.static_assert(False, "on purpose")
        while gl.atomic_add(counter, 0, sem="acquire") != 1:
            pass

    for schedule, seed in SCHEDULES:
        with pytest.raises(gluon_model.ModelError, match="on purpose"):
            gluon_model.run(kernel, 4, torch.zeros(1, dtype=torch.int32), schedule=schedule, seed=seed)
    result, *_ = launch("greedy", 0)
    assert result.ok
