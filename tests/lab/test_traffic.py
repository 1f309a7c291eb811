"""What PyTorch's calls move, counted call by call."""

import torch

from kernels.lab import bytes_of_calls

X = torch.ones(8, 4)  # 128 bytes
COLUMN = torch.ones(8, 1)  # 32 bytes


def test_a_call_reads_its_operands_and_writes_its_result():
    assert bytes_of_calls(lambda: X + 1) == 256
    assert bytes_of_calls(lambda: X - COLUMN) == 288
    assert bytes_of_calls(lambda: X.mean(dim=1)) == 160


def test_a_tensor_that_is_passed_twice_is_read_once():
    assert bytes_of_calls(lambda: X * X) == 256


def test_views_move_nothing_and_several_results_all_count():
    assert bytes_of_calls(lambda: X.t()[1:].expand(3, 8)) == 0
    assert bytes_of_calls(lambda: torch.max(X, dim=1)) == 128 + 32 + 64  # values and indices


def test_nothing_is_counted_outside():
    bytes_of_calls(lambda: X + 1)
    _ = X + 1
    assert bytes_of_calls(lambda: None) == 0
