"""docs/other_programs.md: the imports that need no other program; the other blocks run in the tests of their programs."""

import copy
import gc

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import Conv2d, conv2d
from kernels.dynamic_conv import DynamicShortConvolution, causal_conv1d, dynamic_conv, jet_nemotron
from kernels.flex_attention import flex_attention, mods
from kernels.recurrent_attention import recurrent_attention
from tests.programs.installed import documented


def test_imports_are_as_written():
    layer = documented("Jet-Nemotron")["DynamicShortConvolution"]
    functions = documented("causal_conv1d")
    assert layer is jet_nemotron.DynamicShortConvolution
    assert functions["causal_conv1d_fn"] is causal_conv1d.causal_conv1d_fn
    assert functions["causal_conv1d_update"] is causal_conv1d.causal_conv1d_update


def on_one_rank(rank, part, file, world):
    """What one of the processes does."""
    from torch.distributed.tensor import init_device_mesh

    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    try:
        torch.manual_seed(0)
        part(init_device_mesh("cpu", (world,)), rank)
    finally:
        gc.collect()  # wrapped modules lie in cycles, and their threads must end before the group does
        torch.distributed.destroy_process_group()


def on_two_ranks(part, folder):
    """Do ``part`` in two processes."""
    torch.multiprocessing.spawn(on_one_rank, (part, str(folder / "meeting"), 2), nprocs=2)


two_ranks = pytest.mark.skipif(
    not (torch.distributed.is_available() and runtime.interpreted), reason="gloo's processes have CPU tensors"
)


class Hybrid(torch.nn.Module):
    """A layer of each operator."""

    def __init__(self):
        super().__init__()
        self.patches = Conv2d(3, 16, 3, stride=2)
        self.taps = DynamicShortConvolution(16, 3)
        self.bias = torch.nn.Parameter(torch.randn(2, 32))
        self.head = torch.nn.Linear(16, 16)

    def forward(self, images):
        x = self.taps(self.patches(images).flatten(2).mT).unflatten(-1, (2, 8))
        o, _ = recurrent_attention(x, x, x)
        qkv, bias = o.transpose(1, 2), self.bias
        o = flex_attention(qkv, qkv, qkv, lambda score, b, h, q_idx, kv_idx: score + bias[h, q_idx - kv_idx + 16])
        return self.head(o.transpose(1, 2).flatten(2))


def train_in_parallel(mesh, rank):
    """Two steps of each wrapper are those of one process with all images."""
    from torch.distributed.fsdp import fully_shard

    whole, images = Hybrid(), torch.randn(4, 3, 9, 9)
    replicated, sharded = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(whole)), copy.deepcopy(whole)
    for layer in (sharded.patches, sharded.taps, sharded):
        fully_shard(layer, mesh=mesh)
    mine = images[2 * rank : 2 * rank + 2]
    for model, seen in ((whole, images), (replicated, mine), (sharded, mine)):
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimiser.zero_grad()
            model(seen).square().mean().backward()
            optimiser.step()
    for got, again, want in zip(replicated.parameters(), sharded.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again.full_tensor(), want, rtol=1e-4, atol=1e-5)


@two_ranks
def test_wrappers_of_data_parallel_training_need_nothing(tmp_path):
    on_two_ranks(train_in_parallel, tmp_path)


def split_by_hand(mesh, rank):
    """Each operator on its part, against the whole, computed here."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    documented_here = documented("DTensor")

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


@two_ranks
def test_parts_of_dtensors(tmp_path):
    on_two_ranks(split_by_hand, tmp_path)
