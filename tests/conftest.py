"""What several folders share: marks, fresh memory full of NaN, a notebook's cell, the guise of a compiled kernel."""

import linecache
import textwrap
from pathlib import Path

import pytest
import torch

from kernels import runtime
from kernels.common import plan, validate

ROOMS = {path.parent.name for path in (Path(__file__).parent.parent / "kernels").glob("*/operator.py")}


def pytest_collection_modifyitems(items):
    """Tests marked ``gpu`` run only where kernels are compiled for a GPU."""
    if runtime.interpreted:
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True)
def uninitialized_memory_is_nan(request):
    """In the tests of a room, so that an element never written shows."""
    if request.path.parent.name not in ROOMS:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(autouse=True)
def plans_are_made_anew():
    """A test may have changed what plans were made from."""
    plan.forget()


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


@pytest.fixture
def as_if_compiled(monkeypatch):
    """Arguments are checked as where kernels are compiled."""

    class Compiled:
        interpreted = False

    monkeypatch.setattr(validate, "runtime", Compiled)
