"""What travels through the operator beside tensors and numbers: the mods and options of a call, as text.

The text is all there is to know: it runs in a process that has never seen the mods, in a program that was exported, say. Of a
mod that was called it holds what was made of it, Triton's functions; of one that was recorded in a program, whose tensors'
sizes and strides that may leave open, the recording.
"""

from typing import NamedTuple

from kernels.flex_attention.mods.compiler import described
from kernels.flex_attention.mods.reach import NAMES
from kernels.flex_attention.mods.recorded import bind_graph
from kernels.flex_attention.mods.store import Bounded, lock

_read = Bounded(4096)  # text -> Spec
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
    """The text of a call's mods and options, and what it says.

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


class RecordedSpec(Spec):
    """A ``Spec`` whose mods are compiled when they meet tensors, because only those tell sizes and strides.

    recorded: the mods' texts, ``None`` where there is none; kinds: ``"Tensor"``, ``"int"`` or ``"float"``, of all that they
    capture; read: which of these are tensors of which they read the number.
    """

    def bound(self, captured, ints, floats, device, learned=()):
        """As ``Spec.bound``."""
        given = {"Tensor": iter(captured), "int": iter(ints), "float": iter(floats)}
        values = [next(given[kind]) for kind in self.kinds]
        of_tensors = [i for i, kind in enumerate(self.kinds) if kind == "Tensor"]
        at = [j for j, i in enumerate(of_tensors) if i not in self.read]  # tensors among what looks like some
        values = [x.item() if i in self.read else x for i, x in enumerate(values)]
        learned = {i: learned[j] for i, j in enumerate(at) if j < len(learned)}
        of_score, of_mask = (
            (None, (), ())
            if mod is None
            else bind_graph(mod, kind, values, device, learned if kind == "score_mod" else {})
            for mod, kind in zip(self.recorded, ("score_mod", "mask_mod"), strict=True)
        )
        places = [at[i] for i in of_score[1]]
        captured = [captured[j] for j in (*places, *(at[i] for i in of_mask[1]))]
        return Bound(of_score[0], of_mask[0], captured, [*of_score[2], *of_mask[2]], places)


def compiled(score, mask, BLOCK_SIZE, lists, options):
    """The ``Spec`` of a ``CompiledMod`` or ``None`` each, and options."""
    texts = ["None" if mod is None else mod.description for mod in (score, mask)]
    text = f"compiled({', '.join(texts)}, {BLOCK_SIZE!r}, {lists!r}, {dict(sorted(options.items()))!r})"
    return _known(text) or _keep(
        text, Spec, score=score, mask=mask, BLOCK_SIZE=BLOCK_SIZE, lists=lists, options=options
    )


def recorded(score, mask, kinds, read, BLOCK_SIZE, lists, options):
    """The ``Spec`` of mods that were recorded."""
    made = score, mask, tuple(kinds), tuple(sorted(read)), BLOCK_SIZE, tuple(lists), dict(sorted(options.items()))
    return find(f"recorded{made!r}")


def find(text):
    """The ``Spec`` of a text.

    Raises:
        ValueError: it is none.
    """
    if isinstance(text, Spec):
        return text
    if (spec := _known(text)) is not None:
        return spec
    try:
        kind, attributes = eval(text, NAMES | {"compiled": _of_compiled, "recorded": _of_recorded})
    except Exception as error:
        raise ValueError(
            f"spec is {text[:40]!r}..., needs what this version of flex_attention has written into a program: export it again"
        ) from error
    return _keep(text, kind, **attributes)


def _of_compiled(score, mask, BLOCK_SIZE, lists, options):
    score, mask = (None if mod is None else described(mod) for mod in (score, mask))
    return Spec, {"score": score, "mask": mask, "BLOCK_SIZE": BLOCK_SIZE, "lists": lists, "options": options}


def _of_recorded(score, mask, kinds, read, BLOCK_SIZE, lists, options):
    attributes = {"recorded": (score, mask), "kinds": kinds, "read": frozenset(read)}
    return RecordedSpec, attributes | {"BLOCK_SIZE": BLOCK_SIZE, "lists": lists, "options": options}


def _known(text):
    with lock:
        return _read.find(text)


def _keep(text, kind, **attributes):
    with lock:
        spec = kind(text)
        spec.__dict__.update(attributes)
        return _read.keep(text, spec)
