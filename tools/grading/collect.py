"""Who handed in which file: `nbgrader zip_collect` asks this for the names that Moodle and Canvas give to downloads.

Moodle: ``Ada Lovelace_1234567_assignsubmission_file_01_row_softmax.ipynb``, or a folder of that name with the file in it.
Canvas: ``lovelaceada_LATE_56789_1234567_01_row_softmax-2.ipynb``. Neither holds a student's own name of the roster: that is
found by the full name, or by canvas_id.
"""

import re
import unicodedata
from pathlib import Path

from nbgrader.plugins.zipcollect import FileNameCollectorPlugin

from tools.grading.course import read_roster

_MOODLE = re.compile(r"(?P<full>[^/_]+)_\d+_assignsubmission_file_?/?(?P<file>[^/]*?)(-\d+)?\.ipynb$")
_CANVAS = re.compile(r"(?P<full>[^/_\d]+)(_LATE)?_(?P<user>\d+)_\d+_(?P<file>[^/]*?)(-\d+)?\.ipynb$")


def plain(name: str) -> str:
    """A name's letters alone, small and without accents, as Canvas writes them."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(letter for letter in decomposed if letter.isalnum()).casefold()


class Platforms(FileNameCollectorPlugin):
    """nbgrader's collector for both platforms; it reads roster.csv where nbgrader runs, in the course's folder."""

    def collect(self, submitted_file: str) -> dict | None:
        """The student and the notebook of one file; None, with a warning, where nobody fits."""
        if not submitted_file.endswith(".ipynb"):
            return None
        found = student_of(submitted_file, read_roster(Path("roster.csv")))
        if found is None:
            self.log.warning("No student of roster.csv fits the name of %s", submitted_file)
            return None
        student, notebook = found
        return {"student_id": student, "file_id": notebook}


def student_of(path: str, roster: dict[str, dict]) -> tuple[str, str] | None:
    """The student's folder name and the notebook's name; None where no student, or more than one, fits."""
    path = Path(path).as_posix()
    for pattern in (_MOODLE, _CANVAS):
        match = pattern.search(path)
        if match:
            fits = [name for name, about in roster.items() if _fits(match, name, about)]
            return (fits[0], match["file"]) if len(fits) == 1 else None
    return None


def _fits(match, name: str, about: dict) -> bool:
    if about.get("canvas_id") and match.groupdict().get("user") == about["canvas_id"]:
        return True
    first, last, full = about.get("first_name", ""), about.get("last_name", ""), plain(match["full"])
    return bool(first or last) and full in (plain(first + last), plain(last + first)) or full == plain(name)
