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

from kernels.check import row_softmax, tiled_matmul, vector_add  # now: the checks below take these modules' names
from kernels.check.clinics import CHECKS as _CLINICS
from kernels.check.derivations import derivation as _derivation
from kernels.check.failing import case
from kernels.check.framework import VERDICTS
from kernels.check.framework import check as _check
from kernels.check.guard import guarded
from kernels.check.guard import line_first as _line_first
from kernels.check.lessons import check_kernel as _check_kernel
from kernels.check.lessons import verdict as _verdict
from kernels.check.your_kernel import your_kernel

__all__ = [
    "VERDICTS",
    "block_lists",
    "case",
    "chunk_outputs",
    "chunk_states",
    "derivation",
    "dynamic_conv_dweight",
    "dynamic_conv_dx",
    "dynamic_conv_forward",
    "emit_gradient",
    "emit_value",
    "flash_backward",
    "flash_forward",
    "guarded",
    "im2col",
    "kernel",
    "mended_halves",
    "mended_relay",
    "mended_tiles",
    "recurrent_backward",
    "recurrent_forward",
    "recurrent_gate_gradient",
    "row_softmax",
    "step",
    "tiled_matmul",
    "vector_add",
    "wgrad",
    "wgrad_split",
    "your_kernel",
    *_CLINICS,
]
globals().update(_CLINICS)


#: Check -> the module and the name of its exercise there, and what the check asks for. Modules are imported at their first
#: use, and with them the references that they ask.
_EXERCISES = {
    "vector_add": (
        "vector_add",
        "EXERCISE",
        "``fn(x, y, out, BLOCK=8)``: out = x + y for x, y, out [N]. Lesson 00 shows it",
    ),
    "row_softmax": (
        "row_softmax",
        "EXERCISE",
        "``fn(x, out, entropy, BLOCK_N=None)``: the softmax of each row of x [M, N], and its entropy",
    ),
    "tiled_matmul": (
        "tiled_matmul",
        "EXERCISE",
        "``fn(a, b, scale, out, BLOCK_M, BLOCK_N, BLOCK_K)``: out = tril(a) @ B, a [M, K]; b [⌈K/2⌉, N], two a byte, and "
        "scale [N] stand for B [K, N]",
    ),
    "dynamic_conv_forward": (
        "dynamic_conv",
        "FORWARD",
        "``fn(x, weight, y, dilation, BLOCK_T, BLOCK_D)``: y of x [B, T, D], weight [B, T, D, W]",
    ),
    "dynamic_conv_dx": (
        "dynamic_conv",
        "DX",
        "``fn(dy, weight, dx, dilation, BLOCK_T, BLOCK_D)``: the gradient of x [B, T, D]",
    ),
    "dynamic_conv_dweight": (
        "dynamic_conv",
        "DWEIGHT",
        "``fn(dy, x, dweight, dilation, BLOCK_T, BLOCK_D)``: the gradient of weight [B, T, D, W]",
    ),
    "recurrent_forward": (
        "recurrent_attention",
        "FORWARD",
        "``fn(q, k, v, g, gk, S0, o, ST, cu_seqlens, scale, BLOCK_V)``",
    ),
    "recurrent_backward": (
        "recurrent_attention",
        "BACKWARD",
        "``fn(q, k, v, g, gk, S0, do, dST, dq, dk, dv, dS0, cu_seqlens, scale)``",
    ),
    "recurrent_gate_gradient": (
        "recurrent_attention",
        "GATE",
        "``fn(q, k, v, g, S0, do, dST, dg, cu_seqlens, scale, BLOCK_T)``",
    ),
    "chunk_states": (
        "chunked_attention",
        "STATES",
        "``fn(k, v, g, S0, states, C, BLOCK_V)``: the states [B, H, N, K, V] between chunks",
    ),
    "chunk_outputs": (
        "chunked_attention",
        "OUTPUTS",
        "``fn(q, k, v, g, states, o, scale, C, BLOCK_V)``: o [B, T, H, V] inside the chunks",
    ),
    "block_lists": (
        "flash_lists",
        "LISTS",
        "``fn(mask, num, idx, num_t, idx_t, BLOCK_M, BLOCK_N)``: a mask [M, N] as lists",
    ),
    "flash_forward": (
        "flash_attention",
        "FORWARD",
        "``fn(q, k, v, num, idx, o, lse, scale, score_mod, mask_mod, BLOCK_M, BLOCK_N)``",
    ),
    "flash_backward": (
        "flash_attention",
        "BACKWARD",
        "``fn(q, k, v, o, lse, do, num, idx, num_t, idx_t, delta, dq, dk, dv, scale, score_mod, ...)``",
    ),
    "emit_value": ("score_mod_compiler", "VALUE", "``fn(mod)``, the text of a Triton function ``score_mod``"),
    "emit_gradient": (
        "score_mod_compiler",
        "GRADIENT",
        "``fn(mod)``, the text of a Triton function ``score_gradient``",
    ),
    "im2col": (
        "conv_wgrad",
        "IM2COL",
        "``fn(x, A, R, S, stride, padding, dilation, BLOCK_N, BLOCK_K)``: A [M, J] of x [N, H, W, C]",
    ),
    "wgrad": (
        "conv_wgrad",
        "WGRAD",
        "``fn(x, dy, dweight, R, S, stride, padding, dilation, BLOCK_M, BLOCK_N, BLOCK_K)``: dweight [O, J]",
    ),
    "wgrad_split": (
        "conv_wgrad",
        "SPLIT",
        "``fn(x, dy, partials, dweight, R, S, ...)``: partials [Z, O, J], and their sum dweight [O, J]",
    ),
    "mended_relay": ("pipeline_clinic", "RELAY", "a Gluon kernel of three partitions, y = x², on the model of Gluon"),
    "mended_tiles": (
        "pipeline_clinic",
        "TILES",
        "a persistent product in Gluon, c = a · b in tiles, on the model of Gluon",
    ),
    "mended_halves": (
        "pipeline_clinic",
        "HALVES",
        "a product in Gluon with two multipliers that share a ring, on its model",
    ),
}
_line_first()


def step(name: str, *answer) -> None:
    """Check one "Your turn" cell of a lesson, ``NN-topic``, and print one line: not written yet, not yet and why, or right.

    answer: what the cell asks for: a function, plain or Triton's, or several. A wrong one is explained, never raised, and
    so is a kernel that Triton's interpreter takes and a GPU's compiler does not;
    ``ValueError`` for a name that no lesson has.
    """
    print(_verdict(name, *answer))


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


_DERIVED = {"dynamic_conv_dx": "DX", "dynamic_conv_dweight": "DWEIGHT", "flash_dtau": "TEMPERATURE", "wgrad": "WGRAD"}


def derivation(name: str, fn, *, seed: int | None = 0) -> bool:
    """Check a gradient's formula, ``fn(*inputs, **launch) -> gradient`` in plain PyTorch, and print one line.

    name: the kernel's check that it prepares, such as ``"dynamic_conv_dx"``; its arguments, but for the output and block
    sizes, are the formula's. Autograd gives the answer. Returns whether the formula is right. ``ValueError`` for a name that
    has no derivation.
    """
    if name not in _DERIVED:
        raise ValueError(f"name is {name!r}: there are derivations for {', '.join(_DERIVED)}")
    module = "flash_attention" if name == "flash_dtau" else _EXERCISES[name][0]
    exercise = getattr(importlib.import_module(f"kernels.check.{module}"), _DERIVED[name])
    return _derivation(exercise, fn, seed)


def exercise_of(name: str):
    """The exercise of a check: what it asks, its properties, its points. ``ValueError`` where there is no such check."""
    if name not in _EXERCISES:
        raise ValueError(f"name is {name!r}: there are the checks {', '.join(_EXERCISES)}")
    module, attribute, _ = _EXERCISES[name]
    return getattr(importlib.import_module(f"kernels.check.{module}"), attribute)


def _checking(name: str):
    """The check of an exercise."""

    def checked(fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS) -> int:
        exercise = exercise_of(name)
        if name.startswith("mended_"):
            from kernels.check import pipelines

            return pipelines.check(exercise, fn, seed=seed, grading=grading, verdicts=verdicts)
        if name.startswith("emit_"):
            from kernels.check import emitted

            fn = (emitted.run_value if name == "emit_value" else emitted.run_gradient)(fn)
        return _check(exercise, fn, seed=seed, grading=grading, verdicts=verdicts)

    checked.__name__ = checked.__qualname__ = name
    checked.__doc__ = f"Check {_EXERCISES[name][2]}. Prints a line a property and returns the points earned."
    return checked


globals().update({name: _checking(name) for name in _EXERCISES})
