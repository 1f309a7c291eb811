"""Jet-Nemotron's layer: what its published model does with it, ours does with the same numbers."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from kernels import runtime
from kernels.dynamic_conv import DynamicShortConvolution, jet_nemotron

DEVICE = runtime.device
# Of its configurations, the widths divided by 32: values are wider than what the generator reads.
SIZES = {"hidden_size": 24, "kernel_size": 4, "generator_input_size": 12, "generator_reduction": 8}


class Published(nn.Module):
    """What the published layer computes (dynamic_conv.py there), restated: its constructor, names, arguments and caches."""

    def __init__(self, hidden_size, kernel_size, generator_input_size=None, generator_reduction=None, activation="silu"):
        super().__init__()
        self.W, self.activation = kernel_size, activation
        inner = hidden_size if generator_reduction is None else hidden_size // generator_reduction
        w1 = nn.Linear(generator_input_size or hidden_size, inner, bias=False)
        self.kernel_generator = nn.Sequential(
            OrderedDict(w1=w1, act=nn.SiLU(), w2=nn.Linear(inner, hidden_size * kernel_size))
        )

    def forward(self, x, mask=None, cache=None, output_final_state=False, cu_seqlens=None, generator_input=None):
        B, T, D = x.shape
        if mask is not None:
            x = x * mask[..., None]
        k = self.kernel_generator(x if generator_input is None else generator_input).view(B, T, D, self.W)
        before = x.new_zeros(B, D, self.W) if cache is None else cache
        seen = torch.cat([before, x.mT], -1)  # times -W to T-1
        y = torch.stack([(k[:, t] * seen[..., t + 1 : t + 1 + self.W]).sum(-1) for t in range(T)], 1)
        y = y if self.activation is None else nn.functional.silu(y)
        if cache is None and not output_final_state:
            return y, None
        cache = x.new_zeros(B, D, self.W) if cache is None else cache
        with torch.no_grad():
            cache.copy_(seen[..., -self.W :])
        return y, cache


def layers(**options):
    torch.manual_seed(0)
    published = Published(**SIZES | options).to(DEVICE)
    ours = jet_nemotron.DynamicShortConvolution(**SIZES | options, implementation="triton").to(DEVICE)
    ours.load_state_dict(published.state_dict())
    return published, ours


def inputs(B=2, T=9):
    torch.manual_seed(1)
    return torch.randn(B, T, 24, device=DEVICE), torch.randn(B, T, 12, device=DEVICE)


def test_a_published_checkpoint_loads_into_both_classes():
    published, ours = layers()
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [(n, p.shape) for n, p in published.named_parameters()]
    plain = nn.ModuleDict({"conv": DynamicShortConvolution(**SIZES)}).to(DEVICE)
    weights = nn.ModuleDict({"conv": published}).state_dict()
    names = list(weights)
    plain.load_state_dict(weights)
    assert list(weights) == names
    x, g = inputs()
    want, _ = published(x, generator_input=g)
    torch.testing.assert_close(plain["conv"](x, generator_input=g), want)
    other = copy.deepcopy(plain)  # its own names load, too
    other.load_state_dict(plain.state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        plain.load_state_dict({name: w for name, w in weights.items() if "w2.bias" not in name})
    back = nn.ModuleDict({"conv": jet_nemotron.DynamicShortConvolution(**SIZES)}).to(DEVICE)
    back.load_state_dict(plain.state_dict())
    torch.testing.assert_close(back["conv"](x, generator_input=g)[0], want)
    with pytest.raises(RuntimeError, match="Missing key.*kernel_generator.w2.bias"):
        back.load_state_dict({name: w for name, w in plain.state_dict().items() if "w2.bias" not in name})


@pytest.mark.parametrize("options", [{}, {"generator_reduction": None, "generator_input_size": 24}])
def test_the_generator_is_as_wide(options):
    """A fraction of the hidden size, whatever it reads; without a reduction all of it."""
    published, ours = layers(**options)
    assert ours.kernel_generator.w1.weight.shape == published.kernel_generator.w1.weight.shape
    assert DynamicShortConvolution(**SIZES | options).w1.weight.shape == published.kernel_generator.w1.weight.shape


@pytest.mark.parametrize("activation", ["silu", "swish", None])
def test_a_step_of_training(activation):
    published, ours = layers(activation=activation)
    answers = []
    for layer in (published, ours):
        x, g = (t.requires_grad_() for t in inputs())
        y, cache = layer(x=x, generator_input=g, mask=None, cache=None, output_final_state=False)
        assert cache is None
        y.square().sum().backward()
        answers.append([y.detach(), x.grad, g.grad, *(p.grad for p in layer.parameters())])
    for got, want in zip(*answers[::-1], strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("prompt", [1, 2, 3, 4, 7])
def test_a_prompt_then_tokens_as_its_block_calls_it(prompt):
    """Padded on the left; prompts shorter than the cache."""
    published, ours = layers()
    x, g = inputs()
    mask = torch.ones(2, 9, device=DEVICE)
    mask[1, : min(prompt, 3)] = 0
    answers = []
    for layer in (published, ours):
        given, outs = x.clone(), []
        y, cache = layer(given[:, :prompt], mask[:, :prompt], None, True, generator_input=g[:, :prompt])
        outs.append(y)
        for part in (slice(prompt, prompt + 1), slice(prompt + 1, 9)):  # a token, then more at once
            y, same = layer(given[:, part], mask[:, part], cache, True, generator_input=g[:, part])
            assert same is cache
            outs.append(y)
        assert torch.equal(given, x)
        answers.append((torch.cat(outs, 1), cache))
    (got, cache), (want, wanted_cache) = answers[::-1]
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    assert torch.equal(cache, wanted_cache)


def test_what_it_generates_from_is_masked_where_it_is_the_input():
    published, ours = layers(generator_input_size=24)
    x, _ = inputs()
    mask = torch.rand(2, 9, device=DEVICE) > 0.5
    torch.testing.assert_close(ours(x, mask)[0], published(x, mask)[0], atol=1e-6, rtol=1e-5)


def test_it_starts_as_a_static_convolution():
    layer = jet_nemotron.DynamicShortConvolution(**SIZES, static_conv_init=lambda k: k.normal_(std=0.5)).to(DEVICE)
    assert layer.kernel_generator.w2.bias.any() and not layer.kernel_generator.w2.weight.any()
    with pytest.raises(ValueError, match="generator_activation is 'relu'"):
        jet_nemotron.DynamicShortConvolution(8, 4, generator_activation="relu")


@torch.no_grad()
@pytest.mark.parametrize("kept", ["W", "W - 1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_on_a_pool_of_caches_at_any_strides(kept, dtype):
    """As serving engines keep them: channels innermost, all layers' side by side, picked by slots."""
    layer = DynamicShortConvolution(**SIZES).to(DEVICE, dtype)
    x, g = (t.to(dtype) for t in inputs())
    kept = 4 if kept == "W" else 3
    pool = torch.randn(7, 2, kept, 24, device=DEVICE, dtype=dtype)[:, 1].mT
    before, slots = pool.clone(), torch.tensor([5, 2], device=DEVICE)
    state = pool[slots, :, kept - 3 :]
    for t in range(3):
        want, state = layer(x[:, t : t + 1], generator_input=g[:, t : t + 1], state=state, output_final_state=True)
        got = layer.step(x[:, t], pool, generator_input=g[:, t], slots=slots)
        torch.testing.assert_close(got, want[:, 0])
    assert torch.equal(pool[slots, :, kept - 3 :], state)
    assert torch.equal(pool[slots], torch.cat([before[slots], x[:, :3].mT], -1)[..., -kept:])
    others = [0, 1, 3, 4, 6]
    assert torch.equal(pool[others], before[others])


@torch.no_grad()
def test_packed_sequences_have_a_cache_each():
    _, ours = layers()
    x, g = inputs(1, 12)
    ends = torch.tensor([0, 5, 5, 7, 12], device=DEVICE)
    caches = torch.randn(4, 24, 4, device=DEVICE)
    alone = caches.clone()
    y, _ = ours(x, None, caches, True, ends, g)
    for n, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        if end > begin:
            part, _ = ours(x[:, begin:end], None, alone[n : n + 1], True, None, g[:, begin:end])
            torch.testing.assert_close(y[:, begin:end], part)
    assert torch.equal(caches, alone)


def test_a_cache_under_training_is_a_constant():
    _, ours = layers()
    x, g = inputs()
    cache = torch.randn(2, 24, 4, device=DEVICE)
    state = cache[..., 1:].clone()
    y, after = ours(x.requires_grad_(), None, cache, True, None, g)
    y.square().sum().backward()
    plain = DynamicShortConvolution(**SIZES).to(DEVICE)
    plain.load_state_dict(ours.state_dict())
    other = x.detach().clone().requires_grad_()
    plain(other, generator_input=g, state=state).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    assert not after.requires_grad and torch.equal(after, x.detach()[:, -4:].mT)


def bad(**options):
    return lambda layer, x, cache: layer(x, **{"cache": cache} | options)


WRONG = [
    (bad(cache=torch.zeros(2, 24, 5)), r"cache has shape \[2, 24, 5\], needs .* \[2, 24, 4\]"),
    (bad(cache=torch.zeros(1, 24, 4).expand(2, 24, 4)), "cache has strides .*, needs no element twice"),
    (bad(cache=torch.zeros(2, 24, 4, requires_grad=True)), "cache requires a gradient"),
    (bad(state=torch.zeros(2, 24, 3)), "state and cache are both given"),
    (bad(mask=torch.ones(2, 8)), r"mask has shape \[2, 8\], needs \[B, T\] = \[2, 9\]"),
    (bad(cache=None, state=torch.zeros(1, 24, 3)), r"state has shape \[1, 24, 3\], needs .* \[2, 24, 3\]"),
    (bad(cache=None, state=torch.zeros(2, 24, 3).int()), "state has dtype int32"),
    (bad(cache=None, state="zeros"), "state must be a tensor"),
    (bad(cache=None, cu_seqlens=torch.tensor([0, 3, 9])), "cu_seqlens needs a batch of 1"),
    (lambda layer, x, cache: layer(x[:1], cu_seqlens=torch.tensor([0, 5, 3])), r"cu_seqlens is \[0, 5, 3\]"),
    (lambda layer, x, cache: layer(x[:1], cu_seqlens=[0, 3]), "cu_seqlens must be a tensor"),
    (lambda layer, x, cache: layer.step(x, cache), r"x has shape \[2, 9, 24\], needs \[B, D\]"),
    (lambda layer, x, cache: layer.step(x[:, 0], cache[:1]), "cache has shape"),
    (lambda layer, x, cache: layer.step(x[:, 0], cache, generator_input=x[:, 0, :5]), "generator_input has shape"),
    (lambda layer, x, cache: layer.step(x[:, 0], cache, slots=torch.tensor([1, 1])), "a state twice"),
]


@pytest.mark.parametrize("beside_a_gpu", [False, True])
@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_does_not_fit_is_named(call, message, beside_a_gpu, request):
    if beside_a_gpu:
        request.getfixturevalue("as_if_compiled")
    layer = DynamicShortConvolution(24, 4)
    with pytest.raises(ValueError, match=message):
        call(layer, torch.zeros(2, 9, 24), torch.zeros(2, 24, 4))


@torch.no_grad()
@pytest.mark.parametrize("slots", [None, [2, 0]])
def test_on_the_cpu_beside_a_gpu_the_reference_steps(as_if_compiled, slots):
    layer = DynamicShortConvolution(8, 3)
    x, cache = torch.randn(2, 4, 8), torch.randn(2 if slots is None else 3, 8, 3)
    slots = None if slots is None else torch.tensor(slots)
    rows = cache.clone() if slots is None else cache[slots]
    want = layer(x, state=rows[..., 1:])
    got = torch.stack([layer.step(x[:, t], cache, slots=slots) for t in range(4)], 1)
    torch.testing.assert_close(got, want)
    assert torch.equal(cache if slots is None else cache[slots], x[:, -3:].mT)
