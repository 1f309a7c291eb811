"""The accuracy table of gate gradients tells strong gates from weak ones, and ours from a running sum."""

import itertools
import math

import pytest

from benchmarks import gate_gradients, harness
from tests.fake_fla import pretend

GATES_RECORD = harness.read("gate_gradients")


@pytest.fixture
def small_gates(monkeypatch):
    for name, size in {"T": 33, "H": 1, "K": 16, "V": 16}.items():
        monkeypatch.setattr(gate_gradients, name, size)


@pytest.fixture
def fake_peer(monkeypatch):
    """flash-linear-attention's functions, a little wrong."""
    pretend(monkeypatch)


@pytest.mark.parametrize("gate", ["g", "gk"])
def test_the_running_sum_is_right_where_decay_is_weak_and_far_off_where_it_is_strong(gate, small_gates):
    weak, strong = (gate_gradients.row_of(gate, name)["errors"] for name in (-1, -20))
    assert weak.keys() == strong.keys() == {"ours, recurrent", "ours, chunk", "running sum"}
    assert weak["running sum"] < 1e-4 and strong["running sum"] > 1
    for method in ("ours, recurrent", "ours, chunk"):
        assert weak[method] < 1e-5
        assert strong[method] < 1e-5 or (gate, method) == ("gk", "ours, chunk")


def test_mixed_gates_are_judged_on_the_strong_ones_and_resets_apart(small_gates):
    gates = gate_gradients.gates_of("one in 16 at -20", (1, 33, 2))
    assert (gates == -20).sum() == 2 * 2 and gates.unique().numel() == 2
    assert (
        gate_gradients.row_of("g", "one in 16 at -20")["errors"]["running sum"] > 1
    )  # over all gates it would be 1e-6
    row = gate_gradients.row_of("g", "one in 16 at -inf")
    assert row["largest at -inf"]["ours, recurrent"] == row["largest at -inf"]["ours, chunk"] == 0
    assert row["largest at -inf"]["running sum"] > 0
    uniform = gate_gradients.gates_of("uniform(-25, 0)", (1, 500, 2))
    assert -25 <= uniform.min() < -24 and -1 < uniform.max() <= 0


def test_the_peer_is_asked_by_its_own_argument_names(small_gates, fake_peer, monkeypatch):
    for gate, method in itertools.product(("g", "gk"), ("FLA, recurrent", "FLA, chunk")):
        given, do, dht = gate_gradients.inputs_of(gate, -1)
        found = gate_gradients.gradient(method, gate, given, do, dht)
        exact = gate_gradients.gradient("ours, recurrent", gate, given, do, dht)
        assert 1e-3 < harness.relative_error(found, exact) < 0.1  # the fake peer's 1 %, and nothing worse


def test_the_table_tells_what_is_missing_and_what_is_no_number():
    row = {"gate": "g", "gates": "-1", "errors": {"ours, recurrent": 1e-7, "ours, chunk": None, "running sum": 0.5}}
    header, line = gate_gradients.lines([row])
    assert line.split() == ["g", "-1", "1.0e-07", "nan", "5.0e-01", *["needs", "a", "GPU"] * 2]
    assert gate_gradients.plain(math.nan) is None and gate_gradients.plain(1.23456) == 1.23


@pytest.mark.skipif(GATES_RECORD is None, reason="nothing recorded yet")
def test_the_record_of_gate_gradients_is_complete():
    record = GATES_RECORD
    names = [str(name) for name in (*gate_gradients.CONSTANT, *gate_gradients.MIXED)]
    assert [(row["gate"], row["gates"]) for row in record["rows"]] == list(itertools.product(("g", "gk"), names))
    for row in record["rows"]:
        assert row["errors"].keys() == gate_gradients.METHODS.keys()
