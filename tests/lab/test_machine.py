"""Lesson 03's drawings and curves, and 05's roofline: they light and count rightly, and say what they look like."""

import itertools

import pytest
from matplotlib.colors import to_hex

from kernels.lab import drawings, measured
from kernels.lab.drawings.language import OUTLINE, fill
from kernels.lab.drawings.machine import PARTS


def fills(figure):
    return {to_hex(patch.get_facecolor()).upper() for ax in figure.axes for patch in ax.patches}


def texts(figure):
    return {text.get_text(): to_hex(text.get_color()).upper() for ax in figure.axes for text in ax.texts}


def test_the_machine_lights_what_is_asked_for():
    assert {fill("program").upper(), fill("accumulator").upper(), fill("memory").upper()} <= fills(drawings.machine())
    dram = drawings.machine(lit="DRAM", numbers=False)
    assert fill("program").upper() not in fills(dram) and "Lit: DRAM." in dram.alt
    assert texts(dram)["L2 cache"] == OUTLINE.upper() != texts(dram)["DRAM"]
    for lit in itertools.combinations(PARTS, 2):
        assert all(part in drawings.machine(lit=lit, numbers=False).alt for part in lit)


def test_a_part_that_there_is_not_is_named():
    with pytest.raises(ValueError, match="lit names 'L3'.*DRAM, L2"):
        drawings.machine(lit=("L2", "L3"))


def test_the_numbers_at_the_places_are_recorded_ones():
    known = measured.numbers()
    written = texts(drawings.machine())
    assert f"{known['dram_ns']} ns away" in written and f"{known['dram_tb_per_s']:.1f} TB/s" in written
    assert 0 < known["l1_ns"] < known["l2_ns"] < known["dram_ns"]
    assert known["dram_tb_per_s"] < known["l2_tb_per_s"]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: drawings.program_on_threads(),
        lambda: drawings.program_on_threads(block=256, warps=2, word=4),
        lambda: drawings.matmul_sizes({"ours": {64: 1e-5, 128: 2e-5}, "theirs": {64: 9e-6, 128: 2e-5}}),
    ],
)
def test_drawings_can_be_shown_and_say_what_they_look_like(figure):
    shown = figure()
    assert shown.png().startswith(b"\x89PNG") and len(shown.alt) > 60


def test_a_curve_over_sizes_needs_times():
    with pytest.raises(ValueError, match="seconds holds no times"):
        drawings.matmul_sizes({"ours": {}})


@pytest.mark.parametrize(
    "name", ["latency", "bytes_in_flight", "strides", "hiding", "waves", "smallest_and_largest", "puzzle"]
)
def test_curves_are_drawn_from_the_record(name):
    figure = getattr(measured, name)()
    assert figure.png().startswith(b"\x89PNG") and len(figure.alt) > 60


def test_a_readers_own_times_are_drawn():
    figure = measured.puzzle({(132, 32): 0.0123})
    assert any("yours 12.3 ms" in text for text in texts(figure))


def test_the_rooflines_names_stand_clear_of_each_other_and_of_the_ridge():
    figure, known = drawings.matmul_roofline("06"), measured.numbers()
    ax = figure.axes[0]
    figure.draw_without_rendering()
    ridge = known["tensor_tflop_per_s"] / known["l2_tb_per_s"]
    assert f"{ridge:.0f} operations\nper byte" in "\n".join(texts(figure)) and f"{ridge:.0f} operations" in figure.alt
    assert sum(not text.get_text() for text in ax.texts) == 5  # arrows: 1 to 2, 2 to 4, 4 to 5, 5 to 6, 6 to 7
    names = {text: text.get_window_extent() for text in ax.texts if text.get_text()}
    for (one, at), (other, there) in itertools.combinations(names.items(), 2):
        assert not at.overlaps(there), (one.get_text(), other.get_text())
    x = ax.transData.transform((ridge, 1))[0]
    for text, at in names.items():
        assert not at.x0 < x < at.x1 or text.get_bbox_patch() or "tensor cores:" in text.get_text(), text.get_text()
