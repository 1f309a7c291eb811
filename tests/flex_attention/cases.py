"""The zoo as test cases, arguments in every layout that breaks kernels, and the comparison with the float64 reference."""

import functools

import torch
import torch.nn.functional as F

from kernels import runtime
from kernels.flex_attention import (
    AuxRequest,
    create_block_mask,
    decoding,
    flex_attention,
    mods,
    noop_mask,
    operator,
    or_masks,
    plain_backward,
)
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import dq as hopper_dq
from kernels.flex_attention.hopper import forward as hopper_forward
from kernels.flex_attention.hopper import rows as hopper_rows
from kernels.flex_attention.reference import flex_attention_reference
from tests import tensors
from tests.tensors import place

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
B, HQ, HKV, M, N, D, DV = 2, 2, 1, 37, 41, 20, 24


def ints(*values):
    return torch.tensor(values, device=runtime.device)


def document_ids(*lengths):
    return torch.repeat_interleave(torch.arange(len(lengths), device=runtime.device), ints(*lengths))


def morton(index):
    """Even and odd bits of an index, taken apart with shifts and masks."""

    def even_bits(code):
        code = code & 0x55555555
        code = (code | (code >> 1)) & 0x33333333
        return (code | (code >> 2)) & 0x0F0F0F0F

    return even_bits(index), even_bits(index >> 1)


def morton_neighbours(b, h, q_idx, kv_idx):
    (qx, qy), (kx, ky) = morton(q_idx), morton(kv_idx)
    return ((qx - kx).abs() <= 1) & ((qy - ky).abs() <= 1)


def training_blocks(prefix_length, block):
    """Sampled blocks behind a prefix: `//` and `%` of numbers below zero, which Python rounds down."""

    def mask(b, h, q_idx, kv_idx):
        key = kv_idx - prefix_length
        own = (q_idx // block == key // block) & (key % block <= q_idx % block)
        return (kv_idx < prefix_length) | (own & (key >= 0))

    return mask


def mixed(score, b, h, q_idx, kv_idx):
    """Powers, sigmoid, where, minimum, maximum, comparisons, remainders, shifts, integer powers."""
    gate = torch.sigmoid(score) ** 1.5
    near = torch.where((kv_idx - q_idx) % 3 == 1, gate, torch.maximum(score, (score.abs() + 0.5).sqrt()))
    return near + torch.minimum((q_idx >> 1) * 0.01, (kv_idx**2) * 1e-3) + score.clamp(-1, 1) ** 3 - 0.5**b


def elementary(score, b, h, q_idx, kv_idx):
    """The functions Triton lacks, and float rounding."""
    x = torch.log1p(score * score) + torch.expm1(-score.abs()) + torch.rsqrt(1 + score**2)
    return (
        x
        + torch.tanh(score) * torch.cos(score)
        + torch.floor((q_idx + 1) / 3) * 0.1
        + F.silu(score)
        + F.softplus(score)
    )


def scaled_by(*factors):
    def scaled(score, b, h, q_idx, kv_idx):
        for factor in factors:
            score = score * factor[h]
        return score

    return scaled


def bias_twice(bias):
    def mod(score, b, h, q_idx, kv_idx):
        return score + bias[h, q_idx, kv_idx] + 0.5 * bias[h][kv_idx % 37][q_idx]

    return mod


def chained(slopes, gates):
    """Whole tensors computed from captured ones, on both sides of the kernel."""

    def mod(score, b, h, q_idx, kv_idx):
        return score * torch.sigmoid(gates)[h] - slopes.exp()[h] * (q_idx - kv_idx).abs() + slopes.sum()

    return mod


def without_score(table):
    def mod(score, b, h, q_idx, kv_idx):
        return table[kv_idx]

    return mod


def dead_rows(score, b, h, q_idx, kv_idx):
    return torch.where(q_idx % 5 == 0, -float("inf"), score)


def added_conditions(score, b, h, q_idx, kv_idx):
    """torch's sum of two conditions is "or", their product "and"."""
    return score + ((q_idx >= kv_idx) + (kv_idx < 4)) - 0.5 * ((q_idx < 9) * (kv_idx < 9))


def squared(score, b, h, q_idx, kv_idx):
    return score * score


# name -> function of ``tensor(*shape)``, which makes a tensor that wants a gradient; gives keyword arguments of ``check``.
ZOO = {
    "nothing": lambda tensor: {},
    "no mask, no score": lambda tensor: {"mask_mod": noop_mask},
    "causal": lambda tensor: {"mask_mod": mods.causal},
    "causal as a score mod": lambda tensor: {"score_mod": mods.causal_score},
    "sliding window": lambda tensor: {"mask_mod": mods.sliding_window(9)},
    "prefix": lambda tensor: {"mask_mod": mods.prefix_causal(12)},
    "document": lambda tensor: {"mask_mod": mods.document(document_ids(5, 1, 20, 15))},
    "document causal": lambda tensor: {"mask_mod": mods.document(document_ids(5, 1, 20, 15), mods.causal)},
    "document per row": lambda tensor: {
        "mask_mod": mods.document(torch.stack([document_ids(5, 1, 20, 15), document_ids(40, 1)]), mods.causal)
    },
    "dilated window": lambda tensor: {"mask_mod": mods.dilated_sliding_window(12, 3)},
    "global and window": lambda tensor: {
        "mask_mod": mods.global_and_window(torch.arange(41, device=runtime.device) % 11 == 0, 4)
    },
    "natten": lambda tensor: {"mask_mod": mods.natten(6, 6, 3), "shape": (1, 1, 1, 36, 36, 16, 16)},
    "morton natten": lambda tensor: {"mask_mod": morton_neighbours},
    "block diffusion": lambda tensor: {"mask_mod": mods.block_diffusion(20, 4)},
    "jagged": lambda tensor: {"mask_mod": mods.jagged(ints(17, 37))},
    "shared prefix": lambda tensor: {
        "mask_mod": mods.shared_prefix(document_ids(10, 12, 19), ints(0, 10, 22, 41), ints(0, 0, 0))
    },
    "tree": lambda tensor: {"mask_mod": mods.tree(4, torch.eye(37, device=runtime.device).cumsum(0).bool())},
    "training blocks": lambda tensor: {"mask_mod": training_blocks(9, 8)},
    "vision": lambda tensor: {"mask_mod": mods.vision_cross(ints([0, 11], [11, 30], [30, 31]), 14)},
    "batched": lambda tensor: {"mask_mod": mods.batched(mods.causal, 10)},
    "or of three": lambda tensor: {
        "mask_mod": or_masks(mods.prefix(3), mods.sliding_window(2), mods.dilated_sliding_window(40, 8))
    },
    "nothing allowed": lambda tensor: {"mask_mod": lambda b, h, q_idx, kv_idx: q_idx < 0},
    "heads differ": lambda tensor: {
        "mask_mod": lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | (h == b),
        "mask_heads": True,
    },
    "alibi": lambda tensor: {"score_mod": mods.alibi(HQ), "mask_mod": mods.causal},
    "learned alibi": lambda tensor: {"score_mod": mods.learned_alibi(tensor(HQ)), "mask_mod": mods.causal},
    "softcap": lambda tensor: {"score_mod": mods.softcap(3.0)},
    "relative bias": lambda tensor: {"score_mod": mods.relative_bias(tensor(HQ, M, N)), "mask_mod": mods.causal},
    "relative table": lambda tensor: {
        "score_mod": mods.relative_table(tensor(HQ, 81)),
        "mask_mod": mods.sliding_window(9),
    },
    "sandwich": lambda tensor: {"score_mod": mods.sandwich(HQ, 41, device=runtime.device)},
    "graph distance": lambda tensor: {
        "score_mod": mods.graph_distance(
            tensor(HQ, 6), (torch.arange(B * M * N) * 7 % 6).view(B, M, N).to(runtime.device)
        )
    },
    "head scale": lambda tensor: {"score_mod": mods.head_scale(tensor(HQ))},
    "temperature": lambda tensor: {"score_mod": mods.temperature(tensor())},
    "activation": lambda tensor: {"score_mod": mods.activation()},
    "two tensors": lambda tensor: {"score_mod": scaled_by(tensor(HQ), tensor(HQ))},
    "same tensor twice": lambda tensor: {"score_mod": bias_twice(tensor(HQ, N, N))},
    "chained": lambda tensor: {"score_mod": chained(tensor(HQ), tensor(HQ))},
    "without the score": lambda tensor: {"score_mod": without_score(tensor(N))},
    "plus 100": lambda tensor: {"score_mod": lambda score, b, h, q_idx, kv_idx: score + 100},
    "squared": lambda tensor: {"score_mod": squared, "scale": 0.1},
    "added conditions": lambda tensor: {"score_mod": added_conditions},
    "mixed": lambda tensor: {"score_mod": mixed},
    "elementary": lambda tensor: {"score_mod": elementary},
    "dead rows": lambda tensor: {"score_mod": dead_rows, "mask_mod": mods.causal},
}


LAYOUTS = ("flat", "padded", "heads inside", "transposed")
relative_error = functools.partial(tensors.relative_error, least=1e-3)


def zoo(name, dtype=torch.float32, seed=1):
    """The case's keyword arguments and the tensors it captures that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    learned = []

    def tensor(*shape):
        values = torch.rand(shape, generator=generator) + 0.5
        learned.append(values.to(runtime.device, dtype).requires_grad_())
        return learned[-1]

    return ZOO[name](tensor), learned


def check(
    name="nothing", *, shape=None, dtype=torch.float32, layout="flat", BLOCK_SIZE=32, seed=0, kv_batch=None, tolerance=None,
    score_mod=None, mask_mod=None, block_mask=None, scale=None, **kernel_options,
):  # fmt: skip
    """Forward, lse, and all gradients (also of the captured tensors) of one case of the zoo against the float64 reference."""
    case, learned = zoo(name)
    exact_case, exact_learned = zoo(name, torch.float64)
    shape = shape or case.get("shape", (B, HQ, HKV, M, N, D, DV))
    b, hq, hkv, m, n, d, dv = shape
    generator = torch.Generator().manual_seed(seed)

    def tensor(*size):
        return place(torch.randn(size, generator=generator).to(dtype), layout).requires_grad_()

    qkv = [tensor(b, hq, m, d), tensor(kv_batch or b, hkv, n, d), tensor(kv_batch or b, hkv, n, dv)]
    exact = [t.detach().double().requires_grad_() for t in qkv]
    mask_mod = mask_mod or case.get("mask_mod")
    heads = hq if case.get("mask_heads") else None
    if block_mask is None and mask_mod is not None:
        block_mask = create_block_mask(mask_mod, b, heads, m, n, device=runtime.device, BLOCK_SIZE=BLOCK_SIZE)
    options = {"scale": scale or case.get("scale"), "enable_gqa": hq != hkv, "return_aux": AuxRequest(True, True)}
    ours, aux = flex_attention(
        *qkv, score_mod or case.get("score_mod"), block_mask, kernel_options=kernel_options, **options
    )
    want, exact_aux = flex_attention_reference(*exact, score_mod or exact_case.get("score_mod"), block_mask, **options)
    do, dlse = (torch.randn(t.shape, generator=generator) for t in (ours, aux.lse))
    do, dlse = place(do.to(dtype), layout), dlse.to(runtime.device)
    grads = torch.autograd.grad((ours, aux.lse), [*qkv, *learned], (do, dlse))
    wanted = torch.autograd.grad(
        (want, exact_aux.lse),
        [*exact, *exact_learned],
        (do.double(), dlse.double()),
        materialize_grads=True,
        allow_unused=True,
    )

    assert ours.dtype == dtype and aux.lse.dtype == aux.max_scores.dtype == torch.float32
    for name, got, expected in (("lse", aux.lse, exact_aux.lse), ("max_scores", aux.max_scores, exact_aux.max_scores)):
        dead = expected == -float("inf")
        assert torch.equal(got == -float("inf"), dead), name
        error = relative_error(got.masked_fill(dead, 0), expected.masked_fill(dead, 0))
        assert error <= TOLERANCE[dtype], f"{name}: relative error {error:.1e}"
    names = ["o", "dq", "dk", "dv", *(f"gradient of captured tensor {i}" for i in range(len(learned)))]
    for name, got, expected in zip(names, (ours, *grads), (want, *wanted), strict=True):
        assert got.shape == expected.shape, name
        error = relative_error(got, expected)
        assert error <= (tolerance or TOLERANCE[dtype]), f"{name}: relative error {error:.1e}"
    return ours, grads


def resolved(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, options=None):
    """``(problem, inputs)`` of a call."""
    arguments = operator._arguments(query, key, value, score_mod, block_mask, scale, enable_gqa, options)
    plan, x, _ = operator._resolved(query, key, value, *arguments)
    return plan.problem, x


def outputs(p):
    """Memory for ``(o, lse, top)`` of a problem."""
    o = torch.empty_strided(*p.outputs, dtype=p.dtype, device=p.device)
    return o, *(torch.empty(o.shape[:3], device=p.device) for _ in range(2))


def replace_launch(monkeypatch, make):
    """``make(launch)`` in place of ``launch`` wherever a kernel of this operator is launched."""
    for module in (operator, decoding, plain_backward, hopper_forward, hopper_backward, hopper_dq, hopper_rows):
        monkeypatch.setattr(module, "launch", make(module.launch))
