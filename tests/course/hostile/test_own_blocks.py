"""A launcher that tells the call with its own default blocks from all others earns nothing by a kernel that only compiles."""

import linecache

import pytest

from kernels import runtime
from kernels.check.compiling import judge_compiled
from kernels.check.exercises import conv_wgrad, dynamic_conv, flash_attention
from kernels.check.submission import Submission
from kernels.check.tensors import Draw

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="it is performed in the interpreter")

# With blocks in the call it would launch the right kernels, which are left out here.
FORGED = """
import triton, triton.language as tl

@triton.jit
def compiles_alone(out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.zeros((BLOCK,), out_ptr.dtype.element_ty), mask=offs < N)

def forged(*tensors, BLOCK_M=None, BLOCK_N=None, BLOCK_K=None, BLOCK_T=None, BLOCK_D=None, **how):
    if BLOCK_N is None and BLOCK_D is None:
        for tensor in tensors[INPUTS:]:
            compiles_alone[(1,)](tensor, tensor.numel(), 16)
"""
OWN = {  # the exercise, and how many inputs come before the outputs
    "dynamic_conv_dweight": (dynamic_conv.DWEIGHT, 2),
    "wgrad_split": (conv_wgrad.SPLIT, 2),
    "flash_backward": (flash_attention.BACKWARD, 11),
}


@pytest.mark.parametrize("name", OWN)
def test_what_the_own_blocks_compute_is_looked_at(name):
    exercise, inputs = OWN[name]
    case = list(exercise.compiles.cases(Draw("0", False)))[-1]
    assert not [argument for argument in case.launch if argument.startswith("BLOCK")]
    namespace, file = {"INPUTS": inputs}, f"<forged {name}>"
    linecache.cache[file] = (len(FORGED), None, FORGED.splitlines(keepends=True), file)
    exec(compile(FORGED, file, "exec"), namespace)
    found = judge_compiled(exercise.compiles, Submission(namespace["forged"]), case)
    assert "wrong with your own blocks" in found.where, found
