"""The kernel for Hopper on pairs of multiprocessors that share x, on the model of the GPU."""

import pytest
import torch

from kernels import runtime
from kernels.common.gluon import has_clusters
from kernels.conv_wgrad.hopper import kernel as hopper
from kernels.conv_wgrad.hopper import tma
from kernels.conv_wgrad.hopper.tma import Work

if not has_clusters():
    pytest.skip("clusters need Triton 3.9", allow_module_level=True)

from kernels import gluon_model
from kernels.conv_wgrad.reference import conv2d_wgrad_reference
from tests.conv_wgrad import cases, on_model
from tests.conv_wgrad.on_model import GEOMETRIES, PAIR, SWEEP, THREE, TWO
from tests.tensors import relative_error

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="the model is for the CPU")

LAYER = (
    (2, 9, 11, 24),
    200,
    3,
    3,
    dict(padding=1),
)  # 18 tiles of 13 blocks in two groups; the last rows reach over 56 others


def check(name, work, options=TWO, dtype=torch.bfloat16, **how):
    """One gradient against the float64 reference, without any finding; ``work(tiles, blocks)`` says its shares."""
    shape, Co, R, S, convolution = LAYER if name is None else GEOMETRIES[name]
    x, dy, g = cases.problem(shape, Co, R, S, dtype=dtype, **convolution)
    tiles, blocks, _ = tma.tiled(g, on_model.SMALL | PAIR | options)
    dw, result = on_model.launched(x, dy, g, work(tiles, blocks), options=PAIR | options, **how)
    assert result.ctas == 2 and result.ok, str(result)
    assert relative_error(dw, conv2d_wgrad_reference(x.double(), dy.double(), R, S, **convolution)) < 1e-6
    return dw


def whole(tiles, blocks):
    return Work(tiles, blocks, 1, blocks)


@pytest.mark.share(3)
@pytest.mark.parametrize("groups", [TWO, THREE], ids=["2 groups", "3 groups"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(name, groups):
    """Among them fewer channels than a multiprocessor of the pair has, so that the other one's are all beyond the last; and a
    pair with several tiles."""
    check(name, whole, groups, processors=5)


@pytest.mark.share(2)
@pytest.mark.parametrize("splits, per", [(1, 8), (2, 5), (0, 20), (0, 100), (6, 2)])
def test_shares(splits, per):
    """Splits, and rests in one share and in two, of several tiles."""
    check(None, lambda tiles, blocks: Work(tiles, blocks, splits, per), processors=8)


def test_every_schedule_gives_the_same_bits_and_no_finding():
    """Shares of several tiles, pairs with several shares, rings that turn several times."""
    dws = [check("dilation", lambda tiles, blocks: Work(tiles, blocks, 1, 8), processors=6, **one) for one in SWEEP]
    assert all(torch.equal(dw, dws[0]) for dw in dws)


# Faults.

WAIT = "mbarrier.wait(ring.both.index(stage), (count // STAGES + 1) & 1)"
ARRIVE = "mbarrier.arrive(ring.both.index(before), pred=count > 0)"
INIT = "mbarrier.init(both.index(stage), count=T.GROUPS)"
IM2COL = "[r, s], ring.ready.index(stage), buffer"
KERNEL = "wgrad_hopper_kernel"
OVERWRITTEN = "early overwrite", "load_blocks of CTA 0", "of CTA 1 is overwritten while", "x_desc"
# Found where the other one comes so late that it has read nothing that could be overwritten.
EARLY = "barrier", "load_blocks of CTA 0", "sends bytes for phase 1 of ready[", "of CTA 1 without knowing that phase 0"
FAULTS = {  # module, function, old text, new text; then what each schedule finds some of, and all together: kind,
    # partition, parts of the text
    "the first overwrites the other's x": (
        (hopper, "load_blocks", WAIT, "pass"),
        OVERWRITTEN,
        EARLY,
    ),
    "the parity of buffers that are not free": (
        (hopper, "load_blocks", WAIT, WAIT.replace("STAGES + 1", "STAGES")),
        ("deadlock", "", "wait(ring.both", "both[0] has completed 0 phases; phase 0 lacks 4 of 4 arrivals"),
    ),
    "nobody says that x is free": (
        (hopper, "multiply_blocks", ARRIVE, "pass"),
        ("deadlock", "", "wait(ring.both", "both[0] has completed 0 phases; phase 0 lacks 4 of 4 arrivals. Nobody"),
    ),
    "x is free while it is multiplied": (
        (hopper, "multiply_blocks", ARRIVE, "mbarrier.arrive(ring.both.index(stage))"),
        ("early overwrite", "load_blocks of CTA 0", "waited for parity", "of both["),
    ),
    "more are waited for than there are": (
        (hopper, KERNEL, INIT, INIT.replace("T.GROUPS", "2 * T.GROUPS")),
        ("deadlock", "", "wait(ring.both", "lacks 4 of 8 arrivals"),
    ),
    "one group of each is waited for": (
        (hopper, KERNEL, INIT, INIT.replace("T.GROUPS", "1")),
        OVERWRITTEN,
        ("barrier", "multiply_blocks", "arrive(ring.both", "without knowing that phase"),
        EARLY,
    ),
    "each has a barrier of its own": (
        (hopper, KERNEL, ", two_ctas=True", ""),
        OVERWRITTEN,
        EARLY,
    ),
    "dy's bytes alone are expected": (
        (hopper, "load_blocks", "dy_desc.nbytes_per_cta + GROUPS * x_desc.nbytes_per_cta", "dy_desc.nbytes_per_cta"),
        ("byte count", "load_blocks", "mbarrier.expect", "ready["),
    ),
    "each brings x, and the second runs ahead": (
        (hopper, "load_blocks", f"{IM2COL}, multicast=PAIR", IM2COL),
        ("barrier", "multiply_blocks", "of CTA 1 arrives on both[", "without knowing that phase"),
    ),
}  # fmt: skip


def launch(**schedule):
    """The gradient of a layer with a tile a pair, and what the model found."""
    x, dy, g = cases.problem((2, 9, 8, 24), 200, 3, 3, dtype=torch.bfloat16)
    tiles, blocks, _ = tma.tiled(g, on_model.SMALL | PAIR | TWO)
    return on_model.launched(x, dy, g, whole(tiles, blocks), options=PAIR | TWO, processors=tiles, **schedule)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_under_every_schedule(monkeypatch, name):
    (module, function, old, new), *findings = FAULTS[name]
    on_model.plant(monkeypatch, hopper, KERNEL, module, function, old, new)
    seen = set()
    for schedule in SWEEP:
        _, result = launch(**schedule)
        found = {wanted for wanted in findings for finding in result.findings if is_of(finding, *wanted)}
        assert found, f"{schedule}: {result}"
        seen |= found
    assert seen == set(findings)


def is_of(finding, kind, partition, *parts):
    return (
        finding.kind == kind and finding.partition.startswith(partition) and all(part in str(finding) for part in parts)
    )


@pytest.mark.parametrize("wrong, needs", [
    ({((0, 1),): ((1, 0),)}, "a of warpgroup_mma"),
    ({((0, 0),): ((0, 1),)}, r"b of warpgroup_mma, x_s\[0\] of CTA"),
])  # fmt: skip
def test_parts_of_which_products_need_the_others_end_the_run(monkeypatch, wrong, needs):
    """Pixels of dy, or channels of x, shared out between the two; the compiler refuses them, too."""
    described = tma.described
    monkeypatch.setattr(tma, "described", lambda x, tile, cga=None: described(x, tile, wrong.get(cga, cga)))
    with pytest.raises(gluon_model.ModelError, match=f"(?s)kernel.py.*{needs}.*needs what another CTA holds"):
        launch()


def test_sums_shared_out_another_way_than_their_factors_end_the_run(monkeypatch):
    on_model.plant(monkeypatch, hopper, KERNEL, hopper, "multiply_blocks", "[[1, 0]] if PAIR", "[[0, 1]] if PAIR")
    with pytest.raises(gluon_model.ModelError, match="a of warpgroup_mma: CTA . needs what another CTA holds"):
        launch()
