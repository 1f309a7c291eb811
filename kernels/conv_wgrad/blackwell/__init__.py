"""The backend for Blackwell GPUs. Its kernel is imported where it is chosen: once it is imported, nanobind prints a page when
a program with Triton's interpreter ends."""

from kernels.common.gpu import is_cuda_architecture
from kernels.conv_wgrad.hopper import tma
from kernels.conv_wgrad.hopper.tma import copies
from kernels.conv_wgrad.problem import Cost

__all__ = ["copies", "cost", "plan", "reason_not"]


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``."""
    if not is_cuda_architecture(device, 10):
        return "the GPU is not a data center's Blackwell"
    return tma.unfit(g, dtype)


def cost(problem):
    """None that is finite, as long as no GPU has measured it."""
    return Cost(float("inf"), 'it has run on the CPU\'s model only, so it has to be asked for: backend="blackwell"')


def plan(problem, may_join=True):
    """The ``Plan`` of a problem, whatever the GPU is."""
    from kernels.conv_wgrad.blackwell import kernel

    return kernel.plan(problem)
