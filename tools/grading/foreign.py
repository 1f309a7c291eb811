"""Words by others, made harmless for whoever shows them: a terminal, a table, a database, a page."""

import html
import re

_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # marks of direction, of Unicode's annex 9
# Where a spreadsheet may see a cell begin, also one that is told to cut at semicolons, with a formula's sign behind it.
_FORMULA = re.compile(r'(^|[;\t\r\n])([\s"]*)(?=[-=+@＝＋－＠])')  # noqa: RUF001  wide signs are as narrow ones


def plain(text: object, most: int = 2000, lines: bool = False) -> str:
    """Text of at most ``most`` characters, without what a terminal would obey or no file can hold; ``lines`` may stay."""
    text = text if isinstance(text, str) else ""
    kept = text if len(text) <= most else text[:most] + "…"
    return "".join(letter if letter.isprintable() or letter == "\n" and lines else "?" for letter in kept)


def cell(value: object) -> object:
    """A table's cell which a spreadsheet takes for text, and not for a formula, wherever it cuts."""
    if not isinstance(value, str):
        return value
    text = _FORMULA.sub(r"\1\2'", value)
    return f"'{text}" if text[:1] in ("\t", "\r", "\n") else text


def named(name: str) -> str:
    """A file's name in quotation marks and cut, so that no words in it are taken for the grader's."""
    return repr(plain(name, 60))


def visible(text: str) -> str:
    """Text that is read in the order in which it is written: what would turn it around is shown by its number."""
    return _TURNING.sub(lambda letter: f"\\u{ord(letter[0]):04x}", text)


def storable(text: str) -> str:
    """Text without halves of surrogate pairs, which JSON can hold and no file can."""
    return text.encode("utf-8", "replace").decode()


def shown(text: str) -> str:
    """An answer in words as HTML of one line, which whoever renders a notebook hands on as it is.

    nbconvert, and so formgrader, would make a link of ``[x](javascript:...)``, run diagrams, and let MathJax obey ``\\href``.
    """
    line = html.escape(visible(text)).replace("$", "&#36;").replace("\n", "&#10;")
    return f'<pre class="tex2jax_ignore mathjax_ignore">{line}</pre>'
