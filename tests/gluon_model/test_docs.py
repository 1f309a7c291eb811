"""The page on the model as a tool: its code runs and prints what it says."""

import pytest
import triton

from tests import documents

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):
    pytest.skip("the model needs Triton 3.8", allow_module_level=True)


def test_the_page_runs_as_it_stands():
    documents.check("gluon_model.md")
