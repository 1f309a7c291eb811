"""What the words of exercises 04 and 05 have in common where another recurrence is asked."""

from kernels.check.recurrence import READ_FIRST, WRITE_FIRST, Recurrence


class Words:
    """A recurrence in formulas, in code and in words."""

    def __init__(self, task: Recurrence):
        self.task, self.two = task, task.base == "2"
        self.write_first, self.read_first = task.order == WRITE_FIRST, task.order == READ_FIRST
        self.exp = "tl.exp2" if self.two else "tl.exp"
        self.half = "-1" if self.two else r"\log\tfrac12"  # the gate that keeps a half

    def power(self, exponent: str) -> str:
        """The base to an exponent, in a formula."""
        return f"{'2' if self.two else 'e'}^{{{exponent}}}"

    @property
    def order(self) -> str:
        """What a token does, as a sentence."""
        return self.task.order.replace(", ", ", then ").capitalize()

    @property
    def state(self) -> str:
        """The state after a token, in a formula."""
        if self.write_first:
            return r"D_t \odot (S_{t-1} + k_t v_t^\top)"
        return r"D_t \odot S_{t-1} + k_t v_t^\top"

    @property
    def read(self) -> str:
        """The state that token t reads, in a formula."""
        return "S_{t-1}" if self.read_first else "S_t"

    @property
    def pairs(self) -> str:
        """Which pairs of a write and a read pass gate t, in a formula."""
        return r"s \le t \le r" if self.write_first else "s < t < r" if self.read_first else r"s < t \le r"

    @property
    def to_read(self) -> str:
        """The gates up to what token r reads, in a formula."""
        return r"\Gamma_{r-1}" if self.read_first else r"\Gamma_r"

    @property
    def at_write(self) -> str:
        """The gates that token s's write has not passed, in a formula."""
        return r"\Gamma_{s-1}" if self.write_first else r"\Gamma_s"

    def walk(self, S: float, q, kv, keeps) -> list[tuple[float, float, float]]:
        """A walk of numbers: for each token the state before it, the one after it, and its output."""
        rows = []
        for query, write, D in zip(q, kv, keeps):
            after, read = self.task.step(S, D, write)
            rows.append((S, after, query * read))
            S = after
        return rows

    @property
    def code(self) -> str:
        """A step of the walk in PyTorch, for ``D``, ``S``, ``write`` and ``read``."""
        if self.write_first:
            return "S = D * (S + write)\n        read = S"
        if self.read_first:
            return "read = S\n        S = D * S + write"
        return "S = D * S + write\n        read = S"
