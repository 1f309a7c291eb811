"""Random arguments in every layout that breaks kernels, and the comparison with the float64 reference."""

import itertools
import random

import torch

from kernels import runtime
from kernels.dynamic_conv import dynamic_conv
from kernels.dynamic_conv.reference import dynamic_conv_reference
from tests.tensors import place, relative_error

# Half a unit in the last place of the format, doubled for the input's own rounding never being counted twice.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 8e-4, torch.bfloat16: 6e-3}
LAYOUTS = ("flat", "padded", "transposed")


def check(
    B=2, T=13, D=12, W=4, *, dtype=torch.float32, weight_dtype=None, static=False, bias=False, residual=False,
    activation=None, state=False, final=False, cu_seqlens=None, layout="flat", seed=0,
):  # fmt: skip
    """Forward and all gradients of one case against the float64 reference."""
    generator = torch.Generator().manual_seed(seed)
    if cu_seqlens is not None:
        B, T = 1, cu_seqlens[-1]
    N = B if cu_seqlens is None else len(cu_seqlens) - 1

    def tensor(*shape, dtype=dtype):
        return place(torch.randn(shape, generator=generator).to(dtype), layout).requires_grad_()

    inputs = {"x": tensor(B, T, D)}
    inputs["weight"] = tensor(*((D, W) if static else (B, T, D, W)), dtype=weight_dtype or dtype)
    inputs["bias"] = tensor(D) if bias else None
    inputs["residual"] = tensor(B, T, D) if residual else None
    inputs["initial_state"] = tensor(N, D, W - 1) if state else None
    options = {"activation": activation, "output_final_state": final}
    options["cu_seqlens"] = None if cu_seqlens is None else torch.tensor(cu_seqlens, device=runtime.device)
    exact = {k: None if v is None else v.detach().cpu().double().requires_grad_() for k, v in inputs.items()}

    ours = dynamic_conv(**inputs, **options)
    want = dynamic_conv_reference(
        **exact, **{**options, "cu_seqlens": None if cu_seqlens is None else torch.tensor(cu_seqlens)}
    )
    ours, want = (out if final else (out,) for out in (ours, want))
    gradients = [torch.randn(out.shape, generator=generator) for out in want]
    leaves = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    grads = torch.autograd.grad(
        ours, leaves.values(), [place(g.to(o.dtype), layout) for g, o in zip(gradients, ours, strict=True)]
    )
    rounded = [g.to(o.dtype).double() for g, o in zip(gradients, ours, strict=True)]
    wanted = torch.autograd.grad(want, [exact[name] for name in leaves], rounded, materialize_grads=True)

    pairs = dict(zip(("y", "final_state"), zip(ours, want, strict=True), strict=False))
    pairs |= {f"d{name}": pair for name, *pair in zip(leaves, grads, wanted, strict=True)}
    for name, (got, expected) in pairs.items():
        assert got.shape == expected.shape, name
        if got.numel():
            error = relative_error(got, expected)
            assert error <= TOLERANCE[got.dtype], f"{name}: relative error {error:.1e}"
    assert ours[0].dtype == dtype
    assert all(grad.dtype == leaf.dtype for grad, leaf in zip(grads, leaves.values(), strict=True))


CHOICES = {
    "shape": [(2, 13, 12), (1, 37, 20), (3, 5, 7), (2, 9, 10)],
    "W": [1, 2, 3, 4, 8, 17],
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "weight_dtype": [None, torch.float32, torch.bfloat16],
    "static": [False, True],
    "bias": [False, True],
    "residual": [False, True],
    "activation": [None, "silu"],
    "state": [False, True],
    "final": [False, True],
    "packing": [None, [0, 3, 3, 4, 13, 18], [0, 0, 16], [0, 1, 2]],
    "layout": LAYOUTS,
}


def pairwise(choices, seed=0):
    """Cases in which every pair of values of every two options occurs: greedy, the same list every time."""
    rng = random.Random(seed)
    names = list(choices)
    left = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(choices[a]))
        for j in range(len(choices[b]))
    }
    pairs = lambda pick: {(a, pick[a], b, pick[b]) for a, b in itertools.combinations(names, 2)}  # noqa: E731
    while left:
        a, i, b, j = min(left)
        tries = [{n: rng.randrange(len(choices[n])) for n in names} | {a: i, b: j} for _ in range(60)]
        best = max(tries, key=lambda pick: len(pairs(pick) & left))
        left -= pairs(best)
        yield {n: choices[n][k] for n, k in best.items()}


def run(case):
    """``check`` of a case drawn from ``CHOICES``."""
    B, T, D = case["shape"]
    rest = {k: v for k, v in case.items() if k not in ("shape", "packing")}
    check(B, T, D, cu_seqlens=case["packing"], **rest)
