"""The checks of the exercises: each holds a learner's function to named properties and says what is wrong and why.

>>> from kernels import check
>>> check.row_softmax(row_softmax)   # prints one line a property, returns the points earned

Every check takes ``seed=`` (0 unless told, so that a second run sees the same numbers; None draws fresh ones) and
``grading=True`` (other shapes). ``KERNELS_GRADING=1`` in the environment asks for fresh numbers and other shapes: so
submissions are graded without a change in their notebooks. Points come from Triton's interpreter and from a GPU alike,
but for the property "stays inside its tensors", which reads addresses: grade with ``TRITON_INTERPRET=1``.

The clinics' checks, ``check.diagnosis_0a`` and ``check.finds_0a`` and so on, ask for what is wrong with a given kernel.

``check.your_kernel`` brings the same experiments to a kernel that is in no exercise (docs/your_own_kernel.md).
"""

import importlib

from kernels.check.clinics import CHECKS as _CLINICS
from kernels.check.derivations import derivation as _derivation
from kernels.check.failing import case
from kernels.check.framework import VERDICTS, Exercise
from kernels.check.framework import check as _check
from kernels.check.guard import guarded
from kernels.check.guard import line_first as _line_first
from kernels.check.lessons import check_kernel as _check_kernel
from kernels.check.lessons import verdict as _verdict
from kernels.check.say import say as _say
from kernels.check.your_kernel import your_kernel

#: Module of the exercises -> check -> what it asks for. A module is imported at its first use, and with it the references
#: that it asks.
_ASKED = {
    "vector_add": {
        "vector_add": "``fn(x, y, out, BLOCK=8)``: out = x + y for x, y, out [N]. Lesson 00 shows it",
    },
    "row_softmax": {
        "row_softmax": "``fn(x, out, entropy, BLOCK_N=None)``: the softmax of each row of x [M, N], and its entropy",
    },
    "tiled_matmul": {
        "tiled_matmul": "``fn(a, b, scale, out, BLOCK_M, BLOCK_N, BLOCK_K)``: out = tril(a) @ B, a [M, K]; b [⌈K/2⌉, N], two "
        "a byte, and scale [N] stand for B [K, N]",
    },
    "dynamic_conv": {
        "dynamic_conv_forward": "``fn(x, weight, y, dilation, BLOCK_T, BLOCK_D)``: y of x [B, T, D], weight [B, T, D, W]",
        "dynamic_conv_dx": "``fn(dy, weight, dx, dilation, BLOCK_T, BLOCK_D)``: the gradient of x [B, T, D]",
        "dynamic_conv_dweight": "``fn(dy, x, dweight, dilation, BLOCK_T, BLOCK_D)``: the gradient of weight [B, T, D, W]",
    },
    "recurrent_attention": {
        "recurrent_forward": "``fn(q, k, v, g, gk, S0, o, ST, cu_seqlens, scale, BLOCK_V)``",
        "recurrent_backward": "``fn(q, k, v, g, gk, S0, do, dST, dq, dk, dv, dS0, cu_seqlens, scale)``",
        "recurrent_gate_gradient": "``fn(q, k, v, g, S0, do, dST, dg, cu_seqlens, scale, BLOCK_T)``",
    },
    "chunked_attention": {
        "chunk_states": "``fn(k, v, g, S0, states, C, BLOCK_V)``: the states [B, H, N, K, V] between chunks",
        "chunk_outputs": "``fn(q, k, v, g, states, o, scale, C, BLOCK_V)``: o [B, T, H, V] inside the chunks",
    },
    "flash_attention": {
        "block_lists": "``fn(mask, num, idx, num_t, idx_t, BLOCK_M, BLOCK_N)``: a mask [M, N] as lists",
        "flash_forward": "``fn(q, k, v, num, idx, o, lse, scale, score_mod, mask_mod, BLOCK_M, BLOCK_N)``",
        "flash_backward": "``fn(q, k, v, o, lse, do, num, idx, num_t, idx_t, delta, dq, dk, dv, scale, score_mod, ...)``",
    },
    "score_mod_compiler": {
        "emit_value": "``fn(mod)``, the text of a Triton function ``score_mod``",
        "emit_gradient": "``fn(mod)``, the text of a Triton function ``score_gradient``",
    },
    "conv_wgrad": {
        "im2col": "``fn(x, A, R, S, stride, padding, dilation, BLOCK_N, BLOCK_K)``: A [M, J] of x [N, H, W, C]",
        "wgrad": "``fn(x, dy, dweight, R, S, stride, padding, dilation, BLOCK_M, BLOCK_N, BLOCK_K)``: dweight [O, J]",
        "wgrad_split": "``fn(x, dy, partials, dweight, R, S, ...)``: partials [Z, O, J], and their sum dweight [O, J]",
    },
    "pipeline_clinic": {
        "mended_relay": "a Gluon kernel of three partitions, y = x², on the model of Gluon",
        "mended_tiles": "a persistent product in Gluon, c = a · b in tiles, on the model of Gluon",
        "mended_halves": "a product in Gluon with two multipliers that share a ring, on its model",
    },
}
#: Check -> its exercise's module.
EXERCISES = {name: module for module, asked in _ASKED.items() for name in asked}

__all__ = [
    "VERDICTS",
    "case",
    "derivation",
    "guarded",
    "kernel",
    "step",
    "your_kernel",
    *EXERCISES,
    *_CLINICS,
]
globals().update(_CLINICS)
_line_first()


def step(name: str, *answer) -> None:
    """Check one "Your turn" cell of a lesson, ``NN-topic``, and print one line: not written yet, not yet and why, or right.

    answer: what the cell asks for: a function, plain or Triton's, or several. A wrong one is explained, never raised, and
    so is a kernel that Triton's interpreter takes and a GPU's compiler does not;
    ``ValueError`` for a name that no lesson has.
    """
    _say(_verdict(name, *answer))


def kernel(name: str, kernel, launcher):
    """Check the kernel that a lesson's reader writes, ``NN-topic``, and return the one that the lesson goes on with.

    Three verdicts, as of an exercise: right, which is as the lesson's own kernel in each named case; compiles, for Hopper,
    without a GPU; cheap, which is no more bytes than the lesson's own. A mistake is explained, never raised.

    Args:
        name: of the kernel, such as ``"24-chunk"``.
        kernel: the reader's ``@triton.jit`` function.
        launcher: the function that launches it by its name, ``kernel[grid](...)``, and returns the outputs.

    Returns:
        ``kernel`` if it is right and compiles, else the lesson's own.

    Raises:
        ValueError: no lesson has a kernel of this name, or the launcher does not launch it.
    """
    return _check_kernel(name, kernel, launcher)


_DERIVED = ("dynamic_conv_dx", "dynamic_conv_dweight", "flash_dtau", "wgrad")


def derivation(name: str, fn, *, seed: int | None = 0) -> bool:
    """Check a gradient's formula, ``fn(*inputs, **launch) -> gradient`` in plain PyTorch, and print one line.

    name: the kernel's check that it prepares, such as ``"dynamic_conv_dx"``; its arguments, but for the output and block
    sizes, are the formula's. Autograd gives the answer. Returns whether the formula is right. ``ValueError`` for a name that
    has no derivation.
    """
    if name not in _DERIVED:
        raise ValueError(f"name is {name!r}: there are derivations for {', '.join(_DERIVED)}")
    return _derivation(_found(name, EXERCISES.get(name, "flash_attention")), fn, seed)


def exercise_of(name: str):
    """The exercise of a check: what it asks, its properties, its points. ``ValueError`` where there is no such check."""
    if name not in EXERCISES:
        raise ValueError(f"name is {name!r}: there are the checks {', '.join(EXERCISES)}")
    return _found(name, EXERCISES[name])


def _found(name: str, module: str) -> Exercise:
    """The exercise of this name in a module of ``exercises``."""
    known = vars(importlib.import_module(f"kernels.check.exercises.{module}")).values()
    return next(one for one in known if isinstance(one, Exercise) and one.name == name)


def _checking(name: str):
    """The check of an exercise."""

    def checked(fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS) -> int:
        return _check(exercise_of(name), fn, seed=seed, grading=grading, verdicts=verdicts)

    checked.__name__ = checked.__qualname__ = name
    checked.__doc__ = f"Check {_ASKED[EXERCISES[name]][name]}. Prints a line a property and returns the points earned."
    return checked


globals().update({name: _checking(name) for name in EXERCISES})
