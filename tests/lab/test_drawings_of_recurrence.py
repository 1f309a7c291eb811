"""A token at the state, and states handed on: the numbers are those of the recurrence, the arrows go the walk's way;
and the same on the way back."""

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from kernels.lab import drawings
from kernels.lab.drawings.language import OUTLINE, fill, ink


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


def test_a_token_adds_to_the_gradient_and_takes_its_own():
    add, take, fade = (ax.texts for ax in drawings.gradient_step(BLOCK_V=2, program=1).axes)
    words = [[text.get_text() for text in texts] for texts in (add, take, fade)]
    numbers = [[float(word) for word in panel if word.replace(".", "").lstrip("-").isdigit()] for panel in words]
    dS, (q, do) = numbers[0][:12], (numbers[0][12:15], numbers[0][15:])
    behind = [dS[4 * i + j] - q[i] * do[j] for i in range(3) for j in range(4)]
    assert min(behind) >= 0 and numbers[1][:12] == dS and numbers[2] == [x / 2 for x in dS]
    k, v, dv, share = numbers[1][12:15], numbers[1][15:19], numbers[1][19:23], numbers[1][23:]
    assert dv == [sum(k[i] * dS[4 * i + j] for i in range(3)) for j in range(4)]
    assert share == [sum(dS[4 * i + j] * v[j] for j in (2, 3)) for i in range(3)]


@pytest.mark.parametrize(("gates", "red"), [(False, 0), (True, 2)])
def test_the_walks_go_opposite_ways_and_meet_only_for_a_gate(gates, red):
    (ax,) = drawings.two_walks(T=3, gates=gates).axes
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    level = [end[0] - start[0] for start, end in (arrow._posA_posB for arrow in arrows) if start[1] == end[1]]
    assert sum(way > 0 for way in level) == sum(way < 0 for way in level) == 3
    assert sum(to_hex(arrow.get_edgecolor()).upper() == ink("wrong") for arrow in arrows) == red


def test_errors_have_a_panel_for_each_experiment_and_a_line_for_each_formula():
    lines = {"sum form": [1e-7, 1e-6], "running sum": [1e-3, 1e3]}
    figure = drawings.gate_errors({"first": ([0, -20], lines), "second": ([0, -20], lines)}, "gate", alt="two panels")
    assert [ax.get_title() for ax in figure.axes] == ["first", "second"] and figure.alt == "two panels"
    assert all([line.get_label() for line in ax.lines][:2] == ["sum form", "running sum"] for ax in figure.axes)


def test_a_chunks_gradients_are_sums_along_a_row_and_down_a_column():
    (ax,) = drawings.chunk_gradients(t=2, s=1).axes
    pairs = {(round(p.get_y()), round(p.get_x()) - 5) for p in ax.patches
             if to_hex(p.get_facecolor()).upper() == fill("program") and p.get_width() == 1}  # fmt: skip
    assert pairs == {(2, 0), (2, 1), (2, 2), (1, 1), (3, 1)}
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    colours = [to_hex(arrow.get_edgecolor()).upper() for arrow in arrows]
    assert [colours.count(ink(role)) for role in ("accumulator", "input", "weight")] == [4, 1, 1]


def test_a_training_is_drawn_beside_the_right_one():
    losses = {"right": torch.full((5,), 2.0), "wrong": torch.full((4,), 3.0)}
    above, below = drawings.trainings(losses, "right", {"guessing": 2.8}).axes
    assert [line.get_label() for line in above.lines][:2] == ["right", "wrong"]
    assert list(below.lines[0].get_ydata()) == [0.5] * 4


def test_a_slope_has_a_line_for_each_gradient_by_its_name():
    (ax,) = drawings.slopes([0.1, 0.01], {"right": [1e-2, 1e-4], "wrong": [0.3, 0.3]}).axes
    assert [line.get_label() for line in ax.lines] == ["right", "wrong"]
    assert ax.get_xlim()[0] > ax.get_xlim()[1]  # h falls to the right


def test_a_wall_stands_in_front_of_its_token_and_the_front_turns():
    (ax,) = drawings.packed_wall((5, 7), wall=5).axes
    arrows = [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]
    ways = [end[0] - start[0] for start, end in (arrow._posA_posB for arrow in arrows)]
    assert (sum(way > 0 for way in ways), sum(way < 0 for way in ways)) == (10, 10 + 10)
    red = [arrow._posA_posB for arrow in arrows if to_hex(arrow.get_edgecolor()).upper() == ink("wrong")]
    assert len(red) == 1 and red[0][0][0] > red[0][1][0]


def test_a_step_asked_for_ahead_is_as_long_as_its_longer_part():
    figure = drawings.step_chain({"rows": 400, "instructions": 160, "trips": 100})
    assert "660 ns" in figure.alt and "takes 400 ns" in figure.alt


def test_an_undone_step_multiplies_the_error_and_the_figure_says_when_all_is_lost():
    figure = drawings.undone_steps({"decay 0.5": [2.0**t * 1e-7 for t in range(30)], "decay 1": [1e-7] * 30})
    assert "decay 0.5 is lost after 25 steps" in figure.alt and "decay 1 is right to 1e-07 after 30" in figure.alt
