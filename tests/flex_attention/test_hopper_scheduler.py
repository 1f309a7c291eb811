"""How the warp-specialised kernels deal a launch's items to programs: each to one, in shares that are equal."""

import pytest
import torch

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.flex_attention.hopper import scheduler

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels import gluon_model
from kernels.flex_attention.hopper.scheduler import Items, bundled, item_of_turn, items_of_program, queries_of_item

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")


@gluon.jit
def forward_items(visits, owner, items, tiles, G, Hkv, TILES_FIRST: gl.constexpr, SERPENTINE: gl.constexpr):
    """Who gets which [b, h, tile]."""
    for turn in range(0, items_of_program(items, SERPENTINE)):
        item = item_of_turn(turn, SERPENTINE)
        b, h_kv, h, tile = queries_of_item(item, Items(Hkv, tiles, items), G, TILES_FIRST)
        gl.device_assert(h // G == h_kv)
        at = (b * Hkv * G + h) * tiles + tile
        gl.atomic_add(visits + at, 1)
        gl.store(owner + at, gl.program_id(0))


@gluon.jit
def backward_items(visits, owner, items, tiles, bundle, Hkv, TILES_FIRST: gl.constexpr, SERPENTINE: gl.constexpr):
    """Who gets which [unit, tile]; the first tile is the longest, so they are counted from the end."""
    if TILES_FIRST:
        bundle = items // tiles
    for turn in range(0, items_of_program(items, SERPENTINE)):
        place, unit = bundled(item_of_turn(turn, SERPENTINE), Items(Hkv, tiles, items, 0, bundle, 0))
        at = unit * tiles + tiles - 1 - place
        gl.atomic_add(visits + at, 1)
        gl.store(owner + at, gl.program_id(0))


def shares(kernel, groups, tiles, together, programs, order, bundle=None):
    """The time of each program's items under a causal mask, in blocks; every item is somebody's, once."""
    items = groups * tiles * together
    visits, owner = torch.zeros(items, dtype=torch.int32), torch.zeros(items, dtype=torch.int32)
    sizes = items, tiles, bundle or together, max(groups // 2, 1)
    assert gluon_model.run(kernel, programs, visits, owner, *sizes, **order).ok
    assert (visits == 1).all()
    lengths = torch.arange(2, tiles + 2).repeat(groups * together)
    return torch.zeros(programs, dtype=torch.int64).index_add(0, owner, lengths)


@pytest.mark.parametrize("kernel", [forward_items, backward_items])
@pytest.mark.parametrize("names", scheduler.ORDERS)
@pytest.mark.parametrize("programs", [1, 5, 24])
def test_every_item_is_dealt_once(kernel, names, programs):
    order = dict(zip(("TILES_FIRST", "SERPENTINE"), names, strict=True))
    shares(kernel, 4, 3, 2 if kernel is forward_items else 1, programs, order)
    if kernel is backward_items:
        shares(kernel, 4, 3, 1, programs, order, bundle=3)  # and a bundle of one is left


@pytest.mark.share(4)
@pytest.mark.parametrize("kernel", [forward_items, backward_items])
@pytest.mark.parametrize("sizes", [(64, 32, 1, 132), (16, 64, 4, 132), (4, 64, 1, 132)])
def test_the_shares_of_a_causal_mask_are_equal(kernel, sizes):
    groups, tiles, together, programs = sizes
    if kernel is backward_items:  # heads that share keys are one item
        together = 1
    times = shares(kernel, groups, tiles, together, programs, scheduler.tile_order(groups, tiles, together, programs))
    assert times.max() <= 1.05 * times.double().mean()


def test_the_order_kindest_to_the_cache_is_taken_where_all_are_equal():
    assert scheduler.tile_order(132, 1, 1, 132) == {"TILES_FIRST": False, "SERPENTINE": False}
    assert scheduler.tile_order(3, 8, 1, 24) == {"TILES_FIRST": False, "SERPENTINE": False}


@pytest.mark.parametrize("sizes", [(0, 0, 1, 0), (0, 4, 1, 0), (2, 0, 1, 0), (0, 4, 2, 132)])
def test_nothing_can_be_dealt(sizes):
    assert scheduler.tile_order(*sizes) == {"TILES_FIRST": False, "SERPENTINE": False}
