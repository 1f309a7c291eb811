"""What exercise 06 may ask instead: what a query's number does to its scores, and how the lists of blocks are laid out."""

from dataclasses import dataclass

import torch

from kernels.check.variations import Variation, among

EMPTY, PARTIAL, FULL = 0, 1, 2


@dataclass(frozen=True)
class Scored(Variation):
    """What ``tau`` of a query does: a factor, a divisor, an exponent of e, or a slope along the keys; what list 0 holds."""

    tau: str = among("factor", "divisor", "exponent", "slope")
    first: str = among("partial", "full")
    order: str = among("ascending", "descending")

    @classmethod
    def others(cls) -> list["Scored"]:
        """Other scores and other lists together: each part of the exercise asks for something else."""
        return [one for one in super().others() if one.tau != "factor" and one.first == "full"]

    @property
    def formula(self) -> str:
        """The score, in words."""
        return {
            "factor": "s = tau * scale * q k^T",
            "divisor": "s = scale * q k^T / tau",
            "exponent": "s = exp(tau) * scale * q k^T",
            "slope": "s = scale * q k^T + tau * (n - m)",
        }[self.tau]

    @property
    def asked(self) -> str:
        """In words."""
        return f"{self.formula}, and lists of {self.first} blocks first, each in {self.order} order"

    @property
    def kinds(self) -> tuple[int, int]:
        """What list 0 and list 1 hold."""
        return (PARTIAL, FULL) if self.first == "partial" else (FULL, PARTIAL)

    @property
    def neutral(self) -> float:
        """The number that changes no score."""
        return 1.0 if self.tau in ("factor", "divisor") else 0.0

    def drawn(self, normal: torch.Tensor, logarithm: bool) -> torch.Tensor:
        """Numbers for the queries from normal ones, 0 among them where a score of 0 may be; it has no ``logarithm``."""
        if self.tau == "divisor":
            return (0.25 * normal).exp()
        values = 1 + 0.5 * normal if self.tau == "factor" else 0.25 * normal
        values[..., 1::7] = self.neutral if logarithm else 0.0
        return values

    def warmth(self, tau: torch.Tensor) -> torch.Tensor:
        """What the bare scores are multiplied by."""
        return {"factor": tau, "divisor": 1 / tau, "exponent": tau.exp(), "slope": torch.ones_like(tau)}[self.tau]

    def score(self, bare: torch.Tensor, tau: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
        """s of the bare scores ``scale * q k^T``, where ``apart`` is n - m."""
        return bare + tau * apart if self.tau == "slope" else self.warmth(tau) * bare

    def by_tau(self, bare: torch.Tensor, tau: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
        """The derivative of s by tau."""
        return {
            "factor": bare,
            "divisor": -bare / tau**2,
            "exponent": tau.exp() * bare,
            "slope": apart.expand_as(bare).to(bare),
        }[self.tau]
