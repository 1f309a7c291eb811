"""Text that fits: what is printed in a notebook has no line that its page, or a phone, would break anywhere."""

import ast
import contextlib
import io
import keyword
import re
import textwrap
import tokenize

WIDTH = 80  # characters
_WHOLE = re.compile(r"`[^`]{,60}`|[(\[][\d ,x×]{,40}[)\]]|\w+ = [\w.+-]+")  # code, a shape, a size: no line ends inside
_NAMED = re.compile(r"\s*[\w*`, ]{1,30}: ")  # a docstring's line that begins with what it is about
_ENDS = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)
_ASSIGNED = re.compile(r"(\s*(?:return|[\w.\[\], ]+? [-+*/|&^]?=) )(.+)")


def wrapped(text: str, hang: int = 4) -> str:
    """``text`` without a line over ``WIDTH``: what continues one stands ``hang`` characters further in than its beginning."""
    lines = []
    for line in text.split("\n"):
        if len(line) <= WIDTH:
            lines.append(line)
            continue
        begin = len(line) - len(line.lstrip())
        lines += _filled(joined(_WHOLE, line), "", " " * (begin + hang))
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


def _filled(text: str, first: str, then: str) -> list[str]:
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=then, **options)


def folded(code: str) -> str:
    """The same Python without a line over ``WIDTH``, as far as there are brackets to break it in, or could be.

    Comments and docstrings are wrapped; a comment at the end of a long line goes above it.
    """
    lines = code.split("\n")
    if max(map(len, lines)) <= WIDTH:
        return code
    gaps, comments, prose = _read(code)
    found, paragraph = [], ""
    for number, line in enumerate(lines, 1):
        if paragraph or number in prose and len(line) > WIDTH:
            paragraph += f" {line.lstrip()}" if paragraph else line
            if len(line) <= WIDTH or prose.get(number + 1) != prose[number] or _apart(line, lines[number]):
                found.append(wrapped(paragraph, 0))
                paragraph = ""
        elif len(line) <= WIDTH:
            found.append(line)
        else:
            found += _commented(line, comments.get(number), gaps.get(number, []))
    return "\n".join(found)


def _apart(line: str, following: str) -> bool:
    """Whether a docstring's line does not go on in the following one."""
    if _indent(line) != _indent(following) or following.strip() in ("", '"""'):
        return True
    return bool(_NAMED.match(following)) or "  " in line.strip()  # as in a table or a formula


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _commented(line: str, comment: int | None, gaps: list) -> list[str]:
    """A line of code, of a comment that begins at this column, or of both."""
    if comment is None:
        return _broken(line, gaps)
    rest = line[:comment].rstrip()
    above = _filled(line[comment:].lstrip("# "), f"{_indent(line)}# ", f"{_indent(line)}#     ")
    return above + (_broken(rest, gaps) if rest else [])


def _broken(line: str, gaps: list) -> list[str]:
    """A line of code in several; gaps: ``(column, depth of brackets)`` of each place where it may end."""
    assigned = _ASSIGNED.fullmatch(line)
    later = [(at + 1, depth + 1) for at, depth in gaps if assigned and at > assigned.start(2)]
    if any(depth == 1 and at <= WIDTH for at, depth in later) and _is_value(assigned[2]):
        line, gaps = f"{assigned[1]}({assigned[2]})", later
    made, start, prefix = [], 0, ""
    while len(prefix) + len(line) - start > WIDTH:
        fit = [gap for gap in gaps if gap[1] > 0 and start < gap[0] <= start + WIDTH - len(prefix) + 1]
        if not fit:
            break
        least = min(depth for _, depth in fit)
        end = max(column for column, depth in fit if depth == least)
        made.append((prefix + line[start:end]).rstrip())
        start, prefix = end, _indent(line) + "    " * (2 if line.endswith(":") else least)
    return [*made, prefix + line[start:]]


def _is_value(text: str) -> bool:
    """Whether it is an expression by itself."""
    try:
        return bool(ast.parse(text, mode="eval"))
    except SyntaxError:
        return False


def _read(code: str) -> tuple[dict, dict, dict]:
    """By line: where it may end, with the depth of brackets there; where its comment begins; the docstring that it is of."""
    gaps, comments, prose, depth, before = {}, {}, {}, 0, None
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        (row, column), (last, _) = token.start, token.end
        is_sign = token.type == tokenize.OP
        if token.type == tokenize.COMMENT:
            comments[row] = column
        elif token.type == tokenize.STRING and not depth and (before is None or before.type in _ENDS):
            prose |= dict.fromkeys(range(row, last + 1), row)
        depth -= is_sign and token.string in ")]}"
        if before is not None and before.end[0] == row and before.end[1] < column:
            joins = is_sign or keyword.iskeyword(token.string)
            after_value = before.type != tokenize.OP and not keyword.iskeyword(before.string) or before.string in ")]}"
            if before.string == "," or joins and after_value:
                gaps.setdefault(row, []).append((column, depth))
        depth += is_sign and token.string in "([{"
        before = token
    return gaps, comments, prose
