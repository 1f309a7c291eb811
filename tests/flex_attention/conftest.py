"""The package's tests keep their generated modules to themselves."""

import pytest

from kernels.common import configs
from kernels.common.operator import clear_caches
from kernels.flex_attention import plain, problem
from kernels.flex_attention.hopper import dq, fit, scheduler


@pytest.fixture(scope="session", autouse=True)
def generated_modules_stay_here(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELS_CACHE_DIR", str(tmp_path_factory.mktemp("generated")))
        yield


@pytest.fixture
def hopper_table(monkeypatch):
    """The Hopper kernels fit every call of heads that they have tiles for, in the tiles that any GPU takes and 3 programs;
    yields {kernel: other options}."""
    changes = {"backward_dq_from_ds": {"WORKSPACE": 2**31}}

    def options(kernel, key, device):
        known = configs._table("flex_attention")["any GPU" if "hopper" in kernel else "interpreter"][kernel]
        return known.get(key, known["default"]) | changes.get(kernel, {})

    def unfit(p, kernel, prefix, most, tma, *_):
        if max(p.D, p.Dv) > most or not options(kernel, p.key, p.device)["STAGES"]:
            return "heads are too wide"
        return None if tma else fit.NO_TMA

    monkeypatch.setattr(problem, "table_options", options)
    monkeypatch.setattr(fit, "unfit", unfit)
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 3)
    return changes


@pytest.fixture
def of_an_h200(monkeypatch):
    """The table and the size of an H200, where there is none."""

    def options(kernel, key, device):
        tables = configs._table("flex_attention")
        known = tables["any GPU"][kernel] | tables["NVIDIA H200"].get(kernel, {})
        return dict(known.get(key, known["default"]))

    monkeypatch.setattr(problem, "table_options", options)
    for module in (scheduler, plain, dq):
        monkeypatch.setattr(module, "multiprocessors", lambda device: 132)


@pytest.fixture(autouse=True)
def nothing_cached():
    """Each test makes its plans anew: many change what a plan depends on."""
    clear_caches()
    yield
    clear_caches()
