"""Tiles of keys cut into several items, launches cut into bands: right numbers, the same bits under every schedule."""

import pytest
import torch

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.common.plan import forget
from kernels.flex_attention import BlockMask, causal_block_mask
from kernels.flex_attention.hopper import cost, dealing
from tests.flex_attention import cases

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)

from kernels import gluon_model
from kernels.flex_attention.hopper import parts, split, walks
from tests.gluon_model.cases import found, planted

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")

GQA = (1, 4, 1, 200, 300, 64, 64)  # B, Hq, Hkv, M, N, D, Dv
SCHEDULES = [("round-robin", 0), ("greedy", 0), ("eager", 0), ("random", 0), ("random", 1)]
KERNELS = {"stored": "attention_dkdv_hopper_kernel", "counters": "attention_gradients_hopper_kernel"}


def stored(pairs=1, heads=1, columns=10**6, slices=1, parts=1):
    return cost.Cut("stored", pairs, heads, columns, slices, parts, 0.0)


def counters(slices):
    return cost.Cut("counters", 1, 1, 10**6, slices, 1, 0.0)


@pytest.fixture
def run(hopper_table, monkeypatch):
    """Checks a case of the zoo, cut so, against float64; returns o and the gradients."""

    def check(cut, name="causal", launches=1, schedule="random", seed=0, kernel=None, **options):
        monkeypatch.setattr(cost, "cut", lambda p: cut and cut._replace(columns=min(cut.columns, p.M)))
        with gluon_model.executing(schedule=schedule, seed=seed) as results:
            o, grads = cases.check(name, **{"shape": GQA, "dtype": torch.bfloat16, "BLOCK_SIZE": 128} | options)
        kernel = kernel or KERNELS[cut.way if cut else "stored"]
        assert [result.kernel for result in results] == ["attention_forward_hopper_kernel"] + [kernel] * launches
        assert all(result.ok for result in results), "\n\n".join(map(str, results))
        return (o.detach(), *grads)

    yield check


@pytest.mark.parametrize(
    ("cut", "launches"),
    [(stored(heads=4, slices=2), 1), (stored(heads=3, slices=2, parts=2), 2), (stored(columns=128), 8), (counters(4), 1)],
)
def test_numbers(run, cut, launches):
    run(cut, launches=launches)
