"""``bind(mod, kind, ...)`` finds a compiled mod again by what the function *is*: its code, and what it captures.

So a mod that is defined anew in every forward pass is traced once.
"""

import weakref
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernels.common.checks import default_device, same_device
from kernels.flex_attention.mods import switches
from kernels.flex_attention.mods.compiler import CompiledMod, compile_mod
from kernels.flex_attention.mods.errors import ModError
from kernels.flex_attention.mods.fingerprint import Fingerprint
from kernels.flex_attention.mods.guards import MISSING
from kernels.flex_attention.mods.replaced import replaced
from kernels.flex_attention.mods.store import Bounded, lock

__all__ = ["BoundMod", "bind", "source"]


@dataclass(frozen=True)
class BoundMod:
    """A compiled mod, and the tensors and numbers that it captures in this call."""

    compiled: CompiledMod
    captured: tuple
    numbers: tuple = ()

    def tables(self):
        """What its functions read: tensors, numbers, and sizes of the tensors."""
        return self.compiled.tables(self.captured, self.numbers)


@dataclass
class _Family:
    """Mods that differ in numbers alone: the first one's numbers, and which of them have differed since."""

    first: tuple
    varying: tuple = ()
    refused: bool = False  # something in the code needs the numbers themselves


_compiled = Bounded(512)  # (structure, numbers) -> (compiled mod, places of what it captures)

_families = Bounded(512)


def bind(mod, kind, device, differentiate=False):
    """``mod`` compiled, with the tensors and numbers that it captures now.

    A mod that differs from one that is known in numbers alone (the offset of a cache, a window) gets them as arguments of
    its kernel, so that the next numbers compile nothing. Where its code needs a number itself, for a branch or as a size, it
    is compiled for each.

    Args:
        mod: a score mod or mask mod.
        kind: ``"score_mod"`` or ``"mask_mod"``.
        device: torch.device of the attention's tensors.
        differentiate: whether gradients will be needed.

    Returns:
        a ``BoundMod``.

    Raises:
        ModError: see ``trace``. ValueError: a captured tensor is on another device.
    """
    asked = kind, device, differentiate
    latest = _latest.get(id(mod))
    if latest is not None and latest.mod() is mod and asked in latest.bound and _hold(latest.guards):
        return latest.bound[asked]
    inner = _uncompiled(mod)
    look = Fingerprint(inner)
    bound = _bind(look, inner, asked)
    if look.complete and look.guards.possible:
        _keep(mod, look.guards, asked, bound)
    return bound


def _uncompiled(mod):
    """What ``torch.compile`` was given, where ``mod`` came out of it: it is compiled here."""
    return getattr(mod, "_torchdynamo_orig_callable", mod)


_latest = {}  # id of a mod -> _Latest


class _Latest:
    """A mod that was bound, and what it was bound to for each device and use."""

    def __init__(self, mod, guards):
        self.mod, self.guards, self.bound = weakref.ref(mod, self.forget), guards, {}
        self.key = id(mod)

    def forget(self, _, known=_latest):
        """The mod is gone."""
        if known.get(self.key) is self:
            del known[self.key]


def _hold(guards):
    """Whether all that ``Guards`` have seen is as it was."""
    dtype, autocast, default = guards.in_force
    if torch.get_default_dtype() is not dtype or default_device() != default:
        return False
    if autocast != (switches.autocast() if torch._C._is_any_autocast_enabled() else None):
        return False
    for name, value in guards.switches:
        if switches.SWITCHES[name]() != value:
            return False
    for cell, value in guards.cells:
        if cell.cell_contents is not value:
            return False
    for there, name, value in guards.names:
        if there.get(name, MISSING) is not value:
            return False
    for t, shape, stride, dtype, requires_grad, device in guards.tensors:
        if (
            t.requires_grad is not requires_grad
            or t.shape != shape
            or t.stride() != stride
            or t.dtype is not dtype
            or t.device != device
        ):
            return False
    for f, code, defaults, keywords in guards.functions:
        f = f()
        if f is None or f.__code__ is not code or f.__defaults__ is not defaults or f.__kwdefaults__ is not keywords:
            return False
    return all(tuple(map(id, x)) == ids for x, ids, _ in guards.lists) and all(
        tuple((id(k), id(v)) for k, v in x.items()) == ids for x, ids, _ in guards.dicts
    )


def _keep(mod, guards, asked, bound):
    with lock:
        latest = _latest.get(id(mod))
        if latest is None or latest.mod() is not mod or not _hold(latest.guards):
            try:
                latest = _latest[id(mod)] = _Latest(mod, guards)
            except TypeError:  # what is no function may have no weak references
                return
        latest.bound[asked] = bound


def _bind(look, mod, asked):
    kind, device, differentiate = asked
    key = (kind, device.type, differentiate, switches.in_force(), look.structure)
    if not look.complete:
        compiled, captured = _compile(look, mod, kind, device, differentiate)
        return BoundMod(compiled, tuple(captured))
    with lock:
        known = _compiled.find((key, look.values)) or _of_family(look, key, mod, kind, device, differentiate)
        if known is None:
            compiled, captured = _compile(look, mod, kind, device, differentiate)
            places = [next((i for i, t in enumerate(look.tensors) if t is tensor), None) for tensor in captured]
            if None in places:  # made while it was traced
                return BoundMod(compiled, tuple(captured))
            known = _compiled.keep((key, look.values), (compiled, places, ()))
    compiled, places, numbers = known
    captured = tuple(look.tensors[i] for i in places)
    _check_devices(kind, mod, captured, device)  # of the same type they may still be two
    return BoundMod(compiled, captured, tuple(look.numbers[i] for i in numbers))


def stand_in(number):
    """In a number's place while its mod is traced, in the dtype of a score, or of an index."""
    with _disable_current_modes():  # no part of a program that is being recorded
        return torch.empty((), dtype=torch.float32 if isinstance(number, float) else torch.int32, device="cpu")


def _of_family(look, key, mod, kind, device, differentiate):
    """What ``_compiled`` keeps for all mods that differ in the numbers in which this one differs, or ``None``."""
    family = _families.find(key)
    if family is None:
        _families.keep(key, _Family(look.values))
        return None
    differ = {i for i, (a, b) in enumerate(zip(look.values, family.first, strict=True)) if a != b}
    family.varying = tuple(sorted(differ.union(family.varying)))
    if family.refused or not look.open:
        return None
    own_key = (key, family.varying)
    if known := _compiled.find(own_key):
        return known
    numbers = [look.numbers[i] for i in family.varying]
    stand_ins = list(map(stand_in, numbers))
    try:
        other = replaced(mod, dict(zip((look.places[i] for i in family.varying), stand_ins, strict=True)))
        compiled, captured = compile_mod(other, kind, device, differentiate, stand_ins)
    except (
        Exception
    ):  # whatever a tensor without a value cannot do; with the numbers themselves the mod may be all right
        family.refused = True
        return None
    varying = {id(stand_in): i for i, stand_in in zip(family.varying, stand_ins, strict=True)}
    numbers = [
        varying[id(tensor)] for tensor in captured if id(tensor) in varying
    ]  # in the order in which they were met
    captured = [tensor for tensor in captured if id(tensor) not in varying]
    places = [next((i for i, t in enumerate(look.tensors) if t is tensor), None) for tensor in captured]
    if None in places:
        family.refused = True
        return None
    return _compiled.keep(own_key, (compiled, places, numbers))


def _compile(look, mod, kind, device, differentiate):
    try:
        compiled, captured = compile_mod(mod, kind, device, differentiate)
    except ModError:
        _check_devices(kind, mod, look.tensors, device)  # tracing fails where devices meet; say so rather than how
        raise
    _check_devices(kind, mod, captured, device)
    return compiled, captured


def _check_devices(kind, mod, captured, device):
    for tensor in captured:
        if not same_device(tensor.device, device):
            name = getattr(mod, "__name__", type(mod).__name__)
            raise ValueError(
                f"{kind} {name} captures a tensor {list(tensor.shape)} on {tensor.device}, needs {device}, query's device"
            )


def source(score_mod=None, mask_mod=None, *, device=None):
    """The Triton text generated for a score mod with its gradients, and for a mask mod: a function of the mods alone.

    Their numbers stand in it as they are when the first mod of this code is compiled. A mod that differs from a known one in
    numbers alone gets those as arguments; the text ends with a comment that names them.

    Args:
        score_mod: ``(score, b, h, q_idx, kv_idx)``, or ``None``.
        mask_mod: ``(b, h, q_idx, kv_idx)``, or ``None``.
        device: the torch.device of the attention's tensors; ``None``: that of the tensors a mod captures, or the CPU.
    """
    texts = []
    for mod, kind in ((score_mod, "score_mod"), (mask_mod, "mask_mod")):
        if mod is not None:
            mod = _uncompiled(mod)
            there = torch.device(device or _device_of(mod))
            look = Fingerprint(mod)
            text = _compile(look, mod, kind, there, kind == "score_mod")[0].text
            if look.complete and look.open and look.numbers:
                text += f"\n\n# Arguments from their second value on: {', '.join(map(repr, look.numbers))}\n"
            texts.append(text)
    return "\n\n".join(texts)


def _device_of(mod):
    """Of the first tensor that ``mod`` captures."""
    tensors = Fingerprint(mod).tensors
    return tensors[0].device if tensors else "cpu"
