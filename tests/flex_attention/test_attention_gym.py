"""The mods of attention-gym, PyTorch's collection of examples for flex_attention, run unchanged, forward and backward."""

import functools
import importlib
import inspect
import pkgutil

import pytest
import torch
import torch.nn.functional as F

from kernels import runtime
from tests.flex_attention import cases

attn_gym = pytest.importorskip("attn_gym")
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")

# What is excused: a mod that looks for a number in a vector.
EXCUSED = {
    "generate_vsa_mask_mod": "looks for a tile in a captured vector of tiles",
}


def generator(name):
    """``attn_gym.masks.x.name`` or ``attn_gym.mods.x.name``, whichever x has it."""
    for package in ("masks", "mods"):
        package = importlib.import_module(f"attn_gym.{package}")
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            found = getattr(importlib.import_module(module.name), name, None)
            if found is not None:
                return found
    raise AttributeError(name)


def mask(name, *arguments, shape=None, **options):
    """A case of the zoo with a mask mod that ``name`` makes."""

    def case(tensor):
        given = (a() if inspect.isfunction(a) else a for a in arguments)
        mod = generator(name)(*given, **options)
        return {"mask_mod": mod} | ({"shape": shape} if shape else {})

    return case


def score(name, *arguments, **options):
    """A case with a score mod; arguments that are tuples are sizes of tensors that want a gradient."""

    def case(tensor):
        given = (tensor(*a) if isinstance(a, tuple) else a() if inspect.isfunction(a) else a for a in arguments)
        return {"score_mod": generator(name)(*given, **options)}

    return case


def causal(*_):
    return generator("causal_mask")


def offsets():
    return cases.ints(0, 10, 22, 41)


def square(size):
    return (1, 2, 1, size, size, 16, 16)


def distances():
    return (torch.arange(cases.B * cases.N * cases.N) * 7 % 6).view(cases.B, cases.N, cases.N).to(runtime.device)


def edges():
    size = (cases.B, cases.N, cases.N, 3)
    return (torch.arange(torch.Size(size).numel()) * 5 % 4).view(size).to(runtime.device)


GYM = {
    "batchify_mask_mod": mask("batchify_mask_mod", causal, 10),
    "generate_block_diffusion_mask": mask("generate_block_diffusion_mask", 20, 4, shape=square(40)),
    "causal_mask": lambda tensor: {"mask_mod": causal()},
    "generate_dilated_sliding_window": mask("generate_dilated_sliding_window", 12, 3),
    "generate_doc_mask_mod": mask("generate_doc_mask_mod", causal, offsets),
    "generate_packed_causal_doc_mask_mod": mask("generate_packed_causal_doc_mask_mod", offsets),
    "generate_vision_cross_attention_mask_mod": mask(
        "generate_vision_cross_attention_mask_mod", lambda: cases.ints([0, 11], [11, 30], [30, 31]), 14
    ),
    "generate_global_sliding_window": mask(
        "generate_global_sliding_window", 4, lambda: torch.arange(41, device=runtime.device) % 11 == 0
    ),
    "generate_jetspec_tree_causal_mask_mod": mask(
        "generate_jetspec_tree_causal_mask_mod", 4, lambda: torch.ones(37, 37, device=runtime.device).tril().bool()
    ),
    "generate_jetspec_training_mask_mod": mask("generate_jetspec_training_mask_mod", 9, 8),
    "generate_natten": mask("generate_natten", 6, 6, 3, 3, shape=square(36)),
    "generate_tiled_natten": mask("generate_tiled_natten", 8, 8, 3, 3, 4, 4, shape=square(64)),
    "generate_morton_natten": mask("generate_morton_natten", 8, 8, 3, 3, shape=square(64)),
    "generate_prefix_lm_mask": mask("generate_prefix_lm_mask", 12),
    "generate_shared_prefix_mask_mod": mask("generate_shared_prefix_mask_mod", offsets, lambda: cases.ints(0, 0, 0)),
    "generate_sliding_window": mask("generate_sliding_window", 9),
    "generate_sta_mask_mod_2d": mask("generate_sta_mask_mod_2d", (8, 8), (6, 6), (2, 2), 5, shape=square(69)),
    "generate_sta_mask_mod_3d": mask("generate_sta_mask_mod_3d", (4, 4, 4), (2, 2, 2), (2, 2, 2), 5, shape=square(69)),
    "generate_spatial_head_mask_mod": mask("generate_spatial_head_mask_mod", 5, 4, 9, 2, True, 4, shape=square(41)),
    "generate_temporal_head_mask_mod": mask("generate_temporal_head_mask_mod", 5, 4, 9, 2, shape=square(41)),
    "generate_vsa_padding_mask_mod": mask("generate_vsa_padding_mask_mod", lambda: cases.ints(8, 3, 8, 8, 5, 8), 8),
    "generate_activation_score_mod": score("generate_activation_score_mod"),
    "generate_activation_score_mod, silu": score("generate_activation_score_mod", lambda: F.silu),
    "generate_alibi_bias": score("generate_alibi_bias", cases.HQ),
    "generate_graphormer_spatial_bias": score("generate_graphormer_spatial_bias", (cases.HQ, 6), distances),
    "generate_graphormer_edge_bias": score(
        "generate_graphormer_edge_bias", (cases.HQ, 3, 4), edges, lambda: distances() % 4
    ),
    "generate_mla_rope_score_mod": score(
        "generate_mla_rope_score_mod", (cases.B, cases.HQ, cases.M, 4), (cases.B, 1, cases.N, 4), cases.HQ
    ),
    "generate_sandwich_bias": score("generate_sandwich_bias", cases.HQ, 41, device=runtime.device),
    "generate_tanh_softcap": score("generate_tanh_softcap", 20),
    "generate_tanh_softcap, approximate": score("generate_tanh_softcap", 20, approx=True),
}


@pytest.mark.parametrize("name", GYM)
def test_runs_unchanged(name, monkeypatch):
    monkeypatch.setitem(cases.ZOO, name, GYM[name])
    cases.check(name, tolerance=1e-3 if "approximate" in name and not runtime.interpreted else None)


def test_none_is_forgotten():
    """Every function of attention-gym that makes a mod is a case above, or excused with its reason."""
    made = set()
    for package in ("masks", "mods"):
        package = importlib.import_module(f"attn_gym.{package}")
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            functions = inspect.getmembers(importlib.import_module(module.name), inspect.isfunction)
            made |= {name for name, f in functions if f.__module__ == module.name and is_mod_or_makes_one(name)}
    assert made == {name.split(",")[0] for name in GYM} | set(EXCUSED)


@functools.cache
def is_mod_or_makes_one(name):
    return name == "causal_mask" or (
        name.startswith(("generate_", "batchify_")) and name not in ("generate_random_lengths",)
    )


@pytest.mark.parametrize("name", EXCUSED)
def test_what_is_excused_says_so(name):
    """The error shows the line that takes a vector."""
    from kernels.flex_attention import flex_attention
    from kernels.flex_attention.mods.errors import ModError

    mod = generator(name)(torch.zeros(2, 2, 5, 3, dtype=torch.int64), 8)
    with pytest.raises(ModError, match="attn_gym"):
        flex_attention.source(None, mod)
