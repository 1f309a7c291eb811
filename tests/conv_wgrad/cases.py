"""Random arguments in every layout, and the comparison of all gradients with the float64 reference."""

import contextlib
from unittest import mock

import torch

from kernels import runtime
from kernels.common import configs
from kernels.common.operator import clear_caches
from kernels.conv_wgrad import conv2d_bias_grad, conv2d_wgrad, operator
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.reference import conv2d_bias_grad_reference, conv2d_wgrad_reference
from tests.tensors import place, relative_error

# Relative root-mean-square error. Sums are fp32; what is left in float16 and bfloat16 is the rounding of the result.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}
LAYOUTS = ("flat", "padded", "transposed", "expanded", "nchw")


def laid_out(values, layout):
    """``values`` in memory: besides ``place``'s layouts, one image repeated with stride 0, or channels as planes."""
    if layout == "expanded":
        return place(values[:1], "padded").expand(values.shape)
    if layout == "nchw":
        return place(values.permute(0, 3, 1, 2).contiguous()).permute(0, 2, 3, 1)
    return place(values, layout)


def problem(shape, Co, R, S, *, dtype=torch.float32, layout="flat", seed=0, **convolution):
    """``(input, grad_output, Geometry)`` with random values."""
    generator = torch.Generator().manual_seed(seed)
    g = geometry(shape, Co, R, S, **convolution)
    make = lambda size: laid_out(torch.randn(size, generator=generator).to(dtype), layout)  # noqa: E731
    return make(shape), make(g.output_shape), g


def check(
    shape, Co, R=3, S=3, *, dtype=torch.float32, layout="flat", seed=0, split_k=None, out_dtype=None, **convolution
):
    """Weight and bias gradient of one case against the float64 reference."""
    x, dy, g = problem(shape, Co, R, S, dtype=dtype, layout=layout, seed=seed, **convolution)
    dw = conv2d_wgrad(x, dy, R, S, **convolution, split_k=split_k, out_dtype=out_dtype)
    want = conv2d_wgrad_reference(x.cpu().double(), dy.cpu().double(), R, S, **convolution)
    assert dw.dtype == (out_dtype or dtype) and dw.shape == want.shape and dw.is_contiguous()
    if want.numel():
        error = relative_error(dw, want)
        assert error <= TOLERANCE[dw.dtype], f"dw: relative error {error:.1e}"
    db = conv2d_bias_grad(dy)
    assert db.dtype == dtype
    if db.numel():
        error = relative_error(db, conv2d_bias_grad_reference(dy.cpu().double()))
        assert error <= TOLERANCE[dtype], f"db: relative error {error:.1e}"


def configuration(**options):
    """Within this, every launch takes these options in place of the table's, where its kernel has them."""

    def changed(package, kernel, key, device):
        own = configs.table_says(package, kernel, key, device)
        return own | {name: value for name, value in options.items() if name in own}

    return configs.instead(changed)


def table_of(gpu):
    """What ``configs.configuration`` says on a GPU of this name."""
    return lambda package, kernel, key, device: configs.of_gpu(gpu, package, kernel, key)


def planned_for(monkeypatch, says):
    """From here on every launch takes the options that ``says(package, kernel, key, device)`` gives."""
    monkeypatch.setattr(configs, "_says", says)
    clear_caches()


@contextlib.contextmanager
def launches():
    """The list of ``(kernel, grid, arguments, options)`` that is launched within this, in order; each runs, too."""
    seen = []

    launch = operator.launch

    def record(kernel, grid, *args, **meta):
        seen.append((kernel, grid, args, meta))
        launch(kernel, grid, *args, **meta)

    with mock.patch.object(operator, "launch", record):
        yield seen


def randn(*shape, dtype=torch.float32, grad=False):
    """Random values on the kernels' device."""
    return torch.randn(shape, device=runtime.device).to(dtype).requires_grad_(grad)
