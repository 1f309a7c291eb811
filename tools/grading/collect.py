"""Who handed in which file: `nbgrader zip_collect` asks this for the names that Moodle and Canvas give to downloads.

Moodle: ``Ada Lovelace_1234567_assignsubmission_file_01_row_softmax.ipynb``, or a folder of that name with the file in it.
Canvas: ``lovelaceada_LATE_56789_1234567_01_row_softmax-2.ipynb``. Neither holds a student's own name of the roster: that is
found by the full name, or by canvas_id. What a platform wrote comes first in a path; behind it students write what they
like, in an archive of their own perhaps, and nothing there says who they are.
"""

import datetime
import filecmp
import io
import lzma
import re
import shutil
import unicodedata
import zipfile
import zlib
from pathlib import Path, PurePath, PurePosixPath

from nbgrader.plugins.zipcollect import ExtractorPlugin, FileNameCollectorPlugin

from tools.grading.course import read_roster
from tools.grading.submission import MOST_BYTES, handed_in

_MOODLE = re.compile(r"(?P<full>.+?)_(?P<number>\d+)_assignsubmission_file(_(?P<file>.*))?", re.DOTALL)
_CANVAS = re.compile(r"(?P<full>[^_\d]+)(_LATE)?_(?P<user>\d+)_\d+_(?P<file>.*)", re.DOTALL)
MOST_NOTEBOOKS, MOST_UNPACKED = 100, 10 * MOST_BYTES  # of one student's own archive: the course has half as many
#: What a damaged archive raises: of its directory, of what it holds, of the names in it, of a password that it asks for.
DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError, NotImplementedError,
)  # fmt: skip


def plain(name: str) -> str:
    """A name's letters alone, small and without accents, as Canvas writes them."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(letter for letter in decomposed if letter.isalnum()).casefold()


class Platforms(FileNameCollectorPlugin):
    """nbgrader's collector for both platforms; it reads roster.csv where nbgrader runs, in the course's folder.

    nbgrader ends at a student's second notebook of one name, and takes what follows a dot in a name for its ending.
    """

    def __init__(self, **how):
        super().__init__(**how)
        self._collected = set()

    def collect(self, submitted_file: str) -> dict | None:
        """The student and the notebook of one file; None, with a warning, where nobody fits."""
        if not submitted_file.endswith(".ipynb"):
            return None
        roster = read_roster(Path("roster.csv"))
        found = student_of(submitted_file, roster)
        if found is None:
            self.log.warning("No student of roster.csv fits the name of %s, or more than one", submitted_file)
            return None
        student, notebook = found
        path, one = Path(submitted_file), (student, Path(notebook).stem)
        further_out = (above / path.name for above in path.parents[1:])
        if one in self._collected or any(p.is_file() and student_of(str(p), roster) == found for p in further_out):
            self.log.warning("Left out, for %s has another notebook of this name: %s", student, submitted_file)
            return None
        self._collected.add(one)
        return {"student_id": student, "file_id": notebook, "timestamp": self._hour(path, *one)}

    def _hour(self, path: Path, student: str, notebook: str) -> datetime.datetime | None:
        """The hour that somebody noted beside this very notebook, which nbgrader would remove with the folder."""
        before = Path("submitted", student, _unpacked(str(path))[0])
        hour, other = handed_in(before), before / f"{notebook}.ipynb"
        if hour is None or other.is_file() and filecmp.cmp(path, other, shallow=False):
            return hour
        self.log.warning("%s handed in another notebook than that of %s: when?", student, f"{hour:%Y-%m-%d %H:%M} UTC")
        return None


class Notebooks(ExtractorPlugin):
    """nbgrader's extractor, for notebooks alone: those of a download, and those of an archive in it, but of none in that.

    An archive that holds itself would else be unpacked until the disk is full.
    """

    def extract(self, archive_path: str, extracted_path: str) -> None:
        given: dict[tuple, list[str]] = {}
        self._written: set[str] = set()
        for path in sorted(one for one in Path(archive_path).rglob("*") if one.is_file()):
            place = path.relative_to(archive_path)
            target, names = Path(extracted_path) / place, [str(place)]
            try:
                if path.suffix == ".zip":
                    with zipfile.ZipFile(path) as archive:
                        names += [one.filename for one in archive.infolist() if not one.is_dir()]
                        self._unpack(archive, target.with_suffix(""), inner=False)
                elif path.suffix == ".ipynb":
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._wrote(shutil.copy(path, target))
            except DAMAGED as error:
                self.log.warning("%s cannot be unpacked: %s", path, error)
            for name in names:
                given.setdefault(_sender(name), []).append(name)
        found = {_sender(str(path.relative_to(extracted_path))) for path in Path(extracted_path).rglob("*.ipynb")}
        for sender in given.keys() - found - {None}:
            self.log.warning("No notebook of one who handed in: %s", ", ".join(given[sender]))

    def _wrote(self, path: Path | str) -> None:
        if str(path) in self._written:
            self.log.warning("Twice in the download, the last one counts: %s", path)
        self._written.add(str(path))

    def _unpack(self, archive: zipfile.ZipFile, target: Path, inner: bool) -> None:
        found = [one for one in archive.infolist() if one.filename.endswith(".ipynb") and not _hidden(one.filename)]
        if inner:  # the outermost first
            found = sorted(found, key=lambda one: one.filename.count("/"))[:MOST_NOTEBOOKS]
        unpacked = 0
        for one in found:
            unpacked += one.file_size
            if one.file_size > MOST_BYTES or inner and unpacked > MOST_UNPACKED:
                self.log.warning("Left out, with %d MB: %s", one.file_size >> 20, target / one.filename)
                continue
            try:
                archive.read(one)  # else the half of a damaged one would stay
                self._wrote(archive.extract(one, target))  # which leads nowhere else, whatever the name
            except DAMAGED as error:
                self.log.warning("%s cannot be unpacked: %s", target / one.filename, error)
        for one in () if inner else archive.infolist():
            if one.filename.endswith(".zip") and one.file_size <= MOST_BYTES:
                try:
                    with zipfile.ZipFile(io.BytesIO(archive.read(one))) as theirs:
                        inside = [part for part in PurePosixPath(one.filename).parts if part not in ("/", "..")]
                        self._unpack(theirs, target.joinpath(*inside).with_suffix(""), inner=True)
                except DAMAGED as error:
                    self.log.warning("%s cannot be unpacked: %s", one.filename, error)


def _unpacked(path: str) -> tuple[str, tuple[str, ...]]:
    """The assignment that a file belongs to, and its place in the download: where the course's folder lies says nothing."""
    parts = PurePath(path).parts
    starts = [i for i, part in enumerate(parts) if part == "extracted" and parts[i - 2 : i - 1] == ("downloaded",)]
    return (parts[starts[0] - 1], parts[starts[0] + 1 :]) if starts else ("", parts)


def student_of(path: str, roster: dict[str, dict]) -> tuple[str, str] | None:
    """The student's folder name and the notebook's name; None where no student, or more than one, fits."""
    _, parts = _unpacked(path)
    for place, part in enumerate(parts):
        match = _MOODLE.fullmatch(part) or _CANVAS.fullmatch(part)
        if match:
            inner = parts[place + 1 :]
            file = inner[-1] if inner else match["file"] or ""
            fits = [name for name, about in roster.items() if _fits(match, name, about)]
            if len(fits) != 1 or _hidden(*inner) or not file.endswith(".ipynb"):
                return None
            return fits[0], re.sub(r"(-\d+)?\.ipynb$", "", file)
    return None


def _sender(path: str) -> tuple | None:
    """What tells whose a file of a download is, as the platform names it; None where it names nobody."""
    matches = (_MOODLE.fullmatch(part) or _CANVAS.fullmatch(part) for part in PurePath(path).parts)
    about = next((match.groupdict() for match in matches if match), None)
    return about and (about["full"], about.get("number"), about.get("user"))


def _hidden(*places: str) -> bool:
    """Whether a path leads into a folder, or to a file, that nobody made by hand."""
    parts = PurePosixPath(*places).parts
    return any(part.startswith((".", "__MACOSX")) and part != ".." for part in parts)


def _fits(match, name: str, about: dict) -> bool:
    if about.get("canvas_id") and match.groupdict().get("user") == about["canvas_id"]:
        return True
    first, last, full = about.get("first_name", ""), about.get("last_name", ""), plain(match["full"])
    return bool(first or last) and full in (plain(first + last), plain(last + first)) or full == plain(name)
