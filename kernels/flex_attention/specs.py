"""What travels through the operator beside tensors and numbers: the mods and options of a call, as text.

The text is all there is to know: it runs in a process that has never seen the mods, in a program that was exported, say. Of a
mod that was called it holds what was made of it, Triton's functions; of one that was recorded in a program, whose tensors'
sizes and strides that may leave open, the recording.
"""

from dataclasses import dataclass

from kernels.common.operator import planned
from kernels.flex_attention.mods.compiler import CompiledMod, described
from kernels.flex_attention.mods.extent import NAMES
from kernels.flex_attention.mods.recorded import bind_graph


@dataclass(frozen=True, eq=False)
class Spec:
    """What a text says.

    score, mask: a ``CompiledMod``, or ``None``. BLOCK_SIZE, lists: as in ``Problem``. options: of ``kernel_options``.
    recorded: of mods that are compiled when they meet tensors their texts, ``None`` where there is none; kinds: ``"Tensor"``,
    ``"int"`` or ``"float"``, of all that they capture; read: which of these are tensors of which they read the number.
    """

    score: CompiledMod | None
    mask: CompiledMod | None
    BLOCK_SIZE: tuple[int, int] | None
    lists: tuple
    options: dict
    recorded: tuple | None = None
    kinds: tuple = ()
    read: frozenset = frozenset()

    def numbers(self, ints, floats):
        """The mods' numbers in their order, first the score mod's."""
        ints, floats = iter(ints), iter(floats)
        kinds = (kind for mod in (self.score, self.mask) if mod is not None for kind in mod.number_kinds)
        return [next(ints if kind is int else floats) for kind in kinds]

    def met(self, captured, ints, floats, device, learned):
        """Recorded mods, compiled for tensors and numbers: ``(score mod, mask mod, what both capture, numbers, places)``.

        learned: for which captured tensors a gradient is wanted; places: of the score mod's among the captured tensors.
        """
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
        return of_score[0], of_mask[0], captured, [*of_score[2], *of_mask[2]], places


@planned
def compiled(score, mask, BLOCK_SIZE, lists, options):
    """The text of a ``CompiledMod`` or ``None`` each, and sorted pairs of options."""
    texts = ["None" if mod is None else mod.description for mod in (score, mask)]
    return f"compiled({', '.join(texts)}, {BLOCK_SIZE!r}, {lists!r}, {dict(options)!r})"


def recorded(score, mask, kinds, read, BLOCK_SIZE, lists, options):
    """The text of mods that were recorded."""
    made = score, mask, tuple(kinds), tuple(sorted(read)), BLOCK_SIZE, tuple(lists), dict(sorted(options.items()))
    return f"recorded{made!r}"


@planned
def find(text):
    """The ``Spec`` of a text.

    Raises:
        ValueError: it is none.
    """
    try:
        return eval(text, NAMES | {"compiled": _of_compiled, "recorded": _of_recorded})
    except Exception as error:
        raise ValueError(
            f"spec is {text[:40]!r}..., needs what this version of flex_attention has written into a program: export it again"
        ) from error


def _of_compiled(score, mask, BLOCK_SIZE, lists, options):
    return Spec(*(None if mod is None else described(mod) for mod in (score, mask)), BLOCK_SIZE, lists, options)


def _of_recorded(score, mask, kinds, read, BLOCK_SIZE, lists, options):
    return Spec(None, None, BLOCK_SIZE, lists, options, (score, mask), kinds, frozenset(read))
