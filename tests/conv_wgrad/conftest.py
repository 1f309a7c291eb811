"""Every test of the room runs with freshly allocated memory full of NaN, and multiplies float32 in float32."""

import pytest
import torch

from tests.dynamic_conv.conftest import uninitialized_memory_is_nan

__all__ = ["uninitialized_memory_is_nan"]


@pytest.fixture(autouse=True)
def float32_products():
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    yield
    torch.backends.cudnn.conv.fp32_precision = before
