"""The page on a kernel of one's own: its code runs and prints what it says."""

import pytest

from kernels import runtime
from tests import documents


@pytest.mark.skipif(not runtime.interpreted, reason="the page states what the interpreter prints")
def test_the_page_runs_as_it_stands():
    documents.check("your_own_kernel.md")
