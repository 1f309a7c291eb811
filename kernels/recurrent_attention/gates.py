"""The gates of a call as one tuple, which everything between the public functions and the kernels passes on."""

from typing import Any, NamedTuple


class Gates(NamedTuple):
    """Something about each gate, such as its tensor, in the order of schemas and kernels; ``None`` about an absent one."""

    g: Any = None
    g_gamma: Any = None
    gk: Any = None
    gv: Any = None

    def given(self):
        """The names of those that are there."""
        return tuple(name for name, gate in zip(self._fields, self, strict=True) if gate is not None)


#: The letters of their dimensions: batch rows, tokens, heads, rows and columns of the state. A single token's have no T.
DIMENSIONS = Gates(g="BTH", g_gamma="H", gk="BTHK", gv="BTHV")
OF_A_TOKEN = Gates(*(letters.replace("T", "") for letters in DIMENSIONS))


def strides_of(gates, dimensions=DIMENSIONS):
    """The strides of all gates in a row, zeros for absent ones."""
    numbers = []
    for i, gate in enumerate(gates):
        numbers += (0,) * len(dimensions[i]) if gate is None else gate.stride()
    return numbers
