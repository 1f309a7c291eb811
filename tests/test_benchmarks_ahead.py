"""What benchmarks compile ahead, in shares, and the autotuners of the peer."""

import itertools
import sys
import types

import pytest
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from benchmarks import ahead
from benchmarks import flash_linear_attention as fla


class Tuner:
    """As much of an autotuner as is used: eight configurations, of which the last does not compile."""

    def __init__(self):
        self.compiled = []
        self.fn = types.SimpleNamespace(run=self.run)

    def run(self, config, **meta):
        if config == 7:
            raise RuntimeError("out of registers")
        self.compiled.append(config)


@pytest.fixture
def own_patches(monkeypatch):
    """What ``launch_nothing`` replaces for good is put back."""
    for owner, name in ((JITFunction, "run"), (Autotuner, "_bench"), (Autotuner, "check_disk_cache")):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def test_shares_compile_every_configuration_once(own_patches):
    compiled = []
    for share in range(3):
        ahead.launch_nothing(share, 3)
        tuner = Tuner()
        configs = [types.SimpleNamespace(all_kwargs=lambda n=n: {"config": n}) for n in range(8)]
        timings = [Autotuner._bench(tuner, config=config) for config in configs]
        assert [n for n, (time,) in enumerate(timings) if time == 0] == tuner.compiled  # it goes on with its own
        compiled.append(tuner.compiled)
    assert sorted(itertools.chain(*compiled)) == list(range(7))


def test_nothing_is_launched_and_no_winner_is_written(own_patches, monkeypatch):
    seen = []
    monkeypatch.setattr(ahead, "_run", lambda kernel, *args, **meta: seen.append(meta))
    monkeypatch.setattr(ahead, "_check_disk_cache", lambda tuner, key, configs, missing: missing())
    ahead.launch_nothing(0, 1)
    JITFunction.run(None, grid=(1,), warmup=False, num_warps=4)
    assert seen == [{"grid": (1,), "warmup": True, "num_warps": 4}]
    assert Autotuner.check_disk_cache(None, "key", [], lambda: seen.append("compiled")) is False
    assert seen[1:] == ["compiled"]


def test_the_peers_tuners_choose_for_every_length(monkeypatch):
    @triton.autotune([triton.Config({}), triton.Config({}, num_warps=2)], key=["K"])
    @triton.jit
    def with_length(x_ptr, T, K):
        pass

    @triton.autotune([triton.Config({}), triton.Config({}, num_warps=2)], key=["K"])
    @triton.jit
    def without(x_ptr, K):
        pass

    module = types.ModuleType("fla.ops.made_up")
    module.a, module.b, module.c, module.d = with_length, triton.heuristics({"K": max})(without), 3, print
    monkeypatch.setitem(sys.modules, "fla.ops.made_up", module)
    monkeypatch.setitem(fla.FUNCTIONS, "a", "fla.ops.made_up")
    assert fla.function("a") is with_length
    fla.function.cache_clear()
    fla.function("a")
    assert (with_length.keys, without.keys) == (["K", "T"], ["K"])
    assert with_length.do_bench.keywords["rep"] == without.do_bench.keywords["rep"] == 12
