"""How a call is launched: words, tiles, runs and the launches that follow. One way, so all there is to choose is the word."""

from dataclasses import dataclass

import torch
import triton

from kernels.common.configs import configuration
from kernels.common.launch import launch
from kernels.common.math import cdiv
from kernels.common.plan import Launch, Layout, layout, remembered, strides
from kernels.common.sequences import clear_outside, count_runs, sequence_of_runs
from kernels.dynamic_conv.backward import conv_backward_kernel, ends_kernel
from kernels.dynamic_conv.classes import pop_run, size_class
from kernels.dynamic_conv.forward import conv_forward_kernel, conv_step_kernel, final_state_kernel
from kernels.dynamic_conv.plan_static import backward_walk, forward_walk
from kernels.dynamic_conv.static import static_backward_kernel, static_forward_kernel, sum_parts_kernel
from kernels.dynamic_conv.words import channels_per_word, word_strides


@dataclass(frozen=True)
class ForwardPlan:
    """The walk along time, and where it is wanted the final state's copy."""

    G: int
    reason: str
    run_length: int
    runs: int
    walk: Launch
    final: Launch | None

    def __str__(self):
        return f"{'whole words' if self.G > 1 else 'one element at a time'}: {self.reason}"

    def run(self, x, weight, bias, residual, state, cu_seqlens):
        """``(y, final state or None)``."""
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        sequences = sequence_of_runs(cu_seqlens, self.runs, self.run_length)
        kernel = conv_forward_kernel if weight.ndim == 4 else static_forward_kernel
        grid, numbers, meta = self.walk
        launch(
            kernel, grid, x, weight, bias, residual, state, sequences, cu_seqlens, y, *numbers,
            **meta,
        )  # fmt: skip
        _, T, D = x.shape
        clear_outside(cu_seqlens, T, y)
        if self.final is None:
            return y, None
        grid, numbers, meta = self.final
        N = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        final = torch.empty(N, D, weight.shape[-1] - 1, dtype=x.dtype if state is None else state.dtype, device=x.device)
        launch(final_state_kernel, grid, x, state, cu_seqlens, final, *numbers, **meta)
        return y, final


@dataclass(frozen=True)
class BackwardPlan:
    """The walk along time, the sum of its programs' parts of dweight and dbias, and the sums at the sequences' ends for
    ``dx`` and for the initial state's gradient."""

    parts: tuple[int, ...]  # shape of the parts: of dbias, or with one weight for all tokens of dweight too
    run_length: int
    runs: int
    walk: Launch | None
    total: Launch | None
    last: Launch | None
    first: Launch | None
    times: dict  # predicted, of every candidate

    def __str__(self):
        parts = [f"{self.runs} runs of {self.run_length} tokens"] if self.walk else []
        if self.walk and self.times:
            least = min(self.times.values())
            predicted = ", ".join(f"{name}: {t / least:.2f}" for name, t in self.times.items())
            parts[0] += f" (predicted times, the chosen one's as 1: {predicted})"
        parts += [f"the sum of the weight gradient's {self.parts[0]} parts"] * (self.total is not None)
        parts += ["the sequences' last tokens"] * (self.last is not None)
        return ", ".join(parts + ["their initial states"] * (self.first is not None))

    def run(self, dy, dfinal, x, weight, bias, state, cu_seqlens, needs):
        """``(dx, dweight, dbias, dinitial_state)``, each in its tensor's dtype, ``None`` where not wanted."""
        need_x, need_weight, need_bias, _ = needs
        empty = lambda wanted, *shape, like, dtype=None: (
            torch.empty(shape, dtype=dtype or like.dtype, device=like.device) if wanted else None
        )
        dx = empty(need_x, *x.shape, like=x)
        dk = empty(need_weight, *weight.shape, like=weight)
        dbias = empty(need_bias, *x.shape[-1:], like=bias)
        parts = empty(need_bias or self.total, *self.parts, like=x, dtype=torch.float32)
        dstate = None
        inputs = x, weight, bias, state if weight.shape[-1] > 1 else None
        if self.walk is not None:
            sequences = sequence_of_runs(cu_seqlens, self.runs, self.run_length)
            static = weight.ndim == 2
            kernel, outputs = (static_backward_kernel, (dx, parts)) if static else (conv_backward_kernel, (dx, dk, parts))
            grid, numbers, meta = self.walk
            launch(kernel, grid, dy, *inputs, sequences, cu_seqlens, *outputs, *numbers, **meta)
            if self.total is not None:
                grid, numbers, meta = self.total
                launch(sum_parts_kernel, grid, parts, dk, dbias, *numbers, **meta)
            elif need_bias:
                dbias = parts.sum(0).to(bias.dtype)  # the same order every time: deterministic
        if self.last is not None:
            grid, numbers, meta = self.last
            launch(ends_kernel, grid, dy, *inputs, dfinal, cu_seqlens, dx, *numbers, **meta)
        clear_outside(cu_seqlens, x.shape[1], dx, dk if weight.ndim == 4 else None)
        if self.first is not None:
            dstate = empty(True, *state.shape, like=state)
            grid, numbers, meta = self.first
            launch(ends_kernel, grid, dy, *inputs, dfinal, cu_seqlens, dstate, *numbers, **meta)
        return dx, dk, dbias, dstate


def forward(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens):
    """The forward pass; arguments as ``dynamic_conv`` has validated them. Returns ``(y, final_state or None)``."""
    plan = plan_forward(
        layout(x), layout(weight), layout(bias), layout(residual), layout(initial_state), activation, output_final_state,
        None if cu_seqlens is None else cu_seqlens.shape[0] - 1, x.device,
    )  # fmt: skip
    return plan.run(x, weight, bias, residual, initial_state, cu_seqlens)


@remembered
def plan_forward(x, weight, bias, residual, state, activation, final, packed, device):
    """The ``ForwardPlan`` of tensors that lie so (``None`` where absent); ``packed``: how many sequences, if they are."""
    B, T, D = x.shape
    W = weight.shape[-1]
    N = B if packed is None else packed
    last = _plan_final(x, W, state, N, packed) if final else None
    if len(weight.shape) == 2:
        return ForwardPlan(*forward_walk(x, weight, bias, residual, state, activation, packed, device), last)
    G, reason = channels_per_word({"x": x} | ({} if residual is None else {"residual": residual}), {"weight": weight})
    options = configuration("dynamic_conv", "forward", size_class(W, weight.dtype), device)
    if options["G"] < G:
        G, reason = options["G"], f"the table of configurations says so for {W} taps, whose window lives in registers"
    del options["G"]
    runs = count_runs(packed, N, T, options["RUN"])
    tiles_d = cdiv(D // G, options["BLOCK"])
    numbers = (
        T, D // G, runs, tiles_d,
        *word_strides(x, G), *word_strides(weight, G, inner=2), *strides(bias, 1),
        *((0, 0, 0) if residual is None else word_strides(residual, G)), *strides(state, 3),
    )  # fmt: skip
    meta = {
        "W": W, "G": G, "SILU": activation == "silu", "HAS_BIAS": bias is not None, "HAS_RESIDUAL": residual is not None,
        "HAS_STATE": state is not None and W > 1, "PACKED": packed is not None, **options,
    }  # fmt: skip
    walk = Launch((cdiv(runs, options["ROWS"]) * tiles_d,), numbers, meta)
    return ForwardPlan(G, reason, options["RUN"], runs, walk, last)


def _plan_final(x, W, state, N, packed):
    BLOCK = 128
    _, T, D = x.shape
    tiles_d = cdiv(D, BLOCK) if W > 1 else 0
    meta = {"W": W, "SLOTS": triton.next_power_of_2(max(W - 1, 1)), "HAS_STATE": state is not None,
            "PACKED": packed is not None, "BLOCK": BLOCK}  # fmt: skip
    return Launch((N * tiles_d,), (T, D, tiles_d, *x.strides, *strides(state, 3)), meta)


def backward(dy, dfinal, x, weight, bias, activation, initial_state, cu_seqlens, needs):
    """The backward pass.

    Args:
        dy: gradient of y, [B, T, D].
        dfinal: gradient of the final state, [N, D, W-1], or ``None``.
        x, weight, bias, activation, initial_state, cu_seqlens: as ``dynamic_conv`` was given them.
        needs: four bools, whether the gradients of x, weight, bias and initial_state are wanted.

    Returns:
        ``(dx, dweight, dbias, dinitial_state)``, each in its tensor's dtype, ``None`` where not wanted.
    """
    plan = plan_backward(
        layout(dy), layout(dfinal), layout(x), layout(weight), layout(bias), layout(initial_state), activation,
        None if cu_seqlens is None else cu_seqlens.shape[0] - 1, tuple(needs), x.device,
    )  # fmt: skip
    return plan.run(dy, dfinal if weight.shape[-1] > 1 else None, x, weight, bias, initial_state, cu_seqlens, needs)


@remembered
def plan_backward(dy, dfinal, x, weight, bias, state, activation, packed, needs, device):
    """The ``BackwardPlan`` of tensors that lie so; ``packed``: how many sequences, if so."""
    B, T, D = x.shape
    W = weight.shape[-1]
    need_x, need_weight, need_bias, need_state = needs
    if W == 1:
        dfinal = state = None
    k = _for_every_token(weight, B, T)
    N = B if packed is None else packed
    shared = {
        "W": W, "SILU": activation == "silu",
        "HAS_BIAS": bias is not None, "HAS_STATE": state is not None, "PACKED": packed is not None,
    }  # fmt: skip
    TAPS = triton.next_power_of_2(W)
    if len(weight.shape) == 2:
        parts, RUN, runs, walk, total, times = backward_walk(dy, x, weight, bias, state, activation, packed, needs, device)
    else:
        G, _ = channels_per_word({"x": x, "dy": dy}, {"weight": weight})
        # a packed kernel holds more in registers: fewer of its programs fit on the GPU at once
        key = size_class(W, weight.dtype, packed=packed is not None)
        options = configuration("dynamic_conv", "backward", key, device)
        G = min(G, options.pop("G"))
        RUN, times = pop_run(options, T, B, packed, D // G, W, device)
        tiles_d = cdiv(D // G, options["BLOCK"])
        runs = count_runs(packed, N, T, RUN)
        parts, total = (cdiv(runs, options["ROWS"]), D), None
        numbers = (
            T, D // G, runs, RUN, tiles_d,
            *word_strides(dy, G), *word_strides(x, G), *word_strides(k, G, inner=2), *strides(bias, 1), *strides(state, 3),
        )  # fmt: skip
        needed = {"NEED_DX": need_x, "NEED_DK": need_weight, "NEED_DBIAS": need_bias}
        walk = Launch((parts[0] * tiles_d,), numbers, {**shared, "TAPS": TAPS, "G": G, **needed, **options})
    if not (need_x or need_weight or need_bias):
        walk = total = None

    def ends(final):
        BLOCK = 64
        tiles_d = cdiv(D, BLOCK)
        numbers = (
            T, D, tiles_d, *dy.strides, *x.strides, *k.strides, *strides(bias, 1), *strides(state, 3), *strides(dfinal, 3),
        )  # fmt: skip
        meta = {**shared, "TAPS": TAPS, "FINAL": final, "HAS_DFINAL": dfinal is not None, "BLOCK": BLOCK}
        return Launch((N * tiles_d if W > 1 else 0,), numbers, meta)

    last = ends(True) if need_x and dfinal is not None else None
    return BackwardPlan(parts, RUN, runs, walk, total, last, ends(False) if need_state else None, times)


def step(x, weight, state, bias, residual, activation, slots):
    """One token's step; arguments as ``dynamic_conv_step`` has validated them. Returns y, shifts ``state``, whose strides are
    any, and which may hold W inputs, too."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    strides = tuple(None if t is None else t.stride() for t in (x, weight, bias, residual, state, slots))
    kept = state.shape[-1]
    grid, numbers, meta = plan_step(x.shape, weight.shape, weight.dtype, kept, strides, activation, x.device)
    launch(
        conv_step_kernel, grid, x, weight, bias, residual, state, slots, y, *numbers, **meta
    )  # fmt: skip
    return y


@remembered
def plan_step(shape, weight_shape, dtype, kept, strides, activation, device):
    """The ``Launch`` of a step; ``kept`` inputs in the state; ``strides`` of x, weight, bias, residual, state and slots,
    ``None`` where absent."""
    B, D = shape
    W = weight_shape[-1]
    static = len(weight_shape) == 2
    of_x, of_k, of_bias, of_residual, of_state, of_slots = strides
    options = configuration("dynamic_conv", "step", size_class(W, dtype, static), device)
    tiles_d = cdiv(D, options["BLOCK"])
    numbers = (
        D, tiles_d, *of_x, *((0, *of_k) if static else of_k), *(of_bias or (0,)), *(of_residual or (0, 0)),
        *of_state, *(of_slots or (0,)),
    )  # fmt: skip
    meta = {"W": W, "KEPT": kept, "SILU": activation == "silu", "HAS_BIAS": of_bias is not None,
            "HAS_RESIDUAL": of_residual is not None, "HAS_SLOTS": of_slots is not None, **options}  # fmt: skip
    return Launch((B * tiles_d,), numbers, meta)


def _for_every_token(weight, B, T):
    """The ``Layout`` [B, T, D, W] of a weight that may be one for all tokens."""
    if len(weight.shape) == 4:
        return weight
    return Layout((B, T, *weight.shape), (0, 0, *weight.strides), weight.dtype, weight.address)
