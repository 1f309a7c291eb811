"""Text that defines kernels: Triton reads a kernel's source back by its file's name, through Python's ``linecache``."""

import linecache
from types import CodeType


def readable(source: str, filename: str) -> CodeType:
    """``source`` compiled, and kept for whoever asks for the lines of ``filename``, which need be no file.

    Raises:
        SyntaxError: ``source`` is no Python; its lines are kept all the same, for the message.
    """
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")
