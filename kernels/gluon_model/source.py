"""Where a kernel is while it runs: the line and text of a call, and the name of the variable that receives it."""

import ast
import itertools
import linecache
import os
import sys
from functools import lru_cache
from typing import NamedTuple


class Place(NamedTuple):
    """One statement of a kernel: its file, its line and its text on one line."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.where}  {self.text}"

    @property
    def where(self) -> str:
        """``file.py:12``; a notebook's cell has no file of its own and is ``line 12``."""
        return f"{os.path.basename(self.file)}:{self.line}" if os.path.isfile(self.file) else f"line {self.line}"


NOWHERE = Place("", 0, "")


class Locator:
    """Finds the kernel's own frames on the stack: those whose code a run has made its own."""

    def __init__(self):
        self._codes: dict[int, object] = {}  # keeps the code alive, so that its id stays its own
        self._places: dict[tuple[int, int], Place] = {}

    def adopt(self, code) -> None:
        """Count ``code``, and the functions written inside it, as the kernel's."""
        self._codes[id(code)] = code
        for constant in code.co_consts:
            if hasattr(constant, "co_consts"):
                self.adopt(constant)

    def _frame(self):
        frame = sys._getframe(2)
        while frame is not None and id(frame.f_code) not in self._codes:
            frame = frame.f_back
        return frame

    def place(self) -> Place:
        """The statement that the kernel is executing."""
        frame = self._frame()
        return NOWHERE if frame is None else self.of(frame, frame.f_lasti)

    def of(self, frame, instruction: int) -> Place | None:
        """The statement at one instruction of a frame; None if the frame is not the kernel's."""
        code = frame.f_code
        if id(code) not in self._codes:
            return None
        key = (id(code), instruction)
        if key not in self._places:
            first, last = _span(code, instruction)[:2]
            self._places[key] = Place(code.co_filename, first, _text(code.co_filename, first, last))
        return self._places[key]

    def target(self) -> str | None:
        """The variable, or the keyword, that the value of the running call goes to; None if there is none."""
        frame = self._frame()
        return frame and _targets(frame.f_code.co_filename).get(_span(frame.f_code, frame.f_lasti))


def _span(code, instruction: int) -> tuple[int, int, int, int]:
    """First and last line, first and last column of the expression that an instruction evaluates."""
    first, last, *columns = next(itertools.islice(code.co_positions(), instruction // 2, None))
    return first or code.co_firstlineno, last or first or code.co_firstlineno, *columns


def _text(file: str, first: int, last: int) -> str:
    lines = [linecache.getline(file, n).strip() for n in range(first, last + 1)]
    text = " ".join(lines).replace("( ", "(").replace(", )", ")")
    return text if len(text) <= 110 else text[:107] + "..."


@lru_cache(maxsize=256)
def _parsed(file: str, text: str) -> dict:
    found = {}

    def note(value, name):
        found[(value.lineno, value.end_lineno, value.col_offset, value.end_col_offset)] = name

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            _pair(node.targets[0], node.value, note)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            _pair(node.target, node.value, note)
        elif isinstance(node, ast.keyword) and node.arg:
            note(node.value, node.arg)
    return found


def _pair(target, value, note) -> None:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=False):
            _pair(one, its, note)
    elif isinstance(target, ast.Name):
        note(value, target.id)
    elif isinstance(target, ast.Attribute):
        note(value, target.attr)


def _targets(file: str) -> dict:
    try:
        return _parsed(file, "".join(linecache.getlines(file)))
    except SyntaxError:  # a notebook cell with a magic: its buffers keep the names that they have elsewhere
        return {}
