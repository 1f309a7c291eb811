"""docs/other_programs.md: the imports that need no other program; the other blocks run in the tests of their programs."""

import sys

import pytest
import torch

from kernels import runtime
from kernels.dynamic_conv import causal_conv1d, jet_nemotron
from kernels.flex_attention import flex_attention, mods
from tests.programs.installed import documented


def test_imports_are_as_written():
    layer = documented("Jet-Nemotron")["DynamicShortConvolution"]
    functions = documented("causal_conv1d")
    assert layer is jet_nemotron.DynamicShortConvolution
    assert functions["causal_conv1d_fn"] is causal_conv1d.causal_conv1d_fn
    assert functions["causal_conv1d_update"] is causal_conv1d.causal_conv1d_update


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without torch.distributed")
def test_heads_of_dtensors(monkeypatch):
    from torch.distributed import tensor

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # init_process_group leaves one of its own
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = tensor.init_device_mesh(runtime.device.type, (1,))
        torch.manual_seed(0)
        plain = [torch.randn(2, 2, 9, 16, device=runtime.device, requires_grad=True) for _ in range(3)]
        dealt = [tensor.distribute_tensor(t.detach(), mesh, [tensor.Shard(1)]).requires_grad_() for t in plain]
        with pytest.raises(NotImplementedError, match="flex_attention.*sharding strategy"):
            flex_attention(*dealt)
        o, want = documented("DTensor")["attention"](*dealt, mods.causal_score), flex_attention(*plain, mods.causal_score)
        torch.testing.assert_close(o.full_tensor(), want)
        grads = torch.autograd.grad(o.sum(), dealt)
        for got, expected in zip(grads, torch.autograd.grad(want.sum(), plain), strict=True):
            assert isinstance(got, tensor.DTensor)
            torch.testing.assert_close(got.full_tensor(), expected)
    finally:
        torch.distributed.destroy_process_group()
