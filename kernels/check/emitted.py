"""The score mods of exercise 07's checks, and how the text emitted for one is run: on tiles that reach past the end."""

import contextlib
import functools
import itertools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode

from kernels.check.framework import Draw
from kernels.lab.source import readable

# What a mod may capture: its axes, and its values.
TABLES = {
    "slopes": ("H", lambda draw, *shape: draw.normal(*shape)),
    "bias": ("HMN", lambda draw, *shape: draw.normal(*shape)),
    "column": ("N", lambda draw, *shape: draw.normal(*shape)),
    "ring": ("L", lambda draw, *shape: draw.normal(*shape)),  # as long as the longer of queries and keys
    "pair": ("SU", lambda draw, *shape: draw.normal(*shape)),
    "speaker": ("M", lambda draw, *shape: torch.arange(shape[0]) // 2 % 3),
    "mood": ("N", lambda draw, *shape: torch.arange(shape[0], dtype=torch.int32) // 3 % 5),
    "seen": ("N", lambda draw, *shape: torch.arange(shape[0]) % 3 != 1),
    "ids": ("L", lambda draw, *shape: 2**24 + torch.arange(shape[0]) // 2 % 3),  # float32 does not tell them apart
}


@dataclass(frozen=True)
class Mod:
    """A score mod as a Python expression of its arguments and of captured tensors."""

    text: str

    def __str__(self):
        return self.text

    @property
    def names(self) -> list[str]:
        """Captured tensors, in the order in which the mod first indexes them."""
        stand_ins = {name: make(Draw(0, False), *(1 for _ in axes)) for name, (axes, make) in TABLES.items()}
        with _Indexed() as indexed:
            self.function(stand_ins)(torch.zeros(()), *(torch.zeros((), dtype=torch.int64) for _ in range(4)))
        return [name for table in indexed.seen for name in TABLES if stand_ins[name] is table]

    def function(self, tables: dict[str, torch.Tensor]):
        """The mod with these tensors captured."""
        return eval(f"lambda score, b, h, q_idx, kv_idx: {self.text}", {"torch": torch} | tables)

    def dense(self, score: torch.Tensor, tables: dict[str, torch.Tensor], mistake=None) -> torch.Tensor:
        """Its value at every position of score [B, H, M, N], with a mistake or without."""
        positions = torch.meshgrid(*map(torch.arange, score.shape), indexing="ij")
        with mistake or contextlib.nullcontext():
            value = self.function(tables)(score, *positions)
        return torch.as_tensor(value).expand(score.shape)


class _Indexed(TorchFunctionMode):
    """Notes which tensors are indexed."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__getitem__ and not any(args[0] is known for known in self.seen):
            self.seen.append(args[0])
        return function(*args, **(kwargs or {}))


@triton.jit
def value_kernel(
    score_ptr, out_ptr, tables, stride_score, stride_out, H, M, N, SCORE_MOD: tl.constexpr, BLOCK: tl.constexpr
):
    """One tile of a score mod's values."""
    b, h = tl.program_id(2) // H, tl.program_id(2) % H
    m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    n = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (m < M) & (n < N)
    at = b * stride_score[0] + h * stride_score[1] + m * stride_score[2] + n * stride_score[3]
    score = tl.load(score_ptr + at, mask=live, other=0.0)
    t = SCORE_MOD(score, b, h, m, n, tables) + tl.zeros((1, 1), tl.float32)
    tl.static_assert(t.shape == score.shape, "the result does not fill the tile")
    at = b * stride_out[0] + h * stride_out[1] + m * stride_out[2] + n * stride_out[3]
    tl.store(out_ptr + at, t, mask=live)


@triton.jit
def gradient_kernel(
    score_ptr, grad_ptr, out_ptr, tables, stride_score, stride_grad, stride_out, H, M, N,
    SCORE_GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of a score's gradients."""
    b, h = tl.program_id(2) // H, tl.program_id(2) % H
    m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    n = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    live = (m < M) & (n < N)
    at = b * stride_score[0] + h * stride_score[1] + m * stride_score[2] + n * stride_score[3]
    score = tl.load(score_ptr + at, mask=live, other=0.0)
    at = b * stride_grad[0] + h * stride_grad[1] + m * stride_grad[2] + n * stride_grad[3]
    grad = tl.load(grad_ptr + at, mask=live, other=0.0)
    ds = SCORE_GRADIENT(score, b, h, m, n, grad, tables) + tl.zeros((1, 1), tl.float32)
    tl.static_assert(ds.shape == score.shape, "the result does not fill the tile")
    at = b * stride_out[0] + h * stride_out[1] + m * stride_out[2] + n * stride_out[3]
    tl.store(out_ptr + at, ds, mask=live)


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
    if not callable(write):
        return write

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
