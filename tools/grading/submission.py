"""A submission as a file nobody vouches for: what is taken from it are answers, and nothing else of it is used.

Reading never follows a link, never waits and never takes more than it must. What could be put right is put right and noted;
what could not has a status and a reason.
"""

import datetime
import hashlib
import itertools
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from tools.grading import answers, foreign
from tools.grading.answers import MOST_CHARACTERS
from tools.grading.assignment import Assignment, check_call, is_answer

MOST_BYTES = 20 << 20
MOST_CELLS = 2000
DEEPEST = 3  # folders in a folder, as archives are unpacked
MOST_LIKELY = 10  # cells that are read because one of them may be a lost answer
MOST_NOTES, MOST_NOTE = 20, 300  # their number, and the characters of each
FUTURE = "from __future__ import annotations"
SKIPPING = ("skip-execution", "raises-exception", "nbval-skip", "remove_cell", "remove_input")


class Unusable(Exception):
    """A submission that cannot be graded: its status, and the reason."""

    def __init__(self, status: str, reason: str):
        self.status, self.reason = status, foreign.plain(reason, 500)
        super().__init__(status, self.reason)


@dataclass
class Submission:
    """What counts of one student's notebook."""

    answers: dict[str, str] = field(default_factory=dict)  # source by the answer cell's grade_id
    texts: dict[str, str] = field(default_factory=dict)  # answers that a person reads
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # what is said of answer cells that are nowhere
    unread: bool = False  # some cell asks that Python leave annotations unread: at home that holds for all behind it


def find(folder: Path, name: str, depth: int = 0) -> tuple[Path, list[str]]:
    """The notebook of a submission's folder, and notes; ``depth`` folders further in. Raises ``Unusable``."""
    for place in (folder.parent, folder):
        if place.is_symlink():
            raise Unusable("refused", f"{place.name} is a symbolic link, not a folder")
    if not folder.is_dir():
        raise Unusable("refused", f"{folder.name} is no folder")
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise Unusable("refused", f"{folder.name} cannot be read: {os.strerror(error.errno)}") from None
    for entry in entries:
        if entry.is_symlink():
            raise Unusable("refused", f"{foreign.named(entry.name)} is a symbolic link")
    shown = [entry for entry in entries if not entry.name.startswith((".", "__MACOSX"))]
    notebooks = [entry.name for entry in shown if entry.name.endswith(".ipynb")]
    if not notebooks:
        inner = [entry.name for entry in shown if entry.is_dir()]
        if len(inner) == 1 and depth < DEEPEST:  # an archive that was unpacked with its folder
            path, notes = find(folder / inner[0], name, depth + 1)
            return path, [*notes, foreign.plain(f"the notebook lies in the folder {foreign.named(inner[0])}", MOST_NOTE)]
        there = _names(entry.name for entry in shown if entry.name != "timestamp.txt")
        there = f", but {there}" if there else ""
        raise Unusable("missing", f"the folder holds no notebook{there}: {name}.ipynb is expected")
    if f"{name}.ipynb" in notebooks:
        others = [other for other in notebooks if other != f"{name}.ipynb"]
        notes = [foreign.plain(f"beside it, left out: {_names(others)}", MOST_NOTE)] if others else []
        return folder / f"{name}.ipynb", notes
    if len(notebooks) > 1:
        raise Unusable(
            "refused", f"{len(notebooks)} notebooks, none of them {name}.ipynb: {_names(notebooks)}"
        )
    return folder / notebooks[0], [foreign.plain(f"the notebook is called {foreign.named(notebooks[0])}", MOST_NOTE)]


def _names(names) -> str:
    """The first of some files' names."""
    return ", ".join(map(foreign.named, itertools.islice(names, 4)))


def load(path: Path) -> bytes:
    """The file's bytes. Raises ``Unusable``: a link, a pipe, a folder, a file that is too large."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unusable("refused", f"{foreign.named(path.name)} cannot be opened: {os.strerror(error.errno)}") from None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise Unusable("refused", f"{foreign.named(path.name)} is no file")
    with os.fdopen(handle, "rb") as file:
        if about.st_size > MOST_BYTES:
            sizes = f"{about.st_size >> 20} MB, {MOST_BYTES >> 20} are the most"
            said = f"is too large: {sizes}. Saved without its outputs, it is small"
            raise Unusable("refused", f"{foreign.named(path.name)} {said}")
        return file.read(MOST_BYTES + 1)


def handed_in(folder: Path) -> datetime.datetime | None:
    """When it was handed in, as nbgrader's collectors note it beside the notebook; None where they did not."""
    place = folder / "timestamp.txt"
    try:
        if place.stat().st_size > 200:
            return None
        from nbgrader.utils import parse_utc  # only where a collector was: it takes its time

        says = load(place).decode("utf-8-sig").strip()
        if not re.match(r"\d{4}-\d\d-\d\d", says):  # of which another day could be guessed, or today's
            return None
        return parse_utc(says).replace(tzinfo=datetime.UTC)
    except (OSError, ValueError, OverflowError, AttributeError, Unusable):
        return None


def digest(data: bytes) -> str:
    """What tells two submissions apart."""
    return hashlib.sha256(data).hexdigest()


def read(data: bytes, assignment: Assignment) -> Submission:
    """The answers in a notebook's bytes. Raises ``Unusable``."""
    if not data.strip():
        raise Unusable("refused", "the file is empty")
    try:
        notebook = json.loads(data)  # which sees by its first bytes how it is encoded
    except (ValueError, RecursionError) as error:
        raise Unusable("refused", f"the file is not JSON: {str(error)[:120]}") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if isinstance(cells, list) and len(cells) > MOST_CELLS:
        raise Unusable("refused", f"the notebook has {len(cells)} cells, {MOST_CELLS} are the most")
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise Unusable("refused", "the file is no notebook of format 4: it has no list of cells")
    try:
        return _Reader(list(map(_Cell, cells)), assignment).read()
    except (RecursionError, MemoryError) as error:
        raise Unusable("refused", f"Python cannot look through the cells: {type(error).__name__}") from None


class _Cell:
    """One cell of the file, whatever its fields hold."""

    def __init__(self, cell: dict):
        source = cell.get("source", "")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        source = source if isinstance(source, str) else ""
        self.source = foreign.storable(source).replace("\r\n", "\n").replace("\r", "\n")
        self.kind = cell.get("cell_type")
        metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
        fields = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
        self.grade_id = fields.get("grade_id") if isinstance(fields.get("grade_id"), str) else ""
        self.graded = fields.get("grade") is True
        self.id = cell.get("id") if isinstance(cell.get("id"), str) else ""
        tags = metadata.get("tags") if isinstance(metadata.get("tags"), list) else []
        self.tags = [tag for tag in tags if isinstance(tag, str)]


class _Reader:
    def __init__(self, cells: list[_Cell], assignment: Assignment):
        self.cells, self.assignment = cells, assignment
        self.found, self.taken = Submission(), set()

    def read(self) -> Submission:
        for name, cell in self.assignment.cells.items():
            if is_answer(cell):
                mine = self._choose(name, cell)
                if mine is None and name in self.assignment.derivations:
                    continue
                if mine is None:
                    self.found.missing.append(self._where_it_is_not(name, cell))
                    continue
                self.taken.add(id(mine))
                where = self.found.texts if name in self.assignment.texts else self.found.answers
                if where is self.found.texts and len(mine.source) > MOST_CHARACTERS:
                    self.found.notes.append(f"text {name} has {len(mine.source)} characters: cut at {MOST_CHARACTERS}")
                    mine.source = mine.source[:MOST_CHARACTERS]
                where[name] = mine.source
        self._hold_exercise()
        self._take_helpers()
        self._take_launchers()
        self._note_changes()
        self.found.unread = any(FUTURE in cell.source.split("\n") for cell in self.cells if cell.kind == "code")
        notes = [foreign.plain(note, MOST_NOTE) for note in self.found.notes]
        more = len(notes) - MOST_NOTES
        self.found.notes = notes[:MOST_NOTES] + ([f"{more} more notes of this kind"] if more > 0 else [])
        return self.found

    def _hold_exercise(self):
        """Raise ``Unusable`` for the notebook of another exercise, which has cells of the same names."""
        asked = {call[0] for cell in self.cells if cell.graded and (call := check_call(cell.source))}
        own = {check.name for check in self.assignment.checks}
        wanted = set().union(*(self.assignment.defines.get(name, ()) for name in self.assignment.answers))
        written = set().union(*map(answers.bound, self.found.answers.values()))
        if asked and not asked & own and not written & wanted:
            theirs, ours = (", ".join(f"check.{name}" for name in sorted(names)[:3]) for names in (asked, own))
            raise Unusable("refused", f"it is the notebook of another exercise: it asks {theirs}, and this one {ours}")

    def _where_it_is_not(self, name, released) -> str:
        for cell in self.cells:
            if name in (cell.grade_id, cell.id) and cell.kind in ("code", "markdown", "raw"):
                if cell.kind == released.cell_type:
                    return f"answer cell {name} is not in the notebook: what has its id is called {cell.grade_id!r} there"
                return f"answer cell {name} is a {cell.kind} cell, and was released as a {released.cell_type} cell"
        return f"answer cell {name} is not in the notebook: copy it from the exercise, unsolved if need be, and hand in again"

    def _choose(self, name, released):
        """The cell that answers ``name``: by its metadata, else by its id, else by what it defines."""
        marked = [cell for cell in self.cells if cell.grade_id == name and cell.kind == released.cell_type]
        if len(marked) > 1:
            wanted = self.assignment.defines.get(name, set())
            whole = answers.joined([cell.source for cell in marked], wanted) if released.cell_type == "code" else None
            if whole is not None:  # a cell that was split: each part kept the metadata
                marked[0].source = whole
                self.found.notes.append(f"answer cell {name} was split into {len(marked)}: joined")
                return marked[0]
            written = [cell for cell in marked if cell.source.strip() != released.source.strip()]
            # Of several written ones the released id tells which is the original; else the last is the latest.
            choice = next((cell for cell in written if cell.id == released.get("id")), (written or marked)[-1])
            which = marked.index(choice) + 1
            self.found.notes.append(f"answer cell {name} is there {len(marked)} times: number {which} counts")
            return choice
        if marked and marked[0].source.strip() != released.source.strip():
            return marked[0]
        if marked:
            other = self._another(name, released)
            if other:
                self.found.notes.append(f"answer cell {name} is as released: another cell defines the same, and counts")
            return other or marked[0]
        for cell in self.cells:
            if cell.id == released.get("id") == name and not cell.grade_id and cell.kind == released.cell_type:
                self.found.notes.append(f"answer cell {name} had lost its metadata: restored by its id")
                return cell
        other = self._another(name, released)
        if other:
            self.found.notes.append(f"answer cell {name} was deleted: another cell defines the same, and counts")
        return other

    def _another(self, name, released) -> _Cell | None:
        """The last cell of the student's own that defines all that this answer should, and is not the release's copy."""
        wanted = self.assignment.defines.get(name, set())
        likely = [
            cell for cell in reversed(self.cells)
            if wanted and cell.kind == "code" and not cell.grade_id and id(cell) not in self.taken
            and all(each in cell.source for each in wanted) and cell.source.strip() != released.source.strip()
        ]  # fmt: skip
        return next((cell for cell in likely[:MOST_LIKELY] if wanted <= answers.bound(cell.source)), None)

    def _take_helpers(self):
        """Add to an answer what it uses of cells that do not count: the rest of a split cell, a helper, a constant."""
        released = {cell.source.strip() for cell in self.assignment.notebook.cells}
        others = [
            cell.source for cell in self.cells
            if cell.kind == "code" and not cell.graded and id(cell) not in self.taken
            and cell.source.strip() not in released and len(cell.source) <= MOST_CHARACTERS
        ]  # fmt: skip
        if not others or sum(map(len, others)) > 4 * MOST_CHARACTERS:
            return
        written = {name: self.found.answers[name] for name in self.assignment.answers if name in self.found.answers}
        bound = {name: answers.bound(source) for name, source in written.items()}
        for name, source in written.items():
            lacking = self.assignment.defines.get(name, set()) - bound[name]
            known = (self.assignment.names - lacking).union(*(names for other, names in bound.items() if other != name))
            text, taken = answers.helpers(source, others, known, lacking)
            if taken:
                self.found.answers[name] = text
                self.found.notes.append(f"answer cell {name} uses {', '.join(taken)} of another cell: taken along")

    def _take_launchers(self):
        """A given cell that defines functions counts as the student has it, where it still defines them: as at home."""
        for name, released in self.assignment.released:
            mine = [cell.source for cell in self.cells if cell.grade_id == name and cell.kind == "code"]
            given = name not in self.assignment.answers and re.search(r"^def ", released, re.MULTILINE)
            if given and len(mine) == 1 and mine[0].strip() != released.strip():
                if self.assignment.defines[name] <= answers.bound(mine[0]):
                    self.found.answers[name] = mine[0]
                    self.found.notes.append(f"cell {name} was changed: its functions count as they are there")

    def _note_changes(self):
        """Say what was done to cells that do not count: the released ones take their place."""
        notes, known = self.found.notes, self.assignment.cells
        present = {}
        for cell in self.cells:
            present.setdefault(cell.grade_id, []).append(cell)
            skipping = [tag for tag in cell.tags if tag in SKIPPING]
            if skipping:
                notes.append(f"tag {skipping[0]} on cell {cell.grade_id or cell.id or '?'}: removed")
        for name, released in known.items():
            if is_answer(released):
                continue
            copies = present.get(name) or [
                cell for cell in present.get("", ())  # whose metadata an editor dropped
                if cell.id == released.get("id") or cell.source.strip() == released.source.strip()
            ]  # fmt: skip
            if not copies:
                notes.append(f"cell {name} was deleted: the released one counts")
            elif len(copies) > 1:
                notes.append(f"cell {name} is there {len(copies)} times: the released one counts, once")
            elif copies[0].source.strip() != released.source.strip() and name not in self.found.answers:
                notes.append(f"cell {name} was changed: the released one counts")
        if added := self._added():
            notes.append(f"{len(added)} code cells were added: left out")

    def _added(self) -> list[_Cell]:
        """Code cells that the release does not have: by their ids, which older programs drop, and by their text."""
        released = {cell.get("id") for cell in self.assignment.notebook.cells}
        texts = {cell.source.strip() for cell in self.assignment.notebook.cells}
        return [
            cell for cell in self.cells
            if cell.kind == "code" and not cell.grade_id and cell.id not in released
            and cell.source.strip() not in texts and id(cell) not in self.taken
        ]  # fmt: skip
