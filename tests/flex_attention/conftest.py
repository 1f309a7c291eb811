"""The room's tests keep their generated modules to themselves."""

import pytest

from kernels.common.plan import forget


@pytest.fixture(scope="session", autouse=True)
def generated_modules_stay_here(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELS_CACHE_DIR", str(tmp_path_factory.mktemp("generated")))
        yield


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Each test makes its plans anew: many change what a plan depends on."""
    forget()
    yield
    forget()
