"""No kernel touches memory outside its tensors, and no two programs write the same element, whatever the options."""

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import causal_block_mask, create_block_mask, flex_attention, mods, operator
from kernels.lab import trace
from tests.tensors import told_of_more

pytestmark = [
    pytest.mark.skipif(not runtime.interpreted, reason="addresses are seen in the interpreter"),
    pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning"),
]

CASES = {
    "plain": {},
    "one query, one key": {"M": 1, "N": 1},
    "causal, ragged": {"mask": mods.causal},
    "blocks that no tile divides": {"mask": mods.causal, "BLOCK_SIZE": (24, 40)},
    "odd head dimensions": {"D": 13, "DV": 21, "mask": mods.sliding_window(9)},
    "grouped heads": {"G": 2, "mask": mods.causal},
    "decoding": {"M": 2, "N": 100, "G": 2, "BLOCK_N": 16},
    "decoding, masked": {"M": 2, "N": 100, "mask": mods.causal, "BLOCK_N": 16},
    "captured tensors": {"bias": True, "mask": mods.causal},
}


@pytest.mark.parametrize("case", CASES)
def test_every_active_address_lies_inside_its_tensor(case):
    options = {
        "M": 37,
        "N": 41,
        "D": 16,
        "DV": 16,
        "G": 1,
        "mask": None,
        "BLOCK_SIZE": 16,
        "bias": False,
        "BLOCK_N": 32,
    }
    options |= CASES[case]
    M, N, D, DV, G = (options[name] for name in ("M", "N", "D", "DV", "G"))
    q, k, v = (torch.randn(1, h, n, d, requires_grad=True) for h, n, d in ((G, M, D), (1, N, D), (1, N, DV)))
    mask = options["mask"]
    if mask is not None:
        mask = create_block_mask(mask, 1, 1, M, N, device="cpu", BLOCK_SIZE=options["BLOCK_SIZE"])
    bias = torch.rand(G, M, N, requires_grad=True)
    mod = mods.relative_bias(bias) if options["bias"] else None
    with trace.recording() as t:
        o = flex_attention(q, k, v, mod, mask, enable_gqa=True, kernel_options={"BLOCK_N": options["BLOCK_N"]})
        leaves = [q, k, v, *([bias] if options["bias"] else [])]
        torch.autograd.grad(o, leaves, torch.ones_like(o))
    assert len(t.launches) >= 4
    assert t.outside() == []
    for i, launch in enumerate(t.launches):
        races = {name: where for name, where in t.races(launch=i).items() if not name.startswith("targets")}
        assert not races, launch


def test_the_trace_would_show_an_access_outside(monkeypatch):
    """The same test on a kernel that is told of a few keys more than there are."""
    told_of_more(monkeypatch, operator, N=3)
    with trace.recording() as t:
        flex_attention(*(torch.randn(1, 1, 37, 16) for _ in range(3)), block_mask=causal_block_mask(37, BLOCK_SIZE=16))
    assert t.outside()
