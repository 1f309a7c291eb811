"""The text of kernels: to be shown, or, where it was made here, to be read back by Triton through Python's ``linecache``."""

import inspect
import linecache
from types import CodeType

from kernels.common.lines import folded


def readable(source: str, filename: str) -> CodeType:
    """``source`` compiled, and kept for whoever asks for the lines of ``filename``, which need be no file.

    Raises:
        SyntaxError: ``source`` is no Python; its lines are kept all the same, for the message.
    """
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")


def source(kernel) -> str:
    """The text of a ``@triton.jit`` kernel or of a Python function, as it stands in its file but for lines that are too long.

    Raises:
        ValueError: ``kernel`` is no function, or was typed where no text is kept.
    """
    function = getattr(kernel, "fn", kernel)
    try:
        text = inspect.getsource(function).rstrip("\n")
    except (TypeError, OSError) as error:
        raise ValueError(f"kernel is {kernel!r}, needs a kernel or function whose text is in a file or a cell") from error
    return folded(text)
