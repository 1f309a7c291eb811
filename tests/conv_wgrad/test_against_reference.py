"""The weight and bias gradients against the float64 reference: the published example's test matrix, and what it lacks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks import conv_wgrad as benchmark
from kernels import runtime
from kernels.conv_wgrad import conv2d_wgrad
from kernels.conv_wgrad.geometry import geometry
from tests.conv_wgrad import cases
from tests.tensors import relative_error

# N, Ci, H, W, Co, R, S, stride, padding of the published example's tests.
PUBLISHED = [
    (N, Ci, H, W, Co, R, S, stride, padding)
    for N in (1, 128)
    for H, W in ((64, 64), (64, 32))
    for Ci, Co in ((128, 128), (384, 384), (128, 384))
    for R, S in ((1, 1), (2, 2), (3, 3), (1, 3))
    for stride in (1, 2, 3)
    for padding in (0, 1)
]
SPECIAL = [
    (16, 5, 32, 32, 96, 3, 3, 1, 1),  # channels that fill no vector
    (16, 96, 1, 8, 128, 1, 2, (1, 2), 0),  # asymmetric stride
    (16, 512, 2, 2, 768, 2, 2, (2, 2), 0),  # small images
]


def small(case):
    """The same case with an eighth of the images, channels and pixels along each side."""
    N, Ci, H, W, Co, *rest = case
    return -(-N // 64), Ci // 8, H // 8 + 1, W // 8 + 1, Co // 8, *rest


@pytest.mark.parametrize("case", dict.fromkeys(map(small, PUBLISHED)), ids=str)
def test_the_published_matrix_reduced(case):
    N, Ci, H, W, Co, R, S, stride, padding = case
    cases.check((N, H, W, Ci), Co, R, S, stride=stride, padding=padding)


@pytest.mark.parametrize("case", SPECIAL, ids=str)
def test_the_published_special_cases(case):
    N, Ci, H, W, Co, R, S, stride, padding = case
    cases.check((N, H, W, Ci), Co, R, S, stride=stride, padding=padding, dtype=torch.bfloat16, out_dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("case", PUBLISHED + SPECIAL, ids=str)
def test_the_published_matrix_in_full(case):
    """bf16 products summed in fp32, beside float64; matrix units round sums down, so that long ones lose a digit more."""
    N, Ci, H, W, Co, R, S, stride, padding = case
    g = geometry((N, H, W, Ci), Co, R, S, stride, padding)
    x, dy = (cases.randn(*shape, dtype=torch.bfloat16) for shape in (g.input_shape, g.output_shape))
    ours = conv2d_wgrad(x, dy, R, S, stride, padding, out_dtype=torch.float32)
    some = slice(-benchmark.CHANNELS_COMPARED, None)  # float64 for all channels would take the GPU's memory
    g = geometry((N, H, W, x[..., some].shape[-1]), benchmark.CHANNELS_COMPARED, R, S, stride, padding)
    assert benchmark.errors_of(x[..., some], dy[..., some], g, {"ours": ours[some, ..., some]})["ours"] < 3e-4


GEOMETRIES = {
    "1x1": dict(R=1, S=1),
    "1x1, stride 2": dict(R=1, S=1, stride=2),
    "7x7, stride 2": dict(R=7, S=7, stride=2, padding=3),
    "even filter": dict(R=4, S=2, padding=(1, 2)),
    "stride longer than the filter": dict(R=2, S=2, stride=(4, 3)),
    "asymmetric padding": dict(padding=(0, 2, 1, 3)),
    "padding wider than the filter": dict(R=1, S=2, padding=3),
    "dilated": dict(dilation=(2, 3), padding=(2, 1)),
    "stride, dilation, padding": dict(stride=(2, 1), dilation=(1, 2), padding=(2, 0, 0, 2)),
    "the whole image at once": dict(R=9, S=11),
    "two groups": dict(groups=2, padding=1),
    "depthwise": dict(groups=8, padding=1),
    "depthwise, rows of 11 taps": dict(R=2, S=11, groups=8, stride=(1, 2), padding=(0, 1, 4, 5)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(name, dtype):
    cases.check((2, 9, 11, 8), 16, **GEOMETRIES[name], dtype=dtype)


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("name", ["asymmetric padding", "depthwise", "1x1, stride 2"])
def test_layouts(name, layout):
    cases.check((3, 9, 11, 8), 16, **GEOMETRIES[name], layout=layout, dtype=torch.float16)


@pytest.mark.parametrize("Ci, Co", [(1, 1), (3, 7), (5, 33), (17, 2), (24, 40)])
def test_any_number_of_channels(Ci, Co):
    cases.check((2, 7, 6, Ci), Co, padding=1, dtype=torch.float16)


@pytest.mark.parametrize("groups, Ci, Co", [(3, 9, 15), (4, 4, 12), (6, 6, 6), (2, 2, 6), (5, 5, 5)])
def test_groups(groups, Ci, Co):
    """Depthwise convolutions with several output channels a group, too."""
    cases.check((2, 7, 6, Ci), Co, padding=1, groups=groups)


@pytest.mark.parametrize(
    "groups, Ci, Co, R", [(12, 24, 48, 3), (12, 48, 12, 2), (3, 66, 6, 1), (40, 80, 80, 3), (7, 56, 42, 3)]
)
def test_groups_that_share_a_tile_do_not_see_each_other(groups, Ci, Co, R):
    """Some groups together, of unequal numbers of channels, and their last tile not full; another group's values are NaN in
    none of the products that are stored."""
    cases.check((2, 7, 6, Ci), Co, R, R, padding=R // 2, groups=groups)
    for group in (0, groups - 1):
        x, dy, g = cases.problem((2, 7, 6, Ci), Co, R, R, padding=R // 2, groups=groups)
        dw = conv2d_wgrad(x, dy, R, R, padding=R // 2, groups=groups)
        x[..., group * g.Ci_group : (group + 1) * g.Ci_group] = math.nan
        rows = slice(group * g.Co_group, (group + 1) * g.Co_group)
        spoilt = conv2d_wgrad(x, dy, R, R, padding=R // 2, groups=groups)
        assert spoilt[rows].isnan().all()
        spoilt[rows] = dw[rows]
        assert torch.equal(spoilt, dw)


TILES = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}


@pytest.mark.parametrize("split_k", [None, 1, 3, 1000])
@pytest.mark.parametrize("name", ["3x3", "two groups", "depthwise"])
def test_tiles_and_pieces_are_no_part_of_the_answer(name, split_k):
    with cases.configuration(**TILES, BLOCK=64):
        cases.check(
            (2, 7, 5, 8), 24, padding=1, split_k=split_k, groups={"3x3": 1, "two groups": 2, "depthwise": 8}[name]
        )


@pytest.mark.skipif(not runtime.interpreted, reason="a GPU goes by its own table")
@pytest.mark.parametrize("name", [*GEOMETRIES, "1x1, two groups", "1x1, ragged"])
def test_blocks_copied_by_the_tensor_memory_accelerator(name):
    """Descriptors in place of pointers, where the tensors allow them."""
    more = {"1x1, two groups": dict(R=1, S=1, groups=2), "1x1, ragged": dict(R=1, S=1)}
    shape, Co = ((1, 3, 7, 24), 40) if name == "1x1, ragged" else ((2, 9, 11, 16), 32)
    with cases.configuration(BLOCK_M=32, BLOCK_N=16, BLOCK_K=64, TMA=True), cases.launches() as seen:
        cases.check(shape, Co, **(GEOMETRIES | more)[name], dtype=torch.float16)
    for kernel, _, (dy, x, *_), meta in seen:
        if kernel.__name__ == "wgrad_kernel":
            assert meta["T"].TMA and isinstance(dy, TensorDescriptor)  # of 2 channels a group, 8 groups together
            pointwise = name.startswith("1x1") and "stride" not in name
            assert isinstance(x, TensorDescriptor) == meta["T"].POINTWISE == pointwise


@pytest.mark.parametrize("Co, layout", [(12, "flat"), (16, "padded"), (16, "nchw"), (16, "expanded")])
def test_no_descriptor_where_rows_are_not_aligned(Co, layout):
    """Rows of 24 bytes, and rows that begin anywhere, are loaded through pointers instead."""
    with cases.configuration(TMA=True):
        cases.check((2, 5, 5, 12), Co, 1, 1, dtype=torch.float16, layout=layout)


def test_a_block_that_spans_many_images():
    """Steps that carry into the image's number: 16 pixels are two images and a half."""
    with cases.configuration(**TILES):
        cases.check((9, 2, 3, 4), 8, 1, 1)
        cases.check((9, 4, 5, 4), 8, 3, 3)
        cases.check((9, 4, 5, 4), 8, 3, 3, stride=2, padding=(2, 1, 0, 3), dilation=(1, 2))


@st.composite
def convolutions(draw):
    """Any geometry with an output: the image is as large as the filter needs, and up to 7 pixels more."""
    small = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    filter, stride, dilation, more = ((small(1, 4), small(1, 4)) for _ in range(4))
    padding = tuple(small(0, 3) for _ in range(4))
    stride = draw(st.sampled_from([stride, (stride[0] + 8, stride[1])]))
    size = [
        max(1, d * (k - 1) + 1 - padding[2 * i] - padding[2 * i + 1]) + extra + small(0, 3)
        for i, (k, d, extra) in enumerate(zip(filter, dilation, more, strict=True))
    ]
    groups = small(1, 3)
    Ci, Co = groups * small(1, 9), groups * small(1, 9)
    convolution = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    return (small(1, 3), *size, Ci), Co, *filter, convolution


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    convolution=convolutions(), seed=st.integers(0, 2**16), layout=st.sampled_from(cases.LAYOUTS),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), split_k=st.sampled_from([None, 2, 5]),
    tiles=st.tuples(*[st.sampled_from([16, 32])] * 3),
)  # fmt: skip
def test_random_geometries(convolution, seed, layout, dtype, split_k, tiles):
    *sizes, rest = convolution
    with cases.configuration(**dict(zip(TILES, tiles, strict=True))):
        cases.check(*sizes, **rest, seed=seed, layout=layout, dtype=dtype, split_k=split_k)


@pytest.mark.parametrize("name", ["3x3", "depthwise"])
def test_the_same_bits_every_time(name):
    """Also where many splits are summed."""
    with cases.configuration(BLOCK_K=16):
        x, dy, g = cases.problem((4, 8, 8, 16), 16, 3, 3, padding=1, groups=16 if name == "depthwise" else 1)
        first, *others = (conv2d_wgrad(x, dy, 3, 3, 1, 1, 1, g.groups, split_k=7) for _ in range(3))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.gpu
def test_the_same_bits_every_time_at_full_size():
    x, dy, _ = cases.problem((64, 28, 28, 512), 512, 3, 3, padding=1, dtype=torch.bfloat16)
    first, *others = (conv2d_wgrad(x, dy, 3, 3, 1, 1) for _ in range(20))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("shape, Co", [((0, 5, 6, 4), 8), ((2, 2, 6, 4), 8), ((2, 5, 6, 0), 8), ((2, 5, 6, 4), 0)])
def test_sums_of_nothing_are_zero(shape, Co):
    """No images, a filter that fits nowhere, no channels in or out."""
    cases.check(shape, Co)
    x, dy, g = cases.problem(shape, Co, 3, 3)
    out = cases.randn(*g.weight_shape)
    before = out.clone()
    assert torch.equal(conv2d_wgrad(x, dy, 3, 3, out=out, accumulate=True), before)
    assert torch.equal(conv2d_wgrad(x, dy, 3, 3), torch.zeros_like(out))


@pytest.mark.gpu
def test_tf32_where_torch_allows_it():
    x, dy, _ = cases.problem((4, 16, 16, 64), 128, 3, 3, padding=1)
    exact = conv2d_wgrad(x, dy, 3, 3, 1, 1)
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    error = relative_error(conv2d_wgrad(x, dy, 3, 3, 1, 1), exact)
    assert 1e-5 < error < 1e-3
