"""Every test of the room runs with freshly allocated memory full of NaN, so that an element never written shows."""

import pytest
import torch


@pytest.fixture(autouse=True)
def uninitialized_memory_is_nan():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)
