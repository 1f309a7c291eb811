"""Part 5's drawings: they draw the numbers that they are given, and the alternative text says them."""

import pytest
from matplotlib.patches import Wedge

from kernels.lab import drawings
from kernels.lab.drawings.language import fill


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_a_ring_says_who_is_where_and_who_is_blocked():
    figure = drawings.ring(depth=2, frames=((1, 0, 0), (2, 1, 0)))
    said = texts(figure)
    assert said.count("multiplier: step 0, round 0, blocked") == 1 and said.count("multiplier: step 0, round 0") == 1
    assert "loader: step 1, round 0" in said and "loader: step 2, round 1, blocked" in said
    wedges = [patch for ax in figure.axes for patch in ax.patches if isinstance(patch, Wedge)]
    assert len(wedges) == 4 and [wedge.get_hatch() for wedge in wedges] == ["////", None, "....", "////"]
    assert figure.count == 2


def test_rings_of_several_depths_end_when_their_timetables_end():
    timetables = {1: ([0, 5], [2, 7], [5, 10]), 2: ([0, 0], [2, 4], [5, 8])}
    figure = drawings.ring_depths(timetables, product=3)
    assert {"D = 1: done at 10", "D = 2: done at 8"} <= set(texts(figure))
    assert "with 1 at 10, with 2 at 8" in figure.alt


def test_what_is_not_ordered_is_said():
    figure = drawings.happens_before()
    assert "no path: either\nmay be first" in texts(figure) and "unordered" in figure.alt
    waits = [text for text in texts(figure) if text == "waits for\nproduct"]
    assert len(waits) == 1  # in the patient run alone


def test_what_begins_late_is_left_out_and_the_rest_is_counted():
    pieces = [("tensor cores", 0, "s0", 0, 2), ("softmax", 0, "p0", 2, 5), ("tensor cores", 1, "v0", 5, 9)]
    figure = drawings.ping_pong({"one": pieces, "other": pieces[:2]}, until=6)
    assert {"one", "other", "s0", "p0"} <= set(texts(figure)) and "v0" not in texts(figure)
    assert "one: tensor cores busy for 3 of 6" in figure.alt and "other: tensor cores busy for 2 of 6" in figure.alt
    assert [patch.get_hatch() for patch in figure.axes[0].patches].count("////") == 1


@pytest.mark.parametrize(("warps", "launched", "total"), [(8, 168, "64,512 of 65,536"), (4, 200, "51,200 of 65,536")])
def test_registers_add_up(warps, launched, total):
    figure = drawings.registers({"multiplier": (warps, launched), "loader": (4, launched)}, launched, accumulator=64)
    assert texts(figure).count(total) == 2 and f"multiplier {launched}, loader {launched}" in figure.alt
    faces = [patch.get_facecolor()[:3] for patch in figure.axes[0].patches]
    assert fill("accumulator").lstrip("#").lower() in ["".join(f"{round(255 * c):02x}" for c in face) for face in faces]
