"""The layer: its generator is the equation in its docstring, and it streams, packs and starts as it says."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from kernels import runtime
from kernels.common import checks
from kernels.dynamic_conv import DynamicShortConvolution
from kernels.dynamic_conv.reference import dynamic_conv_reference


def layer(*args, **options):
    torch.manual_seed(0)
    return DynamicShortConvolution(*args, **options).to(runtime.device)


def by_hand(module, x, g):
    """k = W2 silu(W1 g) + b2, y = silu(conv(x, k)), in float64 on the CPU."""
    x, g = x.detach().cpu().double(), g.detach().cpu().double()
    w1, w2, b2 = (p.detach().cpu().double() for p in (module.w1.weight, module.w2.weight, module.w2.bias))
    k = F.silu(g @ w1.T) @ w2.T + b2
    return dynamic_conv_reference(x, k.unflatten(-1, (module.hidden_size, -1)), activation=module.activation)


@pytest.mark.parametrize("activation", ["silu", None])
def test_the_layer_is_its_equation(activation):
    module = layer(8, 3, generator_input_size=6, generator_reduction=2, activation=activation)
    assert module.w1.weight.shape == (4, 6) and module.w1.bias is None and module.w2.weight.shape == (24, 4)
    x, g = torch.randn(2, 7, 8, device=runtime.device), torch.randn(2, 7, 6, device=runtime.device)
    before = x.clone()
    y = module(x, generator_input=g)
    torch.testing.assert_close(y.cpu().double(), by_hand(module, x, g), atol=1e-6, rtol=1e-5)
    assert torch.equal(x, before)


def test_every_parameter_and_the_input_get_their_gradient():
    module = layer(8, 4)
    x = torch.randn(2, 6, 8, device=runtime.device, requires_grad=True)
    module(x).square().sum().backward()
    grads = {name: p.grad.clone() for name, p in module.named_parameters()} | {"x": x.grad}
    reference = layer(8, 4).cpu().double()
    x64 = x.detach().cpu().double().requires_grad_()
    k = reference.w2(F.silu(reference.w1(x64))).unflatten(-1, (8, 4))
    dynamic_conv_reference(x64, k, activation="silu").square().sum().backward()
    wanted = {name: p.grad for name, p in reference.named_parameters()} | {"x": x64.grad}
    for name, grad in grads.items():
        torch.testing.assert_close(grad.cpu().double(), wanted[name], atol=1e-5, rtol=1e-4, msg=name)


def test_streaming_and_packing_equal_the_whole():
    module = layer(8, 4)
    x = torch.randn(1, 9, 8, device=runtime.device)
    whole, last = module(x, output_final_state=True)
    state, pieces = None, []
    for t in range(9):
        y, state = module(x[:, t : t + 1], state=state, output_final_state=True)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    assert torch.equal(state, last)
    packed = module(x, cu_seqlens=torch.tensor([0, 4, 4, 9], device=runtime.device))
    alone = torch.cat([module(x[:, :4]), module(x[:, 4:])], 1)
    torch.testing.assert_close(packed, alone)


@pytest.mark.parametrize("how", ["tensor", "function"])
def test_it_can_begin_as_a_static_convolution(how):
    kernel = torch.arange(24.0).view(8, 3) / 24
    init = kernel if how == "tensor" else (lambda k: k.copy_(kernel))
    module = layer(8, 3, static_conv_init=init)
    x = torch.randn(2, 5, 8, device=runtime.device)
    want = dynamic_conv_reference(x.cpu().double(), kernel.double(), activation="silu")
    torch.testing.assert_close(module(x).cpu().double(), want, atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match=r"static_conv_init has shape \[3, 8\], needs \[D, W\] = \[8, 3\]"):
        layer(8, 3, static_conv_init=kernel.T)


def test_a_state_dict_comes_back():
    module, other = layer(8, 3), DynamicShortConvolution(8, 3).to(runtime.device)
    other.load_state_dict(module.state_dict())
    x = torch.randn(1, 5, 8, device=runtime.device)
    assert torch.equal(module(x), other(x))


def test_on_the_cpu_beside_a_gpu_the_reference_computes(as_if_compiled, monkeypatch):
    """... and says so once: models are evaluated on the CPU, too."""
    monkeypatch.setattr(checks, "_left", set())
    layer = DynamicShortConvolution(8, 3)
    x = torch.randn(2, 5, 8, requires_grad=True)
    with pytest.warns(UserWarning, match="DynamicShortConvolution is given tensors on the CPU"):
        y, state = layer(x, output_final_state=True)
    weight = layer.w2(torch.nn.functional.silu(layer.w1(x))).unflatten(-1, (8, 3))
    want, last = dynamic_conv_reference(x, weight, activation="silu", output_final_state=True)
    torch.testing.assert_close((y, state), (want, last))
    pool, slots = torch.zeros(3, 8, 3), torch.tensor([2, -1])
    first = layer.step(x.detach()[:, 0], pool, slots=slots)
    torch.testing.assert_close(first, torch.stack([want[0, 0], torch.zeros(8)]))
    assert torch.equal(pool[2, :, -1], x[0, 0]) and pool[:2].count_nonzero() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x).sum().backward()
    with pytest.raises(ValueError, match=r"x has shape \[2, 5, 7\]"):
        layer(x[..., :7])
