"""Mods that dynamo has recorded as graphs: compiled when they meet tensors, which alone tell sizes and strides."""

from concurrent.futures import ThreadPoolExecutor

import torch

from kernels.common.operator import lock_over_forks
from kernels.flex_attention.mods import errors, switches
from kernels.flex_attention.mods.bind import stand_in
from kernels.flex_attention.mods.compiler import compile_mod
from kernels.flex_attention.mods.fingerprint import LARGEST
from kernels.flex_attention.mods.store import Bounded
from kernels.flex_attention.mods.written import function_of

_compiled = Bounded(512)  # what a mod is known by -> (compiled mod, places of tensors, places of numbers)
_lock = lock_over_forks()


def bind_graph(mod, kind, values, device, learned):
    """A recorded mod, compiled for the tensors and numbers that it captures now.

    Args:
        mod: the text of a function that is called with a score, positions and ``values``, see ``written``.
        kind: ``"score_mod"`` or ``"mask_mod"``.
        values: tensors and numbers.
        device: torch.device of the attention's tensors.
        learned: for the tensors among ``values``, by their place among those, whether a gradient is wanted.

    Returns:
        ``(CompiledMod, places of the tensors that it captures among those, numbers)``.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    numbers = [value for value in values if not isinstance(value, torch.Tensor)]
    on = tuple(bool(learned.get(i)) and t.is_floating_point() for i, t in enumerate(tensors))
    layouts = [(t.shape, t.stride(), t.dtype) for t in tensors]
    key = mod, kind, device.type, switches.in_force(), on, *map(type, numbers), *layouts
    exact = key, *map(repr, numbers)
    key = key if all(type(n) is float or abs(n) < LARGEST for n in numbers) else exact
    with _lock:
        known = _compiled.find(key) or _compiled.find(exact)
        if known is None:
            # The operator runs below autograd, which the recording of a gradient needs: a new thread has it.
            with ThreadPoolExecutor(1) as thread:
                known = thread.submit(_compile, mod, kind, device, values, on, key, exact).result()
    compiled, places, of_numbers = known
    return compiled, places, [numbers[i] for i in of_numbers]


def _compile(mod, kind, device, values, on, key, exact):
    """Compiled and kept: with numbers as arguments, or where that cannot be, for these numbers."""
    wanted = iter(on)
    values = [t.detach().requires_grad_(next(wanted)) if isinstance(t, torch.Tensor) else t for t in values]
    tensors = [t for t in values if isinstance(t, torch.Tensor)]
    stand_ins = [stand_in(n) for n in values if not isinstance(n, torch.Tensor)]
    in_places = iter(stand_ins)
    with_stand_ins = [t if isinstance(t, torch.Tensor) else next(in_places) for t in values]
    try:
        if key is exact:
            raise errors.ModError("an integer that is too large for an argument")
        compiled, captured = compile_mod(
            _given(mod, kind, with_stand_ins), kind, device, kind == "score_mod", stand_ins
        )
        known_by = key
    except errors.ModError:
        if not stand_ins:
            raise
        compiled, captured = compile_mod(_given(mod, kind, values), kind, device, kind == "score_mod")
        known_by = exact
    places, of_numbers = (
        [i for t in captured for i, one in enumerate(among) if one is t] for among in (tensors, stand_ins)
    )
    return _compiled.keep(known_by, (compiled, places, of_numbers))


def _given(text, kind, values):
    """A recorded mod with what it captures; a mask mod was recorded with a score that it does not use."""
    function, score = function_of(text), () if kind == "score_mod" else (None,)
    mod = lambda *args: function(*score, *args, *values)  # noqa: E731
    mod.__name__ = kind
    return mod
