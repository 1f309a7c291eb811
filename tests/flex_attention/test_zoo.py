"""Every mod of the zoo: forward and backward against the float64 reference, forward against torch's own flex_attention."""

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex

from kernels import runtime
from kernels.flex_attention import create_block_mask, flex_attention
from tests.flex_attention import cases

# The interpreter computes with numpy, which reports what a mod makes of the scores that are masked afterwards.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")


@pytest.mark.parametrize("name", cases.ZOO)
def test_against_the_reference(name):
    cases.check(name)


@pytest.mark.parametrize("name", cases.ZOO)
def test_forward_equals_torchs_eager_flex_attention(name, monkeypatch):
    """torch evaluates the mod densely, with its own code; on the CPU it has no backward pass."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    case, _ = cases.zoo(name)
    B, Hq, Hkv, M, N, D, Dv = case.get("shape", (cases.B, cases.HQ, cases.HKV, cases.M, cases.N, cases.D, cases.DV))
    q, k, v = (torch.randn(B, h, n, d, device=runtime.device) for h, n, d in ((Hq, M, D), (Hkv, N, D), (Hkv, N, Dv)))
    mask = None
    if "mask_mod" in case:
        heads = Hq if case.get("mask_heads") else None
        mask = create_block_mask(case["mask_mod"], B, heads, M, N, device=runtime.device, BLOCK_SIZE=32)
    arguments = (q, k, v, case.get("score_mod"), mask, case.get("scale"), True)
    with torch.no_grad():
        ours = flex_attention(*arguments)
        want = torch_flex.flex_attention(*arguments)
    assert cases.relative_error(ours, want) <= 1e-5
