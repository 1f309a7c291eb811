"""Tests marked ``gpu`` run only where kernels are compiled for a GPU."""

import pytest

from kernels import runtime


def pytest_collection_modifyitems(items):
    if runtime.interpreted:
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
