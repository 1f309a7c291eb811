"""Draw one program's run: partitions, operations in flight and buffers along its steps; and step through it."""

from __future__ import annotations

import textwrap
from collections import defaultdict

from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from kernels.lab import style

#: What a partition does at a step: kind of event -> letter, fill, meaning.
LETTERS = {
    "wait": ("w", style.FILLS[7], "wait"),
    "expect": ("e", style.FILLS[3], "expect bytes"),
    "TMA load": ("L", style.FILLS[0], "start a load"),
    "TMA store": ("S", style.FILLS[5], "start a store"),
    "matrix product": ("M", style.FILLS[1], "start a matrix product"),
    "copy to tensor memory": ("T", style.FILLS[5], "start a copy to tensor memory"),
    "commit": ("c", style.FILLS[2], "commit"),
    "arrive": ("a", style.FILLS[4], "arrive"),
    "read": ("r", "white", "read on-chip memory"),
    "write": ("s", "white", "write on-chip memory"),
    "fence": ("f", "white", "fence"),
    "load": ("g", "white", "load from global memory"),
    "store": ("g", "white", "store to global memory"),
}
#: A buffer's states: fill, hatch, meaning.
STATES = {
    "loading": (style.FILLS[0], "////", "being filled"),
    "full": (style.FILLS[4], None, "filled"),
    "reading": (style.FILLS[1], "....", "being read"),
}
_MOST_LETTERED = 130  # columns up to which every step carries its letter


class _Steps:
    """The events that take a column: all but a barrier's new state, and the end of a wait that was granted at once."""

    def __init__(self, machine):
        self.machine, self.columns, self.at = machine, [], {}
        for event in machine.events:
            granted = event.kind == "pass" and self.columns and self.columns[-1][:1] == ("wait", event.who)
            if event.kind == "barrier" or (event.kind == "pass" and self._waiting(event)):
                self.at[event.step] = max(len(self.columns) - 1, 0)
                continue
            del granted
            self.at[event.step] = len(self.columns)
            self.columns.append(event)

    def _waiting(self, event) -> bool:
        """Whether a pass follows its wait with nothing between."""
        last = self.columns[-1] if self.columns else None
        return last is not None and last.kind == "wait" and last.who == event.who
