"""The kernels for Hopper and Blackwell on the CPU: launched by their own host code, executed by the model of the GPU."""

import contextlib
import linecache
import pathlib
from unittest import mock

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels import gluon_model
from kernels.common import configs
from kernels.common.operator import clear_caches
from kernels.conv_wgrad import hopper, operator
from kernels.conv_wgrad.hopper import Matrix, split_of
from kernels.conv_wgrad.reference import conv2d_wgrad_reference
from tests.conv_wgrad import cases
from tests.tensors import relative_error

# Small tiles, so that small problems have several of them: many programs' work, and rings that turn often.
SMALL = {"BLOCK_M": 64, "BLOCK_N": 16, "BLOCK_K": 16, "STAGES": 3}
SWEEP = [{"schedule": name} for name in gluon_model.SCHEDULES] + [{"schedule": "random", "seed": 1}]
TWO, THREE = {"GROUPS": 2}, {"GROUPS": 3}

# name: image batch, output channels, filter, convolution. The first three are the published example's special cases.
GEOMETRIES = {
    "padded channels": ((4, 8, 8, 5), 96, 3, 3, dict(padding=1)),
    "asymmetric stride": ((4, 1, 8, 96), 128, 1, 2, dict(stride=(1, 2))),
    "small images": ((16, 2, 2, 48), 136, 2, 2, dict(stride=2)),
    "1x1": ((2, 9, 11, 40), 72, 1, 1, {}),
    "1x1, stride 2": ((2, 9, 11, 32), 24, 1, 1, dict(stride=2)),
    "asymmetric padding": ((2, 9, 11, 24), 40, 3, 3, dict(padding=(0, 2, 1, 3))),
    "dilation": ((2, 9, 11, 16), 72, 3, 2, dict(padding=(2, 1), dilation=(2, 3))),
    "stride 2": ((2, 9, 11, 16), 24, 3, 3, dict(stride=2, padding=1)),
    "stride 3": ((3, 9, 11, 16), 24, 3, 3, dict(stride=(3, 1), padding=2)),
    "stride, padding, dilation": ((2, 9, 11, 24), 72, 3, 2, dict(stride=(2, 1), padding=(2, 0, 0, 2), dilation=(1, 2))),
    "ragged tiles": ((2, 7, 5, 33), 67, 3, 3, dict(padding=1)),
    "odd channels": ((2, 7, 5, 3), 7, 3, 3, {}),
    "last tiles within 16 bytes": ((1, 5, 4, 70), 75, 2, 2, {}),
}


@contextlib.contextmanager
def tiles(**options):
    """Within this the table says these options, small tiles otherwise."""

    def says(package, kernel, key, device):
        if kernel == "sum":
            return configs.table_says(package, kernel, key, device)
        return SMALL | THREE | options

    with configs.instead(says):
        yield


@contextlib.contextmanager
def on_processors(number):
    """Within this the GPU has so many multiprocessors: fewer have more items each."""
    with mock.patch.object(hopper, "multiprocessors", lambda device: number):
        clear_caches()
        yield
    clear_caches()


def gradient(backend, x, dy, g, *, out=None, accumulate=False, split_k=None, **model):
    """``(weight gradient in fp32, what the model found)`` of a backend's own host code."""
    out = torch.full(g.weight_shape, float("nan")) if out is None else out
    with gluon_model.executing(**model) as results:
        operator.wgrad_by(backend.__name__.split(".")[2], x, dy, g, out, accumulate, split_k)
    (result,) = results
    return out, result


def check(backend, shape, Co, R, S, convolution, *, dtype=torch.bfloat16, layout="flat", **options):
    """One gradient against the float64 reference, without any finding; returns the launch's ``Result``."""
    x, dy, g = cases.problem(shape, Co, R, S, dtype=dtype, layout=layout, **convolution)
    dw, result = gradient(backend, x, dy, g, **options)
    assert result.ok, str(result)
    error = relative_error(dw, conv2d_wgrad_reference(x.double(), dy.double(), R, S, **convolution))
    assert error < 1e-6, f"relative error {error:.1e}"
    return result


def plant(monkeypatch, backend, kernel, module, function, old, new):
    """Replace a part of a function that a backend's kernel is made of, in ``module``, for one test."""
    path = pathlib.Path(module.__file__)
    text = path.read_text()
    start = text.index(f"def {function}(")
    end = text.find("\n    @gluon", start)
    assert text[start:end].count(old) == 1, (function, old)
    source = text[:start] + text[start:end].replace(old, new) + text[end:]
    file = f"/planted/{path.name}"  # findings quote their lines from here
    monkeypatch.setitem(linecache.cache, file, (len(source), None, source.splitlines(True), file))
    space = {"__name__": module.__name__, "__file__": file}
    exec(compile(source, file, "exec"), space)
    if module is backend:
        monkeypatch.setattr(backend, kernel, space[kernel])
    else:
        monkeypatch.setattr(backend, function, space[function])


def assert_found(backend, finding, **options):
    """Every schedule finds this: (kind, partition, part of the text, barrier)."""
    kind, partition, text, barrier = finding
    x, dy, g = cases.problem((2, 9, 8, 24), 72, 3, 3, dtype=torch.bfloat16)
    for schedule in SWEEP:
        with tiles(**options):
            _, result = gradient(backend, x, dy, g, **schedule)
        found = [str(f) for f in result.findings if f.kind == kind and f.partition.startswith(partition)]
        assert any(text in one and barrier in one for one in found), f"{schedule}: {result}"


def in_units(g):
    """``(options, Matrix)`` of a geometry: the options that Hopper's kernel is compiled with beside its tile's."""
    unit = hopper.unit_of(g.Ci)
    known = {"POINTWISE": g.pointwise, "UNIT": unit, "ALIGNED": hopper.is_aligned_to_tma(g)}
    return known, Matrix(g.Co, g.Ci // unit, g.R * g.S)


@gluon.jit
def cover(seen, work):
    """How often a program's items meet every block of every tile, in the split that the block is of."""
    for item in range(gl.program_id(0), work.items, work.programs):
        tile, split, first, n = split_of(item, work)
        for i in range(n):
            gl.atomic_add(seen + (split * work.tiles + tile) * work.blocks + first + i, 1)
