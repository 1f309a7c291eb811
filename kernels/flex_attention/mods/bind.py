"""``bind(mod, kind, ...)`` finds a compiled mod again by what the function *is*: its code, and what it captures.

So a mod that is defined anew in every forward pass is traced once.
"""

from dataclasses import dataclass

import torch

from kernels.common.validate import same_device
from kernels.flex_attention.mods.compiler import CompiledMod, compile_mod
from kernels.flex_attention.mods.errors import ModError
from kernels.flex_attention.mods.fingerprint import Fingerprint, replaced
from kernels.flex_attention.mods.store import Bounded, lock

__all__ = ["BoundMod", "bind", "source"]


@dataclass(frozen=True)
class BoundMod:
    """A compiled mod, and the tensors and numbers that it captures in this call."""

    compiled: CompiledMod
    captured: tuple
    numbers: tuple = ()

    @property
    def learned(self):
        """The captured tensors that get a gradient."""
        return [t for t, on in zip(self.captured, self.compiled.learned) if on]

    def _inputs(self):
        """What torch's parts are called with: tensors, and numbers as tensors on the CPU, which torch lets meet any other."""
        captured, numbers = iter(self.captured), iter(self.numbers)
        for is_number in self.compiled.inputs:
            yield torch.tensor(next(numbers), device="cpu") if is_number else next(captured)

    @torch.no_grad()
    def tables(self):
        """What the kernel reads: tensors, numbers, and sizes of the tensors."""
        made, numbers = iter(self.compiled.before(*self._inputs())), self.compiled.numbers
        return *(next(made) if i is None else self.numbers[i] for i in numbers), *self.compiled.sizes

    @torch.no_grad()
    def gradients(self, sums):
        """The gradients of ``learned``, from the sums that the kernel made, each in its tensor's dtype and shape."""
        made = self.compiled.after(*self._inputs(), *sums)
        return [
            torch.zeros_like(t) if gradient is None else gradient.to(t.dtype).expand(t.shape).reshape(t.shape)
            for t, gradient in zip(self.learned, made)
        ]


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
    look = Fingerprint(mod)
    key = (kind, device.type, differentiate, look.structure)
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
    dtypes = [torch.float32 if isinstance(n, float) else torch.int32 for n in numbers]  # those of a score, of an index
    stand_ins = [torch.empty((), dtype=dtype, device="cpu") for dtype in dtypes]  # as ``BoundMod`` gives them to torch
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
    """The Triton text generated for a score mod with its gradients, and for a mask mod.

    Args:
        score_mod: ``(score, b, h, q_idx, kv_idx)``, or ``None``.
        mask_mod: ``(b, h, q_idx, kv_idx)``, or ``None``.
        device: the torch.device of the attention's tensors; ``None``: that of the tensors a mod captures, or the CPU.
    """
    texts = []
    for mod, kind in ((score_mod, "score_mod"), (mask_mod, "mask_mod")):
        if mod is not None:
            there = torch.device(device or _device_of(mod))
            texts.append(bind(mod, kind, there, differentiate=kind == "score_mod").compiled.text)
    return "\n\n".join(texts)


def _device_of(mod):
    """Of the first tensor that ``mod`` captures."""
    tensors = Fingerprint(mod).tensors
    return tensors[0].device if tensors else "cpu"
