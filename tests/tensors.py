"""Tensors for tests: values that lie in memory in some way, how far an answer is off, kernels that are told of more."""

import torch

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


def relative_error(ours, reference, least=1e-12):
    """Root-mean-square error over root-mean-square of the reference; NaN in ours stays NaN, so it passes no bound."""
    error = (ours.double().cpu() - reference.double().cpu()).norm()
    return (error / reference.double().norm().cpu().clamp_min(least)).item()


def told_of_more(monkeypatch, module, **more):
    """What ``module`` launches is told of larger sizes than there are, ``{argument: by how much}``."""
    launch = module.launch

    def with_more(kernel, grid, *args, **meta):
        args = list(args)
        for name, extra in more.items():
            args[kernel.arg_names.index(name)] += extra
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
