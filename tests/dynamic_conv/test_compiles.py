"""What the interpreter cannot show: every kernel compiles for real GPUs, whatever the options, without a spill."""

import pytest
import torch

from kernels import runtime
from kernels.common import configs
from kernels.common.operator import clear_caches
from kernels.dynamic_conv import dynamic_conv, dynamic_conv_step, operator
from kernels.dynamic_conv.causal_conv1d import causal_conv1d_update
from kernels.lab import compile_report

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests compile every kernel")

CASES = {
    "plain": {},
    "W = 8": {"W": 8},
    "W = 3, all options": {"W": 3, "bias": True, "residual": True, "activation": "silu", "state": True, "final": True},
    "packed": {"cu_seqlens": [0, 5, 5, 32]},
    "packed, all options": {
        "bias": True, "residual": True, "activation": "silu", "state": True, "final": True, "cu_seqlens": [0, 5, 5, 32],
    },
    "static, bias": {"static": True, "bias": True, "activation": "silu"},
    "static": {"static": True},
    "many taps": {"W": 17, "activation": "silu", "bias": True},
    "elements": {"D": 61},
    "float32": {"dtype": torch.float32, "activation": "silu"},
}  # fmt: skip


def launches(monkeypatch, *, W=4, D=64, dtype=torch.float16, static=False, bias=False, residual=False, activation=None,
             state=False, final=False, cu_seqlens=None):  # fmt: skip
    """Every kernel launched by a forward and backward pass and a step, with its arguments, for any GPU's configuration."""
    seen = []
    record = lambda kernel, grid, *args, **meta: seen.append((kernel, args, meta))  # noqa: E731
    table = configs._table("dynamic_conv")["any GPU"]

    def for_any_gpu(package, kernel, key, device):
        return dict(table[kernel].get(key, table[kernel]["default"]))

    monkeypatch.setattr(configs, "_says", for_any_gpu)
    clear_caches()
    monkeypatch.setattr(operator, "launch", record)
    B, T = (2, 32) if cu_seqlens is None else (1, cu_seqlens[-1])
    N = B if cu_seqlens is None else len(cu_seqlens) - 1
    tensor = lambda *shape: torch.zeros(shape, dtype=dtype, requires_grad=True)  # noqa: E731
    x, weight = tensor(B, T, D), tensor(*((D, W) if static else (B, T, D, W)))
    b, r, s = (
        tensor(*shape) if on else None for on, shape in ((bias, (D,)), (residual, (B, T, D)), (state, (N, D, W - 1)))
    )
    out = dynamic_conv(
        x, weight, bias=b, residual=r, activation=activation, initial_state=s, output_final_state=final,
        cu_seqlens=None if cu_seqlens is None else torch.tensor(cu_seqlens),
    )  # fmt: skip
    out = out if final else (out,)
    torch.autograd.grad(out, [t for t in (x, weight, b, r, s) if t is not None], [torch.zeros_like(o) for o in out])
    row = lambda t: None if t is None else t[:, 0]  # noqa: E731
    with torch.no_grad():
        state_now = torch.zeros(B, D, W - 1, dtype=dtype)
        dynamic_conv_step(
            row(x), weight if static else row(weight), state_now, bias=b, residual=row(r), activation=activation
        )
    return seen


def check(monkeypatch, arch, case):
    seen = launches(monkeypatch, **CASES[case])
    kernels = {kernel.__name__: (kernel, args, meta) for kernel, args, meta in seen}
    kind = "static" if CASES[case].get("static") else "words"
    wanted = {f"{kind}_forward_kernel", f"{kind}_backward_kernel"} | ({"sum_parts_kernel"} if kind == "static" else set())
    if "all options" in case:
        wanted |= {"conv_step_kernel", "final_state_kernel", "ends_kernel"}
    assert kernels.keys() >= wanted
    for kernel, args, meta in (kernels[name] for name in sorted(wanted)):
        report = compile_report(kernel, *args, arch=arch, **meta)
        assert report.spill_bytes == 0, f"{kernel.__name__}: {report}"
        assert report.shared_bytes <= 48 * 1024


@pytest.mark.share(4)
@pytest.mark.parametrize("case", CASES)
def test_compiles_for_hopper(monkeypatch, case):
    check(monkeypatch, 90, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("arch", [80, 100])
def test_compiles_for_ampere_and_blackwell(monkeypatch, case, arch):
    check(monkeypatch, arch, case)


def test_a_step_that_passes_over_padding_compiles(monkeypatch):
    seen = []
    monkeypatch.setattr(operator, "launch", lambda kernel, grid, *args, **meta: seen.append((kernel, args, meta)))
    x, weight, states = torch.zeros(2, 64), torch.zeros(64, 4), torch.zeros(5, 64, 4)
    causal_conv1d_update(x, states, weight, conv_state_indices=torch.tensor([3, -1], dtype=torch.int32))
    ((kernel, args, meta),) = seen
    assert compile_report(kernel, *args, arch=90, **meta).spill_bytes == 0


def test_memory_is_read_and_written_in_wide_accesses(monkeypatch):
    """Plain float16: 8-byte loads and 8- or 16-byte stores, nothing narrower; the weight's gradient in 16-byte stores."""
    reports = {
        kernel.__name__: compile_report(kernel, *args, arch=90, **meta)
        for kernel, args, meta in launches(monkeypatch, D=256)
    }
    for name in ("words_forward_kernel", "words_backward_kernel"):
        sass = reports[name].sass
        assert reports[name].count("LDG.E.64") + reports[name].count("LDG.E.128") == reports[name].count("LDG"), sass
        assert reports[name].count("STG.E.64") + reports[name].count("STG.E.128") == reports[name].count("STG"), sass
    assert reports["words_backward_kernel"].count("STG.E.128") > 0


@pytest.mark.parametrize("static", [False, True])
def test_rows_at_odd_addresses_leave_the_weights_their_words(monkeypatch, static):
    """Four taps of one channel are a word, whose rows begin where x's can't: of weights no access is narrower. Nor does the
    bias, which could be read in words, make threads exchange what they read."""
    reports = {
        kernel.__name__: compile_report(kernel, *args, arch=90, **meta)
        for kernel, args, meta in launches(monkeypatch, D=509, static=static, bias=True, activation="silu")
    }
    kind = "static" if static else "words"
    for name in ("forward", "backward"):
        report = reports[f"{kind}_{name}_kernel"]
        assert report.count("LDG.E.64") > 0 and report.count("LDG.E.64") + report.count("LDG.E.U16") == report.count("LDG")
        assert static or report.shared_bytes == 0
    if not static:  # x, dy and dx are as many as the words of the weights
        assert reports["words_backward_kernel"].count("STG.E.64") == reports["words_backward_kernel"].count("STG.E.U16")
