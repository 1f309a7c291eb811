"""Errors that show the user's own line of a mod."""

import contextlib
import itertools
import linecache
import os
import re
import sys
import traceback

import torch

#: A mod's arguments, by kind. The names are those of the generated Triton functions.
ARGUMENTS = {"score_mod": ("score", "b", "h", "q_idx", "kv_idx"), "mask_mod": ("b", "h", "q_idx", "kv_idx")}

_TORCH_FOLDER, _FOLDER = torch.__path__[0], os.path.dirname(__file__) + os.sep
WRITTEN = "<a mod, as recorded>"  # the file name of code that ``part_of`` has made
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep


class ModError(ValueError):
    """A mod that cannot become a kernel; the message shows the user's line and says what to write instead."""


def line_of_stack(text):
    """``(file, line number)`` of the innermost user's frame in dynamo's text of a stack, ``None`` without one."""
    frames = re.findall(r'File "(.+)", line (\d+)', text or "")
    theirs = lambda file: not _is_ours(file) and (not file.startswith(_PACKAGE) or file.endswith("zoo.py"))  # noqa: E731
    mine = [(file, int(number)) for file, number in frames if theirs(file)]
    return mine[-1] if mine else None


def user_line():
    """``(file, line number)`` of the innermost frame that is neither torch's nor ours; of a recorded mod, as it was then."""
    frame = sys._getframe(1)
    while frame and (line := _line_of(frame, frame.f_lineno)) is None:
        frame = frame.f_back
    return line if frame else None


def _line_of(frame, number):
    """The user's line of a frame, ``None`` where it is torch's or ours."""
    file = frame.f_code.co_filename
    if file == WRITTEN:
        return frame.f_globals["lines"].get(number)
    return None if _is_ours(file) else (file, number)


def _is_ours(file):
    """Whether a file is torch's, or one of this folder but the zoo, whose mods are as a user's."""
    return file.startswith(_TORCH_FOLDER) or (file.startswith(_FOLDER) and not file.endswith("zoo.py"))


def source_line(line):
    """The text of a ``(file, line number)``."""
    return linecache.getline(*line).strip()


def at_line(line):
    """How a message shows a ``(file, line number)``; a space for none."""
    return f"\n    {source_line(line)}\n    ({line[0]}, line {line[1]})\n" if line else " "


def name_of(mod):
    """What a message calls a mod."""
    return getattr(mod, "__name__", type(mod).__name__)


@contextlib.contextmanager
def explained(mod, kind):
    """Turn what torch raises while it records a mod into a ``ModError`` about the user's line."""
    try:
        yield
    except ModError:
        raise
    except Exception as error:
        mine = [line for line in itertools.starmap(_line_of, traceback.walk_tb(error.__traceback__)) if line]
        mine = [line for line in mine if source_line(line)]
        at = at_line(mine[-1] if mine else None)
        text = type(error).__name__
        if "DataDependent" in text or "data-dependent" in str(error).lower():
            raise ModError(
                f"{name_of(mod)} needs the value of a tensor while it is compiled:{at}"
                "A mod is compiled once for all queries and keys, so Python cannot branch on an index or a score, nor read "
                "it as a number. Write torch.where(condition, a, b) instead of `a if condition else b`, and & | ~ instead "
                "of `and or not`."
            ) from error
        if isinstance(error, TypeError) and not mine:
            arguments = ", ".join(ARGUMENTS[kind])
            raise ModError(f"{kind} must take {arguments}; {name_of(mod)} does not: {error}") from error
        raise ModError(f"{name_of(mod)} cannot be compiled:{at}{text}: {error}") from error
