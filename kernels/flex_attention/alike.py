"""Calls that are alike an earlier one in all that was checked and planned then: they go to their passes directly.

Without mods and a mask a call is found by how its tensors lie, before anything else of it is looked at. With them it is found
by its checks, which bind the mods; what they capture and the mask's lists must be as kernels are mostly given them then.
"""

import torch

from kernels.common.again import Settled
from kernels.common.checks import PLAIN
from kernels.common.plan import Bounded, Remembered
from kernels.common.precision import matmul_in_tf32
from kernels.flex_attention import problem as problems
from kernels.flex_attention.inputs import Inputs
from kernels.flex_attention.plan import Plan
from kernels.flex_attention.portable.tiles import like_strided
from kernels.flex_attention.registered import OPERATOR

_plain = Remembered()  # of a call without mods and a mask -> its ``Spec``


def plain_outputs(query, key, value, scale, enable_gqa, want_top):
    """``(o, lse, top)`` of a call without mods and a mask that is alike one of those that are kept, ``None`` of others."""
    try:
        spec = _plain.get(_key(query, key, value, scale, enable_gqa))
    except (AttributeError, RuntimeError, TypeError):  # no tensors, or none that are dense: the checks say so
        return None
    return None if spec is None else _directly(spec, query, key, value, [], [], want_top)


def outputs(spec, query, key, value, captured, lists, ints, floats, want_top):
    """``(o, lse, top)`` of a checked call at whose query, key and value nothing looks on; ``None`` where its passes depend on
    more than its ``Spec`` is known by: on numbers, which kernels are compiled for, or on how all other tensors lie.
    """
    if spec.problem is None or ints or floats:
        return None
    if spec.alike is None:
        call = Call(spec.problem, query, key, value, captured, lists)
        spec.alike = call, OPERATOR.known(call.forward, len(captured), len(lists), backward_of=call.backward_of)
    if spec.alike[0].possible and _lists_are_usual(lists) and _are_usual((*captured, *lists)):
        return _directly(spec, query, key, value, captured, lists, want_top)
    return None


def _directly(spec, query, key, value, captured, lists, want_top):
    args = query, key, value, captured, lists, [], [], spec.scale, want_top, spec
    return OPERATOR.directly(spec.alike[1], args, (query, key, value, *captured, *lists))


def keep(query, key, value, scale, enable_gqa, spec):
    """Keep the ``Spec`` of a call without mods and a mask."""
    if spec.alike is not None and spec.alike[0].possible:
        _plain.keep(_key(query, key, value, scale, enable_gqa), spec)


def _key(query, key, value, scale, enable_gqa):
    """All that the checks and a plan look at."""
    dtype = query.dtype
    return (
        query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride(), dtype, key.dtype, value.dtype,
        query.device, key.device, value.device, _address(query, key, value), type(scale), scale, enable_gqa,
        dtype == torch.float32 and matmul_in_tf32(), problems.table_options, torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


def _address(*tensors):
    """0 where all of them begin at a multiple of 16 bytes."""
    together = 0
    for t in tensors:
        together |= t.data_ptr()
    return together & 15


def _are_usual(tensors):
    """Whether these are plain tensors at multiples of 16 bytes."""
    try:
        for t in tensors:
            if type(t) not in PLAIN or t.is_neg() or t.data_ptr() & 15:
                return False
    except RuntimeError:  # what a transform has wrapped has no address
        return False
    return True


def _lists_are_usual(lists):
    """Whether a mask's lists are as kernels read them: 32-bit numbers side by side."""
    for t in lists:
        if t.dtype is not torch.int32 or not t.is_contiguous():
            return False
    return True


class Call:
    """The passes of a ``Problem`` whose mods are given no numbers, for usual tensors, captured ones and lists of one layout.

    possible: whether query, key and value begin at multiples of 16 bytes, kernels read the captured tensors themselves, and
    none of those wants a gradient.
    """

    def __init__(self, problem, query, key, value, captured, lists):
        self.problem, self.plan, self.known, self.settled = problem, problem.remember(Plan), Bounded(), Settled()
        self.layouts = [(t.dtype, t.shape, t.stride()) for t in captured]
        self.shapes = [t.shape for t in lists]
        direct = all(mod is None or mod.direct is not None for mod in (problem.score, problem.mask))
        self.possible = direct and not _address(query, key, value) and not any(t.requires_grad for t in captured)

    def forward(self, query, key, value, captured, lists, ints, floats, scale, want_top, spec):
        """``(o, lse, top)``, as the operator's."""
        x = Inputs(self.problem, query, key, value, captured, lists, ())
        x.settled = self.settled
        return self.plan.forward(x, want_top)

    def backward_of(self, do, dlse, query, key, value, o, lse, *more):
        """The backward pass of tensors that lie so; hooks on saved tensors may have given back others."""
        if do is None or _address(do, query, key, value, o, lse) or (more and not self._as_before(more)):
            return None
        known_by = (
            do.stride(), do.dtype, query.stride(), key.stride(), value.stride(), query.dtype, key.dtype, value.dtype,
            o.stride(), o.dtype, lse.stride(), lse.dtype, None if dlse is None else (dlse.stride(), dlse.data_ptr() & 15),
        )  # fmt: skip
        run = self.known.get(known_by)
        if run is None and self._as_planned(do, query, key, value, o, lse):
            run = self.known.keep(known_by, Backward(self).run)
        return run

    def _as_before(self, more):
        """Whether captured tensors and lists lie as the forward pass's did."""
        for t, (dtype, shape, strides) in zip(more, self.layouts, strict=False):
            if t.dtype is not dtype or t.shape != shape or t.stride() != strides:
                return False
        lists = more[len(self.layouts) :]
        for t, shape in zip(lists, self.shapes, strict=True):
            if t.shape != shape:
                return False
        return _lists_are_usual(lists) and _are_usual(more)

    def _as_planned(self, do, query, key, value, o, lse):
        alike = {t.dtype for t in (do, query, key, value, o)} == {self.problem.dtype}
        return alike and lse.is_contiguous() and self.problem.was_made_for(query, key, value)


class Backward:
    """The backward pass of a ``Call``, of gradients and saved tensors that lie in one way."""

    def __init__(self, call):
        self.call, self.prepared = call, None

    def run(self, do, dlse, query, key, value, o, lse, *more):
        """``[dq, dk, dv]``, ``None`` where not needed, and a ``None`` for each captured tensor."""
        p, plan = self.call.problem, self.call.plan
        captured, lists, needs = more[: len(self.call.layouts)], more[len(self.call.layouts) : -1], more[-1]
        x = Inputs(p, query, key, value, captured, lists, ())
        need_q, need_k, need_v = needs[:3]
        if not (plan.alone and need_q and (need_k or need_v)):
            return [*plan.backward(x, do, dlse, o, lse, needs[:3], False), *[None] * len(captured)]
        dq, dk, dv = (like_strided(t, t.shape) for t in (query, key, value))
        made = plan.launch_alone(x, do, dlse, o, lse, dq, dk, dv, self.prepared)
        if self.prepared is None:
            self.prepared = made._replace(constants=made.constants.settling_all())
        return [dq, dk if need_k else None, dv if need_v else None, *[None] * len(captured)]
