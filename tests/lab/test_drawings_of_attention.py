"""The flow of attention's backward pass: a kernel lights its own products, and the alternative text says which."""

import pytest
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
