"""How a reduction is cut: the splits cover it exactly, none is empty, and a GPU's multiprocessors stay busy."""

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import conv2d_wgrad
from kernels.conv_wgrad.cost import choose_split, equal_splits
from kernels.conv_wgrad.geometry import geometry, tile_waste
from kernels.conv_wgrad.operator import sum_splits
from tests.conv_wgrad import cases


def test_splits_cover_every_block_once():
    for blocks in range(1, 260):
        for splits in range(1, 300):
            active, per = equal_splits(blocks, splits)
            assert 1 <= active <= min(splits, blocks)
            assert (active - 1) * per < blocks <= active * per
    assert equal_splits(0, 5) == (0, 0)


@pytest.mark.parametrize(
    "tiles, blocks, held", [(1, 8192, 132), (42, 8192, 132), (81, 8192, 132), (5, 3136, 132), (7, 1, 132)]
)
def test_the_choice_fills_the_gpu(tiles, blocks, held):
    """Nine tenths of all program slots of all waves have work, if there is that much of it."""
    active, per = equal_splits(blocks, choose_split(tiles, blocks, 64, held))
    waves = -(-tiles * active // held)
    assert tiles * blocks / (waves * held * per) > 0.9 or active == blocks


def test_one_tile_a_program_and_no_workspace_when_there_are_enough_tiles():
    assert choose_split(132, 4, 64, 132) == 1


def test_partial_sums_are_added_from_the_first_to_the_last():
    """Float32 addition is not associative: 1e8 + 1 - 1e8 is 0 in this order, and 1 in another."""
    partials = torch.tensor([1e8, 1.0, -1e8], device=runtime.device)[:, None].repeat(1, 5)
    out = torch.full((5,), 3.0, device=runtime.device)
    sum_splits(partials, out, accumulate=True)
    assert torch.equal(out, torch.full_like(out, 3.0))
    sum_splits(partials.flip(0)[[0, 2, 1]], out, accumulate=False)
    assert torch.equal(out, torch.full_like(out, 1.0))


def test_every_piece_is_launched_and_none_twice():
    """17 blocks of 16 pixels in 7 splits of 3: 6 splits are launched."""
    x, dy, _ = cases.problem((1, 16, 17, 16), 32, 1, 1)
    with cases.configuration(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16), cases.launches() as seen:
        conv2d_wgrad(x, dy, 1, 1, split_k=7)
    (product, grid, _, _), (_, _, (partials, *_), _) = seen
    assert product.__name__ == "wgrad_kernel" and grid == (2 * 6,) and partials.shape == (6, 32, 1, 1, 16)


def test_one_piece_needs_no_workspace():
    x, dy, _ = cases.problem((1, 4, 4, 16), 32, 1, 1)
    with cases.launches() as seen:
        conv2d_wgrad(x, dy, 1, 1)
    assert [kernel.__name__ for kernel, *_ in seen] == ["wgrad_kernel"]


def test_tile_waste_is_padded_volume_over_volume():
    g = geometry((1, 10, 10, 96), 100, 3, 3)
    assert tile_waste((g.Co, g.columns, g.M), (64, 128, 32)) == pytest.approx(128 / 100 * 896 / 864 * 64 / 64)
    assert tile_waste((64, 32), (64, 32)) == 1
