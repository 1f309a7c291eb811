"""``bind(mod, kind, ...)`` finds a compiled mod again by what the function *is*: its code, and what it captures.

So a mod that is defined anew in every forward pass is traced once. ``bind_graph`` does the same for a mod that a tracer has
recorded as a graph, which is known by its text.
"""

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernels.common.checks import same_device
from kernels.common.lines import folded
from kernels.common.operator import planners
from kernels.flex_attention.mods.compiler import CompiledMod, compile_mod, lock
from kernels.flex_attention.mods.emit import function_of
from kernels.flex_attention.mods.errors import ModError, name_of
from kernels.flex_attention.mods.fingerprint import LARGEST, Fingerprint, in_force, replaced

__all__ = ["BoundMod", "bind", "bind_graph", "source"]


class BoundMod(NamedTuple):
    """A compiled mod, and the tensors and numbers that it captures in this call."""

    compiled: CompiledMod
    captured: tuple
    numbers: tuple = ()

    def tables(self):
        """What its functions read: tensors, numbers, and sizes of the tensors."""
        return self.compiled.tables(self.captured, self.numbers)


class LRU(OrderedDict):
    """The ``most`` entries used last. Used under ``lock``."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    cache_clear = OrderedDict.clear

    def find(self, key):
        """What is cached, or ``None``."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def keep(self, key, value):
        """``value``, cached."""
        self[key] = value
        if len(self) > self.most:
            self.popitem(last=False)
        return value


@dataclass
class _Family:
    """Mods that differ in numbers alone: the first one's numbers, and which of them have differed since."""

    first: tuple
    varying: set
    refused: bool = False  # something in the code needs the numbers themselves


#: What a mod is known by without its numbers -> its family; with numbers, or with those that vary, -> ``_known``'s answer.
_compiled = LRU(1024)
_latest = WeakKeyDictionary()  # mod -> {use: (guards, what it was bound to)}
_latest.cache_clear = _latest.clear
planners += _compiled, _latest


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
    use = kind, device, differentiate
    try:
        latest = _latest.get(mod, {})
    except TypeError:  # what is no function may have no weak references, or no hash
        latest = None
    if latest and use in latest and _hold(latest[use][0]):
        return latest[use][1]
    function = _uncompiled(mod)
    look = Fingerprint(function)

    def make(stand_ins):
        places = {look.places[i]: tensor for i, tensor in stand_ins.items()}
        return _compile(look, replaced(function, places) if places else function, *use, [*stand_ins.values()])

    if look.complete:
        key = kind, device.type, differentiate, in_force(), look.structure
        compiled, places, numbers = _known(key, look.numbers, look.tensors, make, look.open)
        captured = tuple(look.tensors[i] if isinstance(i, int) else i for i in places)
        _check_devices(kind, mod, captured, device)  # of the same type they may still be two
        bound = BoundMod(compiled, captured, tuple(look.numbers[i] for i in numbers))
    else:
        bound = BoundMod(*make({}))
    if latest is not None and look.complete and look.guarded:
        with lock:
            others = {one: entry for one, entry in _latest.get(mod, {}).items() if _hold(entry[0])}
            _latest[mod] = others | {use: (look.guards, bound)}
    return bound


def _hold(guards):
    """Whether all that a ``Fingerprint`` has read is as it was."""
    for compare, function, args, value in guards:
        if not compare(function(*args), value):
            return False
    return True


def _uncompiled(mod):
    """What ``torch.compile`` was given, where ``mod`` came out of it: it is compiled here."""
    return getattr(mod, "_torchdynamo_orig_callable", mod)


def _known(key, numbers, tensors, make, may_vary, varying=()):
    """``(compiled mod, which of the tensors and which of the numbers it captures)``; among the first may be a tensor that was
    made while the mod was traced.

    key: what the mod is known by without its numbers. make: ``make({i: tensor})`` compiles it with tensors in the places of
    some numbers and gives what it captures. varying: which numbers are arguments from the first call on.
    """
    values = tuple(map(repr, numbers))
    with lock:
        if known := _compiled.find((*key, values)):
            return known
        family = _compiled.find(key) or _compiled.keep(key, _Family(values, {*varying}, not may_vary))
        family.varying |= {i for i, (a, b) in enumerate(zip(values, family.first, strict=True)) if a != b}
        if family.varying and not family.refused:
            of_family = *key, tuple(sorted(family.varying))
            if known := _compiled.find(of_family) or _with_arguments(make, numbers, tensors, of_family[-1]):
                return _compiled.keep(of_family, known)
            family.refused = True
        compiled, captured = make({})
        known = compiled, *_places(captured, tensors, {})
        return known if any(isinstance(i, torch.Tensor) for i in known[1]) else _compiled.keep((*key, values), known)


def _with_arguments(make, numbers, tensors, varying):
    """``_known``'s answer with these numbers as arguments; ``None`` where it needs them, or captures what was made while it
    was traced."""
    with _disable_current_modes():  # no part of a program that is being recorded
        dtypes = [torch.float32 if isinstance(numbers[i], float) else torch.int32 for i in varying]  # of a score, an index
        stand_ins = {i: torch.empty((), dtype=dtype, device="cpu") for i, dtype in zip(varying, dtypes, strict=True)}
    try:
        compiled, captured = make(stand_ins)
    except Exception:  # whatever a tensor without a value cannot do; with the numbers the mod may be all right
        return None
    places, of_numbers = _places(captured, tensors, stand_ins)
    return None if any(isinstance(i, torch.Tensor) for i in places) else (compiled, places, of_numbers)


def _places(captured, tensors, stand_ins):
    """``(which of the tensors, which of the stand-ins)`` a mod captures, a tensor among the first for what is neither."""
    of_tensors, of_numbers = {id(t): i for i, t in enumerate(tensors)}, {id(t): i for i, t in stand_ins.items()}
    numbers = [of_numbers[id(t)] for t in captured if id(t) in of_numbers]
    return [of_tensors.get(id(t), t) for t in captured if id(t) not in of_numbers], numbers


def _compile(look, mod, kind, device, differentiate, stand_ins=()):
    try:
        compiled, captured = compile_mod(mod, kind, device, differentiate, stand_ins)
    except ModError:
        _check_devices(kind, mod, look.tensors, device)  # tracing fails where devices differ; say so rather than how
        raise
    _check_devices(kind, mod, [t for t in captured if not any(t is one for one in stand_ins)], device)
    return compiled, captured


def _check_devices(kind, mod, captured, device):
    for tensor in captured:
        if not same_device(tensor.device, device):
            what = f"{kind} {name_of(mod)} captures a tensor {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{what}, needs {device}, query's device")


def bind_graph(mod, kind, values, device, needs_grad):
    """A recorded mod, compiled for the tensors and numbers that it captures now.

    Args:
        mod: the text of a function that is called with a score, positions and ``values``, see ``part_of``.
        kind: ``"score_mod"`` or ``"mask_mod"``.
        values: tensors and numbers.
        device: torch.device of the attention's tensors.
        needs_grad: for the tensors among ``values``, by their place among those, whether a gradient is wanted.

    Returns:
        ``(CompiledMod, places of the tensors that it captures among those, numbers)``.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    numbers = [value for value in values if not isinstance(value, torch.Tensor)]
    on = [bool(needs_grad.get(i)) and t.is_floating_point() for i, t in enumerate(tensors)]
    may_vary = all(type(n) is float or abs(n) < LARGEST for n in numbers)
    layouts = [(t.shape, t.stride(), t.dtype) for t in tensors]
    key = mod, kind, device.type, in_force(), may_vary, *on, *map(type, numbers), *layouts
    score = () if kind == "score_mod" else (None,)  # a mask mod was recorded with a score, too
    tensors = [t.detach().requires_grad_(its) for t, its in zip(tensors, on, strict=True)]

    def make(stand_ins):
        of_tensors, of_numbers = iter(tensors), iter(stand_ins.get(i, x) for i, x in enumerate(numbers))
        every = [next(of_tensors if isinstance(value, torch.Tensor) else of_numbers) for value in values]
        recorded = lambda *args: function_of(mod)(*score, *args, *every)  # noqa: E731
        recorded.__name__ = kind
        # The operator runs below autograd, which the recording of a gradient needs: a new thread has it.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(compile_mod, recorded, kind, device, kind == "score_mod", [*stand_ins.values()]).result()

    compiled, places, of_numbers = _known(key, numbers, tensors, make, may_vary, range(len(numbers)))
    return compiled, places, [numbers[i] for i in of_numbers]


def source(score_mod=None, mask_mod=None, *, device=None):
    """The Triton text generated for a score mod with its gradients, and for a mask mod: a function of the mods alone.

    Their numbers are literals in it when the first mod of this code is compiled. A mod that differs from a known one in
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
            look = Fingerprint(mod)
            there = torch.device(device or (look.tensors[0].device if look.tensors else "cpu"))
            text = _compile(look, mod, kind, there, kind == "score_mod")[0].text
            if look.complete and look.open and look.numbers:
                text += f"\n\n# Arguments from their second value on: {', '.join(map(repr, look.numbers))}\n"
            texts.append(text)
    return folded("\n\n".join(texts))
