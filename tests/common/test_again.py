"""A compiled kernel is started again where nothing that it was compiled for differs, and only there."""

import types

import pytest
import torch
import triton.language as tl
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from kernels.common import again


def add(x_ptr, y_ptr, n, stride, scale, BLOCK: tl.constexpr, SAFE: tl.constexpr = True):
    pass


class Machine:
    """In place of Triton and a GPU: what was compiled, and what was started, in order."""

    def __init__(self, monkeypatch):
        self.compiled, self.started = [], []
        machine = self

        def run(kernel, *args, grid, warmup, **meta):
            machine.compiled.append((args, meta))
            made = object.__new__(CompiledKernel)
            made.module, made.function, made.packed_metadata = None, len(machine.compiled), "packed"
            made._run = lambda *args: machine.started.append(args)
            made.launch_metadata = lambda grid, stream, *args: ("seen", grid, stream, len(args))
            return made

        monkeypatch.setattr(JITFunction, "run", run)
        monkeypatch.setattr(again, "_run", run)
        monkeypatch.setattr(again, "_known", {})
        self.device = 0
        active = types.SimpleNamespace(get_current_stream=lambda device: 70 + device)
        monkeypatch.setattr(again, "driver", types.SimpleNamespace(active=active))
        self.kernel = JITFunction(add)

    def __call__(self, *args, **meta):
        """Whether the call was compiled anew."""
        before = len(self.compiled)
        again.start(self.kernel, (5,), args, {"BLOCK": 8, "num_warps": 4} | meta, self.device)
        return len(self.compiled) > before


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_the_second_call_starts_what_the_first_compiled(machine):
    x, y, other = (torch.zeros(16) for _ in range(3))
    assert machine(x, y, 16, 1, 0.5) and not machine(other, x, 16, 1, 0.5)
    # the grid in three dimensions, the stream, the handles, no metadata and no hooks, then the kernel's arguments in order
    (started,) = machine.started
    assert started[:6] == (5, 1, 1, 70, 1, "packed") and started[6] is None
    assert started[9] is other and started[10] is x and started[11:] == (16, 1, 0.5, 8, True)


def test_whatever_a_kernel_is_compiled_for_is_asked(machine):
    x, y = torch.zeros(64), torch.zeros(64)
    assert machine(x, y, 16, 1, 0.5)
    odd = torch.zeros(65)[1:]
    differing = [
        ((odd, y, 16, 1, 0.5), {}),
        ((x, odd, 16, 1, 0.5), {}),
        ((x.half(), y, 16, 1, 0.5), {}),
        ((x, None, 16, 1, 0.5), {}),
        ((x, (y, 3), 16, 1, 0.5), {}),
        ((x, (y, 4), 16, 1, 0.5), {}),
        ((x, y, 17, 1, 0.5), {}),
        ((x, y, 16, 2, 0.5), {}),
        ((x, y, 16, 1, 0.25), {}),
        ((x, y, 16, 1, 0.5), {"BLOCK": 16}),
        ((x, y, 16, 1, 0.5), {"num_warps": 8}),
        ((x, y, 16, 1, 0.5), {"SAFE": False}),
        ((x, y, 16, 1, 0.5), {"SAFE": JITFunction(add)}),
    ]
    for args, meta in differing:
        assert machine(*args, **meta), (args, meta)
    assert not any(machine(*args, **meta) for args, meta in differing[:-1])
    machine.device = 1  # another GPU has its own
    assert machine(x, y, 16, 1, 0.5) and not machine(x, y, 16, 1, 0.5)


def test_arguments_on_both_sides_of_the_numbers_are_looked_at(machine):
    x, y, odd = torch.zeros(64), torch.zeros(64), torch.zeros(65)[1:]
    assert machine(x, 16, 1, 0.5, (y, 3)) and not machine(y, 16, 1, 0.5, (x, 3))
    differing = [
        (odd, 16, 1, 0.5, (y, 3)),
        (None, 16, 1, 0.5, (y, 3)),
        (x, 17, 1, 0.5, (y, 3)),
        (x, 16, 1, 0.25, (y, 3)),
        (x, 16, 1, 0.5, (odd, 3)),
        (x, 16, 1, 0.5, (y.half(), 3)),
        (x, 16, 1, 0.5, (y, 4)),
        (x, 16, 1, 0.5, y),
        (x, 16, 1, 0.5),
    ]
    for args in differing:
        assert machine(*args), args
    assert not any(machine(*args) for args in differing)


def test_constants_stand_for_what_they_name(machine):
    x, y = torch.zeros(16), torch.zeros(16)

    def compiled(n=16, more=None, **meta):
        before = len(machine.compiled)
        again.start(machine.kernel, (5,), (x, y, n, 1, 0.5), more or {}, 0, again.Constants(**meta))
        return len(machine.compiled) > before

    assert compiled(BLOCK=8, num_warps=4) and machine.compiled[-1][1] == {"BLOCK": 8, "num_warps": 4}
    assert not compiled(BLOCK=8, num_warps=4) and machine.started[-1][9:] == (x, y, 16, 1, 0.5, 8, True)
    assert compiled(BLOCK=16, num_warps=4) and compiled(BLOCK=8, num_warps=8) and compiled(n=17, BLOCK=8, num_warps=4)
    assert compiled(more={"SAFE": False}, BLOCK=8, num_warps=4)
    assert machine.compiled[-1][1] == {"SAFE": False, "BLOCK": 8, "num_warps": 4}
    assert not compiled(more={"SAFE": False}, BLOCK=8, num_warps=4) and machine.started[-1][9:][-2:] == (8, False)
    assert machine(x, y, 16, 1, 0.5)  # the same without, which may be compiled again
    machine.kernel.add_pre_run_hook(lambda *args, **meta: None)
    assert compiled(BLOCK=8, num_warps=4) and machine.compiled[-1][1] == {"BLOCK": 8, "num_warps": 4}


def test_constants_that_settle_all_leave_nothing_to_look_at(machine, monkeypatch):
    x, odd = torch.zeros(16), torch.zeros(17)[1:]
    constants = again.Constants(BLOCK=8, num_warps=4)
    settled = constants.settling_all()

    def compiled(*args, constants=settled, kernel=machine.kernel, device=0, **meta):
        before = len(machine.compiled)
        again.start(kernel, (5,), (*args, 16, 1, 0.5), meta, device, constants)
        return len(machine.compiled) > before

    assert compiled(x, x) and machine.compiled[-1][1] == {"BLOCK": 8, "num_warps": 4}
    assert not compiled(odd, x) and machine.started[-1][9:] == (odd, x, 16, 1, 0.5, 8, True)
    for other in ({"device": 1}, {"SAFE": False}, {"constants": constants}):
        assert compiled(x, x, **other) and not compiled(x, x, **other)
    assert compiled(odd, x, constants=constants)
    monkeypatch.setattr(knobs.runtime, "debug", not knobs.runtime.debug)
    assert compiled(x, x) and not compiled(x, x)
    assert compiled(x, x, kernel=JITFunction(add))


def test_descriptors_are_told_apart_by_tile_layout_and_element(machine):
    def descriptor(x, tile, layout):
        return types.SimpleNamespace(base=x, shape=list(x.shape), strides=list(x.stride()), block_shape=tile, layout=layout)

    x, y, layout = torch.zeros(8, 8), torch.zeros(8, 8), object()
    assert machine(descriptor(x, [4, 8], layout), y, 16, 1, 0.5)
    assert not machine(descriptor(y, [4, 8], layout), y, 16, 1, 0.5)
    assert machine(descriptor(x, [8, 8], layout), y, 16, 1, 0.5)
    assert machine(descriptor(x.half(), [4, 8], layout), y, 16, 1, 0.5)
    assert machine(descriptor(x, [4, 8], object()), y, 16, 1, 0.5)


def test_hooks_see_every_launch(machine, monkeypatch):
    x = torch.zeros(16)
    machine(x, x, 16, 1, 0.5)
    hook = lambda metadata: None  # noqa: E731
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", hook)
    assert not machine(x, x, 16, 1, 0.5)
    assert machine.started[-1][6] == ("seen", (5,), 70, 7) and machine.started[-1][7] is hook
    seen = []
    machine.kernel.add_pre_run_hook(lambda *args, **meta: seen.append(args))
    assert machine(x, x, 16, 1, 0.5)  # Triton's own way runs them
    machine.kernel.pre_run_hooks.clear()
    monkeypatch.setattr(knobs.compilation, "instrumentation_mode", "a sanitizer")
    assert machine(x, x, 16, 1, 0.5) and machine(x, x, 16, 1, 0.5)


def test_who_stands_in_tritons_place_is_asked_every_time(machine, monkeypatch):
    x, seen = torch.zeros(16), []
    machine(x, x, 16, 1, 0.5)
    monkeypatch.setattr(JITFunction, "run", lambda kernel, *args, grid, warmup, **meta: seen.append(grid))
    again.start(machine.kernel, (5,), (x, x, 16, 1, 0.5), {"BLOCK": 8, "num_warps": 4}, 0)
    assert seen == [(5,)] and machine.started == []


def test_what_is_remembered_is_bounded(machine, monkeypatch):
    monkeypatch.setattr(again, "MOST", 3)
    x = torch.zeros(16)
    assert [machine(x, x, n, 1, 0.5) for n in (1, 2, 3, 1, 2, 3, 4, 1)] == [True] * 3 + [False] * 3 + [True] * 2
    assert len(again._known[id(machine.kernel)].started) == 2
