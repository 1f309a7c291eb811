"""Decide where kernels run before any test module imports Triton, and define kernels as a notebook does."""

import linecache
import textwrap

import pytest

import kernels  # noqa: F401


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
