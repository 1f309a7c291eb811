"""Words by others, made harmless for whoever shows them: a terminal, a table, a database, a page of mathematics."""

from html.parser import HTMLParser

_FORMULAS = frozenset("=+-@\t\r\n＝＋－＠")  # noqa: RUF001  wide signs are taken for the narrow ones
_TAGS = frozenset(
    (
        "math mrow mi mo mn ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd "
        "mstyle mpadded mphantom menclose mmultiscripts mprescripts none"
    ).split()
)
_ATTRIBUTES = frozenset(
    (
        "xmlns display stretchy symmetric fence form separator accent accentunder movablelimits mathvariant mathcolor "
        "mathbackground mathsize minsize maxsize lspace rspace width height depth voffset linethickness columnalign "
        "columnlines columnspacing rowlines rowspacing rowalign frame notation displaystyle scriptlevel largeop"
    ).split()
)


def plain(text: object, most: int = 2000, lines: bool = False) -> str:
    """Text of at most ``most`` characters, without what a terminal would obey or no file can hold; ``lines`` may stay."""
    text = text if isinstance(text, str) else ""
    kept = text if len(text) <= most else text[:most] + "…"
    return "".join(letter if letter.isprintable() or letter == "\n" and lines else "?" for letter in kept)


def cell(value: object) -> object:
    """A table's cell which a spreadsheet takes for text, and not for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULAS else value


def storable(text: str) -> str:
    """Text without halves of surrogate pairs, which JSON can hold and no file can."""
    return text.encode("utf-8", "replace").decode()


class _Tags(HTMLParser):
    """Whether all that is read is MathML."""

    def __init__(self):
        super().__init__()
        self.good, self.count = True, 0

    def handle_starttag(self, tag, attributes):
        self.count += 1
        self.good &= tag in _TAGS and all(name in _ATTRIBUTES for name, _ in attributes)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)  # one tag, not two

    def handle_endtag(self, tag):
        self.count += 1
        self.good &= tag in _TAGS


def is_mathml(text: str) -> bool:
    """Whether a converter's output is MathML and nothing else: some write a formula's text as it came."""
    tags = _Tags()
    tags.feed(text)
    tags.close()
    return tags.good and text.count("<") == tags.count  # what begins anything else, a comment perhaps, is no tag
