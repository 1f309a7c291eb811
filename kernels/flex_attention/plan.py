"""Which backend runs a call, with which tiles, and why.

The choice is ``choose``: the first of a list of backends, the faster ones first, that has no reason not to. A backend is a
module or one of Hopper's three tilings. It says why it cannot take a ``Problem`` or is slower there (``reason_not``), and
launches its kernels (``forward``, ``gradients``; forward kernels for any GPU leave that to the operator, ``prepared``).
"""

from functools import cached_property

from kernels.common.operator import planned
from kernels.flex_attention import decoding, narrow, plain, plain_backward
from kernels.flex_attention.checks import check_captured
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import fit
from kernels.flex_attention.hopper.forward import SMALL, TALL, USUAL
from kernels.flex_attention.hopper.visits import every
from kernels.flex_attention.mods.extent import extent_of
from kernels.flex_attention.problem import Problem

FORWARD = {
    "decoding": decoding,  # few queries: heads that share keys in one tile, the keys split among programs
    "hopper_tall": TALL,  # 16 bits on a Hopper GPU: long rows without a mask
    "hopper_small": SMALL,  # short rows, so many that two programs share a multiprocessor
    "narrow": narrow,  # a window, or another mask that lets a query see few keys
    "hopper": USUAL,  # all else that is not short and that TMA can read
    "plain": plain,  # any call on any GPU
}
BACKWARD = {
    "hopper": hopper_backward,  # 16 bits on a Hopper GPU: ds is computed once
    "recomputed": plain_backward,  # any call on any GPU: ds is computed twice
}
HOPPER = {name: FORWARD[name] for name in ("hopper_tall", "hopper_small", "hopper")}


def choose(backends, p):
    """``(name of the first that takes the problem, {name: why not} of those before it)``."""
    passed_over = {}
    for name, backend in backends.items():
        why = backend.reason_not(p)
        if why is None:
            return name, passed_over
        passed_over[name] = why


class Plan:
    """What runs for a ``Problem``; printed, ``explain``'s lines about kernels."""

    def __init__(self, problem):
        self.problem = problem
        self.forward, self.passed_over = choose(FORWARD, problem)
        self.backend = FORWARD[self.forward]
        #: The ``Launch`` of a forward kernel for any GPU, ``None`` of another.
        self.launch = self.backend.prepared(problem) if self.backend in (plain, narrow) else None
        self.not_hopper_keys = hopper_backward.unfit(problem)

    def unread(self, backward):
        """Whether TMA alone keeps the forward pass, or the backward pass, from Hopper's kernels."""
        return fit.NO_TMA == (self.not_hopper_keys if backward else self.passed_over.get("hopper"))

    @cached_property
    def backward(self):
        """``(name of the backend of all three gradients, {name: why not} of those before it)``."""
        return choose(BACKWARD, self.problem)

    def __str__(self):
        p = self.problem
        return "\n".join([*self._of_forward(p), *self._of_backward(p), *self._of_scores(p)])

    def _of_forward(self, p):
        yield f"{'decoding' if self.backend is decoding else 'one program a tile of queries'}: {p.cached(decoding.choose)[2]}"
        if self.backend is decoding:
            yield _options("decoding", p.launch_options("decoding"))
        elif self.forward in HOPPER:
            because = "" if self.backend is USUAL else f", because {self.backend.because(p)}"
            yield _on_hopper("forward", self.backend.tile(p)) + because
        else:
            name = " (attention_narrow_kernel)" if self.backend is narrow else ""
            why = narrow.BECAUSE if self.backend is narrow else self.passed_over["hopper"]
            yield f"forward: the kernel for any GPU{name}, because {why}"
            yield _options("forward", p.launch_options("forward") | self.backend.launch_options(p))

    def _of_backward(self, p):
        learned = p.score is not None and any(p.score.needs_grad)
        name, why = self.backward
        if name == "hopper" and not learned:
            tiles, cut = hopper_backward.tiles(p), p.cached(hopper_backward.cut, every(p))
            dealt = cut
            if cut.counts(p):
                dealt = "as many heads a launch as the workspace holds ds of, of the blocks that are visited"
            yield f"backward: one kernel, warp-specialised for Hopper, tiles of {tiles[0]} x {tiles[1]}; {dealt}"
            if cut.added:
                yield "dq: added up in memory in an order that counters fix, five matrix products in all"
            else:
                yield "dq: one product with ds, which is kept in a workspace, five matrix products in all"
                yield _options("backward_dq_from_ds", p.launch_options("backward_dq_from_ds"))
            return
        if self.not_hopper_keys is None:
            yield _on_hopper("backward_dkdv", hopper_backward.tiles(p))
        else:
            yield f"backward_dkdv: the kernel for any GPU, because {self.not_hopper_keys}"
            yield _options("backward_dkdv", p.launch_options("backward_dkdv"))
        yield _options("backward_dq", p.launch_options("backward_dq"))
        why = "captured tensors get gradients" if learned else why["hopper"]
        yield f"dq: ds is computed again, seven matrix products in all, because {why}"

    def _of_scores(self, p):
        for name in HOPPER if self.forward in HOPPER else ():
            if name not in (self.forward, "hopper"):
                rows, keys = HOPPER[name].tile(p)
                yield f"forward, not in tiles of {rows} x {keys}: {HOPPER[name].reason_not(p)}"
        if p.score_mod is None:
            yield "score: no code runs, the scale is folded into the exponent"
        else:
            yield f"score: {'a negative or zero scale' if p.score is None else 'the score mod runs in every tile'}"


def _on_hopper(kernel, tiles):
    return f"{kernel}: warp-specialised for Hopper, tiles of {tiles[0]} x {tiles[1]}"


def _options(kernel, options):
    return f"{kernel}: {', '.join(f'{k} {v}' for k, v in options.items())}"


@planned
def plan_of(query, key, value, device, scale, score, mask, spec, list_heads, in_tf32, extent):
    """The ``Plan`` of tensors with these layouts.

    score, mask: the compiled mods; spec: the ``Spec`` that they come from; list_heads: for how many heads the mask has lists;
    in_tf32: whether float32 is multiplied so; extent: of a mask that is given numbers, else ``None``.
    """
    (B, Hq, M, D), (Bkv, Hkv, N, _) = query.shape, key.shape
    for name, mod in (("score_mod", score), ("block_mask.mask_mod", mask)):
        if mod is not None:
            check_captured(name, mod, {"b": B, "h": Hq, "q_idx": M, "kv_idx": N})
    if extent is None:
        extent = extent_of(mask, (), query.shape, key.shape, value.shape)
    layouts = {
        name: (t.strides, t.address == 0 and plain.steps_fit_tma(t.shape, t.strides, t.dtype.itemsize))
        for name, t in (("query", query), ("key", key), ("value", value))
    }
    problem = Problem(
        B, Hq, Hkv, Bkv, M, N, D, value.shape[-1], query.dtype, device, layouts, scale, score, mask, spec.BLOCK_SIZE,
        spec.lists, list_heads, spec.options, "tf32" if in_tf32 else "ieee", extent,
    )  # fmt: skip
    return Plan(problem)
