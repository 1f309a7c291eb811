"""The public functions: what may be asked, which kernel answers, and its launch. Their docstrings are the ones of record.

A call goes from its checks through PyTorch's dispatcher (``register``) to ``forward`` or ``backward``, which look up the plan
of tensors with this layout and launch it. ``dynamic_conv.explain`` prints the plan.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.common.checks import (
    check_choice,
    check_cu_seqlens,
    check_flag,
    check_slots,
    check_tensor,
    check_writable,
    explains,
    public,
)
from kernels.common.configs import configuration, declare
from kernels.common.gpu import multiprocessors
from kernels.common.math import bits, block, cdiv
from kernels.common.operator import launch, layout, planned, register
from kernels.common.sequences import clear_outside, count_runs, find_sequences, without_outside
from kernels.dynamic_conv import cost, plain, static, words
from kernels.dynamic_conv.plain import AllStrides, Cuts, Gradients, StateStrides, Strides, Tile

ACTIVATIONS = {None: None, "silu": "silu", "swish": "silu"}  # by all their names


@public(casts=("x", "weight", "bias"))
def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal depthwise convolution along time whose kernel differs from token to token.

    .. math::
        u_{t,d} = \\sum_{w=0}^{W-1} k_{t,d,w}\\, X_{t-W+1+w,\\,d}, \\qquad y = \\varphi(u + b) + r

    :math:`X_j` is :math:`x_j` for :math:`j \\ge 0` and the initial state (or zero) for the W - 1 times before. Products and
    sums are fp32, with one rounding to the dtype of ``x``. Differentiable once in every tensor argument; the gradient of
    each has that tensor's dtype. Follows autocast, which casts x, weight and bias as it does those of torch's convolutions.
    Bit-identical from run to run; never waits for the GPU.

    What others call it:

    ======================  ==============================================================================================
    Jet-Nemotron            its ``dynamic_conv_triton_autograd(x, kernels)`` with kernels [B, T, D, W] as weight; its layer is
                            ``kernels.dynamic_conv.jet_nemotron.DynamicShortConvolution``
    flash-linear-attention  its ``causal_conv1d(x, weight)`` with weight [D, W], the other names as here, but states hold W
                            inputs: ``initial_state[..., 1:]``
    causal_conv1d, Mamba    ``causal_conv1d_fn`` and ``causal_conv1d_update`` of ``kernels.dynamic_conv.causal_conv1d``
    ======================  ==============================================================================================

    Args:
        x: inputs [B, T, D], float32, float16 or bfloat16; any strides.
        weight: k, one kernel a token [B, T, D, W] or one for all [D, W]; any W >= 1; its dtype may differ from x's.
        bias: b, [D], or ``None``.
        residual: r, [B, T, D], or ``None``.
        activation: :math:`\\varphi`: ``None`` (identity) or ``"silu"``, which is called ``"swish"``, too.
        initial_state: [N, D, W-1]; slot i holds the input at time i - (W-1). ``None`` means zeros.
        output_final_state: return the state after the last token too.
        cu_seqlens: int32 or int64 [N+1], for sequences packed end to end along T with B = 1: sequence n is tokens
            ``cu_seqlens[n]`` to ``cu_seqlens[n+1] - 1``; it may be empty. Tokens behind the last are padding: their y and all
            their gradients are 0. ``None``: every batch row is a sequence, N = B.

    Returns:
        y [B, T, D] in x's dtype; with ``output_final_state``, ``(y, state)`` with state [N, D, W-1] in the dtype of
        ``initial_state``, else of x.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit; the values of ``cu_seqlens`` do not (checked
            when it is on the CPU or ``KERNELS_CHECK=1``).
        RuntimeError: a second derivative, forward mode or a transform of ``torch.func`` is asked for.

    Source: the dynamic convolution of Jet-Nemotron (Gu et al., 2025, arXiv:2508.15884).
    """
    _check("[B, T, D]", x, weight, bias, residual, activation, initial_state, cu_seqlens)
    if not isinstance(output_final_state, bool):
        output_final_state = check_flag("output_final_state", output_final_state)
    activation = ACTIVATIONS[activation]
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.contiguous()
        if residual is not None and residual.requires_grad:  # its gradient is y's
            residual = without_outside(residual, cu_seqlens)
    y, state = _convolve(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens)
    return (y, state) if output_final_state else y


@public(casts=("x", "weight", "bias"))
def dynamic_conv_step(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    slots: Tensor | None = None,
) -> Tensor:
    """One token of ``dynamic_conv`` for each sequence, for decoding; ``state`` is shifted in place. Not differentiable.

    .. math::
        y = \\varphi\\Big(\\sum_{w<W-1} k_w s_w + k_{W-1} x + b\\Big) + r, \\qquad s \\leftarrow [s_1, \\dots, s_{W-2}, x]

    Args:
        x: [B, D], float32, float16 or bfloat16.
        weight: [B, D, W] or [D, W].
        state: [B, D, W-1], or a pool [S, D, W-1] with ``slots``; contiguous, because it is updated in place.
        bias: [D], or ``None``.
        residual: [B, D], or ``None``.
        activation: ``None`` or ``"silu"``, which is called ``"swish"``, too.
        slots: int32 or int64 [B], which state of the pool belongs to each row of x, no two the same; negative where a row is
            padding: its y is 0. ``None``: row b uses state b.

    Returns:
        y [B, D] in x's dtype.

    Raises:
        ValueError: an argument's type, shape, dtype, device or layout does not fit; the values of ``slots`` do not
            (checked when it is on the CPU or ``KERNELS_CHECK=1``).
        RuntimeError: a gradient is asked for.
    """
    B = _check("[B, D]", x, weight, bias, residual, activation)
    like, shape = ("x", x), (B if slots is None else None, x.shape[-1], weight.shape[-1] - 1)
    check_tensor("state", state, shape, "[B or pool, D, W-1]", like=like)
    if not state.is_contiguous():
        raise ValueError(f"state has strides {state.stride()}, needs to be contiguous: it is updated in place")
    check_writable("state", state)
    if slots is not None:
        check_slots("slots", slots, B, state.shape[0], like)
    return _step(x, weight, state, bias, residual, ACTIVATIONS[activation], slots)


@explains(dynamic_conv)
def explain(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens):
    """How ``dynamic_conv`` would access memory for these arguments, and why, as text."""
    N = _check("[B, T, D]", x, weight, bias, residual, activation, initial_state, cu_seqlens)
    activation, packed = ACTIVATIONS[activation], None if cu_seqlens is None else N
    of_x, of_k, of_bias, of_residual, of_state = map(layout, (x, weight, bias, residual, initial_state))
    forward = plan_forward(of_x, of_k, of_bias, of_residual, of_state, activation, packed, x.device)
    dy = layout(torch.empty(x.shape, dtype=x.dtype, device="meta"))  # as most programs bring it
    needs = True, True, bias is not None, initial_state is not None
    backward = plan_backward((dy, None, of_x, of_k, of_bias, of_state), activation, packed, needs, x.device)
    return f"{forward}\nbackward: {backward}"


def _check(rows, x, weight, bias, residual, activation, initial_state=None, cu_seqlens=None):
    """The number of sequences of arguments that fit; ``rows``: x's shape in symbols."""
    check_tensor("x", x, (None,) * (1 + rows.count(",")), rows)
    like, shape = ("x", x), x.shape
    each = isinstance(weight, Tensor) and weight.ndim == x.ndim + 1
    check_tensor("weight", weight, (*(shape if each else shape[-1:]), None), f"{rows[:-1]}, W] or [D, W]", like=like)
    W = weight.shape[-1]
    if W == 0:
        raise ValueError(f"weight has shape {list(weight.shape)}, needs at least one tap (W >= 1)")
    if activation is not None:
        check_choice("activation", activation, tuple(ACTIVATIONS))
    if bias is not None:
        check_tensor("bias", bias, shape[-1:], "[D]", like=like)
    if residual is not None:
        check_tensor("residual", residual, shape, rows, like=like)
    N = shape[0] if cu_seqlens is None else check_cu_seqlens(cu_seqlens, shape[0], like, shape[1])
    if initial_state is not None:
        check_tensor("initial_state", initial_state, (N, shape[-1], W - 1), "[N, D, W-1]", like=like)
    return N


def activation_named(activation):
    """One of ``ACTIVATIONS`` by its first name; raises ``ValueError`` for another."""
    check_choice("activation", activation, tuple(ACTIVATIONS))
    return ACTIVATIONS[activation]


# The choice: whole words of channels where the layout allows, with one weight for all tokens or one for each; else plain.

MANY = "many taps"  # more than 8


def size_class(W, dtype, static=False, packed=False):
    """The key of a launch configuration: taps, bits per element, whether all tokens share one kernel, whether packed."""
    return MANY if W > 8 else f"W{W} {bits(dtype)}" + " static" * static + " packed" * packed


VARIANTS = {"backward": {"packed": True}, "step": {"static": True}}
CLASSES = {
    kernel: {size_class(W, t, **more) for W in range(1, 10) for t in (torch.half, torch.float) for more in variants}
    for kernel in ("forward", "backward", "static forward", "static backward", "step")
    for variants in [({}, VARIANTS.get(kernel, {}))]
}
declare("dynamic_conv", CLASSES)


class Launch(NamedTuple):
    """A kernel, its grid, and by name all of its arguments that are no tensors."""

    kernel: object
    grid: tuple
    meta: dict


class Loop(NamedTuple):
    """The loop along time: in words of how many channels and why, its runs, the launch that finds each run's sequence, its
    own, and predicted times of each candidate."""

    G: int
    reason: str
    RUN: int
    runs: int
    find: Launch
    launch: Launch
    times: dict


class ForwardPlan(NamedTuple):
    """The loop along time, and the final state."""

    loop: Loop
    final: Launch

    def __str__(self):
        return f"{'whole words' if self.loop.G > 1 else 'one element at a time'}: {self.loop.reason}"


class BackwardPlan(NamedTuple):
    """The loop along time; of a weight that all tokens share the sum of its programs' parts of dweight and dbias, which
    else are parts of dbias; and the gradients at a sequence's last tokens and of its initial state."""

    loop: Loop
    parts: tuple  # their shape
    total: Launch | None
    last: Launch
    first: Launch

    def __str__(self):
        text = f"{self.loop.runs} runs of {self.loop.RUN} tokens"
        if least := min(self.loop.times.values(), default=0):  # 0 of no tokens
            predicted = ", ".join(f"{name}: {t / least:.2f}" for name, t in self.loop.times.items())
            text += f" (predicted times, the chosen one's as 1: {predicted})"
        return text + f", the sum of the weight gradient's {self.parts[0]} parts" * (self.total is not None)


def _meta(options, **arguments):
    """``arguments`` and a launch's options, with those among them that are compiled in as one ``Tile``."""
    tile = Tile(**{name: options.pop(name) for name in Tile._fields if name in options})
    return {"TILE": tile, **options, **arguments}


def _loop(name, kernels, activation, packed, device, **tensors):
    """The ``Loop`` of tensors with these layouts, by the kernel for one weight or for one a token."""
    weight, (B, T, D) = tensors["weight"], tensors["x"].shape
    W, shared = weight.shape[-1], len(weight.shape) == 2
    name = "static " * shared + name
    # the backward loop of packed sequences holds more in registers
    key = size_class(W, weight.dtype, packed=name == "backward" and packed is not None)
    options = configuration("dynamic_conv", name, key, device) | {"W": W, "ACT": activation}
    in_words = {n: t for n in ("x", "residual", "dy") if (t := tensors.get(n))}
    fill = 8 // max(t.dtype.itemsize for t in (weight, *in_words.values()))
    most = min(options["G"], fill)
    G, KG, reason = words.channels_per_word(in_words, weight, most)
    if G == most < fill:
        reason = f"the table of configurations says so for {W} taps, whose window lives in registers"
    # The table's lines are for words that are filled. With shorter ones a lane has as many elements on their way, of as many
    # more tokens, or where weights are the most of them, of as many more channels.
    shorter, lanes = most // G, D // G if shared else cdiv(D, most)
    RUN, times = cost.pop_run(options, T, B, packed, lanes, W, multiprocessors(device))
    if not shared:
        options["BLOCK"] = min(options["BLOCK"] * shorter, max(options["BLOCK"], block(D // G)))
    elif shorter > 1:  # what a run begins and ends with are instructions, of which short words take more
        options["AHEAD"] *= shorter
        RUN = max(RUN, 2 * options["AHEAD"])
    RUN = cdiv(RUN, options.get("AHEAD", 1)) * options.get("AHEAD", 1)
    runs = count_runs(packed, B if packed is None else packed, T, RUN)
    tiles_d = cdiv(D // G, options["BLOCK"])
    grid = (cdiv(runs, options["ROWS"]) * tiles_d,)
    sizes = {"T": T, "D": D // G, "runs": runs, "tiles_d": tiles_d, "strides": _strides(G, KG, **tensors)}
    (options if name == "forward" else sizes)["RUN"] = RUN  # of few steps, which are unrolled
    kernel = kernels[0 if shared else 1]
    loop = Launch(kernel, grid, _meta(options | {"G": G, "KG": KG}, **sizes))
    find = find_sequences(packed or 0, runs, RUN)
    return Loop(G, reason, RUN, runs, find, loop, times)


def _strides(G, KG, x, weight, bias, state, residual=None, dy=None, dfinal=None):
    """Those of a kernel's inputs with these layouts, in words of G channels and of KG weights."""
    tokens = lambda t: t and Strides(*(t.strides if G == 1 else (t.strides[0] // G, t.strides[1] // G, 1)))
    states = lambda t: t and StateStrides(*t.strides)
    *outer, d, w = weight.strides
    k = (d, w) if KG == 1 else (G * weight.shape[-1] // KG, 1)
    of_k = Strides(*([step // KG for step in outer] or (0, 0)), *k)
    of_bias = bias and bias.strides[0]
    return AllStrides(tokens(x), of_k, of_bias, states(state), tokens(residual), tokens(dy), states(dfinal))


@planned
def plan_forward(x, weight, bias, residual, state, activation, packed, device):
    """The ``ForwardPlan`` of these layouts, ``None`` where there is none; ``packed``: how many sequences, or ``None``."""
    (B, T, D), W, BLOCK = x.shape, weight.shape[-1], 128
    kernels = static.static_forward_kernel, words.words_forward_kernel
    tensors = {"x": x, "weight": weight, "bias": bias, "state": state}
    loop = _loop("forward", kernels, activation, packed, device, **tensors, residual=residual)
    tiles_d = cdiv(D, BLOCK) if W > 1 else 0
    options = {"W": W, "ACT": None, "BLOCK": BLOCK}
    final = _meta(options, T=T, D=D, tiles_d=tiles_d, strides=_strides(1, 1, **tensors))
    return ForwardPlan(loop, Launch(plain.final_state_kernel, ((B if packed is None else packed) * tiles_d,), final))


@planned
def plan_backward(layouts, activation, packed, needs, device):
    """The ``BackwardPlan`` of tensors with these layouts; ``needs``: of x, weight, bias, and the initial state."""
    dy, dfinal, x, weight, bias, state = layouts
    (B, T, D), W, BLOCK = x.shape, weight.shape[-1], 64
    kernels = static.static_backward_kernel, words.words_backward_kernel
    tensors = {"x": x, "weight": weight, "bias": bias, "state": state, "dy": dy}
    loop = _loop("backward", kernels, activation, packed, device, **tensors)
    tiles, columns, total = cdiv(loop.runs, loop.launch.meta["TILE"].ROWS), D, None
    if len(weight.shape) == 2:
        columns = D * (W * needs[1] + needs[2])
        options = {"W": W, "ACT": None, "G": loop.G, "ROWS": 16, "BLOCK": 32, "num_warps": 4}
        total = Launch(static.sum_parts_kernel, (cdiv(columns, 32),), _meta(options, programs=tiles, D=D // loop.G))
    tiles_d = cdiv(D, BLOCK) if W > 1 else 0
    ends = {"T": T, "D": D, "tiles_d": tiles_d, "strides": _strides(1, 1, **tensors, dfinal=dfinal)}
    grid, options = ((B if packed is None else packed) * tiles_d,), {"W": W, "ACT": activation, "BLOCK": BLOCK}
    end = lambda final: Launch(plain.ends_kernel, grid, _meta(options | {"FINAL": final}, **ends))
    return BackwardPlan(loop, (tiles, columns), total if columns else None, end(True), end(False))


# Behind the dispatcher: tensors that have been checked, and what is launched for them.


def forward(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens):
    """``(y, final state)``; no final state is an empty tensor."""
    W, N = weight.shape[-1], x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = initial_state if W > 1 else None
    layouts = layout(x), layout(weight), layout(bias), layout(residual), layout(state)
    plan = plan_forward(*layouts, activation, None if cu_seqlens is None else N, x.device)
    y = x.new_empty(x.shape)
    cuts = Cuts(cu_seqlens, None if cu_seqlens is None else x.new_empty(plan.loop.runs, dtype=torch.int32))
    if cu_seqlens is not None:
        kernel, grid, meta = plan.loop.find
        launch(kernel, grid, *cuts, **meta)
    kernel, grid, meta = plan.loop.launch
    launch(kernel, grid, x, weight, bias, residual, state, cuts, y, **meta)
    clear_outside(cu_seqlens, x.shape[1], y)
    if not output_final_state:
        return y, x.new_empty(0)
    final = (x if initial_state is None else initial_state).new_empty(N, x.shape[-1], W - 1)
    kernel, grid, meta = plan.final
    launch(kernel, grid, x, state, cu_seqlens, final, **meta)
    return y, final


def backward(dy, dfinal, x, weight, bias, initial_state, cu_seqlens, activation, output_final_state, needs):
    """``(dx, dweight, dbias, dinitial_state)``, each in its tensor's dtype, ``None`` where ``needs`` says so."""
    if dy is None:  # only the final state was used
        dy = x.new_zeros(()).expand(x.shape)
    W, shared = weight.shape[-1], weight.ndim == 2
    dfinal = dfinal if output_final_state and W > 1 else None
    state = initial_state if W > 1 else None
    given = x, weight, bias, initial_state
    dx, dk, dbias, dstate = (t.new_empty(t.shape) if need else None for t, need in zip(given, needs))
    layouts = layout(dy), layout(dfinal), layout(x), layout(weight), layout(bias), layout(state)
    packed = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    plan = plan_backward(layouts, activation, packed, tuple(needs), x.device)
    if any(needs[:3]):
        cuts = Cuts(cu_seqlens, None if cu_seqlens is None else x.new_empty(plan.loop.runs, dtype=torch.int32))
        if cu_seqlens is not None:
            kernel, grid, meta = plan.loop.find
            launch(kernel, grid, *cuts, **meta)
        parts = x.new_empty(plan.parts, dtype=torch.float32) if needs[2] or plan.total else None
        grads = Gradients(dx, parts if shared and needs[1] else None if shared else dk, parts if needs[2] else None)
        kernel, grid, meta = plan.loop.launch
        launch(kernel, grid, dy, x, weight, bias, state, cuts, grads, **meta)
        if plan.total is not None:
            kernel, grid, meta = plan.total
            launch(kernel, grid, parts, dk, dbias, **meta)
        elif needs[2]:
            dbias = parts.sum(0).to(bias.dtype)  # the same order every time: deterministic
    ends = dy, x, weight, bias, state, dfinal, cu_seqlens
    if dfinal is not None and needs[0]:
        kernel, grid, meta = plan.last
        launch(kernel, grid, *ends, dx, **meta)
    clear_outside(cu_seqlens, x.shape[1], dx, None if shared else dk)
    if needs[3]:
        kernel, grid, meta = plan.first
        launch(kernel, grid, *ends, dstate, **meta)
    return dx, dk, dbias, dstate


def step(x, weight, state, bias, residual, activation, slots):
    """y, and ``state`` shifted, whose strides are any, and which may hold W inputs, too."""
    y = x.new_empty(x.shape)
    given = layout(x), layout(weight), layout(bias), layout(residual), layout(state), layout(slots)
    kernel, grid, meta = plan_step(*given, activation, x.device)
    launch(kernel, grid, x, weight, bias, residual, state, slots, y, **meta)
    return y


@planned
def plan_step(x, weight, bias, residual, state, slots, activation, device):
    """The ``Launch`` of a step."""
    (B, D), W, shared = x.shape, weight.shape[-1], len(weight.shape) == 2
    options = configuration("dynamic_conv", "step", size_class(W, weight.dtype, shared), device)
    options |= {"W": W, "ACT": activation, "KEPT": state.shape[-1]}
    tiles_d = cdiv(D, options["BLOCK"])
    row = lambda t: t and Strides(t.strides[0], 0, t.strides[1])
    b, d, w = (0,) * shared + tuple(weight.strides)
    of_state, of_slots = StateStrides(*state.strides), slots and slots.strides[0]
    strides = AllStrides(row(x), Strides(b, 0, d, w), bias and bias.strides[0], of_state, row(residual), slots=of_slots)
    return Launch(plain.conv_step_kernel, (B * tiles_d,), _meta(options, D=D, tiles_d=tiles_d, strides=strides))


# As torch sees them: operators with known output shapes, in a compiled graph as in an eager one. A product and a sum a tap;
# backward dx takes the same, dk a product, and an activation's derivative needs u again.


def _forward_shapes(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens):
    if not output_final_state:
        return x.new_empty(x.shape), x.new_empty(0)
    N = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = (x if initial_state is None else initial_state).new_empty(N, x.shape[-1], weight.shape[-1] - 1)
    return x.new_empty(x.shape), state


def _flops(x, weight, *rest):
    return 2 * x.numel() * weight.shape[-1]


def _backward_flops(dy, dfinal, x, weight, bias, initial_state, cu_seqlens, activation, output_final_state, needs):
    again = activation is not None
    return (2 * again + 2 * needs[0] + needs[1]) * x.numel() * weight.shape[-1]


_convolve = register(
    "dynamic_conv(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str? activation, Tensor? initial_state, "
    "bool output_final_state, Tensor? cu_seqlens) -> (Tensor y, Tensor state)",
    forward,
    _forward_shapes,
    backward=backward,
    gradients=("x", "weight", "bias", "initial_state"),
    saved=("x", "weight", "bias", "initial_state", "cu_seqlens"),
    passed={"residual": "y"},
    flops=_flops,
    backward_flops=_backward_flops,
)
_step = register(
    "dynamic_conv_step(Tensor x, Tensor weight, Tensor(a!) state, Tensor? bias, Tensor? residual, str? activation, "
    "Tensor? slots) -> Tensor y",
    step,
    lambda x, *rest: x.new_empty(x.shape),
    operator="dynamic_conv",
    flops=_flops,
)
