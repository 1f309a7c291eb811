"""How exercises 04 and 05 may ask for another recurrence: the order within a step, the base of the gates, their channels.

Each answer follows from two steps, one of the walk along the tokens and one of the walk back.
"""

import math
from dataclasses import dataclass

import torch

from kernels.check.variations import Variation, among

DECAY_FIRST, WRITE_FIRST, READ_FIRST = ORDERS = ("decay, write, read", "write, decay, read", "read, decay, write")


@dataclass(frozen=True)
class Recurrence(Variation):
    """What a token does, in this order: the state decays, ``k v^T`` is written to it, ``q`` reads it; and the gates' base."""

    order: str = among(*ORDERS)
    base: str = among("e", "2")

    @property
    def ln(self) -> float:
        """The natural logarithm of the gates' base."""
        return math.log(2) if self.base == "2" else 1.0

    def power(self, gates: str) -> str:
        """The decay that these gates make, in words."""
        if self.base == "e":
            return f"exp({gates})"
        return f"2**({gates})" if " " in gates else f"2**{gates}"

    @property
    def equation(self) -> str:
        """One step, in words."""
        state = "D * (S + k v^T)" if self.order == WRITE_FIRST else "D * S + k v^T"
        return f"S = {state}" + ", after the query has read" * (self.order == READ_FIRST)

    def step(self, S: torch.Tensor, D: torch.Tensor, write: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A token's step: the state that goes on, and the one that is read."""
        on = D * (S + write) if self.order == WRITE_FIRST else D * S + write
        return on, S if self.order == READ_FIRST else on

    def step_back(self, dS: torch.Tensor, D: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A token's step back: the state's gradient that goes on to the token before, and that of ``k v^T``.

        ``own`` is what the token's own read gives, ``scale * q do^T``.
        """
        if self.order == READ_FIRST:
            return D * dS + own, dS
        through = D * (dS + own)
        return through, through if self.order == WRITE_FIRST else dS + own

    def written(self, s, t):
        """Whether the write of token s lies before the gate of token t."""
        return s <= t if self.order == WRITE_FIRST else s < t

    def read(self, r, t):
        """Whether the read of token r lies behind the gate of token t."""
        return r > t if self.order == READ_FIRST else r >= t

    def seen(self, r, s):
        """Whether token r reads what token s has written."""
        return s < r if self.order == READ_FIRST else s <= r


@dataclass(frozen=True)
class Gated(Recurrence):
    """Exercise 04's: beside the gate of each head there is one of each key channel, or of each value channel."""

    gate: str = among("key", "value")

    @classmethod
    def others(cls) -> list["Gated"]:
        """Not the gates alone: part 3 has none of those of channels, and would be the published one."""
        return [one for one in super().others() if (one.order, one.base) != ORDERS[:1] + ("e",)]

    @property
    def gates(self) -> str:
        """The name of the channels' gates."""
        return "gk" if self.gate == "key" else "gv"

    @property
    def decays(self) -> str:
        """D in words."""
        return self.power(f"g + {self.gates}")

    @property
    def asked(self) -> str:
        """In words."""
        return f"the walk of {self.order} with D = {self.decays}"


@dataclass(frozen=True)
class Chunked(Recurrence):
    """Exercise 05's: gates of value channels alone."""

    @classmethod
    def others(cls) -> list["Chunked"]:
        """Not the early read alone: the states between chunks would be the published ones."""
        return [one for one in super().others() if (one.order, one.base) != (READ_FIRST, "e")]

    @property
    def asked(self) -> str:
        """In words."""
        return f"the walk of {self.order} with D = {self.power('g')}, in chunks"
