"""Mods and block masks that are pickled, copied and sent to other processes."""

import copy
import inspect
import io
import pickle
import subprocess
import sys

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import and_masks, flex_attention, mods, or_masks, sliding_window_block_mask
from kernels.flex_attention.block_mask import causal_block_mask, document_block_mask
from kernels.flex_attention.mods import bind
from tests.flex_attention.cases import document_ids, ints

DEVICE = runtime.device


def floats(*shape):
    return torch.linspace(0.1, 1.0, max(1, torch.Size(shape).numel()), device=DEVICE).reshape(shape)


MADE = {
    "and_masks": (mods.causal, mods.prefix(3)),
    "or_masks": (mods.causal, mods.prefix(3)),
    "sliding_window": (3,),
    "prefix": (3,),
    "prefix_causal": (3,),
    "document": (document_ids(20, 20), mods.causal),
    "dilated_sliding_window": (6, 2),
    "global_and_window": (torch.arange(40, device=DEVICE) < 2, 3),
    "natten": (8, 5, 3),
    "block_diffusion": (20, 4),
    "jagged": (ints(20, 40),),
    "shared_prefix": (document_ids(20, 20), ints(0, 20, 40), ints(0, 0)),
    "tree": (20, torch.ones(40, 20, dtype=torch.bool, device=DEVICE)),
    "vision_cross": (ints(0, 20, 20, 40).view(2, 2), 20),
    "batched": (mods.causal, 8),
    "with_offset": (mods.causal, 3),
    "alibi": (2,),
    "learned_alibi": (floats(2),),
    "softcap": (3.0,),
    "relative_bias": (floats(2, 40, 40),),
    "relative_table": (floats(2, 79),),
    "sandwich": (2, 40, 8, DEVICE),
    "graph_distance": (floats(2, 5), torch.ones(1, 40, 40, dtype=torch.int64, device=DEVICE)),
    "head_scale": (floats(2),),
    "temperature": (floats(),),
    "activation": (torch.nn.functional.silu, 2.0),
}


def test_every_factory_of_the_zoo_is_here():
    factories = {name for name in mods.__all__ if hasattr(getattr(mods, name), "__wrapped__")}
    assert factories == set(MADE)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, copy.copy])
def test_a_copy_is_the_same_mod(name, copied):
    mod = getattr(mods, name)(*MADE[name])
    kind = "score_mod" if len(inspect.signature(mod).parameters) == 5 else "mask_mod"
    bound, other = (bind.bind(m, kind, DEVICE, kind == "score_mod") for m in (mod, copied(mod)))
    assert other.compiled is bound.compiled  # and not compiled again
    for a, b in zip(other.captured, bound.captured, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "mask",
    [
        lambda: causal_block_mask(40, BLOCK_SIZE=16),
        lambda: sliding_window_block_mask(5, 40, BLOCK_SIZE=16),
        lambda: document_block_mask(document_ids(13, 27), BLOCK_SIZE=16),
    ],
)
def test_block_masks_are_stored(mask):
    mask, file = mask(), io.BytesIO()
    torch.save(mask, file)
    file.seek(0)
    q, k, v = (torch.randn(1, 1, 40, 16, device=DEVICE) for _ in range(3))
    other = torch.load(file, weights_only=False)
    assert torch.equal(flex_attention(q, k, v, block_mask=other), flex_attention(q, k, v, block_mask=mask))


def test_another_process_can_call_it():
    code = "import sys, pickle, kernels, torch\nprint(pickle.load(sys.stdin.buffer)(*map(torch.tensor, (0, 0, 5, 2))))"
    mod = and_masks(or_masks(mods.prefix(2), mods.sliding_window(3)), mods.causal)
    result = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(mod), capture_output=True, check=True)
    assert result.stdout.strip() == b"tensor(True)"


def test_pytorch_takes_them_for_functions():
    from torch.nn.attention import flex_attention as theirs

    assert theirs._get_mod_type(mods.sliding_window(3)) is theirs._ModificationType.MASK_MOD
    assert theirs._get_mod_type(mods.alibi(2)) is theirs._ModificationType.SCORE_MOD
    q = torch.randn(1, 2, 40, 16, device=DEVICE)
    compiled = torch.compile(theirs.flex_attention, backend="eager", fullgraph=True)
    mask = theirs.create_block_mask(mods.sliding_window(3), 1, 1, 40, 40, device=DEVICE, BLOCK_SIZE=16)
    bias = mods.learned_alibi(floats(2))
    want = flex_attention(q, q, q, bias, sliding_window_block_mask(3, 40, BLOCK_SIZE=16))
    torch.testing.assert_close(compiled(q, q, q, bias, mask), want, rtol=1e-4, atol=1e-5)
