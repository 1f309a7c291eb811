"""A layer's call after one like it: whatever the checks, others, or the plan look at makes it another."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import runtime
from kernels.conv_wgrad import operator
from tests.conv_wgrad import cases
from tests.conv_wgrad.test_module import pair
from tests.tensors import LAYOUTS, agree, hooked, laid_out


@pytest.fixture
def known():
    """``(torch's layer, ours, images)`` that have been called."""
    theirs, ours = pair(4, 8, 3, padding=1)
    x = cases.randn(2, 4, 5, 6)
    ours(x)
    return theirs, ours, x


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
    for wrong, message in (
        (x.half(), "weight has dtype"),
        (x[:, :3], "input has shape"),
        ([x], "input must be a tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            ours(wrong)
    for wrong in (x.to_sparse(), torch.nested.nested_tensor([x, x])):
        with pytest.raises(ValueError, match="needs a dense tensor"):
            ours(wrong)
    last = x.contiguous(memory_format=torch.channels_last)
    assert ours(last).is_contiguous(memory_format=torch.channels_last) and ours(x).is_contiguous()
    torch.testing.assert_close(ours(last), theirs(last), rtol=1e-5, atol=1e-5)


def test_modes_and_transforms_see_every_call(known):
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


def gradients(ours, x, hook=None):
    leaves = [x.requires_grad_(), *ours.parameters()]
    with hooked(hook):
        y = ours(x)
    return y, leaves, torch.autograd.grad(y, leaves, varied(y), retain_graph=True)


def varied(like):
    """A gradient, the same for each of its shape."""
    return torch.arange(like.numel(), device=like.device).cos().to(like.dtype).view(like.shape)


def other(t, i):
    return laid_out(t, i, (0, 2, 3, 1))


@pytest.mark.parametrize("first", LAYOUTS)
def test_gradients_of_tensors_with_other_layouts(known, first):
    """The output's, which a program brings as it likes, and saved ones, which hooks may give back otherwise; after each."""
    _, ours, x = known
    ours = ours.to(memory_format=torch.channels_last) if first else ours
    y, leaves, want = gradients(ours, other(x, first))
    y = ours(leaves[0])
    for i in (first, *LAYOUTS, first):
        agree(torch.autograd.grad(y, leaves, other(varied(y), i), retain_graph=True), want)
    for saved in (x, ours.weight):
        for i in (first, *LAYOUTS):
            hook = lambda t, i=i: other(t, i) if t.shape == saved.shape else t  # noqa: B023, E731
            y, _, got = gradients(ours, leaves[0], hook)
            agree(got, want)
            agree(torch.autograd.grad(y, leaves, other(varied(y), first)), want)


def test_parameters_are_found_where_torch_finds_them(known):
    theirs, ours, x = known
    for one in (theirs, ours):  # as libraries put them there, past nn.Module
        one.__dict__["weight"] = torch.ones_like(one.weight)
    agree([ours(x)], [theirs(x)])
    for one in (theirs, ours):
        del one.__dict__["weight"], one.bias
        one.bias = torch.ones(8, device=x.device)
    agree([ours(x)], [theirs(x)])


def test_how_float32_is_multiplied_is_asked(known, monkeypatch):
    _, ours, x = known
    y, precisions = ours(x), []
    launch = operator.launch

    def seen(kernel, *given, **meta):
        if kernel.__name__ == "wgrad_kernel":
            precisions.append(meta["T"].PRECISION)
        launch(kernel, *given, **meta)

    monkeypatch.setattr(operator, "launch", seen)
    for how in ("ieee", "tf32", "ieee"):
        torch.backends.cudnn.conv.fp32_precision = how
        torch.autograd.grad(y, ours.weight, torch.ones_like(y), retain_graph=True)
    assert precisions == ["ieee", "tf32", "ieee"]
