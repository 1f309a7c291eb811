"""Calls that differ from earlier ones in layouts, values or options: nothing of a plan that does not hold for them stays."""

import itertools

import pytest
import torch
from torch.autograd import forward_ad

from kernels import runtime
from kernels.common import operator as plans
from kernels.common.operator import launch
from kernels.recurrent_attention import operator, recurrent_attention
from kernels.recurrent_attention.chunk import launches
from tests.tensors import LAYOUTS, agree, hooked, laid_out

MODES = ["recurrent", "chunk"]


@pytest.fixture
def given():
    """``{name: tensor}`` of a call."""
    plans.clear_caches()
    torch.manual_seed(0)
    shapes = {"q": (1, 19, 2, 16), "k": (1, 19, 2, 16), "v": (1, 19, 2, 16), "g": (1, 19, 2), "initial_state": (1, 2, 16, 16)}
    made = {name: torch.randn(shape, device=runtime.device) for name, shape in shapes.items()}
    return made | {"g": torch.nn.functional.logsigmoid(made["g"])}


def gradients(tensors, mode, do, dfinal=None, hook=None, **more):
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    with hooked(hook):
        out = recurrent_attention(**leaves, mode=mode, output_final_state=dfinal is not None, **more)
    out, grads = (out[:1], [do]) if dfinal is None else (out, [do, dfinal])
    return [*out, *torch.autograd.grad(out, leaves.values(), grads)]


def other(t, i):
    """``t`` laid out in way ``i``; a gate's heads are its last dimension."""
    return laid_out(t, i) if t.ndim == 4 else laid_out(t, i, tuple(range(t.ndim))[::-1])


@pytest.mark.share(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", LAYOUTS)
def test_tensors_with_other_layouts(given, first, mode):
    """Those of a call, its gradients, and saved ones, which hooks may give back otherwise; after each."""
    do, dfinal = torch.randn_like(given["v"]), torch.randn_like(given["initial_state"])
    want = gradients({name: t.clone() for name, t in given.items()}, mode, do, dfinal)
    without = gradients({name: t.clone() for name, t in given.items()}, mode, do)
    plans.clear_caches()
    for i in (first, *LAYOUTS, first):
        lying = {name: other(t, i) for name, t in given.items()}
        agree(gradients(lying, mode, other(do, i), dfinal), want)
        agree(gradients(lying, mode, do, other(dfinal, i)), want)
        agree(gradients({name: t.clone() for name, t in given.items()}, mode, other(do, i)), without)
        agree(gradients(given, mode, do, dfinal, lambda t, i=i: other(t, i)), want)


@pytest.mark.parametrize("mode", MODES)
def test_other_values_and_options_in_turn(given, mode):
    """Nothing of a call stays behind in the next one."""
    do = torch.randn_like(given["v"])
    calls = [{}, {"scale": 1}, {"scale": 1.0}, {"reverse": True}, {"scale": 0.25, "reverse": True}]
    want = []
    for more in calls:
        plans.clear_caches()
        want.append(gradients(given, mode, do, **more))
    plans.clear_caches()
    for _ in range(2):
        for more, of in zip(calls, want, strict=True):
            agree(gradients(given, mode, do, **more), of)
    with torch.no_grad():
        given["v"].mul_(2), given["initial_state"].mul_(2)
    agree(gradients(given, mode, do)[:1], [2 * want[0][0]])


@pytest.mark.parametrize("mode", MODES)
def test_some_gradients_are_wanted(given, mode):
    do = torch.randn_like(given["v"])
    _, *want = gradients(given, mode, do)
    for off in itertools.product((True, False), repeat=5):
        leaves = {name: t.detach().requires_grad_(on) for (name, t), on in zip(given.items(), off, strict=True)}
        wanted = [t for t in leaves.values() if t.requires_grad]
        if wanted:
            got = torch.autograd.grad(recurrent_attention(**leaves, mode=mode)[0], wanted, do)
            agree(got, [w for w, on in zip(want, off, strict=True) if on])


@pytest.mark.parametrize("mode", MODES)
def test_what_stands_before_every_call(given, mode):
    leaves = [t.requires_grad_() for t in given.values()]
    call = lambda *ts: recurrent_attention(**dict(zip(given, ts, strict=True)), mode=mode)[0]  # noqa: E731
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        call(forward_ad.make_dual(leaves[0], leaves[0]), *leaves[1:])
    with torch.autocast(runtime.device.type, torch.bfloat16):
        assert call(*leaves).dtype == torch.bfloat16
    for i in range(5):
        o = call(*leaves)
        with torch.no_grad():
            leaves[i].mul_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            torch.autograd.grad(o, leaves, torch.ones_like(o))


@pytest.mark.parametrize("mode", MODES)
def test_a_switch_between_and_within_calls_is_asked(given, mode, monkeypatch):
    asked = []
    given = {name: t.requires_grad_() for name, t in given.items()}
    held = torch.backends.cuda.matmul.fp32_precision

    def look(kernel, grid, *args, **meta):
        asked.append(meta["TILE"].PRECISION)
        launch(kernel, grid, *args, **meta)

    for module in (operator, launches):
        monkeypatch.setattr(module, "launch", look)
    seen = []
    for on in (False, True, False, True):
        torch.backends.cuda.matmul.fp32_precision = "tf32" if on else "ieee"
        asked.clear()
        o, _ = recurrent_attention(**given, mode=mode)
        in_forward = len(asked)
        torch.autograd.grad(o, given.values(), torch.ones_like(o))
        seen.append((asked[:in_forward], asked[in_forward:]))
    torch.backends.cuda.matmul.fp32_precision = held
    assert seen[0] == seen[2] and seen[1] == seen[3]
    assert mode == "recurrent" or all(a != b for a, b in zip(*seen[:2], strict=True))
