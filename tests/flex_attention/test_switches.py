"""A mod that reads one of torch's switches follows it."""

import functools

import pytest
import torch
from torch import is_grad_enabled as graded

from kernels import runtime
from kernels.flex_attention import BlockMask, flex_attention
from kernels.flex_attention.mods import bind

DEVICE = runtime.device
HALF = torch.float16 if DEVICE.type == "cpu" else torch.bfloat16  # not the one that is torch's own


def autocast():
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16)


def in_halves():
    return torch.autocast(DEVICE.type, dtype=HALF)


class Changed:
    """As a context: ``change(value)``, and back."""

    def __init__(self, change, read, value):
        self.change, self.read, self.value = change, read, value

    def __enter__(self):
        self.before = self.read()
        self.change(self.value)

    def __exit__(self, *_):
        self.change(self.before)


default_dtype = functools.partial(Changed, torch.set_default_dtype, torch.get_default_dtype, torch.float64)
default_device = functools.partial(Changed, torch.set_default_device, lambda: None, "meta")
deterministic = functools.partial(
    Changed, torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, False
)
precision = functools.partial(Changed, torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "high")
cudnn = functools.partial(
    Changed, lambda on: setattr(torch.backends.cudnn, "benchmark", on), lambda: torch.backends.cudnn.benchmark, True
)
SWITCHES = {
    "grad": (torch.no_grad, lambda: not torch.is_grad_enabled()),
    "grad, by another name": (torch.no_grad, lambda: not graded()),
    "grad, in a closure": (torch.no_grad, lambda read=torch.is_grad_enabled: not read()),
    "inference": (torch.inference_mode, lambda: torch.is_inference_mode_enabled()),
    "autocast": (autocast, lambda: torch.is_autocast_enabled(DEVICE.type)),
    "autocast's dtype": (in_halves, lambda: torch.get_autocast_dtype(DEVICE.type) == HALF),
    "default dtype": (default_dtype, lambda: torch.get_default_dtype() == torch.float64),
    "default dtype, unasked": (default_dtype, lambda: torch.ones(()).dtype == torch.float64),
    "default device": (default_device, lambda: torch.ones(3).is_meta),
    "default device, as a context": (lambda: torch.device("meta"), lambda: torch.ones(3).is_meta),
    "deterministic": (deterministic, lambda: not torch.are_deterministic_algorithms_enabled()),
    "precision": (precision, lambda: torch.get_float32_matmul_precision() == "high"),
    "backends": (cudnn, lambda: torch.backends.cudnn.benchmark),
}  # fmt: skip


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("defined", ["once", "anew"])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_score_mod_follows(name, defined, requires_grad, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # benchmarks turn it on for good
    switched, is_on = SWITCHES[name]
    q = torch.ones(1, 1, 4, 16, device=DEVICE, requires_grad=requires_grad)
    v = torch.eye(4, 16, device=DEVICE)[None, None]

    def make():
        return lambda score, b, h, q_idx, kv_idx: score + (kv_idx * 100.0 if is_on() else kv_idx * -100.0)

    mod = make()
    results = []
    for on in (False, True, False, True):
        score_mod = mod if defined == "once" else make()
        if on:
            with switched():
                o = flex_attention(q, q, v, score_mod)
        else:
            o = flex_attention(q, q, v, score_mod)
        results.append(int(o[0, 0, 0].argmax()))
    assert results == [0, 3, 0, 3]


@pytest.mark.parametrize("name", ["grad", "autocast", "default dtype"])
def test_a_mask_mod_follows(name):
    switched, is_on = SWITCHES[name]
    q = torch.randn(1, 1, 4, 16, device=DEVICE)
    ones = torch.ones(1, 1, 1, dtype=torch.int32, device=DEVICE)
    mask_mod = lambda b, h, m, n: (n == 3) if is_on() else (n == 0)  # noqa: E731
    mask = BlockMask.from_kv_blocks(ones, ones[..., None] * 0, BLOCK_SIZE=16, mask_mod=mask_mod, seq_lengths=(4, 4))
    for on, key in ((False, 0), (True, 3), (False, 0)):
        if on:
            with switched():
                o = flex_attention(q, q, q, block_mask=mask)
        else:
            o = flex_attention(q, q, q, block_mask=mask)
        torch.testing.assert_close(o, q[:, :, key : key + 1].expand_as(q).to(o.dtype))


@pytest.mark.parametrize("name", ["grad", "autocast", "default dtype", "default dtype, unasked", "deterministic"])
def test_a_compiled_call_follows(name):
    switched, is_on = SWITCHES[name]
    q = torch.ones(1, 1, 4, 16, device=DEVICE)
    v = torch.eye(4, 16, device=DEVICE)[None, None]
    attend = torch.compile(
        lambda q, v: flex_attention(q, q, v, lambda s, b, h, m, n: s + (n * 100.0 if is_on() else n * -100.0)),
        backend="eager",
    )
    for on, key in ((False, 0), (True, 3), (False, 0)):
        if on:
            with switched():
                o = attend(q, v)
        else:
            o = attend(q, v)
        assert int(o[0, 0, 0].argmax()) == key


def test_a_mod_that_reads_no_switch_is_compiled_once(monkeypatch):
    compiled = []
    real = bind.compile_mod
    monkeypatch.setattr(bind, "compile_mod", lambda *args, **more: (compiled.append(args), real(*args, **more))[1])
    q = torch.randn(1, 1, 4, 16, device=DEVICE)
    mod = lambda score, b, h, q_idx, kv_idx: score * 1.0625 + q_idx  # noqa: E731
    for switched in (torch.no_grad, torch.enable_grad, torch.inference_mode, deterministic, precision):
        with switched():
            flex_attention(q, q, q, mod)
    assert len(compiled) == 1
