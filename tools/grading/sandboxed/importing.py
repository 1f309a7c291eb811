"""How a process imports what it keeps to its end."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """What is imported meanwhile stays: nobody looks for garbage in it, then or later, which takes a seventh of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
