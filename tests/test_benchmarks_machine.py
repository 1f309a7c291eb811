"""The machine's benchmark: its kernels compute what their names say, and what it recorded is complete."""


import pytest
import torch

from benchmarks import harness
from benchmarks import machine as bench
from benchmarks.experiments import common, launches, memory, products, schedule
from kernels import runtime
from tests.tensors import relative_error

RECORD = harness.read("machine")
DEVICE = runtime.device


def words(n):
    return torch.randint(-(2**20), 2**20, (n,), dtype=torch.int32, device=DEVICE)


def test_a_walk_visits_every_line_once_and_returns():
    following = memory.random_cycle(64 * common.LINE)
    at = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    seen = []
    for _ in range(64):
        memory.chase_kernel[(1,)](following, at, 1, num_warps=1)
        seen.append(at.item())
    assert sorted(seen) == list(range(0, 64 * 32, 32)) and seen[-1] == 0
    memory.chase_kernel[(1,)](following, at, 5, num_warps=1)
    assert at.item() == seen[4]


@pytest.mark.parametrize(("dtype", "block", "word"), [(torch.int32, 32, 1), (torch.int32, 128, 4), (torch.int64, 64, 1)])
def test_every_element_is_read_once_whatever_is_in_flight(dtype, block, word):
    x = words(3 * 4 * block).to(dtype)
    out = torch.empty(3 * block, dtype=dtype, device=DEVICE)
    memory.in_flight_kernel[(3,)](x, out, 4, 0, BLOCK=block, WORD=word, num_warps=1)
    assert torch.equal(out, x.view(4, -1).sum(0).to(dtype))


def test_a_working_set_is_read_again_and_again():
    x = words(2 * 3 * 64)
    out = torch.empty(2 * 64, dtype=torch.int32, device=DEVICE)
    memory.read_again_kernel[(2,)](x, out, 3, 6, BLOCK=64, CACHE="")
    assert torch.equal(out, 2 * x.view(3, -1).sum(0).to(torch.int32))


def test_copy_and_strided_sums():
    x = words(1024)
    out = torch.empty_like(x)
    memory.copy_kernel[(4,)](x, out, BLOCK=256)
    assert torch.equal(out, x)
    sums = torch.empty(2, dtype=torch.int32, device=DEVICE)
    memory.strided_kernel[(2,)](x, sums, 4, BLOCK=128)
    assert torch.equal(sums, x[::4].view(2, 128).sum(1).to(torch.int32))


def test_sectors_of_a_warp():
    assert [memory.sectors_a_warp(stride) for stride in (1, 2, 4, 8, 16, 32)] == [4, 8, 16, 32, 32, 32]


def test_tiles_are_multiplied_again_and_again():
    torch.manual_seed(0)
    call, (a, b, out) = products.dot_call((16, 32, 16), torch.float32, "ieee", 1, 2, 3)
    call()
    assert relative_error(out, (3 * a @ b).expand(2, 16, 32)) < 1e-5


def test_the_product_of_matrices():
    torch.manual_seed(0)
    a, b = torch.randn(2, 32, 32, device=DEVICE)
    out = torch.empty_like(a)
    products.matmul_kernel[(2, 2)](a, b, out, SIZE=32, M=16, N=16, K=16)
    assert relative_error(out, a @ b) < 1e-2  # tf32 on a GPU


def test_chains_count_every_operation():
    out = torch.empty(32, device=DEVICE)
    schedule.chain_kernel[(1,)](out, 4, 0.5, CHAINS=4, BLOCK=32)
    assert torch.allclose(out, torch.full_like(out, 8.0))  # x / 2 + 1 ends at 2, in each of four chains


@pytest.mark.parametrize(("programs", "block"), [(1, 64), (3, 32), (7, 64)])
def test_the_puzzles_launches_all_give_the_sum(programs, block):
    x, y = torch.randn(2, 200, device=DEVICE)
    out = torch.full_like(x, float("nan"))
    launches.looped_add_kernel[(programs,)](x, y, out, 200, BLOCK=block)
    assert torch.equal(out, x + y)
    out.fill_(float("nan"))
    launches.add_kernel[(4,)](x, y, out, 200, BLOCK=64)
    assert torch.equal(out, x + y)


def test_the_record_is_complete():
    machine = {"gpu", "driver", "torch", "triton", "commit", "date", "copy_tb_per_s", "matmul_tflop_per_s"}
    assert machine <= RECORD["machine"].keys()
    assert not RECORD["failed"]
    assert {row["measurement"] for row in RECORD["rows"]} == bench.MEASUREMENTS.keys()
    assert all(row["right"] for row in RECORD["rows"] if row["measurement"] == "puzzle")
    assert not [row for row in RECORD["rows"] if "error" in row]
