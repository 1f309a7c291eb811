"""What type checkers see: every public function and layer says what it takes and gives, and the package says that it does."""

import inspect
from pathlib import Path

import pytest

import kernels
from kernels import conv_wgrad, dynamic_conv, flex_attention, recurrent_attention
from kernels.dynamic_conv import causal_conv1d, jet_nemotron
from kernels.flex_attention import mods

ROOMS = (dynamic_conv, recurrent_attention, flex_attention, conv_wgrad)
PUBLIC = [
    getattr(room, name)
    for room in ROOMS
    for name in room.__all__
    if getattr(getattr(room, name), "__module__", "").startswith(room.__name__) and name not in ("ModError",)
]
FUNCTIONS = [f for f in PUBLIC if inspect.isfunction(f)]
FUNCTIONS += [f.explain for f in FUNCTIONS if hasattr(f, "explain")]
FUNCTIONS += [getattr(mods, name) for name in mods.__all__ if name not in ("Mod", "noop_mask")]  # the last is torch's
FUNCTIONS += [causal_conv1d.causal_conv1d_fn, causal_conv1d.causal_conv1d_update, conv_wgrad.Conv2d.forward]
FUNCTIONS += [dynamic_conv.DynamicShortConvolution.forward, dynamic_conv.DynamicShortConvolution.step]
FUNCTIONS += [jet_nemotron.DynamicShortConvolution.__init__, jet_nemotron.DynamicShortConvolution.forward]


def test_all_are_there():
    assert len(FUNCTIONS) >= 50 and (Path(kernels.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__qualname__)
def test_arguments_and_results_have_types(function):
    signature = inspect.signature(function, eval_str=True)
    assert signature.return_annotation is not signature.empty
    named = [p for p in signature.parameters.values() if p.name != "self"]
    assert [p.name for p in named if p.annotation is p.empty] == []
