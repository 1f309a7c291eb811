"""No kernel touches memory outside its tensors, and no two programs write the same element, whatever the options."""

import pytest
import torch

from kernels import runtime
from kernels.lab import trace
from kernels.recurrent_attention import operator, recurrent_attention, recurrent_attention_step
from tests.recurrent_attention import cases
from tests.tensors import told_of_more

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="addresses are seen in the interpreter")

TILES = {
    "forward": {"BV": 16}, "backward": {"BV": 16}, "backward_states": {"BV": 16}, "backward_pairs": {"SLICE": 16},
    "chunk": {"C": 16, "runs": 4}, "chunk_states": {"BLOCK_K": 16, "BLOCK_V": 16}, "chunk_outputs": {"BLOCK_V": 16},
    "chunk_gradients": {"BLOCK_K": 16, "BLOCK_V": 16}, "step": {"BV": 16},
    **{name: {"BLOCK_K": 16} for name in ("chunk_decay", "chunk_scores", "chunk_inside")},
}  # fmt: skip
CASES = {
    "no gate": {},
    "one of each": {"sizes": (1, 1, 1, 1, 1, 1), "gates": cases.GATES, "initial": True, "final": True},
    "g": {"gates": ("g", "g_gamma"), "initial": True, "final": True, "reverse": True},
    "gk": {"gates": ("gk",), "final": True},
    "all, packed": {"gates": cases.GATES, "cu_seqlens": [0, 3, 3, 19], "initial": True, "final": True},
    "tiles": {"sizes": (1, 19, 1, 1, 20, 24), "gates": cases.GATES, "initial": True, "final": True, "tiles": TILES},
}


@pytest.mark.parametrize("mode", ["recurrent", "chunk"])
@pytest.mark.parametrize("case", CASES)
def test_every_active_address_lies_inside_its_tensor(case, mode):
    kind = {"sizes": (2, 18, 2, 1, 12, 5), "final": False, "reverse": False, "tiles": {}} | CASES[case]
    sizes, final, reverse, tiles = (kind.pop(name) for name in ("sizes", "final", "reverse", "tiles"))
    if mode == "chunk":
        kind["gates"] = [name for name in kind.get("gates", ()) if name != "gv"]
    leaves, packing = cases.problem(*sizes, **kind)
    # inside a larger buffer an access past the end would still be inside
    leaves = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    with cases.configured(**tiles), trace.recording() as t:
        out = recurrent_attention(**leaves, output_final_state=final, reverse=reverse, mode=mode, **packing)
        out = out if final else out[:1]
        torch.autograd.grad(out, leaves.values(), [torch.ones_like(o) for o in out])
    assert len(t.launches) >= 3
    assert t.outside() == []
    assert not any(t.races(launch=n) for n in range(len(t.launches)))


@pytest.mark.parametrize("slots", [None, [4, 1]])
def test_a_step_stays_inside_its_tensors(slots):
    leaves, _ = cases.problem(2, 1, 2, 1, 20, 24, gates=cases.GATES)
    token = {name: x.detach() if name == "g_gamma" else x.detach()[:, 0].clone() for name, x in leaves.items()}
    state = torch.zeros(2 if slots is None else 5, 2, 20, 24)
    with cases.configured(**TILES), trace.recording() as t:
        recurrent_attention_step(**token, state=state, slots=None if slots is None else torch.tensor(slots))
    assert t.launches and t.outside() == [] and not t.races()


def test_the_trace_would_show_an_access_outside(monkeypatch):
    """The same test on a kernel that is told of one token more than there is."""
    told_of_more(monkeypatch, operator, T=1)
    with trace.recording() as t:
        x = torch.randn(1, 18, 1, 4)
        recurrent_attention(x, x, x, mode="recurrent")
    assert t.outside()


def far_apart(shape, strides, dtype=torch.float32):
    """A tensor whose elements lie gigabytes apart, in address space of which only the pages that are written exist."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    storage = torch.UntypedStorage(length * dtype.itemsize, device="cpu")
    return torch.empty(0, dtype=dtype).set_(storage).as_strided(shape, strides)


@pytest.mark.parametrize("mode", ["recurrent", "chunk"])
@pytest.mark.parametrize("dimension", [0, 1, 2, 3])
def test_offsets_are_64_bit(dimension, mode):
    """Rows, tokens, heads or components 2^30 elements apart: the third lies beyond the reach of a 32-bit offset."""
    gates = ["g", "gk"] + ["gv"] * (mode == "recurrent")
    B, T, H, K = (3 if place == dimension else 1 for place in range(4))
    leaves, _ = cases.problem(B, T, H, H, K, K, gates=gates)
    far = {}
    for name, leaf in leaves.items():
        if name == "g" and dimension == 3:
            far[name] = leaf
            continue
        strides = [9, 9, 9, 1][: leaf.ndim]
        strides[dimension] = 2**30
        far[name] = far_apart(leaf.shape, strides, torch.float16).copy_(leaf.detach())
        leaves[name] = far[name].clone(memory_format=torch.contiguous_format)
    results = []
    for inputs in (far, leaves):
        inputs = {name: x.detach().requires_grad_() for name, x in inputs.items()}
        o, _ = recurrent_attention(**inputs, mode=mode)
        results.append((o, *torch.autograd.grad(o.square().sum(), inputs.values())))
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(*results, strict=True))
