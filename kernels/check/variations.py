"""What an exercise may ask instead: its choices stand in one table, and its answers, diagnoses and texts follow from them.

A variation is a frozen dataclass whose fields are the choices, each with the published one first::

    @dataclass(frozen=True)
    class Packing(Variation):
        offset: int = among(8, 7, 6)
        first: str = among("low", "high")

``Packing()`` is the published exercise. ``check.NAME(function, varied={"first": "high"})`` asks for another one.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Self

import torch


def among(*values):
    """A choice: one of these values, the first in the published exercise."""
    return dataclasses.field(default=values[0], metadata={"among": values})


@dataclasses.dataclass(frozen=True)
class Variation:
    """One choice of each kind."""

    @classmethod
    def choices(cls) -> dict[str, tuple]:
        """What may be chosen, by name."""
        return {field.name: field.metadata["among"] for field in dataclasses.fields(cls)}

    @classmethod
    def of(cls, varied: Mapping) -> Self:
        """The variation that differs from the published exercise in ``varied``; ``ValueError`` for what is no choice."""
        choices = cls.choices()
        for name, value in varied.items():
            if name not in choices:
                raise ValueError(f"varied names {name!r}: there are {', '.join(choices)}")
            if not any(type(value) is type(one) and value == one for one in choices[name]):
                raise ValueError(
                    f"varied[{name!r}] is {value!r}: it needs one of {', '.join(map(repr, choices[name]))}"
                )
        return cls(**varied)

    @classmethod
    def others(cls) -> list[Self]:
        """Every variation but the published exercise, in a fixed order."""
        choices = cls.choices()
        every = (cls(**dict(zip(choices, values))) for values in itertools.product(*choices.values()))
        return [one for one in every if one != cls()]

    @property
    def varied(self) -> dict:
        """What differs from the published exercise: the argument of a check."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value != self.choices()[name][0]}

    @property
    def asked(self) -> str:
        """What is to be computed, as a noun phrase."""
        raise NotImplementedError

    def taken_for(self) -> Iterator[tuple[str, Self]]:
        """Where this is not the published exercise: what is said of another variation's answer, and that variation."""
        if self.varied:
            for other in (type(self)(), *(one for one in self.others() if one != self)):
                yield f"this is {other.asked}, and asked is {self.asked}", other

    def instead(self, answer: Callable[[Self], torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """The same with the other variation's answer."""
        for said, other in self.taken_for():
            yield said, answer(other)
