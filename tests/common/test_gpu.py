"""What a GPU is: NVIDIA's generations, and AMD's devices that PyTorch calls "cuda" too."""

import pytest
import torch

from kernels.common import gpu

CUDA = torch.device("cuda", 0)


@pytest.fixture
def capability(monkeypatch):
    """``capability((9, 4))``: what every device says it can do."""
    monkeypatch.setattr(torch.version, "hip", None)
    return lambda found: monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: found)


def test_generations(capability):
    capability((9, 0))
    assert gpu.is_cuda_architecture(CUDA, 9) and gpu.is_cuda_architecture(CUDA, 9, 10)
    assert not gpu.is_cuda_architecture(CUDA, 10)


def test_amds_capability_of_nine_four_is_no_hopper(capability, monkeypatch):
    capability((9, 4))
    monkeypatch.setattr(torch.version, "hip", "6.4.0")
    assert not gpu.is_cuda_architecture(CUDA, 9)


def test_a_cpu_is_asked_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: pytest.fail("asked"))
    assert not gpu.is_cuda_architecture(torch.device("cpu"), 9)
    assert gpu.multiprocessors(torch.device("cpu")) == 3


@pytest.mark.parametrize("backend", ["hopper", "blackwell"])
def test_the_convolutions_backends_ask_here(backend, capability, monkeypatch):
    from kernels.conv_wgrad import operator

    capability((9, 4) if backend == "hopper" else (10, 0))
    monkeypatch.setattr(torch.version, "hip", "6.4.0")
    assert "the GPU is not a" in operator.BACKENDS[backend].reason_not(None, torch.float16, CUDA)
