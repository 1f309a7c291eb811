"""The ways flex attention can go, and the choice among them: the only place that decides.

A way says why it does not take a problem (``reason_not``), and runs it. The forward pass takes the first that does: decoding
for few queries, the warp-specialised kernel of Hopper GPUs in the tiles that suit the call, the kernel for any GPU. The
backward pass chooses the kernel of keys in the same manner, and whether that one keeps ds for the queries' gradient.
"""

from functools import cached_property

from kernels.common.plan import choose
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import cost, fused, split
from kernels.flex_attention.hopper import forward as hopper_forward
from kernels.flex_attention.hopper.rows import rows_of
from kernels.flex_attention.portable import alone, decoding, dkdv, stored_ds
from kernels.flex_attention.portable import forward as portable_forward
from kernels.flex_attention.portable.delta import delta_of
from kernels.flex_attention.portable.dq import launch_dq
from kernels.flex_attention.portable.sinks import sums_of_sinks
from kernels.flex_attention.portable.tiles import fits_tma, like_strided

#: Hopper's tilings of the forward pass.
HOPPER = {"hopper_tall": hopper_forward.TALL, "hopper_small": hopper_forward.SMALL, "hopper": hopper_forward.USUAL}
#: For the forward pass, the faster ones first.
WAYS = {"decoding": decoding, **HOPPER, "portable": portable_forward}


class Plan:
    """What runs for a ``Problem``; printed, ``explain``'s lines about kernels."""

    def __init__(self, problem):
        self.problem = problem
        self.choice = choose(WAYS, problem)
        self.forward_way = WAYS[self.choice.name]
        self.not_fused = fused.reason_not(problem)
        self.not_hopper_backward = hopper_backward.reason_not(problem, True)
        self.stored = stored_ds.heads(problem)
        self.alone = alone.fits(problem)

    @cached_property
    def cut(self):
        """The ``cost.Cut`` of the backward pass, or ``None``; asked late: a new shape's takes up to a fifth of a second."""
        return cost.cut(self.problem)

    def forward(self, x, want_top):
        """``(o, lse, top)``: see ``portable.forward.forward``."""
        return self.forward_way.forward(self.problem, x, want_top)

    def backward(self, x, do, dlse, o, lse, needs, need_captured):
        """Launch the backward pass.

        Args:
            x: the ``Inputs`` of the forward pass.
            do: gradient of o [B, Hq, M, Dv]; dlse: of the lse in base 2 [B, Hq, M], or ``None``.
            o, lse: as the forward pass gave them.
            needs: three bools, whether the gradients of query, key and value are wanted.
            need_captured: whether those of the captured tensors are.

        Returns:
            a list: dq, dk, dv, each in its tensor's dtype and order of strides, ``None`` where not wanted; then the gradients
            of what the score mod captures, if wanted.
        """
        p = self.problem
        need_q, need_k, need_v = needs
        need_kv = need_k or need_v
        if self.alone and need_q and need_kv and not need_captured:
            dq, dk, dv = (like_strided(t, t.shape) for t in (x.query, x.key, x.value))
            self.launch_alone(x, do, dlse, o, lse, dq, dk, dv)
            return [dq, dk if need_k else None, dv if need_v else None]
        if need_q and need_kv and not need_captured and fits_tma(do) and (self.cut is not None or self.not_fused is None):
            dq, dk, dv = (like_strided(t, t.shape) for t in (x.query, x.key, x.value))
            rows = rows_of(p, do, dlse, o, lse)
            if self.cut is None:
                fused.gradients_of(p, x, do, rows, dq, dk, dv)
            else:
                split.gradients_of(p, x, do, rows, dq, dk, dv, self.cut)
            return [dq, dk if need_k else None, dv if need_v else None]
        groups = p.Bkv * p.Hkv
        stored = self.stored if need_q and need_kv and not need_captured else 0
        on_hopper = need_kv and self.not_hopper_backward is None and fits_tma(do)
        rows = rows_of(p, do, dlse, o, lse) if on_hopper else None
        delta = None
        if not on_hopper or need_captured or (need_q and not stored):
            delta = delta_of(p, do, dlse, o, lse)

        dq = like_strided(x.query, x.query.shape) if need_q or need_captured else None
        captured = []
        if need_captured:
            sums = sums_of_sinks(p, x, do, lse, delta, dq)
            captured = p.score.gradients(x.score_captured, x.score_numbers, sums)
        elif need_q and not stored:
            launch_dq(p, x, do, lse, delta, dq)

        dk = dv = None
        if need_kv:
            dk, dv = like_strided(x.key, x.key.shape), like_strided(x.value, x.value.shape)
            ds = stored_ds.workspace(p, x.query) if stored else None
            for first in range(0, groups, stored or max(groups, 1)):
                count = min(stored or groups, groups - first)
                if on_hopper:
                    hopper_backward.launch_dkdv(p, x, do, rows, dk, dv, ds, first, count)
                else:
                    dkdv.launch_dkdv(p, x, do, lse, delta, dk, dv, ds, first, count)
                if stored:
                    stored_ds.dq_from_ds(p, x, ds, dq, first, count)
        return [dq if need_q else None, dk if need_k else None, dv if need_v else None, *captured]

    def launch_alone(self, x, do, dlse, o, lse, dq, dk, dv, prepared=None):
        """Bring all gradients into dq, dk and dv, of a problem of which one kernel makes them; as ``dkdv.launch_dkdv``."""
        p = self.problem
        if p.sparse:
            dq.zero_()  # the kernel never comes to queries that are in none of the mask's blocks
        return dkdv.launch_dkdv(p, x, do, lse, None, dk, dv, None, 0, p.Bkv * p.Hkv, o, dlse, dq, prepared)

    def __str__(self):
        p = self.problem
        decoded = self.choice.name == "decoding"
        reason = p.remember(decoding.choose)[2]
        lines = [f"{'decoding' if decoded else 'one program a tile of queries'}: {reason}"]

        def says(kernel, why_plain=None, tiles=None, **options):
            if tiles and why_plain is None:
                lines.append(f"{kernel}: warp-specialised for Hopper, tiles of {tiles[0]} x {tiles[1]}")
                return
            if tiles:
                lines.append(f"{kernel}: the kernel for any GPU, because {why_plain}")
            options = p.launch_options(kernel) | options
            lines.append(f"{kernel}: {', '.join(f'{k} {v}' for k, v in options.items())}")

        if decoded:
            says("decoding")
        else:
            way = HOPPER.get(self.choice.name, hopper_forward.USUAL)
            why_plain = None if self.choice.name in HOPPER else self.choice.passed_over["hopper"]
            says("forward", why_plain, way.tile(p), **portable_forward.launch_options(p))
            if why_plain is None and way is not hopper_forward.USUAL:
                lines[-1] += f", because {way.cost(p).because}"
        learned = p.score is not None and any(p.score.learned)
        why_not = "captured tensors get gradients" if learned else self.not_fused
        if self.alone and not learned:
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
                lines.append(f"dq: ds of {self.stored} key heads at a time fits the workspace, five matrix products in all")
            else:
                lines.append("dq: ds does not fit the workspace and is computed again, seven matrix products in all")
            lines.append(f"dq: not added up in memory beside dk and dv, because {why_not}")
        if self.not_hopper_backward is None and not self.alone:
            lines.append(f"backward, predicted for an H200: {cost.told(p)}")
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
