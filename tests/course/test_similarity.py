"""An exercise asks for more than a lesson's lines with other names."""

import pytest

from tests.course.mutants import TABLE
from tests.course.similarity import LIMIT, exercises, similarity, table, trigrams


@pytest.mark.parametrize("name", exercises())
def test_a_solution_is_no_lessons_code_renamed(name):
    (share, cell), _ = similarity(name)
    assert share <= LIMIT, f"{share:.0%} of it stands in lesson {cell}"


def test_the_kill_table_prints_it():
    assert "\n".join(table()) in TABLE.read_text(), "out of date: python -m tests.course.mutants"


def test_renaming_hides_nothing():
    first = "acc += tl.load(x_ptr + offs * stride, mask=offs < N)\n"
    second = "total += tl.load(y_ptr + lanes * step, mask=lanes < K)\n"
    assert trigrams(first) == trigrams(second) and trigrams(first) != trigrams(first.replace("tl.load", "tl.store"))
    assert trigrams(first + "# a comment\n") == trigrams(first)
