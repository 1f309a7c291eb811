"""The checks of the exercises: each holds a learner's function to named properties and says what is wrong and why.

>>> from kernels import check
>>> check.row_softmax(row_softmax)   # prints one line a property, returns the points earned

Every check takes ``seed=`` (0 unless told, so that a second run sees the same numbers; None draws fresh ones) and
``grading=True`` (other shapes). ``KERNELS_GRADING=1`` in the environment asks for fresh numbers and other shapes: so
submissions are graded without a change in their notebooks. Points come from Triton's interpreter and from a GPU alike,
but for the property "stays inside its tensors", which reads addresses: grade with ``TRITON_INTERPRET=1``.

The clinics' checks, ``check.diagnosis_0a`` and ``check.finds_0a`` and so on, ask for what is wrong with a given kernel.
Some exercises can be asked in other ways (``check.variations``): ``varied={"side": "upper"}`` names what differs.

``check.your_kernel`` brings the same experiments to a kernel that is in no exercise (docs/your_own_kernel.md).
"""

import importlib
from collections.abc import Mapping

from kernels.check import row_softmax as _row_softmax
from kernels.check import tiled_matmul as _tiled_matmul
from kernels.check import vector_add as _vector_add
from kernels.check.clinics import CHECKS as _CLINICS
from kernels.check.derivations import derivation as _derivation
from kernels.check.framework import VERDICTS
from kernels.check.framework import check as _check
from kernels.check.guard import guarded
from kernels.check.guard import line_first as _line_first
from kernels.check.looking import case
from kernels.check.steps import verdict as _verdict
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


class _Later:
    """A module of checks that is imported at its first use, and with it the reference that it asks."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str):
        if attribute.startswith("__"):  # a tool looks at this object, and asks nothing of the module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(f"kernels.check.{self._name}"), attribute)


# Not the three above: they have the names of functions below, which an import would replace.
_chunked_attention = _Later("chunked_attention")
_conv_wgrad = _Later("conv_wgrad")
_dynamic_conv = _Later("dynamic_conv")
_emitted = _Later("emitted")
_flash_attention = _Later("flash_attention")
_flash_lists = _Later("flash_lists")
_pipeline_clinic = _Later("pipeline_clinic")
_pipelines = _Later("pipelines")
_recurrent_attention = _Later("recurrent_attention")
_score_mod_compiler = _Later("score_mod_compiler")


_line_first()


def step(name: str, *answer) -> None:
    """Check one "Your turn" cell of a lesson, ``NN-topic``, and print one line: not written yet, not yet and why, or right.

    answer: what the cell asks for: a kernel, a function, a tensor, a number. A wrong one is explained, never raised, and
    so is a kernel that Triton's interpreter takes and a GPU's compiler does not;
    ``ValueError`` for a name that no lesson has.
    """
    print(_verdict(name, *answer))


_DERIVED = {
    "dynamic_conv_dx": (_dynamic_conv, "DX"),
    "dynamic_conv_dweight": (_dynamic_conv, "DWEIGHT"),
    "flash_dtau": (_flash_attention, "TEMPERATURE"),
    "wgrad": (_conv_wgrad, "WGRAD"),
}


def derivation(name: str, fn, *, seed: int | None = 0, varied: Mapping | None = None) -> bool:
    """Check a gradient's formula, ``fn(*inputs, **launch) -> gradient`` in plain PyTorch, and print one line.

    name: the kernel's check that it prepares, such as ``"dynamic_conv_dx"``; its arguments, but for the output and block
    sizes, are the formula's. Autograd gives the answer. Returns whether the formula is right. ``ValueError`` for a name that
    has no derivation.
    """
    if name not in _DERIVED:
        raise ValueError(f"name is {name!r}: there are derivations for {', '.join(_DERIVED)}")
    return _derivation(getattr(*_DERIVED[name]).varied(varied), fn, seed)


# The functions take over names that the imports above gave to submodules.
def vector_add(fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS) -> int:
    """Check ``fn(x, y, out, BLOCK=8)``: out = x + y for x, y, out [N]. Returns points, of 3. Lesson 00 shows it."""
    return _check(_vector_add.EXERCISE, fn, seed=seed, grading=grading, verdicts=verdicts)


def row_softmax(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(x, out, entropy, BLOCK_N=None)``: softmax(x[m]) and its entropy, x, out [M, N]. Returns points, of 15."""
    return _check(_row_softmax.EXERCISE, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def tiled_matmul(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(a, b, scale, out, BLOCK_M, BLOCK_N, BLOCK_K)``: out = tril(a) @ B for a [M, K].

    B [K, N] is what b [⌈K/2⌉, N], two numbers a byte, and scale [N] stand for. Returns points, of 15.
    """
    return _check(_tiled_matmul.EXERCISE, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def dynamic_conv_forward(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(x, weight, y, dilation, BLOCK_T, BLOCK_D)``: y of x [B, T, D], weight [B, T, D, W].

    Returns points, of 10.
    """
    return _check(_dynamic_conv.FORWARD, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def dynamic_conv_dx(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(dy, weight, dx, dilation, BLOCK_T, BLOCK_D)``: the gradient of x [B, T, D]. Returns points, of 10."""
    return _check(_dynamic_conv.DX, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def dynamic_conv_dweight(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(dy, x, dweight, dilation, BLOCK_T, BLOCK_D)``: the gradient of weight [B, T, D, W].

    Returns points, of 10.
    """
    return _check(_dynamic_conv.DWEIGHT, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def recurrent_forward(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(q, k, v, g, gk, S0, o, ST, cu_seqlens, scale, BLOCK_V)``. Returns points, of 10."""
    return _check(_recurrent_attention.FORWARD, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def recurrent_backward(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(q, k, v, g, gk, S0, do, dST, dq, dk, dv, dS0, cu_seqlens, scale)``.

    Returns points, of 10.
    """
    return _check(_recurrent_attention.BACKWARD, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def recurrent_gate_gradient(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(q, k, v, g, S0, do, dST, dg, cu_seqlens, scale, BLOCK_T)``. Returns points, of 10."""
    return _check(_recurrent_attention.GATE, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def chunk_states(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(k, v, g, S0, states, C, BLOCK_V)``: the states [B, H, N, K, V] between chunks. Returns points, of 10."""
    return _check(_chunked_attention.STATES, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def chunk_outputs(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(q, k, v, g, states, o, scale, C, BLOCK_V)``: o [B, T, H, V] inside the chunks. Returns points, of 10."""
    return _check(_chunked_attention.OUTPUTS, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def block_lists(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(mask, num, idx, num_t, idx_t, BLOCK_M, BLOCK_N)``: a mask [M, N] as lists. Returns points, of 10."""
    return _check(_flash_lists.LISTS, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def flash_forward(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(q, k, v, num, idx, o, lse, scale, score_mod, mask_mod, BLOCK_M, BLOCK_N)``. Returns points, of 10."""
    return _check(_flash_attention.FORWARD, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def flash_backward(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(q, k, v, o, lse, do, num, idx, num_t, idx_t, delta, dq, dk, dv, scale, score_mod, ...)``.

    Returns points, of 10.
    """
    return _check(_flash_attention.BACKWARD, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def emit_value(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(mod)``, the text of a Triton function ``score_mod``. Returns points, of 10."""
    return _check(
        _score_mod_compiler.VALUE, _emitted.run_value(fn), seed=seed, grading=grading, verdicts=verdicts, varied=varied
    )


def emit_gradient(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(mod)``, the text of a Triton function ``score_gradient``. Returns points, of 10."""
    return _check(
        _score_mod_compiler.GRADIENT,
        _emitted.run_gradient(fn),
        seed=seed,
        grading=grading,
        verdicts=verdicts,
        varied=varied,
    )


def im2col(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(x, A, R, S, stride, padding, dilation, BLOCK_N, BLOCK_K)``: A [M, J] of x [N, H, W, C].

    Returns points, of 10.
    """
    return _check(_conv_wgrad.IM2COL, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def wgrad(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(x, dy, dweight, R, S, stride, padding, dilation, BLOCK_M, BLOCK_N, BLOCK_K)``: dweight [O, J].

    Returns points, of 10.
    """
    return _check(_conv_wgrad.WGRAD, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def wgrad_split(
    fn, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS, varied: Mapping | None = None
) -> int:
    """Check ``fn(x, dy, partials, dweight, R, S, ...)``: partials [Z, O, J], and their sum dweight [O, J].

    Returns points, of 10.
    """
    return _check(_conv_wgrad.SPLIT, fn, seed=seed, grading=grading, verdicts=verdicts, varied=varied)


def mended_relay(kernel, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS) -> int:
    """Check a Gluon kernel of three partitions, y = x², on the model of Gluon. Returns points, of 10."""
    return _pipelines.check(_pipeline_clinic.RELAY, kernel, seed=seed, grading=grading, verdicts=verdicts)


def mended_tiles(kernel, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS) -> int:
    """Check a persistent product in Gluon, c = a · b in tiles, on the model of Gluon. Returns points, of 10."""
    return _pipelines.check(_pipeline_clinic.TILES, kernel, seed=seed, grading=grading, verdicts=verdicts)


def mended_halves(kernel, *, seed: int | None = 0, grading: bool | None = None, verdicts=VERDICTS) -> int:
    """Check a product in Gluon with two multipliers that share a ring, on its model. Returns points, of 10."""
    return _pipelines.check(_pipeline_clinic.HALVES, kernel, seed=seed, grading=grading, verdicts=verdicts)
