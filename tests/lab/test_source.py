"""``source`` shows a kernel as its file has it."""

import pytest

from kernels.conv_wgrad import plain
from kernels.lab import source


def test_a_kernel_is_shown_with_its_decorator_as_it_stands_in_its_file():
    text = source(plain.sum_kernel)
    assert text.startswith("@triton.jit") and "def sum_kernel(" in text
    with open(plain.__file__) as file:
        assert text in file.read()


def test_a_function_too():
    assert source(plain.steps_of).startswith("def steps_of(")


@pytest.mark.parametrize("what", [3, None, len])
def test_what_has_no_text_is_refused_by_name(what):
    with pytest.raises(ValueError, match="kernel is"):
        source(what)
