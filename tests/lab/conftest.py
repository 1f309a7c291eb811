"""Where kernels are compiled, what watches the interpreter has nothing to watch."""

import pytest

import kernels


def pytest_collection_modifyitems(items):
    watching = {"test_child.py", "test_pictures.py", "test_trace.py", "test_triton_private.py"}
    if not kernels.runtime.interpreted:
        for item in items:
            if item.path.parent.name == "lab" and item.path.name in watching:
                item.add_marker(pytest.mark.skip(reason="watches the interpreter"))
