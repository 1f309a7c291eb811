"""These tests multiply float32 in float32, torch's own convolution too."""

import pytest
import torch


@pytest.fixture(autouse=True)
def float32_products():
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    yield
    torch.backends.cudnn.conv.fp32_precision = before
