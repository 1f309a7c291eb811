"""What several folders share: marks, fresh memory full of NaN, a notebook's cell, the guise of a compiled kernel."""

import linecache
import os
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from kernels import runtime  # before triton, whose mode it chooses
from kernels.common import checks
from kernels.common import operator as plan
from kernels.common.lines import unbroken
from kernels.lab.source import readable

import triton  # isort: skip
import triton.language as tl  # isort: skip

SET_BY_LIBRARIES = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "KMP_", "PATH")
ROOMS = {path.parent.name for path in (Path(__file__).parent.parent / "kernels").glob("*/operator.py")}


def pytest_collection_modifyitems(items):
    """Tests marked ``gpu`` run only where kernels are compiled for a GPU; a class may take an hour."""
    for item in items:
        if "classroom" in item.keywords:
            item.add_marker(pytest.mark.timeout(3600))
    if runtime.interpreted:
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def process_state() -> dict[str, object]:
    """What a test could leave behind, to the harm of one that knows nothing of it: each with its name."""
    # A launch in the interpreter replaces these and puts them back; a helper's call leaves tl.core replaced, as in Triton.
    language = {f"{of.__name__}.{key}": value for of in (tl, tl.math, tl.tensor) for key, value in vars(of).items()}
    return {
        **{name: value for name, value in language.items() if tl.core.is_builtin(value)},
        **{f"os.environ[{key!r}]": value for key, value in os.environ.items() if not key.startswith(SET_BY_LIBRARIES)},
        "sys.modules['__main__']": sys.modules["__main__"],
        **{f"sys.{name}": getattr(sys, name) for name in ("displayhook", "excepthook")},
        "the default dtype": torch.get_default_dtype(),
        "the default device": str(torch.get_default_device()),
    }


@pytest.fixture(autouse=True)
def the_process_is_left_as_it_was():
    """The test that changes it for good is the one that fails, not one that comes later in the same process."""
    before = process_state()
    yield
    after = process_state()
    changed = [name for name in {**before, **after} if not _same(before.get(name), after.get(name))]
    assert not changed, f"left behind: {', '.join(changed)}"


def _same(before, after) -> bool:
    return before is after or isinstance(before, str) and before == after


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
def lines_stay_whole():
    """Tests hold what is printed, and not where its lines are broken; that is ``test_lines``'s."""
    with unbroken():
        yield


@pytest.fixture(autouse=True)
def plans_are_made_anew():
    """A test may have changed what plans were made from."""
    plan.clear_caches()


@pytest.fixture(scope="session")
def cell():
    """``cell(source, **names) -> namespace``: execute source as IPython does a cell, known to linecache only."""

    def execute(source: str, **names) -> dict:
        filename = f"/cell/{len(linecache.cache)}.py"
        source = textwrap.dedent(source)
        namespace = {"__name__": "__main__", "tl": tl, "triton": triton, **names}
        exec(readable(source, filename), namespace)
        return namespace

    return execute


@pytest.fixture
def shell():
    """An IPython shell, as a notebook's kernel has one; it takes the place of ``__main__`` while it lives."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    yield shell
    shell.set_custom_exc((), None)
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()


@pytest.fixture
def as_if_compiled(monkeypatch):
    """Arguments are checked as where kernels are compiled."""

    class Compiled:
        interpreted = False

    monkeypatch.setattr(checks, "runtime", Compiled)
