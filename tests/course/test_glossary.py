"""The glossary is in order, and each of its words is used by the lesson that it names."""

import re
from functools import cache

import nbformat
import pytest

from tools.kernel_environment import ROOT

ROW = re.compile(r"^\| (.+?) \| .+ \| \[\d\d\]\(\.\./(.+?)\) \|$", flags=re.MULTILINE)
WORDS = ROW.findall((ROOT / "docs" / "glossary.md").read_text())


@cache
def prose(lesson: str) -> str:
    cells = nbformat.read(ROOT / lesson, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def used(word: str, text: str) -> bool:
    """Whether a text has a glossary's word, or one of several, in whatever form: packed heads for packing heads."""
    names = re.sub(r"`| \(.*\)", "", word).lower().split(", ")
    return any(all(part[:4] in text.lower() for part in name.split()) for name in names)


def test_the_glossary_is_in_order():
    words = [word.replace("`", "").replace("Δ", "delta").lower() for word, _ in WORDS]
    assert words == sorted(words) and len(words) > 100


@pytest.mark.parametrize(("word", "lesson"), WORDS, ids=[word for word, _ in WORDS])
def test_a_lesson_uses_the_word_that_the_glossary_says_it_introduces(word, lesson):
    assert used(word, prose(lesson))


def test_a_word_is_found_in_other_forms_and_not_where_it_is_not():
    assert used("packing heads", "Heads are packed into one tile.") and used("HGMMA, HMMA", "an HMMA")
    assert not used("packing heads", "Heads are split.") and not used("state (of a recurrence)", "a recurrence")
