"""Calls without mods and a mask: what one that is alike an earlier one runs is found by how its tensors lie."""

import torch

from kernels.common.plan import Bounded, Remembered
from kernels.common.precision import matmul_in_tf32
from kernels.flex_attention import problem as problems
from kernels.flex_attention.inputs import Inputs
from kernels.flex_attention.plan import Plan
from kernels.flex_attention.portable import dkdv
from kernels.flex_attention.portable.tiles import like_strided
from kernels.flex_attention.registered import OPERATOR

_known = Remembered()  # of a call -> (``Known``, what the operator is given behind its tensors)


def outputs(query, key, value, scale, enable_gqa, want_top):
    """``(o, lse, top)`` of a call that is alike one of those that are kept, ``None`` of others; nothing looks on."""
    try:
        known = _known.get(_key(query, key, value, scale, enable_gqa))
    except (AttributeError, RuntimeError, TypeError):  # no tensors, or none that are dense: the checks say so
        return None
    if known is None:
        return None
    known, scale, spec = known
    args = query, key, value, [], [], [], [], scale, want_top, spec
    return OPERATOR.directly(known, args, (query, key, value))


def keep(query, key, value, scale, enable_gqa, spec):
    """Keep what a checked call found, its ``Spec``, for calls that are alike."""
    if (query.is_cuda or query.is_cpu) and spec.problem is not None and not _address(query, key, value):
        plain = Plain(spec.problem)
        known = OPERATOR.known(plain.forward, 0, 0, backward_of=plain.backward_of)
        _known.keep(_key(query, key, value, scale, enable_gqa), (known, spec.scale, spec))


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


class Plain:
    """The passes of a ``Problem`` without mods and a mask, for tensors that begin at multiples of 16 bytes."""

    def __init__(self, problem):
        self.problem, self.plan, self.known = problem, problem.remember(Plan), Bounded()

    def forward(self, query, key, value, captured, lists, ints, floats, scale, want_top, spec):
        """``(o, lse, top)``, as the operator's."""
        return self.plan.forward(self._inputs(query, key, value), want_top)

    def _inputs(self, query, key, value):
        x = Inputs(self.problem, query, key, value, (), (), ())
        x.looked_at = True
        return x

    def backward_of(self, do, dlse, query, key, value, o, lse):
        """The backward pass of tensors that lie so; hooks on saved tensors may have given back others."""
        if do is None or _address(do, query, key, value, o, lse):
            return None
        known_by = (
            do.stride(), do.dtype, query.stride(), key.stride(), value.stride(), query.dtype, key.dtype, value.dtype,
            o.stride(), o.dtype, lse.stride(), lse.dtype, None if dlse is None else (dlse.stride(), dlse.data_ptr() & 15),
        )  # fmt: skip
        run = self.known.get(known_by)
        if run is None and self._as_planned(do, query, key, value, o, lse):
            run = self.known.keep(known_by, Alone(self).run if self.plan.alone else self.run)
        return run

    def _as_planned(self, do, query, key, value, o, lse):
        alike = {t.dtype for t in (do, query, key, value, o)} == {self.problem.dtype}
        return alike and lse.is_contiguous() and self.problem.was_made_for(query, key, value)

    def run(self, do, dlse, query, key, value, o, lse, needs):
        """``[dq, dk, dv]``, ``None`` where not needed."""
        return self.plan.backward(self._inputs(query, key, value), do, dlse, o, lse, needs, False)


class Alone:
    """The backward pass of a ``Plain``, whose ``Plan`` makes all gradients in one kernel."""

    def __init__(self, plain):
        self.plain, self.prepared = plain, None

    def run(self, do, dlse, query, key, value, o, lse, needs):
        """``[dq, dk, dv]``, ``None`` where not needed."""
        need_q, need_k, need_v = needs
        if not (need_q and (need_k or need_v)):
            return self.plain.run(do, dlse, query, key, value, o, lse, needs)
        p, x = self.plain.problem, self.plain._inputs(query, key, value)
        dq, dk, dv = (like_strided(t, t.shape) for t in (query, key, value))
        made = dkdv.launch_dkdv(p, x, do, lse, None, dk, dv, None, 0, p.Bkv * p.Hkv, o, dlse, dq, self.prepared)
        if self.prepared is None:
            self.prepared = made._replace(constants=made.constants.settling_all())
        return [dq, dk if need_k else None, dv if need_v else None]
