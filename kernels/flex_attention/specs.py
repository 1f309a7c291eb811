"""What travels through the operator beside tensors and numbers: the mods and options of a call, as text.

The text is all there is to know: it runs in a process that has never seen the mods, in a program that was exported, say. Of a
mod that was called it holds what was made of it, Triton's functions; of one that was recorded in a program, whose tensors'
sizes and strides that may leave open, the recording.
"""

from dataclasses import dataclass

from kernels.common.operator import planned
from kernels.flex_attention.mods.bind import bind_graph
from kernels.flex_attention.mods.compiler import CompiledMod
from kernels.flex_attention.mods.extent import NAMES


@dataclass(frozen=True, eq=False)
class Spec:
    """What a text says: it is the ``repr`` of one of these.

    score, mask: a ``CompiledMod``, or ``None``. BLOCK_SIZE, lists: as in ``Problem``. options: of ``kernel_options``.
    recorded: of mods that are compiled for the tensors of a call their texts, ``None`` where there is none; kinds:
    ``"Tensor"``, ``"int"`` or ``"float"``, of all that they capture; read: which of these are tensors whose number they read.
    """

    score: CompiledMod | None
    mask: CompiledMod | None
    BLOCK_SIZE: tuple[int, int] | None
    lists: tuple
    options: dict
    recorded: tuple | None = None
    kinds: tuple = ()
    read: tuple = ()

    def numbers(self, ints, floats):
        """The mods' numbers in their order, first the score mod's."""
        ints, floats = iter(ints), iter(floats)
        kinds = (kind for mod in (self.score, self.mask) if mod is not None for kind in mod.number_kinds)
        return [next(ints if kind is int else floats) for kind in kinds]

    def compiled_for(self, captured, ints, floats, device, needs_grad):
        """Recorded mods, compiled for tensors and numbers: ``(score mod, mask mod, what both capture, numbers, places)``.

        needs_grad: for which captured tensors a gradient is wanted; places: of the score mod's among the captured tensors.
        """
        given = {"Tensor": iter(captured), "int": iter(ints), "float": iter(floats)}
        values = [next(given[kind]) for kind in self.kinds]
        of_tensors = [i for i, kind in enumerate(self.kinds) if kind == "Tensor"]
        at = [j for j, i in enumerate(of_tensors) if i not in self.read]  # tensors among what looks like some
        values = [x.item() if i in self.read else x for i, x in enumerate(values)]
        needs_grad = {i: needs_grad[j] for i, j in enumerate(at) if j < len(needs_grad)}
        score, mask = (
            (None, (), ()) if text is None else bind_graph(text, kind, values, device, wanted)
            for text, kind, wanted in zip(self.recorded, ("score_mod", "mask_mod"), (needs_grad, {}), strict=True)
        )
        places = [at[i] for i in score[1]]
        captured = [captured[j] for j in (*places, *(at[i] for i in mask[1]))]
        return score[0], mask[0], captured, [*score[2], *mask[2]], places


@planned
def compiled(score, mask, BLOCK_SIZE, lists, options):
    """The text of a ``CompiledMod`` or ``None`` each, and sorted pairs of options."""
    return repr(Spec(score, mask, BLOCK_SIZE, lists, dict(options)))


def recorded(score, mask, kinds, read, BLOCK_SIZE, lists, options):
    """The text of mods that were recorded."""
    options = dict(sorted(options.items()))
    return repr(Spec(None, None, BLOCK_SIZE, tuple(lists), options, (score, mask), tuple(kinds), tuple(sorted(read))))


@planned
def find(text):
    """The ``Spec`` of a text.

    Raises:
        ValueError: it is none.
    """
    try:
        return eval(text, NAMES | {"Spec": Spec, "CompiledMod": CompiledMod})
    except Exception as error:
        raise ValueError(
            f"spec is {text[:40]!r}..., needs what this version of flex_attention has written into a program: export it again"
        ) from error
