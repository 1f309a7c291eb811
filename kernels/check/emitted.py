"""The score mods of exercise 07's checks, and how the text emitted for one is run: on tiles that reach past the end."""

import ast
import functools
import itertools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.lab.source import readable


@dataclass(frozen=True)
class Mod:
    """A score mod as a Python expression of its arguments and of captured tensors."""

    text: str

    def __str__(self):
        return self.text

    @property
    def names(self) -> list[str]:
        """Captured tensors, in the order in which the mod first indexes them: the one whose index ends first is the first."""
        indexed = [node for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Subscript)]
        return list(dict.fromkeys(node.value.id for node in sorted(indexed, key=lambda node: node.end_col_offset)))

    def function(self, tables: dict[str, torch.Tensor]):
        """The mod with these tensors captured."""
        return eval(f"lambda score, b, h, q_idx, kv_idx: {self.text}", {"torch": torch} | tables)


@triton.jit
def _tile(H, M, N, BLOCK: tl.constexpr):
    """A program's sequence, head, rows and columns, and which of them there are."""
    m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    n = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    return tl.program_id(2) // H, tl.program_id(2) % H, m, n, (m < M) & (n < N)


@triton.jit
def _at(stride, b, h, m, n):
    return b * stride[0] + h * stride[1] + m * stride[2] + n * stride[3]


@triton.jit
def value_kernel(
    score_ptr, out_ptr, tables, stride_score, stride_out, H, M, N, SCORE_MOD: tl.constexpr, BLOCK: tl.constexpr
):
    """One tile of a score mod's values."""
    b, h, m, n, live = _tile(H, M, N, BLOCK)
    score = tl.load(score_ptr + _at(stride_score, b, h, m, n), mask=live, other=0.0)
    t = SCORE_MOD(score, b, h, m, n, tables) + tl.zeros((1, 1), tl.float32)
    tl.static_assert(t.shape == score.shape, "the result does not fill the tile")
    tl.store(out_ptr + _at(stride_out, b, h, m, n), t, mask=live)


@triton.jit
def gradient_kernel(
    score_ptr, grad_ptr, out_ptr, tables, stride_score, stride_grad, stride_out, H, M, N,
    SCORE_GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of a score's gradients."""
    b, h, m, n, live = _tile(H, M, N, BLOCK)
    score = tl.load(score_ptr + _at(stride_score, b, h, m, n), mask=live, other=0.0)
    grad = tl.load(grad_ptr + _at(stride_grad, b, h, m, n), mask=live, other=0.0)
    ds = SCORE_GRADIENT(score, b, h, m, n, grad, tables) + tl.zeros((1, 1), tl.float32)
    tl.static_assert(ds.shape == score.shape, "the result does not fill the tile")
    tl.store(out_ptr + _at(stride_out, b, h, m, n), ds, mask=live)


_SERIAL = itertools.count()


def defined(write, text: str, name: str):
    """The function ``name`` that ``text`` defines; it sees what the cell of ``write`` sees, its jit functions too."""
    if not isinstance(text, str):
        raise TypeError(f"{write.__name__} gave {text!r}, it must give the text of a function")
    if "float64" in text:
        raise ValueError("your text computes in float64: scores are float32, and a derivative is a formula, no quotient")
    filename = f"<generated {next(_SERIAL)}>"  # Triton reads a kernel's source back by this name
    namespace = dict(write.__globals__)
    try:
        code = readable(text, filename)
    except SyntaxError as error:
        raise SyntaxError(f"line {error.lineno} of your text is no Python, `{(error.text or '').strip()}`") from None
    exec(code, namespace)
    if name not in namespace or namespace[name] is write.__globals__.get(name):
        raise NameError(f"{name}: your text defines no function of this name")
    return namespace[name]


def _run(kernel, name: str, write):
    """A launcher ``(score, *tables, *others, mod, BLOCK)`` of ``kernel``, with the function that ``write(mod)`` emits."""
    @functools.wraps(write)
    def launch(score, *rest, mod, BLOCK):
        captured, (B, H, M, N) = len(mod.names), score.shape
        tables, tensors = rest[:captured], (score, *rest[captured:])
        text = write(mod.function(dict(zip(mod.names, tables))))
        if text is None:
            return
        grid = (triton.cdiv(M, BLOCK), triton.cdiv(N, BLOCK), B * H)
        strides = (tensor.stride() for tensor in tensors)
        kernel[grid](*tensors, tables, *strides, H, M, N, defined(write, text, name), BLOCK)

    return launch


run_value = functools.partial(_run, value_kernel, "score_mod")  # (score, *tables, out, mod, BLOCK)
run_gradient = functools.partial(_run, gradient_kernel, "score_gradient")  # (score, *tables, grad, out, mod, BLOCK)
