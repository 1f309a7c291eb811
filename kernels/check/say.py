"""How a report is printed: a sentence may be long, its lines fit."""

from kernels.common.lines import wrapped


def say(text: str, hang: int = 8) -> None:
    """Print a line of a report; what continues it stands below its words, behind ``FAILED``."""
    print(wrapped(text, hang))
