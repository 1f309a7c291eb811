"""Torch's switches, which a mod may read, and on which some operations depend without being told."""

import torch

from kernels.common.checks import default_device


def in_force():
    """What operations depend on, whether or not a mod asks for it: hashable, in a fraction of a microsecond."""
    return torch.get_default_dtype(), autocast() if torch._C._is_any_autocast_enabled() else None, default_device()


def autocast():
    """How autocast is set."""
    of_devices = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")]
    return *of_devices, torch.is_autocast_cache_enabled()


#: What mods ask for by name, besides; all of ``in_force`` is looked at in any case.
SWITCHES = {
    name: getattr(torch, name)
    for name in (
        "is_grad_enabled", "is_inference_mode_enabled", "are_deterministic_algorithms_enabled",
        "is_deterministic_algorithms_warn_only_enabled", "get_deterministic_debug_mode", "get_float32_matmul_precision",
        "is_warn_always_enabled", "get_num_threads", "get_num_interop_threads",
    )
} | {
    name: autocast
    for name in (
        "is_autocast_cache_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype",
        "get_autocast_cpu_dtype", "get_autocast_gpu_dtype",
    )
}  # fmt: skip

#: Names behind which there is state that is not told apart: a mod with one of them is traced at every call.
OTHERS = frozenset(("backends", "get_rng_state", "initial_seed", "is_anomaly_enabled", "is_anomaly_check_nan_enabled"))


def named(names):
    """``((name, value), ...)`` of the switches among these names."""
    return tuple((name, SWITCHES[name]()) for name in sorted(SWITCHES.keys() & names))
