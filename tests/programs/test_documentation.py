"""docs/other_programs.md: the imports that need no other program; the other blocks run in the tests of their programs."""

from kernels.dynamic_conv import causal_conv1d, jet_nemotron
from tests.programs.installed import documented


def test_imports_are_as_written():
    layer = documented("Jet-Nemotron")["DynamicShortConvolution"]
    functions = documented("causal_conv1d")
    assert layer is jet_nemotron.DynamicShortConvolution
    assert functions["causal_conv1d_fn"] is causal_conv1d.causal_conv1d_fn
    assert functions["causal_conv1d_update"] is causal_conv1d.causal_conv1d_update
