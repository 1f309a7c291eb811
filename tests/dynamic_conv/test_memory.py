"""No kernel touches memory outside its tensors, and no two programs write the same element, whatever the options."""

import pytest
import torch

from kernels import runtime
from kernels.dynamic_conv import dynamic_conv, dynamic_conv_step, operator
from kernels.lab import trace
from tests.tensors import told_of_more

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="addresses are seen in the interpreter")

CASES = {
    "plain": {},
    "one channel, one token": {"T": 1, "D": 1},
    "ragged, odd": {"T": 19, "D": 13, "W": 3},
    "shorter than the window": {"T": 2, "W": 5, "state": True, "final": True},
    "all options": {"T": 18, "state": True, "final": True, "tail": True},
    "packed": {"cu": [0, 3, 3, 4, 18], "state": True, "final": True, "tail": True},
    "static": {"static": True, "tail": True},
    "static, packed, words": {
        "static": True, "tail": True, "state": True, "final": True, "cu": [0, 3, 3, 4, 18], "dtype": torch.float16, "D": 24,
    },
    "float16 words": {"dtype": torch.float16, "D": 24},
    "float16 rows at odd addresses": {"dtype": torch.float16, "D": 13},
    "float16 words of two": {"dtype": torch.float16, "D": 14, "W": 3},
    "static, float16 rows at odd addresses": {"dtype": torch.float16, "D": 13, "static": True},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_active_address_lies_inside_its_tensor(case):
    options = {"T": 18, "D": 12, "W": 4, "state": False, "final": False, "tail": False, "static": False, "cu": None}
    options |= {"dtype": torch.float32} | CASES[case]
    T, D, W, dtype, cu = (options[name] for name in ("T", "D", "W", "dtype", "cu"))
    B, N = (2, 2) if cu is None else (1, len(cu) - 1)
    tensor = lambda *shape: torch.randn(shape).to(dtype).requires_grad_()  # noqa: E731
    x, weight = tensor(B, T, D), tensor(*((D, W) if options["static"] else (B, T, D, W)))
    extra = {"activation": "silu", "bias": tensor(D), "residual": tensor(B, T, D)} if options["tail"] else {}
    if options["state"]:
        extra["initial_state"] = tensor(N, D, W - 1)
    if cu is not None:
        extra["cu_seqlens"] = torch.tensor(cu)
    with trace.recording() as t:
        out = dynamic_conv(x, weight, output_final_state=options["final"], **extra)
        out = out if options["final"] else (out,)
        leaves = [v for v in (x, weight, *extra.values()) if isinstance(v, torch.Tensor) and v.requires_grad]
        torch.autograd.grad(out, leaves, [torch.ones_like(o) for o in out])
        if cu is None:
            with torch.no_grad():
                state = torch.zeros(5, D, W - 1, dtype=dtype)
                k = weight if options["static"] else weight[:, 0]
                dynamic_conv_step(x[:, 0], k, state, slots=torch.tensor([4, 1]))
    assert len(t.launches) >= 2
    assert t.outside() == []
    assert not t.races()


def test_the_trace_would_show_an_access_outside(monkeypatch):
    """The same test on a kernel that is told of one token more than there is."""
    told_of_more(monkeypatch, operator, T=1, runs=1)
    with trace.recording() as t:
        dynamic_conv(torch.randn(1, 18, 12), torch.randn(1, 18, 12, 4))
    assert t.outside()
