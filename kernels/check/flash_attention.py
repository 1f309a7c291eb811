"""The checks of exercise 06: attention forward over lists of blocks, and its gradients; the lists are ``flash_lists``'.

``flash_forward(q, k, v, tau, num, idx, o, lse)`` and ``flash_backward(q, k, v, tau, o, lse, do, num, idx, num_t, idx_t,
delta, dq, dk, dv, dtau)`` write the last of their tensors; both take ``scale=, score_mod=, mask_mod=, BLOCK_M=, BLOCK_N=``,
and the latter ``score_gradient=``. q, o [H, M, D or V], k, v [J, N, D or V], tau, lse, delta, dtau [H, M].
"""

import functools
from collections.abc import Callable

import torch

from kernels.check import flash_mistakes as mistakes
from kernels.check import flash_mods as fm
from kernels.check.flash_cases import (
    AXES,
    attention,
    backward_steps,
    bfloat,
    blocks,
    costed,
    everything,
    forward_steps,
    half,
    in_one_block,
    listed,
    modified,
    ragged,
    strided,
    usual,
    without_keys,
)
from kernels.check.flash_lists import ROWS, TURNED
from kernels.check.framework import Case, Cheap, Compiles, Exercise, Fenced, Output, Property, Tier


def _keys_in_blocks(case, draw):
    M = draw.size(32, 16, 32, multiple_of=16)
    for N in (16, 64):
        yield case(draw, M=M, N=N, H=3, mask=fm.every_pair, packed=True, scale=1.0)


def _large(case, draw):
    """Logits around 1e4 and -1e4, in blocks whose maxima rise and fall; rows whose largest is as low as numbers go."""
    for scale in (30.0, 1000.0):
        yield case(draw, M=32, N=64, mask=fm.every_pair, scale=scale)
    yield case(draw, M=32, N=64, mod=fm.plus_100, mask=fm.every_pair)
    yield case(draw, M=32, N=2, mask=fm.every_pair, scale=1e35)


def _forward(cases: Callable) -> Callable:
    """These cases of the forward launcher."""
    return functools.partial(cases, attention)


def _backward(cases: Callable) -> Callable:
    """The same of the backward launcher."""
    return functools.partial(cases, functools.partial(attention, backward=True))


MASKLESS = ROWS | {(tensor, axis, "after"): "" for tensor in AXES for axis in "HJ"}
STRIDES = "query head h reads key head h // G, and each tensor has its own strides, some of them 0: at(stride_x, ...)"
F16 = "something is rounded to float16: tile gives float32, and all sums stay float32"
BLOCK_SIZES = "the answer depends on BLOCK_M or BLOCK_N, it must not"
ONLINE, DEAD, WALK, HEADS = "Lesson 30, step 2", "Lesson 30, step 4", "Lesson 30, step 5", "Lesson 33, step 7"

FORWARD = Exercise(
    "flash_forward",
    "the kernel stores nothing yet. It needs a walk along two lists of blocks, and a store of o and of lse.",
    (
        Property(
            "blocks of keys",
            1,
            ONLINE,
            _forward(_keys_in_blocks),
            "o = acc / l and lse = top + log l, where all three are carried from block to block",
        ),
        Property(
            "large logits",
            1,
            ONLINE,
            _forward(_large),
            "exponentiate z - top and top - new_top only, neither of which is positive",
            not_finite="a positive number is exponentiated: top is the largest logit so far, it never falls",
        ),
        Property(
            "rows without keys",
            1,
            DEAD,
            _forward(without_keys),
            "a row without keys has o = 0 and lse = -inf",
            not_finite="-inf - -inf or 0 / 0 is NaN: shift by 0 where the maximum is -inf, divide by 1 where l is 0",
        ),
        Property(
            "block lists",
            1,
            "Lesson 33, step 5",
            _forward(listed),
            "row r visits what its lists name, the mask counts in list 0 only",
        ),
        Property(
            "score mods",
            1,
            "Lesson 31, step 2",
            _forward(modified),
            "z = SCORE_MOD(s, m, n), m a column of rows' numbers, n a row",
        ),
        Property("heads and strides", 1, HEADS, _forward(strided), STRIDES),
        Property(
            "ragged sizes",
            1,
            WALK,
            _forward(ragged),
            "pairs beyond M or N do not count (logits), and rows beyond M are not stored (mask_m)",
            not_finite="pairs beyond M or N do not count: z is -inf there, whatever the score mod makes of a zero",
        ),
        Property("block sizes", 1, WALK, _forward(blocks), BLOCK_SIZES),
        Property("float16", 1, WALK, _forward(half), F16),
        Property.stays_inside(WALK, _forward(everything)),
        Property.in_bfloat16(WALK, _forward(bfloat)),
    ),
    mistakes.forward_suspects,
    MASKLESS,
    given=("at", "tile"),
    compiles=Compiles(_forward(usual), WALK),
    cheap=Cheap(
        _forward(costed),
        forward_steps,
        (Tier(3, read=2.5, steps=1.1), Tier(1, read=5.0, written=4.0, steps=2.0)),
        "a program loads its queries once, each listed block of keys and values once, "
        "and stores o and lse after the last",
        WALK,
        sectors=2.0,
    ),
)


def _queries(case, draw):
    yield case(
        draw,
        M=16,
        N=draw.size(32, 16, 48, multiple_of=16),
        mask=fm.every_pair,
        judge=("delta", "dq", "dtau"),
        packed=True,
    )


def _keys(case, draw):
    M = draw.size(32, 32, 48, multiple_of=16)
    yield case(draw, M=M, N=M, mask=fm.every_pair, judge=("dk", "dv"), packed=True)


BACK, CHAIN = "Lesson 34, step 8", "Lesson 34, step 5"


BACKWARD = Exercise(
    "flash_backward",
    "the kernels store nothing yet. They need delta, dq and dtau along the queries' lists, dk and dv along the keys'.",
    (
        Property(
            "queries",
            1,
            "Lesson 34, step 3",
            _backward(_queries),
            "dq = tau * scale * ds k, dtau = scale * q · (ds k), ds = p * (do v^T - delta) where there is no score mod",
        ),
        Property("keys and values", 1, CHAIN, _backward(_keys), "dk = scale * ds^T (tau q), dv = p^T do"),
        Property(
            "rows without keys",
            1,
            BACK,
            _backward(without_keys),
            "a row without keys gives no gradient",
            not_finite="a row without keys has z = lse = -inf, and -inf - -inf is NaN: take 0 for such an lse",
        ),
        Property(
            "block lists", 1, TURNED, _backward(listed), "dq walks along num and idx, dk and dv along num_t and idx_t"
        ),
        Property(
            "score mods",
            1,
            CHAIN,
            _backward(modified),
            "ds = SCORE_GRADIENT(s, m, n, dz), at the same s as the score mod",
        ),
        Property("heads and strides", 1, CHAIN, _backward(strided), STRIDES),
        Property(
            "ragged sizes",
            1,
            BACK,
            _backward(ragged),
            "pairs beyond M or N give no gradient: ds is 0 there",
            not_finite="rows beyond M count: z must be -inf there, and ds 0 wherever z is -inf, whatever the gradient is",
        ),
        Property("block sizes", 1, BACK, _backward(blocks), BLOCK_SIZES),
        Property("float16", 1, BACK, _backward(half), F16),
        Property.stays_inside(BACK, _backward(everything)),
        Property.in_bfloat16(BACK, _backward(bfloat)),
    ),
    mistakes.backward_suspects,
    MASKLESS,
    given=("at", "tile"),
    compiles=Compiles(_backward(usual), BACK, own_blocks=_backward(in_one_block)),
    cheap=Cheap(
        _backward(costed),
        backward_steps,
        (Tier(3, read=3.05, steps=1.1), Tier(1, read=6.1, written=4.0, steps=2.0)),
        "each kernel loads what it keeps once, what it walks over once for each listed block, and stores after the last",
        BACK,
        sectors=2.0,
    ),
)


# What check.derivation holds a formula of the temperature's gradient to; no kernel is checked with it.


def _temperatures(draw):
    """Dense attention, for a derivation: every pair counts, each head has its own keys."""
    for H, M, N, D, V in ((1, 3, 4, 2, 2), (2, draw.size(5, 3, 9), 7, 3, 5)):
        shapes = {"q": (H, M, D), "k": (H, N, D), "v": (H, N, V), "tau": (H, M), "do": (H, M, V)}
        x = {name: draw.normal(*shape) for name, shape in shapes.items()}
        x["tau"][:, 1] = 0.0
        axes = AXES | {"k": "HND", "v": "HNV"}
        answer = mistakes.temperature({name: values.double() for name, values in x.items()}, 0.7)
        out = Output(Fenced("dtau", "HM", torch.empty(H, M)), answer)
        yield Case([Fenced(name, axes[name], values) for name, values in x.items()], [out], {"scale": 0.7})


TEMPERATURE = Exercise(
    "flash_dtau",
    "the function returns nothing yet.",
    (Property("temperature", 0, CHAIN, _temperatures),),
    mistakes.temperature_suspects,
)
