"""What travels through the operator beside tensors and numbers: the mods and options of a call, as the hash of their text."""

import hashlib
from typing import NamedTuple

from kernels.flex_attention.mods.store import Bounded, lock

_known = Bounded(4096)  # hash -> Spec


_NOTHING = range(0)


class Bound(NamedTuple):
    """Compiled mods and what they read: first what the score mod does, then the mask. places: of what the score mod captures
    among the operator's captured tensors."""

    score: object
    mask: object
    captured: list
    numbers: list
    places: range


class Spec(str):
    """A hash; and in the process that made it what it stands for.

    score, mask: a ``CompiledMod``, or ``None``. BLOCK_SIZE, lists: as in ``Problem``. options: of ``kernel_options``.
    problem: the call's ``Problem`` where it is known. alike: what ``alike`` keeps for the next one.
    """

    problem = score = mask = alike = None

    def of_call(self, problem, scale):
        """The same, of a call."""
        spec = type(self)(self)
        spec.__dict__.update(vars(self), problem=problem, scale=scale)
        return spec

    def bound(self, captured, ints, floats, device, learned=()):
        """The ``Bound`` of tensors and numbers; learned: for which captured tensors a gradient is wanted."""
        places = _NOTHING if self.score is None else range(len(self.score.learned))
        if not ints and not floats:
            return Bound(self.score, self.mask, captured, (), places)
        ints, floats = iter(ints), iter(floats)
        kinds = (kind for mod in (self.score, self.mask) if mod is not None for kind in mod.number_kinds)
        numbers = [next(ints if kind is int else floats) for kind in kinds]
        return Bound(self.score, self.mask, captured, numbers, places)


def keep(text, kind=Spec, **attributes):
    """The ``Spec`` of what ``text`` describes, with these attributes."""
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    with lock:
        spec = _known.find(name)
        if spec is None:
            spec = kind(name)
            spec.__dict__.update(attributes)
            _known.keep(name, spec)
        return spec


def register(score, mask, BLOCK_SIZE, lists, options):
    """The ``Spec`` of these."""
    named = [mod and mod.name for mod in (score, mask)]
    text = repr((named, BLOCK_SIZE, lists, sorted(options.items())))
    return keep(text, score=score, mask=mask, BLOCK_SIZE=BLOCK_SIZE, lists=lists, options=options)


def find(name):
    """The ``Spec`` of a hash.

    Raises:
        RuntimeError: it was made in another process.
    """
    if isinstance(name, Spec):
        return name
    with lock:
        spec = _known.find(name)
    if spec is None:
        raise RuntimeError(
            f"flex_attention's mods {name} are not known in this process: a compiled or exported program refers to its score "
            "mod and mask by their hash. Call flex_attention, or compile the program, with the same mods first"
        )
    return spec
