"""What type checkers see: every public function and layer says what it takes and gives, and the package says that it does."""

import inspect
from pathlib import Path

import pytest

import kernels
from kernels import conv_wgrad, dynamic_conv, flex_attention, recurrent_attention

ROOMS = (dynamic_conv, recurrent_attention, flex_attention, conv_wgrad)
PUBLIC = [
    getattr(room, name)
    for room in ROOMS
    for name in room.__all__
    if getattr(getattr(room, name), "__module__", "").startswith(room.__name__) and name not in ("ModError",)
]
FUNCTIONS = [f for f in PUBLIC if inspect.isfunction(f) and ".mods" not in f.__module__]
FUNCTIONS += [f.explain for f in FUNCTIONS if hasattr(f, "explain")]
FUNCTIONS += [dynamic_conv.DynamicShortConvolution.forward, conv_wgrad.Conv2d.forward]


def test_all_are_there():
    assert len(FUNCTIONS) >= 16 and (Path(kernels.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__qualname__)
def test_arguments_and_results_have_types(function):
    signature = inspect.signature(function, eval_str=True)
    assert signature.return_annotation is not signature.empty
    named = [p for p in signature.parameters.values() if p.name != "self"]
    assert [p.name for p in named if p.annotation is p.empty] == []
