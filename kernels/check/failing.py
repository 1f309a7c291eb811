"""A failing call of the last check, to look at: ``check.case("ragged width")``."""

from dataclasses import dataclass

import torch

from kernels.check.cases import Case, Failed
from kernels.check.submission import Submission
from kernels.common.lines import wrapped

_last: dict[str, "Failing"] = {}


@dataclass(frozen=True)
class Failing:
    """A case that failed, and who failed it."""

    case: Case
    submission: Submission


@dataclass(frozen=True, repr=False)
class Looked:
    """One failing call: its tensors by name, as the call saw them and as it left them.

    inputs: what was passed. got, expected: the outputs as they are and as they should be, ``wrong`` true where they differ,
    ``stored`` true where the call stored anything. launch: the other arguments. sizes: all sizes as text. error: what the
    call raised, or "".
    """

    inputs: dict[str, torch.Tensor]
    got: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]
    wrong: dict[str, torch.Tensor]
    stored: dict[str, torch.Tensor]
    launch: dict
    sizes: str
    error: str = ""

    def __repr__(self) -> str:
        lines = [f"with {self.sizes}" + f": {self.error}" * bool(self.error)]
        lines += [f"{name:<8} inputs    {_shape(values)}" for name, values in self.inputs.items()]
        for name, bad in self.wrong.items():
            first = bad.nonzero()[:1].tolist()
            at = f", the first at {first[0]}" if first else ""
            said = f"{int(bad.sum())} of {bad.numel()} elements wrong{at}"
            lines.append(f"{name:<8} got, expected, wrong, stored {_shape(bad)}: {said}")
        return wrapped("\n".join(lines))


def _shape(values: torch.Tensor) -> str:
    return str(list(values.shape))


def remember(failing: dict[str, Failing]) -> None:
    """Keep the failing cases of one check, and forget those of the one before."""
    _last.clear()
    _last.update(failing)


def case(name: str | None = None) -> Looked:
    """Make the failing call of a property of the last check again, and return its tensors.

    name: the property, as the check's FAILED line names it; the first that failed unless given.

    What lies around a tensor is read and written as in the check; accesses far outside are left out. Raises ``ValueError``
    where no property of that name failed.
    """
    if not _last or name not in (None, *_last):
        failed = ", ".join(map(repr, _last)) or "nothing"
        raise ValueError(f"name is {name!r}: in the last check {failed} failed")
    failing = _last[next(iter(_last)) if name is None else name]
    case, error, seen = failing.case, "", {}
    try:
        traced = case.traced(failing.submission)
        far = any(beyond.far for beyond in traced.out_of_bounds)
        seen = (traced.run if far else case.run(failing.submission)).seen
    except Failed as raised:
        error = raised.args[0]
    judged = [out for out in case.outs if out.expected is not None]
    tensor = lambda values: torch.tensor(values.tolist())  # noqa: E731
    shown = [out for out in judged if out.name in seen]
    return Looked(
        inputs={x.name: x.values for x in case.inputs},
        got={out.name: tensor(seen[out.name].got).reshape(out.tensor.shape) for out in shown},
        expected={out.name: out.expected for out in judged},
        wrong={out.name: tensor(out.wrong(seen[out.name].got)).reshape(out.tensor.shape) for out in shown},
        stored={out.name: tensor(seen[out.name].stored).reshape(out.tensor.shape) for out in shown},
        launch=case.launch,
        sizes=case.sizes,
        error=error,
    )
