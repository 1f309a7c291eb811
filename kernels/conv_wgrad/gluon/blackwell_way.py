"""The way of Blackwell GPUs. Its kernel is imported where it is chosen: once it is imported, nanobind prints a page when a
program with Triton's interpreter ends."""

from kernels.common.gpu import is_cuda_architecture
from kernels.common.plan import Cost
from kernels.conv_wgrad.gluon import tma
from kernels.conv_wgrad.gluon.tma import copies

__all__ = ["copies", "cost", "plan", "reason_not"]


def reason_not(problem):
    """Why this way cannot compute a problem, as text, or ``None``."""
    if not is_cuda_architecture(problem.device, 10):
        return "the GPU is not a data center's Blackwell"
    return tma.unfit(problem.g, problem.dtype)


def cost(problem):
    """None that is finite, as long as no GPU has measured it."""
    return Cost(float("inf"), 'it has run on the CPU\'s model only, so it has to be asked for: backend="blackwell"')


def plan(problem):
    """What ``blackwell.wgrad`` would launch, and how."""
    from kernels.conv_wgrad.gluon import blackwell

    return blackwell.planned(problem.g, problem.device, problem.split_k)
