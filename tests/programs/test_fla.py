"""flash-linear-attention's layers with our operators in place of its own.

Its own run on GPUs alone, so what is compared with is what it states of them in PyTorch (``fla.ops.*.naive``), in the same
layers. Norms and rotations, which are Triton kernels there, too, are restated in PyTorch on both sides.
"""

import types

import pytest
import torch
import torch.nn.functional as F

from kernels import runtime
from kernels.dynamic_conv import dynamic_conv
from kernels.dynamic_conv.causal_conv1d import causal_conv1d_update
from kernels.recurrent_attention import recurrent_attention
from tests.programs.installed import documented, program

layers = program("fla.layers")
SimpleGatedLinearAttention = program("fla.layers.simple_gla").SimpleGatedLinearAttention
Cache = program("fla.models.utils").Cache
convolutions = program("fla.modules.causal_conv1d.ops")
gla, simple_gla, linear_attn = (program(f"fla.ops.{name}.naive") for name in ("gla", "simple_gla", "linear_attn"))

DEVICE = runtime.device


def retention_gates(H):
    return torch.log(1 - 2.0 ** (-5 - torch.arange(H, device=DEVICE)))


# Ours by its names: those that our documentation has, and linear attention.
OURS = documented("flash-linear-attention")


def our_linear_attn(q, k, v, normalize=False, initial_state=None, output_final_state=False, scale=None, **options):
    """Normalised: a column of ones beside v sums what the other columns are divided by; the sum of keys is the state's."""
    if not normalize:
        rest = {"initial_state": initial_state, "output_final_state": output_final_state, "scale": scale}
        return recurrent_attention(q, k, v, **rest, **options)
    if initial_state is not None:
        S, z = initial_state
        initial_state = torch.cat([S, z.transpose(1, 2).mT], -1)  # z [N, 1, H, K]
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    o, last = recurrent_attention(
        *(q, k, v), initial_state=initial_state, output_final_state=output_final_state, scale=scale, **options
    )
    o = (o[..., :-1] / (o[..., -1:] + 1e-10)).to(q.dtype)
    return o, (last[..., :-1], last[..., -1][:, None]) if output_final_state else None


OURS["linear_attn"] = our_linear_attn


def our_convolution(x, weight, bias=None, residual=None, initial_state=None, output_final_state=False, **options):
    """Its cache holds W inputs, ours W - 1: the first is read no more."""
    W = weight.shape[-1]
    y = dynamic_conv(
        *(x, weight),
        bias=bias,
        residual=residual,
        activation=options["activation"],
        initial_state=None if initial_state is None else initial_state[..., 1:],
        cu_seqlens=options.get("cu_seqlens"),
    )
    return y, last_inputs(x, initial_state, options.get("cu_seqlens"), W) if output_final_state else None


def our_update(x, cache, residual=None, weight=None, bias=None, activation=None, **options):
    y = causal_conv1d_update(x.flatten(0, 1), cache, weight, bias, activation)
    return y.view_as(x) + (0 if residual is None else residual), cache


# Its own statements, with what they lack: packed sequences and states with the values first.


def stated(name):
    def one(q, k, v, g, initial_state):
        options = {"initial_state": initial_state, "output_final_state": True}
        if name == "gla":
            return gla.naive_recurrent_gla(q, k, v, g, **options)
        if name == "retention":
            g = retention_gates(q.shape[2]).expand(q.shape[:3])
        return simple_gla.naive_chunk_simple_gla(q, k, v, g, **options)

    def operator(q, k, v, g=None, gk=None, initial_state=None, output_final_state=False, **options):
        g, turned = g if gk is None else gk, options.get("state_v_first", False)
        initial_state = initial_state.mT if turned and initial_state is not None else initial_state
        cu_seqlens = options.get("cu_seqlens")
        if cu_seqlens is None:
            o, last = one(q, k, v, g, initial_state)
        else:
            parts = []
            for n, (i, j) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
                rows = (None if t is None else t[:, i:j] for t in (q, k, v, g))
                parts.append(one(*rows, None if initial_state is None else initial_state[n : n + 1]))
            o, last = torch.cat([o for o, _ in parts], 1), torch.cat([S for _, S in parts])
        return o, (last.mT if turned else last) if output_final_state else None

    return operator


STATED = {name: stated(name) for name in ("gla", "simple_gla", "retention")}
STATED["linear_attn"] = lambda *tensors, cu_seqlens=None, **o: linear_attn.naive_recurrent_linear_attn(*tensors, **o)


def last_inputs(x, cache, cu_seqlens, W):
    ends = [(b, 0, x.shape[1]) for b in range(x.shape[0])]
    if cu_seqlens is not None:
        ends = [(0, *pair) for pair in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)]
    rows = [x[b, i:j].mT for b, i, j in ends]
    before = x.new_zeros(len(rows), x.shape[-1], W) if cache is None else cache
    return torch.stack([torch.cat([old, new], -1)[..., -W:] for old, new in zip(before, rows, strict=True)])


def stated_convolution(x, weight, bias=None, residual=None, initial_state=None, output_final_state=False, **options):
    W, cu_seqlens = weight.shape[-1], options.get("cu_seqlens")
    rows = x.unbind() if cu_seqlens is None else x[0].split(cu_seqlens.diff().tolist())
    before = x.new_zeros(len(rows), x.shape[-1], W) if initial_state is None else initial_state
    outs = []
    for old, row in zip(before, rows, strict=True):
        y = F.conv1d(torch.cat([old[:, 1:], row.mT], -1), weight[:, None], bias, groups=x.shape[-1])
        outs.append((F.silu(y) if options["activation"] else y).mT)
    y = torch.cat(outs).view_as(x)
    return y + (0 if residual is None else residual), (
        last_inputs(x, initial_state, cu_seqlens, W) if output_final_state else None
    )


def stated_update(x, cache, residual=None, **options):
    y, new = stated_convolution(x.view(cache.shape[0], 1, -1), initial_state=cache, output_final_state=True, **options)
    cache.copy_(new)
    return y.view_as(x) + (0 if residual is None else residual), cache


# What surrounds them, in PyTorch.


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 if weight is None else weight)


def rotary(self, q, k, seqlen_offset=0, max_seqlen=None, cu_seqlens=None):
    T = q.shape[1]
    places = torch.arange(T, device=q.device)
    if cu_seqlens is not None:
        places = torch.cat([torch.arange(n, device=q.device) for n in cu_seqlens.diff().tolist()])
    angles = (places + seqlen_offset)[:, None, None] * self.inv_freq
    turned = []
    for x in (q, k):
        a, b = x.chunk(2, -1)
        turned.append(torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1))
    return turned


def in_pytorch(layer):
    for module in layer.modules():
        name = type(module).__name__
        if name == "RMSNorm":
            module.forward = types.MethodType(lambda self, x: rms_norm(x, self.weight, self.eps), module)
        if name == "FusedRMSNormGated":
            module.forward = types.MethodType(lambda self, x, g: rms_norm(x, self.weight, self.eps) * F.silu(g), module)
        if name == "RotaryEmbedding":
            module.forward = types.MethodType(rotary, module)
    return layer


def norm_linear(x, norm_weight, norm_bias, linear_weight, linear_bias, eps=1e-5):
    return F.linear(rms_norm(x, norm_weight, eps), linear_weight, linear_bias)


SIZES = {"hidden_size": 48, "num_heads": 2, "layer_idx": 0}
LAYERS = {
    "GLA": ("gla", "gla", layers.GatedLinearAttention, {"expand_k": 0.5}),
    "GLA, short convolutions": ("gla", "gla", layers.GatedLinearAttention, {"use_short_conv": True, "conv_bias": True}),
    "GLA, shared keys": ("gla", "gla", layers.GatedLinearAttention, {"num_kv_heads": 1, "use_output_gate": False}),
    "simple GLA": ("simple_gla", "simple_gla", SimpleGatedLinearAttention, {"expand_v": 1.0}),
    "retention": ("multiscale_retention", "retention", layers.MultiScaleRetention, {"expand_v": 1.0}),
    "HGRN-2": ("hgrn2", "gla", layers.HGRN2Attention, {"expand_ratio": 16, "num_heads": 3}),
    "linear attention": ("linear_attn", "linear_attn", layers.LinearAttention, {"feature_map": "elu"}),
    "normalised linear attention": (
        *("linear_attn", "linear_attn", layers.LinearAttention),
        {"feature_map": "relu", "do_feature_map_norm": True},
    ),
}
PACKED = [name for name in LAYERS if "linear attention" not in name]  # its statement of that has no packing


@pytest.fixture
def with_operators(monkeypatch):
    """``with_operators(name, ours)`` puts our operators, or its statements, where the layer's module looks for its own."""

    def put(name, ours):
        module = program(f"fla.layers.{LAYERS[name][0]}")
        operator = (OURS if ours else STATED)[LAYERS[name][1]]
        for prefix in ("chunk", "fused_chunk", "fused_recurrent"):
            target = f"{prefix}_{LAYERS[name][1]}"
            if hasattr(module, target):
                monkeypatch.setattr(module, target, operator)
        monkeypatch.setattr(convolutions, "causal_conv1d", our_convolution if ours else stated_convolution)
        monkeypatch.setattr(convolutions, "causal_conv1d_update", our_update if ours else stated_update)
        if name == "HGRN-2":
            monkeypatch.setattr(module, "rms_norm_linear", norm_linear)
            monkeypatch.setattr(module, "swish", F.silu)

    return put


def layer(name):
    torch.manual_seed(0)
    *_, kind, options = LAYERS[name]
    made = in_pytorch(kind(**SIZES | options)).to(DEVICE)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2.0 if parameter.ndim > 1 else 1.0)
    return made


def images(T=70, B=2):
    torch.manual_seed(1)
    return torch.randn(B, T, 48, device=DEVICE)


def close(got, want):
    assert (got - want).norm() <= 1e-4 * want.norm() + 1e-6


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_of_training(name, with_operators):
    """Longer than 64 tokens, from where on the layers choose the chunked operators."""
    answers = []
    for ours in (True, False):
        with_operators(name, ours)
        made, x = layer(name), images().requires_grad_()
        o, *_ = made(x)
        o.square().sum().backward()
        answers.append({"o": o.detach(), "x": x.grad} | {n: p.grad for n, p in made.named_parameters()})
    for key, want in answers[1].items():
        close(answers[0][key], want)


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
def test_a_prompt_then_tokens(name, with_operators):
    """With its cache, whose states are as its operators leave them: values first."""
    answers = []
    for ours in (True, False):
        with_operators(name, ours)
        made, cache = layer(name).eval(), Cache()
        parts = images(12).split([5, 4, 1, 1, 1], 1)  # several at once with a state, too
        outs = [made(part, past_key_values=cache, use_cache=True)[0] for part in parts]
        answers.append((torch.cat(outs, 1), cache[0]["recurrent_state"]))
    close(answers[0][0], answers[1][0])
    states = zip(*(a if isinstance(a, tuple) else (a,) for _, a in answers), strict=True)
    for got, want in states:
        assert got.shape == want.shape
        close(got, want)


@pytest.mark.parametrize("name", PACKED)
def test_padding_is_taken_out_and_sequences_packed(name, with_operators):
    answers = []
    kept = torch.ones(3, 11, dtype=torch.int64, device=DEVICE)
    kept[0, :4] = kept[2, :10] = 0
    for ours in (True, False):
        with_operators(name, ours)
        made, x = layer(name), images(11, 3).requires_grad_()
        o, *_ = made(x, attention_mask=kept)
        (o * kept[..., None]).square().sum().backward()
        answers.append((o.detach()[kept.bool()], x.grad))
    close(answers[0][0], answers[1][0])
    close(answers[0][1], answers[1][1])
