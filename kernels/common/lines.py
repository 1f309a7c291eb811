"""Text that fits: what is printed in a notebook has no line that its page, or a phone, would break anywhere."""

import contextlib
import re
import textwrap

WIDTH = 80  # characters
OPTIONS = {"break_long_words": False, "break_on_hyphens": False}
_WHOLE = re.compile(r"`[^`]{,60}`|[(\[][\d ,x×]{,40}[)\]]|\w+ = [\w.+-]+")  # code, a shape, a size: no line ends inside


def wrapped(text: str, hang: int = 4) -> str:
    """``text`` without a line over ``WIDTH``: what continues one stands ``hang`` characters further in than its beginning."""
    lines = []
    for line in text.split("\n"):
        if len(line) <= WIDTH:
            lines.append(line)
            continue
        begin = len(line) - len(line.lstrip())
        lines += textwrap.wrap(joined(_WHOLE, line), WIDTH, subsequent_indent=" " * (begin + hang), **OPTIONS)
    return "\n".join(lines).replace("\xa0", " ")


@contextlib.contextmanager
def unbroken():
    """Meanwhile lines stay as long as they are, for a program that reads them."""
    global WIDTH
    kept, WIDTH = WIDTH, 10**9
    try:
        yield
    finally:
        WIDTH = kept


def joined(pattern: str | re.Pattern, text: str) -> str:
    """``text`` with spaces that ``wrapped`` leaves alone wherever the pattern matches."""
    return re.sub(pattern, lambda found: found[0].replace(" ", "\xa0"), text)
