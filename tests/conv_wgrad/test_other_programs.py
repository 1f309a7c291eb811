"""``Conv2d`` inside other people's programs: what they do to its output, call it with, and count, trace and hook."""

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from kernels import runtime
from kernels.conv_wgrad import Conv2d, conv2d, conv2d_wgrad
from kernels.conv_wgrad.reference import conv2d_reference
from tests.conv_wgrad import cases
from tests.conv_wgrad.test_module import compare, pair


class Vgg(nn.Module):
    """Convolutions, each followed by something in place, and a view at the end, as in VGG and AlexNet."""

    def __init__(self, convolution):
        super().__init__()
        self.features = nn.Sequential(
            convolution(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            convolution(8, 8, 3, padding=1, groups=2), nn.Hardswish(inplace=True),
            convolution(8, 4, 1, bias=False), nn.SiLU(inplace=True),
        )  # fmt: skip
        self.classifier = nn.Linear(4 * 16, 5)

    def forward(self, x):
        y = self.features(x)
        return self.classifier(y.view(y.shape[0], -1) if y.is_contiguous() else y.flatten(1))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_what_follows_in_place_trains_as_with_torch(memory_format):
    torch.manual_seed(0)
    theirs, ours = Vgg(nn.Conv2d).to(runtime.device), Vgg(Conv2d).to(runtime.device)
    ours.load_state_dict(theirs.state_dict())
    compare(theirs, ours, cases.randn(2, 3, 8, 8).contiguous(memory_format=memory_format))


def test_the_functional_form_takes_what_follows_in_place():
    x, weight = cases.randn(1, 6, 6, 4, grad=True), cases.randn(4, 3, 3, 4, grad=True)
    conv2d(x, weight).relu_().sum().backward()
    assert x.grad.isfinite().all() and weight.grad.isfinite().all()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 6, 7), (2, 4, 1, 1), (0, 4, 6, 7)])
def test_the_output_is_stored_as_torchs(shape, memory_format):
    theirs, ours = pair(4, 8, 3, padding=1)
    x = cases.randn(*shape).contiguous(memory_format=memory_format)
    assert ours(x).stride() == theirs(x).stride()


@pytest.mark.parametrize("shape", [(3, 4, 6, 1), (3, 4, 1, 6), (1, 4, 1, 1), (2, 1, 6, 7)], ids=str)
def test_the_output_of_any_order_in_memory_is_stored_as_torchs(shape):
    theirs, ours = pair(shape[1], 8, 3, padding=1)
    for order in itertools.permutations(range(4)):
        x = cases.randn(*(shape[d] for d in order)).permute([order.index(d) for d in range(4)])
        assert ours(x).stride() == theirs(x).stride(), order


def test_float64_is_torchs_own():
    theirs, ours = pair(4, 8, 3, padding=1)
    compare(theirs.double(), ours.double(), cases.randn(2, 4, 6, 6).double())


def test_on_the_meta_device():
    layer = Conv2d(4, 8, 3, stride=2, device="meta")
    y = layer(torch.empty(2, 4, 9, 9, device="meta"))
    assert y.shape == (2, 8, 4, 4) and y.device.type == "meta"


def test_operations_are_counted_as_torch_counts_its_own():
    x = cases.randn(2, 4, 6, 6).requires_grad_()
    counted = []
    for layer in (*pair(4, 8, 3, padding=1), pair(4, 8, 3, padding=1, groups=2)[1]):
        with FlopCounterMode(display=False) as counter:
            layer(x).sum().backward()
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1] == 2 * counted[2] > 0  # of two groups torch counts the weight's gradient twice
    with FlopCounterMode(display=False) as counter:
        conv2d_wgrad(cases.randn(2, 6, 6, 4), cases.randn(2, 6, 6, 8), 3, 3, padding=1)
    assert counter.get_total_flops() == 2 * (2 * 6 * 6) * 8 * (3 * 3 * 4)


@pytest.mark.parametrize("shape", [(4, 6, 6), (2, 4, 6, 6)])
def test_hooks_are_called_once_a_call(shape):
    called = []
    _, layer = pair(4, 8, 3)
    layer.register_forward_hook(lambda *_: called.append("after"))
    layer.register_forward_pre_hook(lambda *_: called.append("before"))
    layer(cases.randn(*shape))
    assert called == ["before", "after"]


OTHER_FORMS = {
    "one number in a tuple": lambda layer: vars(layer).update(padding=(1,), stride=(2,), dilation=[1]),
    "a number": lambda layer: vars(layer).update(padding=1, stride=2),
    "a word": lambda layer: vars(layer).update(padding="same"),
    "a list": lambda layer: vars(layer).update(padding=[1, 0], stride=[2, 1]),
    "other sides of another mode": lambda layer: vars(layer).update(
        padding_mode="circular", _reversed_padding_repeated_twice=[2, 1, 0, 1]
    ),
    "zeros that another mode does not read": lambda layer: vars(layer).update(
        padding_mode="reflect", _reversed_padding_repeated_twice=[1, 1, 1, 1], padding=0
    ),
    "a word, and a larger filter": lambda layer: (
        vars(layer).update(padding="same"),
        setattr(
            layer, "weight", nn.Parameter(torch.linspace(-1, 1, 8 * 4 * 5 * 4, device=runtime.device).view(8, 4, 5, 4))
        ),
    ),
    "a function in the place of torch's": lambda layer: vars(layer).update(
        _conv_forward=lambda x, weight, bias: F.conv2d(F.pad(x, (1, 1, 0, 0), mode="circular"), 2 * weight, bias)
    ),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_what_is_set_on_a_layer(name):
    """``torch.nn.Conv2d`` reads all of it at each call."""
    both = pair(4, 8, 3)
    for layer in both:
        OTHER_FORMS[name](layer)
    compare(*both, cases.randn(2, 4, 7, 6))


def test_subclasses_call_and_override_what_torchs_forward_calls():
    def subclass(of):
        class Standardised(of):
            def _conv_forward(self, input, weight, bias):
                return super()._conv_forward(input, weight - weight.mean((1, 2, 3), keepdim=True), bias)

        return Standardised

    made = [subclass(of)(4, 8, 3, padding=1) for of in (nn.Conv2d, Conv2d)]
    made[1].load_state_dict(made[0].state_dict())
    compare(*(layer.to(runtime.device) for layer in made), cases.randn(2, 4, 6, 6))
    with cases.launches() as seen:
        made[1](cases.randn(2, 4, 6, 6)).sum().backward()
    assert list(seen)


def test_too_many_sides_are_refused():
    for options, message in (({"padding": (1, 2, 3, 4)}, "padding is"), ({"stride": (1, 2, 3)}, "stride is")):
        layer = Conv2d(4, 8, 3, **options).to(runtime.device)
        with pytest.raises(ValueError, match=message):
            layer(cases.randn(2, 4, 6, 6))


def test_a_scripted_layer_is_torchs():
    theirs, ours = pair(4, 8, 3, padding=1, padding_mode="reflect")
    x = cases.randn(2, 4, 6, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to give this up
        torch.testing.assert_close(torch.jit.script(nn.Sequential(ours))(x), theirs(x))


def test_symbolic_trace_and_jit_trace():
    network = nn.Sequential(Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace=True), Conv2d(8, 4, 1)).to(runtime.device)
    x = cases.randn(2, 4, 6, 6)
    want = network(x)
    torch.testing.assert_close(torch.fx.symbolic_trace(network)(x), want)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.jit.trace(network, (x,))(x), want)


def test_transforms_say_that_they_are_not_there():
    _, layer = pair(4, 8, 3)
    x = cases.randn(2, 4, 6, 6)
    with pytest.raises(RuntimeError, match="Conv2d cannot run under torch.func's jvp"):
        torch.func.jvp(layer, (x,), (torch.ones_like(x),))
    with pytest.raises(RuntimeError, match="has no forward-mode derivative"), torch.autograd.forward_ad.dual_level():
        layer(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
    with pytest.raises(RuntimeError, match="no second derivative"):
        leaf = x.requires_grad_()
        (gradient,) = torch.autograd.grad(layer(leaf).square().sum(), leaf, create_graph=True)
        gradient.sum().backward()


def test_a_wrong_call_is_still_named():
    _, layer = pair(4, 8, 3)
    with pytest.raises(ValueError, match=r"input has shape \[2, 5, 6, 6\], needs \[N, Ci, H, W\]"):
        layer(cases.randn(2, 5, 6, 6))
    with pytest.raises(ValueError, match="input must be a tensor"):
        layer([1.0])
    with pytest.raises(ValueError, match="weight has dtype float32, needs one of float16"):
        layer(cases.randn(2, 4, 6, 6).half())
    with pytest.raises(ValueError, match="needs to fit in the padded input"):
        layer(cases.randn(2, 4, 2, 2))
    for images in (2, 0):  # of none torch would add a bias of one number without a word
        x = cases.randn(images, 4, 6, 6)
        layer.bias = nn.Parameter(cases.randn(8))
        layer(x)
        wrong = {r"bias has shape \[1\]": cases.randn(1), "bias has dtype float16": cases.randn(8).half()}
        wrong["bias is sparse_coo"] = cases.randn(8).to_sparse()
        for message, bias in wrong.items():
            layer.bias = nn.Parameter(bias)
            with pytest.raises(ValueError, match=message):
                layer(x)


def test_a_quantized_image_is_named():
    _, layer = pair(4, 8, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.quantize_per_tensor(torch.zeros(2, 4, 6, 6), 0.1, 0, torch.qint8)
    with pytest.raises(ValueError, match="input is a quantized tensor"):
        layer(x)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_float64_is_torchs_own_under_torch_func(padding_mode):
    """Where there is no kernel of ours, there is nothing that a transform lacks a rule for."""
    theirs, ours = (layer.double() for layer in pair(4, 8, 3, padding=1, padding_mode=padding_mode))
    x, parameters = cases.randn(2, 4, 6, 6).double(), dict(theirs.named_parameters())
    loss = lambda layer, x, p: torch.func.functional_call(layer, p, (x,)).square().sum()  # noqa: E731
    for transformed in (
        lambda layer: torch.func.grad(loss, argnums=2)(layer, x, parameters),
        lambda layer: torch.func.grad(lambda x: layer(x).square().sum())(x),
        lambda layer: torch.func.vmap(lambda x: torch.func.grad(loss, argnums=2)(layer, x, parameters))(x),
        lambda layer: torch.func.jvp(layer, (x,), (x,)),
        lambda layer: torch.func.vmap(layer)(x[:, None]),
    ):
        torch.testing.assert_close(transformed(ours), transformed(theirs))
    with pytest.raises(RuntimeError, match="Conv2d cannot run under torch.func's vmap"):
        torch.func.vmap(ours.float())(x[:, None].float())


@pytest.mark.parametrize("kernel", [(3, 3), (4, 2)], ids=str)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(padding, kernel):
    x, weight = cases.randn(2, 7, 6, 4).requires_grad_(), cases.randn(8, *kernel, 4).requires_grad_()
    rest = {"padding": padding, "dilation": (2, 1)}
    y = conv2d(x, weight, **rest)
    want = F.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), **rest).permute(0, 2, 3, 1)
    torch.testing.assert_close(y, want)
    dy = torch.randn_like(y)
    (dw,) = torch.autograd.grad(want, weight, dy)
    torch.testing.assert_close(torch.autograd.grad(y, weight, dy)[0], dw, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(conv2d_wgrad(x.detach(), dy, *kernel, **rest), dw, rtol=1e-4, atol=1e-4)
    assert conv2d_wgrad.explain(x.detach(), dy, *kernel, **rest)
    torch.testing.assert_close(conv2d_reference(x, weight, **rest), want)
    with pytest.raises(ValueError, match='padding is .full., needs "valid" or "same"'):
        conv2d(x, weight, padding="full")
    with pytest.raises(ValueError, match='stride is .2, 2., needs 1 with padding="same"'):
        conv2d(x, weight, stride=2, padding="same")
