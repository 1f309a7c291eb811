"""What a GPU is, for the choice among backends: its architecture and its size."""

import functools

import torch


def is_cuda_architecture(device, *majors):
    """Whether ``device`` is an NVIDIA GPU of one of these generations (9 is Hopper, 10 a data center's Blackwell).

    PyTorch for AMD calls its devices "cuda" as well, and gives some of them the compute capability 9.4.
    """
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] in majors


@functools.cache
def multiprocessors(device):
    """How many multiprocessors there are; 3 where the CPU executes a GPU's kernel."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3
