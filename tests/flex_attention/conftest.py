"""Every test of the room runs with freshly allocated memory full of NaN, and keeps its generated modules to itself."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def generated_modules_stay_here(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELS_CACHE_DIR", str(tmp_path_factory.mktemp("generated")))
        yield


@pytest.fixture(autouse=True)
def uninitialized_memory_is_nan():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)
