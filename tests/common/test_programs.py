"""Every operator inside other people's programs: torch's own checks, compiled whole, exported, checkpointed, spread over
processes, copied and pickled. What differs is in ``PROGRAMS``; a new operator is one more line."""

import copy
import io
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch
import torch._dynamo.testing
import torch.multiprocessing as mp
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernels import runtime
from kernels.common import operator
from kernels.conv_wgrad import Conv2d, conv2d, conv2d_bias_grad, conv2d_wgrad
from kernels.dynamic_conv import DynamicShortConvolution, dynamic_conv, dynamic_conv_step
from kernels.flex_attention import flex_attention
from kernels.recurrent_attention import recurrent_attention, recurrent_attention_step

BACKEND = "aot_eager" if runtime.interpreted else "inductor"


class Program(NamedTuple):
    """A function of tensors that gives one tensor; its leaves' shapes for a length; which dimension of each that is."""

    public: Callable
    call: Callable
    shapes: Callable
    along: tuple[int | None, ...]


def attend(mode):
    return lambda q, k, v, g: recurrent_attention(q, k, v, g=g, mode=mode)[0]


def heads(T):
    return (1, T, 2, 8), (1, T, 2, 8), (1, T, 2, 8), (1, T, 2)


PROGRAMS = {
    "dynamic_conv": Program(
        dynamic_conv, lambda x, w: dynamic_conv(x, w, activation="silu"), lambda T: ((1, T, 4), (1, T, 4, 3)), (1, 1)
    ),
    "a mode by the length": Program(recurrent_attention, attend("auto"), heads, (1,) * 4),
    "recurrent mode": Program(recurrent_attention, attend("recurrent"), heads, (1,) * 4),
    "chunk mode": Program(recurrent_attention, attend("chunk"), heads, (1,) * 4),
    "flex_attention": Program(flex_attention, flex_attention, lambda T: ((1, 1, T, 16),) * 3, (2,) * 3),
    "conv2d": Program(
        conv2d, lambda x, w, b: conv2d(x, w, b, padding=1), lambda T: ((1, T, 5, 4), (6, 3, 3, 4), (6,)), (1, None, None)
    ),
}
PUBLIC = [
    dynamic_conv, dynamic_conv_step, recurrent_attention, recurrent_attention_step, flex_attention,
    conv2d, conv2d_wgrad, conv2d_bias_grad,
]  # fmt: skip
EACH = pytest.mark.parametrize("name", PROGRAMS)
# Those that torch.compile and torch.export see as one call.
REGISTERED = pytest.mark.parametrize(
    "name", [name for name in PROGRAMS if hasattr(torch.ops.kernels_from_math, PROGRAMS[name].public.__name__)]
)


def leaves(name, T=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).to(runtime.device).requires_grad_() for s in PROGRAMS[name].shapes(T)]


def gradients(function, tensors):
    out = function(*tensors)
    return out, *torch.autograd.grad(out.square().sum(), tensors)


def agree(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def made(name):
    """A module that calls the operator."""

    class Module(nn.Module):
        def forward(self, *tensors):
            return PROGRAMS[name].call(*tensors)

    return Module()


@REGISTERED
def test_compiled_whole_and_once_for_all_lengths(name):
    counter = torch._dynamo.testing.CompileCounterWithBackend(BACKEND)
    compiled = torch.compile(PROGRAMS[name].call, backend=counter, fullgraph=True, dynamic=True)
    for T in (20, 21, 36):
        agree(gradients(compiled, leaves(name, T)), gradients(PROGRAMS[name].call, leaves(name, T)))
    assert counter.frame_count == 1


@REGISTERED
def test_a_second_length_is_the_last_to_be_compiled(name):
    """As torch.compile does by default: the first length is taken as given, from the second on any."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend(BACKEND)
    compiled = torch.compile(PROGRAMS[name].call, backend=counter, fullgraph=True)
    for T in (20, 21, 36, 50):
        compiled(*leaves(name, T))
    assert counter.frame_count <= 2


@REGISTERED
@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_a_length_of_its_own(name, strict):
    program = PROGRAMS[name]
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = [{} if along is None else {along: length} for along in program.along]
    example = tuple(t.detach() for t in leaves(name))
    exported = torch.export.export(made(name), example, dynamic_shapes=(tuple(shapes),), strict=strict)
    for T in (5, 33):
        other = [t.detach() for t in leaves(name, T)]
        agree([exported.module()(*other)], [program.call(*other)])
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    agree([torch.export.load(file).module()(*other)], [program.call(*other)])


class _Undefined(torch.autograd.Function):
    """As it is, with a gradient that isn't there, as a node gives whose own outputs nobody used."""

    @staticmethod
    def forward(ctx, out):
        return out.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@EACH
def test_outputs_whose_gradients_are_undefined(name):
    tensors = leaves(name)
    out = _Undefined.apply(PROGRAMS[name].call(*tensors))
    assert torch.autograd.grad(out.sum(), tensors, allow_unused=True) == (None,) * len(tensors)


@EACH
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed(name, use_reentrant):
    want = gradients(PROGRAMS[name].call, leaves(name))
    tensors = leaves(name)
    out = checkpoint(PROGRAMS[name].call, *tensors, use_reentrant=use_reentrant)
    out.square().sum().backward()
    agree([out, *(t.grad for t in tensors)], want)


@EACH
def test_saved_tensors_may_live_elsewhere(name):
    want = gradients(PROGRAMS[name].call, leaves(name))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        agree(gradients(PROGRAMS[name].call, leaves(name)), want)


@EACH
def test_saved_tensors_may_come_back_laid_out_in_another_way(name):
    """As from pinned memory, or a file: the same values, from the last dimension to the first."""
    want = gradients(PROGRAMS[name].call, leaves(name))
    turned = lambda t: t.detach().permute(*range(t.ndim)[::-1]).contiguous().permute(*range(t.ndim)[::-1])  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(turned, lambda t: t):
        agree(gradients(PROGRAMS[name].call, leaves(name)), want)


@EACH
def test_autocast_keeps_gradients_in_the_leaves_dtype(name):
    tensors = leaves(name)
    with torch.autocast(runtime.device.type, dtype=torch.bfloat16):
        out, *grads = gradients(PROGRAMS[name].call, tensors)
    assert [g.dtype for g in grads] == [t.dtype for t in tensors]
    torch.testing.assert_close(out.float(), PROGRAMS[name].call(*tensors), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("function", PUBLIC, ids=lambda f: f.__name__)
def test_functions_are_copied_and_pickled_by_name(function):
    assert copy.deepcopy(function) is function and pickle.loads(pickle.dumps(function)) is function


@EACH
def test_results_are_copied(name):
    out = PROGRAMS[name].call(*leaves(name)).detach()
    assert copy.deepcopy(out).equal(out)


class Network(nn.Module):
    """A layer of each package that has one, and attention between them."""

    def __init__(self):
        super().__init__()
        self.short = DynamicShortConvolution(8, 3)
        self.wide = Conv2d(1, 2, 3, padding=1)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        x = self.wide(self.short(x)[:, None]).sum(1)
        split = x.unflatten(-1, (1, 8))
        o, _ = recurrent_attention(split, split, split)
        return self.out(flex_attention(o.mT.mT.transpose(1, 2), *(split.transpose(1, 2),) * 2).transpose(1, 2).flatten(2))


def loss_of(network, x):
    return network(x).square().mean()


def network_and_batch():
    torch.manual_seed(0)
    return Network().to(runtime.device), torch.randn(4, 18, 8, device=runtime.device)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_a_network_is_copied_and_pickled(copied):
    network, x = network_and_batch()
    other = copied(network)
    assert torch.equal(other(x), network(x))
    loss_of(other, x).backward()
    assert all(p.grad is None for p in network.parameters()) and all(p.grad is not None for p in other.parameters())


def _train(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2, timeout=timedelta(minutes=2)
    )
    network, x = network_and_batch()
    parallel = nn.parallel.DistributedDataParallel(network)
    loss_of(parallel, x[2 * rank : 2 * rank + 2]).backward()
    if rank == 0:
        torch.save([p.grad.cpu() for p in network.parameters()], folder / "grads")
    # Nobody leaves while the other still talks, nor with a reducer that holds the group: either waits forever.
    torch.distributed.barrier()
    del parallel
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not runtime.interpreted, reason="two processes of one GPU: gloo is for the CPU")
@pytest.mark.thorough
def test_two_processes_have_one_processs_gradients(tmp_path):
    """Distributed data parallel: the mean over both halves of the batch."""
    mp.spawn(_train, (tmp_path,), nprocs=2)  # a process that dies ends the other, and is an error here
    got = torch.load(tmp_path / "grads")
    network, x = network_and_batch()
    loss_of(network, x).backward()
    for grad, parameter in zip(got, network.parameters(), strict=True):
        torch.testing.assert_close(grad.to(runtime.device), parameter.grad, rtol=1e-4, atol=1e-5)


OPERATORS = [
    "dynamic_conv", "dynamic_conv_backward", "dynamic_conv_step",
    "recurrent_attention", "recurrent_attention_backward", "recurrent_attention_step",
    "conv2d", "conv2d_backward", "conv2d_wgrad", "conv2d_wgrad_into", "conv2d_bias_grad", "conv2d_bias_grad_into",
]  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_there_for_every_device_and_for_autograd(name):
    """What ``opcheck`` finds in it is tested in its package's test_autograd.py."""
    op = getattr(getattr(torch.ops, operator.NAMESPACE), name).default
    for key in ("CPU", "CUDA", "Meta", "AutogradCPU", "AutogradCUDA"):
        assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(op.name(), key), key
