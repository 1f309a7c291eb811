"""Decide where kernels run before any test module imports Triton, and define kernels as a notebook does."""

import linecache
import textwrap

import pytest

import kernels


@pytest.fixture(scope="session")
def cell():
    """``cell(source, **names) -> namespace``: execute source as IPython does a cell, known to linecache only."""
    import triton
    import triton.language as tl

    def execute(source: str, **names) -> dict:
        filename = f"/cell/{len(linecache.cache)}.py"
        source = textwrap.dedent(source)
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        namespace = {"__name__": "__main__", "tl": tl, "triton": triton, **names}
        exec(compile(source, filename, "exec"), namespace)
        return namespace

    return execute


def pytest_collection_modifyitems(items):
    """Where kernels are compiled, what watches this process's own interpreter has nothing to watch."""
    watching = {"test_child.py", "test_pictures.py", "test_trace.py", "test_triton_private.py"}
    if not kernels.runtime.interpreted:
        for item in items:
            if item.path.parent.name == "lab" and item.path.name in watching:
                item.add_marker(pytest.mark.skip(reason="watches the interpreter"))
