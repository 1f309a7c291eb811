"""Patches as channels, roles turned and pixels as groups: other convolutions that have the same sums."""

import itertools
from unittest import mock

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import conv2d_wgrad, hopper, operator, portable
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.problem import equivalents, folded, patches_as_channels, turned
from kernels.conv_wgrad.reference import conv2d_wgrad_reference
from tests.conv_wgrad import cases
from tests.tensors import relative_error

if hopper.gluon is not None:
    from tests.conv_wgrad import on_model

# name: image batch, output channels, filter, convolution, and its geometry's with patches as channels: input, filter, stride
PATCHES = {
    "16x16": ((2, 32, 48, 3), 5, 16, 16, dict(stride=16), (4, 16, 3, 48), (16, 1), (1, 1)),
    "14x14": ((2, 28, 28, 3), 5, 14, 14, dict(stride=14), (4, 14, 2, 42), (14, 1), (1, 1)),
    "4x4, rest at the end": ((2, 10, 11, 3), 5, 4, 4, dict(stride=4), (2, 10, 2, 12), (4, 1), (4, 1)),
    "16x16, rest at the end": ((2, 35, 33, 2), 5, 16, 16, dict(stride=16), (2, 35, 2, 32), (16, 1), (16, 1)),
    "rows that overlap": ((2, 7, 6, 4), 3, 3, 2, dict(stride=(1, 2), padding=(1, 0)), (2, 7, 3, 8), (3, 1), (1, 1)),
    "dilated rows": ((1, 9, 6, 2), 3, 3, 3, dict(stride=(2, 3), dilation=(2, 1)), (1, 9, 2, 6), (3, 1), (2, 1)),
    "the whole image": ((3, 5, 7, 4), 6, 5, 7, {}, (3, 5, 1, 28), (5, 1), (1, 1)),
    "a row": ((2, 3, 8, 4), 3, 1, 4, dict(stride=(1, 4)), (2, 3, 2, 16), (1, 1), (1, 1)),
    "stride 2, 1 wide": ((2, 9, 6, 3), 3, 9, 1, dict(stride=(9, 1)), (2, 9, 6, 3), (9, 1), (1, 1)),
}
UNFOLDED = {
    "overlap": ((2, 8, 8, 3), 5, 3, 3, dict(stride=2)),
    "gaps": ((2, 8, 8, 3), 5, 2, 2, dict(stride=3)),
    "padding": ((2, 8, 8, 3), 5, 2, 2, dict(stride=2, padding=(0, 0, 1, 0))),
    "dilation": ((2, 8, 8, 3), 5, 2, 2, dict(stride=2, dilation=2)),
    "groups": ((2, 8, 8, 4), 4, 2, 2, dict(stride=2, groups=2)),
    "no image": ((0, 8, 8, 3), 5, 2, 2, dict(stride=2)),
}
ROLES = {
    "3x3": ((2, 7, 5, 8), 3, 3, 3, dict(padding=1)),
    "no padding": ((2, 7, 5, 3), 8, 3, 2, {}),
    "asymmetric padding": ((2, 6, 7, 5), 2, 3, 3, dict(padding=(0, 2, 2, 1))),
    "dilation": ((2, 7, 8, 4), 3, 2, 3, dict(dilation=(3, 2), padding=(3, 1))),
    "1x1": ((3, 5, 4, 7), 2, 1, 1, {}),
    "patches": ((2, 6, 8, 2), 3, 3, 4, dict(stride=(1, 4))),
}


def run_turned(x, dy, g, out, accumulate=False, backend=portable, split_k=None):
    """The gradient with x and dy in each other's roles, whichever would be chosen."""
    equivalent = equivalents(operator.problem_of(x, dy, g, split_k))[1]
    assert equivalent.problem.turned
    operator.run(backend.plan(equivalent.problem), x, dy, out, accumulate, equivalent=equivalent)


@pytest.mark.parametrize("name", PATCHES)
def test_patches_are_channels(name):
    shape, Co, R, S, convolution, *want = PATCHES[name]
    g = geometry(shape, Co, R, S, **convolution)
    f = patches_as_channels(g)
    assert [f.input_shape, (f.R, f.S), f.stride] == want
    assert (f.M, f.columns, f.flops) == (g.M, g.columns, g.flops)
    for layout, dtype in itertools.product(cases.LAYOUTS, (torch.float32, torch.bfloat16)):
        cases.check(shape, Co, R, S, layout=layout, dtype=dtype, split_k=2, **convolution)


@pytest.mark.parametrize("name", UNFOLDED)
def test_what_is_no_patch_stays(name):
    shape, Co, R, S, convolution = UNFOLDED[name]
    g = geometry(shape, Co, R, S, **convolution)
    assert patches_as_channels(g) is g


def test_patches_into_any_memory():
    x, dy, g = cases.problem((2, 8, 12, 3), 5, 4, 4, stride=4)
    want = conv2d_wgrad_reference(x.cpu().double(), dy.cpu().double(), 4, 4, 4)
    planes = torch.full((5, 3, 4, 4), float("nan"), device=x.device).permute(0, 2, 3, 1)
    conv2d_wgrad(x, dy, 4, 4, 4, out=planes)
    assert relative_error(planes, want) < 2e-6
    conv2d_wgrad(x, dy, 4, 4, 4, out=planes, accumulate=True)
    assert relative_error(planes, 2 * want) < 2e-6
    text = conv2d_wgrad.explain(x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1), dy, 4, 4, 4)
    assert "patches of 4x4 pixels lie side by side, a filter of 4x1 over 12 channels" in text
    assert "copies input" in text and "its patches do not lie side by side" in text


@pytest.mark.parametrize("name", ROLES)
def test_roles_turned(name):
    shape, Co, R, S, convolution = ROLES[name]
    for layout, dtype, split_k in zip(
        cases.LAYOUTS, (torch.float32, torch.bfloat16) * 3, (None, 1, 2, 3, 20), strict=False
    ):
        x, dy, g = cases.problem(shape, Co, R, S, dtype=dtype, layout=layout, **convolution)
        want = conv2d_wgrad_reference(x.cpu().double(), dy.cpu().double(), R, S, **convolution)
        out = torch.full(g.weight_shape, float("nan"), device=x.device)
        run_turned(x, dy, g, out, split_k=split_k)
        assert relative_error(out, want) < 2e-6
        again = torch.full((g.Co, g.Ci, R, S), float("nan"), device=x.device).permute(0, 2, 3, 1)
        run_turned(x, dy, g, again, split_k=split_k)
        assert torch.equal(again, out)
        run_turned(x, dy, g, again, accumulate=True, split_k=split_k)
        assert relative_error(again, 2 * want) < 2e-6


@pytest.mark.parametrize(
    "convolution",
    [dict(stride=2), dict(padding=3), dict(padding=(0, 0, 0, 3)), dict(groups=4), dict(stride=(1, 2))],
    ids=str,
)
def test_roles_that_cannot_be_turned(convolution):
    assert turned(geometry((2, 9, 9, 4), 4, 3, 3, **convolution)) is None


FOLDED = {  # image batch, output channels; pixels that are groups of one, and how many are multiplied together
    "few outputs": ((2, 8, 6, 64), 19, 8, 2),
    "few of both": ((4, 8, 8, 4), 4, 32, 16),
    "aligned": ((2, 4, 4, 24), 40, 2, 2),
    "odd": ((2, 8, 5, 19), 61, 8, 2),
    "more than a tile": ((2, 4, 8, 150), 106, 4, 1),
    "pairs": ((2, 2, 3, 42), 10, 4, 2),
    "a tile more than channels need": ((2, 4, 4, 47), 31, 8, 2),
}


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("name", FOLDED)
def test_pixels_are_groups(name, tma):
    """Groups that begin within a vector of channels, tiles that reach over others, and each partial sum written once."""
    shape, Co, fold, together = FOLDED[name]
    x, dy, g = cases.problem(shape, Co, 1, 1, dtype=torch.bfloat16)
    want = conv2d_wgrad_reference(x.cpu().double(), dy.cpu().double(), 1, 1)
    equivalent = equivalents(operator.problem_of(x, dy, g))[-1]
    problem = equivalent.problem
    assert problem.fold == fold and portable.groups_together(problem.g) == together
    assert f"{fold} pixels side by side are groups of one" in str(equivalent)
    poisoned = lambda shape, **like: torch.full(shape, float("nan"), **like)  # noqa: E731
    for split_k, tiles in itertools.product((1, 2), ((16, 32), (64, 16), (128, 128))):
        out = torch.full(g.weight_shape, float("nan"), device=x.device)
        options = dict(zip(("BLOCK_M", "BLOCK_N"), tiles, strict=True)) | {"BLOCK_K": 16, "TMA": tma}
        with cases.configuration(**options), mock.patch.object(torch, "empty", poisoned):
            operator.run(portable.plan(problem._replace(split_k=split_k)), x, dy, out, equivalent=equivalent)
        assert relative_error(out, want) < 2e-6, (split_k, tiles)


UNFOLDABLE = {
    "an odd number of pixels": ((1, 3, 5, 19), 8, 1, dict()),
    "not dense": ((2, 8, 8, 19), 8, 1, dict(layout="padded")),
    "whole tiles": ((2, 8, 8, 128), 64, 1, dict()),
    "a filter": ((2, 8, 8, 19), 8, 3, dict(padding=1)),
    "no pixels": ((0, 8, 8, 19), 8, 1, dict()),
    "one channel": ((2, 8, 8, 1), 8, 1, dict()),
}


@pytest.mark.parametrize("name", UNFOLDABLE)
def test_what_is_not_folded(name):
    shape, Co, R, options = UNFOLDABLE[name]
    x, dy, g = cases.problem(shape, Co, R, R, dtype=torch.bfloat16, **options)
    assert folded(operator.problem_of(x, dy, g)) is None


@pytest.mark.skipif(hopper.gluon is None, reason="Gluon came with Triton 3.8")
@pytest.mark.skipif(not runtime.interpreted, reason="the model runs on the CPU")
@pytest.mark.parametrize("name", ["14x14", "16x16", "3x3", "asymmetric padding"])
def test_hoppers_kernel_on_the_model(name):
    """A stride of 16 pixels, which TMA doesn't step over, and both roles."""
    shape, Co, R, S, convolution, *_ = PATCHES.get(name) or ROLES[name]
    x, dy, g = cases.problem(shape, Co, R, S, dtype=torch.bfloat16, **convolution)
    equivalent = equivalents(operator.problem_of(x, dy, g))[name in ROLES]
    assert hopper.reason_not(equivalent.problem.g, torch.bfloat16, torch.device("cpu")) == "the GPU is not a Hopper"
    out = torch.full(g.weight_shape, float("nan"))
    with on_model.tiles(GROUPS=2):
        chosen = hopper.plan(equivalent.problem)
        with on_model.gluon_model.executing() as results:
            operator.run(chosen, x, dy, out, equivalent=equivalent)
    assert results[0].ok, str(results[0])
    assert relative_error(out, conv2d_wgrad_reference(x.double(), dy.double(), R, S, **convolution)) < 1e-6


@pytest.mark.skipif(hopper.gluon is None, reason="Gluon came with Triton 3.8")
def test_hoppers_backend_takes_patches_of_any_size_and_no_other_stride(monkeypatch):
    monkeypatch.setattr(hopper, "is_cuda_architecture", lambda *given: True)
    refused = lambda *sizes: hopper.reason_not(
        patches_as_channels(geometry((2, 28, 28, 3), 5, *sizes)), torch.bfloat16, None
    )  # noqa: E731
    assert refused(14, 14, 14) is None
    assert "stride is (14, 14), TMA steps over 8 pixels at most" in refused(13, 13, 14)
