"""How the committed table cuts calls on an H200, decided without one."""

import types

import pytest
import torch

from kernels import runtime
from kernels.common import configs
from kernels.common.operator import Layout
from kernels.recurrent_attention.chunk import launches
from kernels.recurrent_attention.problem import Gates, Problem
from tests.recurrent_attention import cases


@pytest.fixture
def h200(monkeypatch):
    """Within, plans are those of an H200."""
    monkeypatch.setattr(launches, "runtime", types.SimpleNamespace(interpreted=False))  # bfloat16 is computed as such
    with configs.instead(lambda package, kernel, key, device: configs.of_gpu(("NVIDIA H200",), package, kernel, key)):
        yield


def problem(gate, B, T, H, K, V, packed=None):
    q, k, v, g, gk = (
        Layout((B, T, H, *size), torch.empty(B, T, H, *size, device="meta").stride(), torch.bfloat16, 0)
        for size in ((K,), (K,), (V,), (), (K,))
    )
    return Problem(q, k, v, Gates(**{gate: {"g": g, "gk": gk}[gate]}), packed, False, False, runtime.device)


LAYERS = {  # forward: tokens in a chunk, whether states are stored, runs, tile of the loop, tile of the outputs
    "many heads": (("g", 8, 2048, 8, 256, 512), (128, True, 8, (64, 128), (32, 256))),
    "a few": (("g", 1, 32768, 8, 256, 512), (128, True, 1, (64, 64), (32, 256))),
    "fewer": (("g", 1, 32768, 4, 256, 512), (128, True, 1, (64, 64), (32, 256))),
    "two": (("g", 1, 131072, 2, 256, 512), (128, True, 4, (64, 64), (32, 256))),
    "packed": (("g", 1, 4096, 2, 512, 512, 3), (128, True, 4, (64, 64), (32, 256))),
    "gates of components": (("gk", 8, 2048, 4, 256, 512), (64, True, 8, (64, 64), (64, 128))),
    "few values": (("g", 8, 2048, 32, 256, 64), (64, False, 8, (64, 64), None)),
    "few values, one head": (("gk", 1, 8192, 1, 256, 48), (64, True, 64, (64, 64), (64, 64))),
    "a state in registers": (("g", 8, 2048, 32, 128, 128), (64, False, 8, (64, 64), None)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_cut_as_measured(h200, layer):
    of, (C, stored, runs, loop, outputs) = LAYERS[layer]
    asked = problem(*of)
    ahead, back = launches.cut(asked), launches.cut(asked, asked.v)
    tile = lambda kernel: (ahead.options(kernel)["TILE"].BLOCK_K, ahead.options(kernel)["TILE"].BLOCK_V)  # noqa: E731
    assert (ahead.C, ahead.stored, back.C) == (C, stored, 64)
    assert ahead.runs == runs  # packed, each sequence may end within a run of its own
    assert tile("chunk_states") == loop
    if outputs:
        assert tile("chunk_stored_outputs") == outputs
    assert ("backward" in launches.explained(asked)) == (ahead != back)


def test_a_line_s_other_cases(monkeypatch):
    few, wide = {"loops": 8, "BLOCK_K": 16, "BLOCK_V": 16, "w": 3}, {"BLOCK_K": 32, "BLOCK_V": 64, "w": 2}
    line = {
        "BLOCK_K": 32,
        "BLOCK_V": 32,
        "w": 1,
        "WIDER_V": wide,
        "C128": {"BLOCK_K": 64, "BLOCK_V": 64, "w": 4, "FEW": few},
    }
    with cases.configured(chunk_states=line):
        options = lambda C, K, V, n: launches.table_options("chunk_states", "K64 32-bit", runtime.device, C, (K, V), n)  # noqa: E731
        said = lambda *of: options(*of)["w"]  # noqa: E731
        assert said(64, 64, 64, 1) == 1 and said(64, 64, 65, 1) == 2
        assert said(128, 64, 64, 8) == 4 and said(128, 64, 64, 7) == 3 and said(128, 64, 65, 4) == 4
    with cases.configured(chunk_states=wide):
        smaller = launches.table_options("chunk_states", "K64 32-bit", runtime.device, 64, (24, 100), 1)
    assert (smaller["BLOCK_K"], smaller["BLOCK_V"]) == (32, 64)
