"""A layer's call that is alike an earlier one goes without its checks: whatever they, or others, look at makes it another."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import runtime
from kernels.conv_wgrad import layer
from tests.conv_wgrad import cases
from tests.conv_wgrad.test_module import pair


@pytest.fixture
def known(monkeypatch):
    """``(torch's layer, ours, images)``: a call that is known by now."""
    monkeypatch.setattr(layer, "_known_layers", {})
    theirs, ours = pair(4, 8, 3, padding=1)
    x = cases.randn(2, 4, 5, 6)
    ours(x)
    return theirs, ours, x


def test_a_known_call_is_not_checked_again_and_gives_the_same(known, monkeypatch):
    theirs, ours, x = known
    monkeypatch.setattr(layer, "_check_planes", None)  # to call it would be a TypeError
    other = x + 1
    torch.testing.assert_close(ours(other), theirs(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", [
    ("stride", (1.0, 1.0), "stride is"), ("stride", (True, True), "stride is"), ("dilation", (0, 1), "dilation is"),
    ("padding", (1.0, 1.0), "padding is"), ("groups", True, "groups is"), ("groups", 3, "input has shape"),
], ids=str)  # fmt: skip
def test_what_the_checks_look_at(known, change):
    _, ours, x = known
    name, value, message = change
    setattr(ours, name, value)
    with pytest.raises(ValueError, match=message):
        ours(x)


def test_options_that_may_change_in_place_are_looked_at_every_time(known):
    theirs, ours, x = known
    ours.stride = [1, 1]
    ours(x), ours(x)
    ours.stride[0] = 2
    theirs.stride = (2, 1)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


def test_other_tensors(known):
    theirs, ours, x = known
    for wrong, message in ((x.half(), "weight has dtype"), (x[:, :3], "input has shape"), ([x], "input must be a tensor")):
        with pytest.raises(ValueError, match=message):
            ours(wrong)
    for wrong in (x.to_sparse(), torch.nested.nested_tensor([x, x])):
        with pytest.raises(ValueError, match="needs a dense tensor"):
            ours(wrong)
    last = x.contiguous(memory_format=torch.channels_last)
    assert ours(last).is_contiguous(memory_format=torch.channels_last) and ours(x).is_contiguous()
    torch.testing.assert_close(ours(last), theirs(last), rtol=1e-5, atol=1e-5)


def test_whoever_looks_on_sees_a_known_call(known):
    _, ours, x = known
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **kwargs or {})

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **kwargs or {})

    with Functions():
        ours(x)
    with Dispatched():
        ours(x)
    assert "conv2d_layer" in seen and "kernels_from_math.conv2d.default" in seen
    with torch.autocast(runtime.device.type, torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        ours(forward_ad.make_dual(x, x))
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(ours)(x[None])
