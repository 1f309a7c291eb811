"""What the experiments share: sizes, a look at one launch, numbers to read."""

import torch

from kernels import runtime

LINE = 128  # bytes: what the L1 cache keeps together
KB, MB, GB = 2**10, 2**20, 2**30
BUFFER = 4 * GB  # far more than any cache holds


def processors():
    """Multiprocessors of this GPU."""
    return torch.cuda.get_device_properties(runtime.device).multi_processor_count


def once(fn):
    """Milliseconds of one ``fn()`` on the GPU, with whatever the caches hold."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    fn()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after)


def warm_up():
    """A GPU that was idle takes a while to raise its clock."""
    a = torch.randn(4096, 4096, dtype=torch.bfloat16, device=runtime.device)
    for _ in range(200):
        a @ a
    torch.cuda.synchronize()


def short(number):
    """Four digits: no time is known better."""
    return float(f"{number:.4g}")


def random_words(nbytes):
    """int32 tensor of ``nbytes`` with random values."""
    return torch.randint(-(2**31), 2**31 - 1, (nbytes // 4,), dtype=torch.int32, device=runtime.device)
