"""The backends of flex attention, and the choice among them.

A backend says why it cannot take a problem, or is known to be slower there (``reason_not``), and what it costs. The forward
pass takes the cheapest of those that are left: decoding for few queries, the warp-specialised kernel of Hopper GPUs in one of
its tilings, or the kernel for any GPU, which has a narrow form for masks that let a query see few keys (``narrow``). The
backward pass chooses the kernel of keys in the same manner, and whether that one keeps ds for the queries' gradient.
"""

from functools import cached_property

from kernels.common.choice import choose
from kernels.common.operator import planned
from kernels.flex_attention import decoding, narrow, plain, plain_backward, short, stored_ds
from kernels.flex_attention.checks import check_captured
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import cost, fused
from kernels.flex_attention.hopper import forward as hopper_forward
from kernels.flex_attention.mods.extent import extent_of
from kernels.flex_attention.problem import Problem

#: Hopper's tilings of the forward pass.
HOPPER = {"hopper_tall": hopper_forward.TALL, "hopper_small": hopper_forward.SMALL, "hopper": hopper_forward.USUAL}
#: For the forward pass, the faster ones first.
WAYS = {"decoding": decoding, **HOPPER, "plain": plain}


class Plan:
    """What runs for a ``Problem``; printed, ``explain``'s lines about kernels."""

    def __init__(self, problem):
        self.problem = problem
        self.choice = choose(WAYS, problem)
        self.forward_way = WAYS[self.choice.name]
        self.not_fused = fused.reason_not(problem)
        self.not_hopper_backward = hopper_backward.reason_not(problem, True)
        self.stored = stored_ds.heads(problem)
        self.short = short.fits(problem)
        self.delta = plain_backward.of_delta(problem)
        #: The launch of a forward pass for any GPU, ``None`` of another.
        self.narrow = narrow.is_narrow(problem)
        self.forward = (narrow if self.narrow else plain).prepared(problem) if self.forward_way is plain else None

    @cached_property
    def counts(self):
        """Whether all gradients are added up in an order that counters, or a cut, fix."""
        return self.cut is not None or self.not_fused is None

    @cached_property
    def cut(self):
        """The ``cost.Cut`` of the backward pass, or ``None``; asked late: a new shape's takes up to a fifth of a second."""
        return cost.cut(self.problem)

    def __str__(self):
        p = self.problem
        decoded = self.choice.name == "decoding"
        reason = p.cached(decoding.choose)[2]
        lines = [f"{'decoding' if decoded else 'one program a tile of queries'}: {reason}"]

        def says(kernel, why_plain=None, tiles=None, **options):
            if tiles and why_plain is None:
                lines.append(f"{kernel}: warp-specialised for Hopper, tiles of {tiles[0]} x {tiles[1]}")
                return
            if tiles:
                name = " (attention_narrow_kernel)" if kernel == "forward" and self.narrow else ""
                lines.append(f"{kernel}: the kernel for any GPU{name}, because {why_plain}")
            options = p.launch_options(kernel) | options
            lines.append(f"{kernel}: {', '.join(f'{k} {v}' for k, v in options.items())}")

        if decoded:
            says("decoding")
        else:
            way = HOPPER.get(self.choice.name, hopper_forward.USUAL)
            why_plain = None if self.choice.name in HOPPER else self.choice.passed_over["hopper"]
            says("forward", why_plain, way.tile(p), **(narrow if self.narrow else plain).launch_options(p))
            if why_plain is None and way is not hopper_forward.USUAL:
                lines[-1] += f", because {way.cost(p).because}"
        learned = p.score is not None and any(p.score.needs_grad)
        why_not = "captured tensors get gradients" if learned else self.not_fused
        if self.short and not learned:
            says("backward_dkdv", TMA=False)
            lines.append("dq: in the same kernel, because one of its tiles holds all keys")
        elif self.cut is not None and not learned:
            lines.append(f"backward: {self.cut}, because {cost.because(p)}")
            lines.append("dk, dv: sums in float32 for each item, added up in a fixed order")
        elif why_not is None:
            tiles = fused.options(p)["BLOCK_M"], fused.BLOCK_N
            lines.append(f"backward: one kernel, warp-specialised for Hopper, tiles of {tiles[0]} x {tiles[1]}")
            lines.append("dq: added up in memory in an order that counters fix, five matrix products in all")
        else:
            says("backward_dkdv", self.not_hopper_backward, hopper_backward.tiles(p))
            says("backward_dq_from_ds" if self.stored else "backward_dq")
            if self.stored:
                lines.append(
                    f"dq: ds of {self.stored} key heads at a time fits the workspace, five matrix products in all"
                )
            else:
                lines.append("dq: ds does not fit the workspace and is computed again, seven matrix products in all")
            lines.append(f"dq: not added up in memory beside dk and dv, because {why_not}")
        if self.not_hopper_backward is None and not self.short:
            lines.append(f"backward, predicted for an H200: {cost.predictions(p)}")
        if self.choice.name in HOPPER:
            for name, way in HOPPER.items():
                if name in self.choice.passed_over and way is not hopper_forward.USUAL:
                    rows, keys = way.tile(p)
                    lines.append(f"forward, not in tiles of {rows} x {keys}: {self.choice.passed_over[name]}")
        if p.score_mod is None:
            lines.append("score: no code runs, the scale is folded into the exponent")
        else:
            why = "a negative or zero scale" if p.score is None else "the score mod runs in every tile"
            lines.append(f"score: {why}")
        return "\n".join(lines)


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
