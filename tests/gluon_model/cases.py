"""Launches of the kernels in gluon_kernels.py on random numbers, each with its reference in float64; kernels with a fault."""

import linecache
import pathlib
import re

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col

from kernels import gluon_model
from kernels.lab.source import readable
from tests.gluon_model import gluon_kernels

ACC = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}


def planted(module, function, *edits):
    """A module with pieces of one function replaced (old, new, old, ...), as a namespace that linecache knows."""
    text = pathlib.Path(module.__file__).read_text()
    start = text.index(f"def {function}(")
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert re.split(r"\n *@gluon", text[start:])[0].count(old) == 1, (function, old)
        text = text[:start] + text[start:].replace(old, new, 1)
    file = f"/planted/{len(linecache.cache)}.py"
    namespace = {"__name__": "planted", "__file__": file}
    exec(readable(text, file), namespace)
    return namespace


def found(result, kind=None, partition=None, line="", barrier=None, words="", file=None) -> list:
    """The model's findings of this kind (or one of several, in one text), each with its partition and line in its message.

    partition: its name, without the number of a group of warps; line: a part of it; barrier: its name up to the index.
    """
    return [
        finding
        for finding in result.findings
        if finding.kind in (kind or finding.kind)
        and partition in (None, finding.partition, finding.partition.split(" ")[0])  # "gradients 2" is the other group
        and line in finding.place.text
        and file in (None, finding.place.file)
        and (barrier is None or (finding.barrier or "").startswith(barrier))
        and words in finding.message
        and finding.partition in finding.message
        and re.search(rf"(line |\.py:){finding.place.line}\b", finding.message)  # of the kernel's file, or of another
    ]


def descriptor(tensor, block):
    return TensorDescriptor.from_tensor(
        tensor, block, gl.NVMMASharedLayout.get_default_for(block, DTYPES[tensor.dtype])
    )


def im2col(tensor, block, stride, lower, upper, padding="zero"):
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[tensor.dtype])
    return TensorDescriptorIm2Col.from_tensor(
        tensor,
        block,
        layout,
        padding=padding,
        element_strides=[1, *stride, 1],
        pixel_box_lower_corner=list(lower),
        pixel_box_upper_corner=list(upper),
    )


def _launch(kernel, grid, arguments):
    def call(run=gluon_model.run, **options):
        return run(kernel, grid, *arguments, **options)

    return call


def gemm(kernel, M, N, K, stages=3, block=(64, 32, 32), seed=0):
    """(call, check) of one of the wgmma products; ``call(schedule=...)`` runs it."""
    torch.manual_seed(seed)
    a, b, c = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16(), torch.full((M, N), float("nan"))
    BM, BN, BK = block
    arguments = [descriptor(a, [BM, BK]), descriptor(b, [BK, BN]), c, M, N, K, ACC]
    if "STAGES" in kernel.arg_names:
        arguments.append(stages)

    def check():
        torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)

    persistent = kernel.fn.__name__ == "gemm_two_consumers"
    grid = 2 if persistent else (-(-M // BM), -(-N // BN))
    return _launch(kernel, grid, arguments), check


def tensor_memory_gemm(M, N, K, programs, kernel=None, stages=3, block=(128, 64, 64), seed=0):
    """(call, check) of the persistent product on tcgen05."""
    torch.manual_seed(seed)
    a, b = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    c = torch.full((M, N), float("nan"))
    BM, BN, BK = block
    arguments = [descriptor(a, [BM, BK]), descriptor(b, [BK, BN]), descriptor(c, [BM, BN // 2]), M, N, K, stages]

    def check():
        torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)

    return _launch(kernel or gluon_kernels.gemm_tensor_memory, programs, arguments), check


def wgrad(geometry, block, stages, kernel=None, taps=None, seed=0):
    """(call, check) of a convolution's weight gradient; ``taps``: only the first so many filter taps."""
    N, H, W, Ci, Co, R, S, stride, padding, dilation = geometry
    top, bottom, left, right = padding
    P = (H + top + bottom - dilation[0] * (R - 1) - 1) // stride[0] + 1
    Q = (W + left + right - dilation[1] * (S - 1) - 1) // stride[1] + 1
    torch.manual_seed(seed)
    x, dy = torch.randn(N, H, W, Ci).half(), torch.randn(N, P, Q, Co).half()
    dw = torch.full((Co, R, S, Ci), float("nan"))
    BM, BN, BK = block
    upper = (P - 1) * stride[0] + 1 - H - top, (Q - 1) * stride[1] + 1 - W - left
    x_desc = im2col(x, [BK, BN], stride, (-top, -left), upper)
    arguments = [
        *(descriptor(dy.view(N * P * Q, Co), [BK, BM]), x_desc, dw, N * P * Q, P, Q, Co, Ci, R, S),
        *(*stride, top, left, *dilation, ACC, stages),
    ]

    def check():
        w = torch.zeros(Co, Ci, R, S, dtype=torch.float64, requires_grad=True)
        wide = torch.nn.functional.pad(x.double().permute(0, 3, 1, 2), (left, right, top, bottom))
        y = torch.nn.functional.conv2d(wide, w, stride=stride, dilation=dilation)
        y.backward(dy.double().permute(0, 3, 1, 2))
        expected = w.grad.permute(0, 2, 3, 1).reshape(Co, R * S, Ci)[:, :taps]
        torch.testing.assert_close(dw.double().reshape(Co, R * S, Ci)[:, :taps], expected, rtol=1e-5, atol=1e-4)

    grid = -(-Co // BM), -(-Ci // BN), taps or R * S
    return _launch(kernel or gluon_kernels.wgrad_tile, grid, arguments), check
