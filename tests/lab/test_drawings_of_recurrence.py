"""A token at the state, and states handed on: the numbers are those of the recurrence, the arrows go the walk's way."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from kernels.lab import drawings
from kernels.lab.drawings.language import OUTLINE


def labels(ax):
    """(text, whether it is lit) of each whole number in a panel."""
    texts = [(text.get_text(), to_hex(text.get_color()).upper() != OUTLINE.upper()) for text in ax.texts]
    return [(int(text), lit) for text, lit in texts if text.lstrip("-").isdigit()]


def test_a_token_fades_writes_and_reads():
    fade, write, read = (labels(ax) for ax in drawings.state_step().axes)
    S = [number for number, _ in fade]
    k, v = [number for number, _ in write[12:15]], [number for number, _ in write[15:]]
    after = [S[4 * i + j] + k[i] * v[j] for i in range(3) for j in range(4)]
    assert [number for number, _ in write[:12]] == after == [number for number, _ in read[:12]]
    q, o = [number for number, _ in read[12:15]], [number for number, _ in read[15:]]
    assert o == [sum(q[i] * after[4 * i + j] for i in range(3)) for j in range(4)]


def test_a_program_lights_its_columns_and_all_of_the_keys():
    *_, write, _ = (labels(ax) for ax in drawings.state_step(BLOCK_V=2, program=1).axes)
    assert [lit for _, lit in write] == [False, False, True, True] * 3 + [True] * 3 + [False, False, True, True]


@pytest.mark.parametrize(("reverse", "ways"), [(False, {1}), (True, {1, -1})])
def test_states_are_handed_on_in_the_walks_direction(reverse, ways):
    (ax,) = drawings.handed_on((3, 1, 2), reverse=reverse).axes
    arrows = [patch._posA_posB for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 6 * len(ways)
    assert {1 if end[0] > start[0] else -1 for start, end in arrows} == ways
