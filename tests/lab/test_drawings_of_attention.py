"""The flow of attention's backward pass: a kernel lights its own products, and the alternative text says which."""

import pytest
import torch
from matplotlib.colors import to_hex

from kernels.lab import drawings
from kernels.lab.drawings.attention_backward import PRODUCTS
from kernels.lab.drawings.language import OUTLINE


def lit(figure):
    """The products whose labels are not an outline's grey."""
    texts = {text.get_text(): to_hex(text.get_color()).upper() for ax in figure.axes for text in ax.texts}
    return {i for i, product in PRODUCTS.items() if texts[f"{i}:  {product}"] != OUTLINE.upper()}


@pytest.mark.parametrize(
    ("kernel", "products"), [(None, {1, 2, 3, 4, 5}), ("dq", {1, 2, 5}), ("dk and dv", {1, 2, 3, 4})]
)
def test_a_kernel_lights_its_products(kernel, products):
    figure = drawings.attention_backward(kernel)
    assert lit(figure) == products
    told = figure.alt.partition("Lit: ")[2]
    assert {i for i, product in PRODUCTS.items() if f"{i} is {product}" in told} == products


def test_a_kernel_that_there_is_not_is_named():
    with pytest.raises(ValueError, match="kernel is 'dv', needs to be one of 'dq', 'dk and dv', or None"):
        drawings.attention_backward("dv")


def test_an_online_softmax_ends_with_the_softmax():
    figure = drawings.online_softmax((0, 2, 1, 0), (8, 2, 4, 0))
    said = [[text.get_text() for text in ax.texts] for ax in figure.axes[: figure.count]]
    assert [any("¼ · 1 + 1 = 1.25" == text for text in frame) for frame in said] == [False, True, False, False]
    assert any(text.endswith("acc / l = 3") for text in said[-1])  # (8 + 8 + 8 + 0) / 8
    with pytest.raises(ValueError, match="scores and values have 2 and 3 numbers, need 3 to 6 of each"):
        drawings.online_softmax((1, 2), (1, 2, 3))


def test_a_block_mask_shows_its_counts_and_the_lengths_of_its_lists():
    distance = torch.arange(8)[:, None] - torch.arange(8)
    said = [text.get_text() for text in drawings.block_lists((distance >= 0) & (distance <= 3), 2).axes[0].texts]
    # sixteen squares, four indices in each of eight lists, eight lengths
    assert said.count("4") == 3 and said.count("0") == 7 + 8 + 1 and said.count("2") == 8 + 2
    with pytest.raises(ValueError, match="needs to be square, its side a multiple of S = 3"):
        drawings.block_lists(distance > 0, 3)


def test_the_walks_along_rows_and_down_columns_count_their_blocks():
    figure = drawings.block_walks(torch.ones(4, 4).tril().bool())
    by_rows, by_columns = ([text.get_text() for text in ax.texts] for ax in figure.axes)
    assert by_rows.count("0") == by_columns.count("0") == 4  # where each walk begins
    assert "rows, which have 1, 2, 3, 4 blocks; right down the columns, which have 4, 3, 2, 1" in figure.alt
    with pytest.raises(ValueError, match="needs two dimensions, rows and columns of blocks"):
        drawings.block_walks(torch.ones(4))
