"""docs/other_programs.md: the imports that need no other program; the other blocks run in the tests of their programs."""

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import conv2d
from kernels.dynamic_conv import causal_conv1d, dynamic_conv, jet_nemotron
from kernels.flex_attention import flex_attention, mods
from kernels.recurrent_attention import recurrent_attention
from tests.programs.installed import documented


def test_imports_are_as_written():
    layer = documented("Jet-Nemotron")["DynamicShortConvolution"]
    functions = documented("causal_conv1d")
    assert layer is jet_nemotron.DynamicShortConvolution
    assert functions["causal_conv1d_fn"] is causal_conv1d.causal_conv1d_fn
    assert functions["causal_conv1d_update"] is causal_conv1d.causal_conv1d_update


def on_one_rank(rank, file, world):
    """What one of the processes does: each operator on its part, against the whole, computed here."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    try:
        mesh, documented_here = init_device_mesh("cpu", (world,)), documented("DTensor")
        torch.manual_seed(0)

        def check(sharded, whole, *cases):
            plain = [torch.randn(shape, requires_grad=True) for shape, _ in cases]
            dealt = [
                distribute_tensor(t.detach(), mesh, [of]).requires_grad_()
                for t, (_, of) in zip(plain, cases, strict=True)
            ]
            with pytest.raises(ValueError, match="given a DTensor, needs each rank's own part"):
                whole(*dealt)
            o, want = sharded(*dealt), whole(*plain)
            do = torch.randn_like(want)
            grads = torch.autograd.grad(o, dealt, distribute_tensor(do, mesh, o.placements))
            for got, expected in zip((o, *grads), (want, *torch.autograd.grad(want, plain, do)), strict=True):
                assert isinstance(got, DTensor)
                torch.testing.assert_close(got.full_tensor(), expected, rtol=1e-4, atol=1e-5)

        on_parts, heads = documented_here["on_parts"], ((2, 4, 9, 16), Shard(1))
        attention = lambda *qkv: documented_here["attention"](*qkv, mods.causal_score)  # noqa: E731
        check(attention, lambda *qkv: flex_attention(*qkv, mods.causal_score), heads, heads, heads)
        heads = (2, 9, 4, 16), Shard(2)
        recurrence = lambda q, k, v: recurrent_attention(q, k, v)[0]  # noqa: E731
        check(on_parts(recurrence, *(Shard(2),) * 4), recurrence, heads, heads, heads)
        rows = ((2, 9, 8), Shard(0)), ((2, 9, 8, 4), Shard(0))
        check(on_parts(dynamic_conv, *(Shard(0),) * 3), dynamic_conv, *rows)
        shared = ((2, 9, 8), Shard(0)), ((8, 4), Replicate())
        check(on_parts(dynamic_conv, Shard(0), *(of for _, of in shared)), dynamic_conv, *shared)
        images = ((4, 7, 6, 3), Shard(0)), ((5, 3, 3, 3), Replicate()), ((5,), Replicate())
        check(lambda *given: documented_here["convolution"](*given, conv2d), conv2d, *images)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without torch.distributed")
@pytest.mark.skipif(not runtime.interpreted, reason="gloo's processes have CPU tensors")
def test_parts_of_dtensors_on_two_ranks(tmp_path):
    torch.multiprocessing.spawn(on_one_rank, (str(tmp_path / "meeting"), 2), nprocs=2)
