"""Tensors for tests: values that lie in memory in some way, how far an answer is off, kernels that are told of more."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import runtime


def place(values, layout="flat"):
    """``values`` on the kernels' device inside a buffer of NaN: one access past an edge that counts shows as NaN."""
    if layout == "flat":  # contiguous, word-aligned
        buffer = values.new_full((values.numel() + 128,), float("nan"), device=runtime.device)
        view = buffer[64 : 64 + values.numel()].view(values.shape)
    elif layout == "padded":  # a margin along every dimension
        buffer = values.new_full([size + 8 for size in values.shape], float("nan"), device=runtime.device)
        view = buffer[tuple(slice(4, 4 + size) for size in values.shape)]
    elif layout == "heads inside":  # [B, M, H, D] in memory
        view = place(values.transpose(1, 2).contiguous()).transpose(1, 2)
    else:  # "transposed": the last dimension is the slowest
        backwards = tuple(reversed(range(values.ndim)))
        view = place(values.permute(backwards).contiguous()).permute(backwards)
    return view.copy_(values)


LAYOUTS = range(4)


def laid_out(t, i, order=(0, 2, 1, 3)):
    """The values of ``t``: contiguous, in this ``order`` if it has as many dimensions, from the last dimension to the first,
    and beginning at an odd address."""
    t = t.detach()
    if i == 3:
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)
    every = tuple(range(t.ndim))
    order = (every, order if t.ndim == len(order) else every, every[::-1])[i]
    back = [order.index(dim) for dim in every]
    return t.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def hooked(hook):
    """Saved tensors come back as ``hook`` gives them; ``None``: as they are."""
    return torch.autograd.graph.saved_tensors_hooks(hook, lambda t: t) if hook else torch.enable_grad()


def agree(got, want):
    """Tensors are alike but for rounding."""
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class Seen(TorchDispatchMode):
    """The names of what PyTorch's dispatcher calls."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **kwargs or {})


def takes_the_longer_way(out, leaves):
    """A backward pass that somebody looks on at, or of gradients that are yet to be negated, is right; one of the gradients
    of several outputs, or that is differentiated again, is refused."""
    ones = torch.ones_like(out)
    want = torch.autograd.grad(out, leaves, ones, retain_graph=True)
    negated = torch._neg_view(ones)  # as of z.conj().imag
    agree(torch.autograd.grad(out, leaves, negated, retain_graph=True), [-t for t in want])
    with Seen() as seen:
        agree(torch.autograd.grad(out, leaves, ones, retain_graph=True), want)
    assert [name for name in seen.names if name.endswith("_backward.default") and name.startswith("kernels_from_math")]
    with pytest.raises(RuntimeError, match="is_grads_batched"):
        torch.autograd.grad(out, leaves, out.new_ones(3, *out.shape), is_grads_batched=True, retain_graph=True)
    again = torch.autograd.grad(out, leaves, torch.ones_like(out), create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        again[1].sum().backward()


def relative_error(ours, reference, least=1e-12):
    """Root-mean-square error over root-mean-square of the reference; NaN in ours stays NaN, so it passes no bound."""
    error = (ours.double().cpu() - reference.double().cpu()).norm()
    return (error / reference.double().norm().cpu().clamp_min(least)).item()


def same(got, want):
    """Bit for bit in the interpreter; of two kernels, a GPU's compiler may join other products and sums."""
    return torch.equal(got, want) if runtime.interpreted else relative_error(got, want) < 2e-6


def told_of_more(monkeypatch, module, **more):
    """What ``module`` launches is told of larger sizes than there are, ``{argument or field of one: by how much}``."""
    launch = module.launch

    def with_more(kernel, grid, *args, **meta):
        args = list(args)
        for name, extra in more.items():
            if name in meta:
                meta[name] += extra
            elif name in kernel.arg_names:
                args[kernel.arg_names.index(name)] += extra
            for i, arg in enumerate(args):
                if name in getattr(arg, "_fields", ()):
                    args[i] = arg._replace(**{name: getattr(arg, name) + extra})
        launch(kernel, grid, *args, **meta)

    monkeypatch.setattr(module, "launch", with_more)


def capture(work):
    """``(CUDA graph, outputs)`` of ``work``, which runs once before: what is made on first use is there then."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = work()
    return graph, outputs
