"""The drawings of lessons 31 and 32: their numbers are those that the mod gives, and each part can be lit alone."""

import pytest

from kernels.lab import drawings
from kernels.lab.drawings.score_mods import LINES


def words(figure):
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_a_tile_of_changed_scores_holds_alibis():
    said = words(drawings.score_mod_tile(first=(5, 2), slopes=(0.25, 0.5), h=1))
    assert said.count("−1½") == 1 and said.count("−½") == 3  # 1 + (2 - 7) / 2; 1 + a / 2 where the distance a is -3
    assert {"score", "slopes[h]", "kv_idx - q_idx", "q_idx", "kv_idx"} <= set(said)
    assert "−½" not in words(drawings.score_mod_tile(first=(5, 5), slopes=(0.25, 0.0)))


@pytest.mark.parametrize(("lit", "names"), [(None, 3), ("line", 1), ("graph", 1), ("text", 1)])
def test_a_part_of_the_compilers_way_is_lit_alone(lit, names):
    figure = drawings.score_mod_lines(lit)
    assert len(figure.legends[0].texts) == names
    assert {line[-1] for line in LINES} <= set(words(figure))


def test_a_part_that_there_is_not_is_named():
    with pytest.raises(ValueError, match="lit is 'mod', needs to be 'line', 'graph', 'text' or None"):
        drawings.score_mod_lines("mod")
