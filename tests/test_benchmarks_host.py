"""The benchmark of the host's time compares calls that compute the same, and its record, once there is one, is complete."""


import pytest
import torch

from benchmarks import harness
from benchmarks import host_overhead as bench
from kernels import runtime

RECORD = harness.read("host_overhead")


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """Peers are called as they are written: what torch.compile makes of them is torch's business."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize("name", bench.CASES)
def test_peers_compute_the_same_function_and_gradients(name):
    torch.manual_seed(0)
    case = bench.CASES[name]()
    leaves = [t.detach().float().requires_grad_() if not isinstance(t, torch.nn.Parameter) else t for t in case.leaves]
    if case.operator == "Conv2d":
        leaves = case.leaves
    if case.operator == "flex_attention" and runtime.interpreted:  # torch's has no backward pass on a CPU
        values = [t.detach() for t in leaves]
        for peer in case.peers.values():
            torch.testing.assert_close(peer(*values), case.ours(*values), rtol=1e-3, atol=1e-4)
        return
    want = case.ours(*leaves)
    gradient = torch.randn_like(want)
    wanted = torch.autograd.grad(want, leaves, gradient)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if want.dtype == torch.bfloat16 else {"rtol": 1e-3, "atol": 1e-4}
    for peer in case.peers.values():
        got = peer(*leaves)
        torch.testing.assert_close(got, want, **tolerance)
        for a, b in zip(torch.autograd.grad(got, leaves, gradient), wanted, strict=True):
            torch.testing.assert_close(a, b, **tolerance)


def test_a_case_is_timed_in_turns(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench, "CALLS", 2)
    monkeypatch.setattr(bench, "TURNS", 3)
    monkeypatch.setattr(bench, "activities", lambda functions: dict.fromkeys(functions, 1))
    order, leaf = [], torch.ones(2, device=runtime.device, requires_grad=True)
    call = lambda name: lambda x: (order.append(name), 2 * x)[1]  # noqa: E731
    rows = list(bench.measure(bench.Case("op", "kind", [leaf], call("ours"), {"peer": call("peer")})))
    assert [row["pass"] for row in rows] == ["forward", "backward"] and rows[0]["peers"][0]["name"] == "peer"
    turns = order[-(3 + 1) * 2 * 2 :]  # the last forward turns; backward calls nothing that is noted
    assert turns == ["ours", "ours", "peer", "peer"] * 4
    assert "us ours (1)" in bench.line(rows[0])


def test_rows_that_were_measured_again_take_the_place_of_their_own():
    machine = {"gpu": "one", "torch": "2", "triton": "3", "commit": "old", "date": "1"}
    row = {"operator": "op", "variant": "kind", "pass": "forward", "ours_us": 2.0}
    record = {"machine": machine, "rows": [row, row | {"pass": "backward"}]}
    newer = {"machine": machine | {"commit": "new", "date": "2"}, "rows": [row | {"ours_us": 1.0}]}
    renewed = row | {"ours_us": 1.0, "renewed": {"commit": "new", "date": "2"}}
    assert bench.renewed(record, newer) == record | {"rows": [renewed, record["rows"][1]]}
    with pytest.raises(ValueError, match="rows that the record has not"):
        bench.renewed(record, newer | {"rows": [row | {"variant": "other"}]})


@pytest.mark.skipif(RECORD is None, reason="no GPU has been measured yet")
def test_the_record_is_complete():
    record = RECORD
    assert {"gpu", "driver", "torch", "triton", "commit", "date"} <= record["machine"].keys()
    found = [(row["operator"], row["pass"]) for row in record["rows"]]
    assert {name.split()[0] for name in bench.CASES} == {operator for operator, _ in found}
    assert all(row["ours_us"] > 0 and row["peers"] for row in record["rows"]) and len(found) == 2 * len(bench.CASES)
