"""A kernel's text as Triton finds it: by lines that begin with `def`, which need not be where Python's parser sees one.

Its interpreter begins at the last such line of a function, its compiler at the first that has a name and a bracket. In a
docstring, either could be another program than the one that the gate has looked through.
"""

import ast
import copy
import inspect
import re
import textwrap
import tokenize

from IPython.core.inputtransformer2 import TransformerManager

#: A magic around Python.
AROUND = re.compile(r"\A(\s*\n)*%%(capture|time|timeit|prun)\b.*")
#: What str.splitlines takes for the end of a line and Python does not: behind one, a comment could hide a line of code.
LINE_ENDS = frozenset("\r\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")


def python(source: str) -> tuple[str, str]:
    """A cell as IPython hands it to Python, where its commands are calls; and why Python cannot read it, or nothing.

    What a magic measures or captures is the rest of its cell.
    """
    try:
        source = TransformerManager().transform_cell(AROUND.sub("", source))
        ast.parse(source)
        return source, ""
    except SyntaxError as error:
        line = (error.text or "").strip()[:80]
        return source, f"SyntaxError: {error.msg} in line {error.lineno} of your cell, `{line}`"
    except (ValueError, RecursionError, MemoryError) as error:
        return source, f"{type(error).__name__}: Python cannot look through the cell"


def text_of(node: ast.AST) -> str:
    """A syntax tree as text, with question marks for what ast.unparse cannot write: in an f-string what Python 3.11 would
    escape there, such as a space that does not break, and integers of thousands of digits."""
    try:
        return ast.unparse(node)
    except ValueError:
        node = copy.deepcopy(node)
        for one in ast.walk(node):
            if isinstance(one, ast.Constant):
                one.value = _writable(one.value)
        return ast.unparse(node)


def _writable(value):
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() and letter != "\\" else "?" for letter in value)
    return "?" if isinstance(value, int) and value.bit_length() > 2**12 else value


def why_not(function: ast.FunctionDef, lines: list[str]) -> str:
    """Why Triton would not read ``function``, of a module with these lines, as it was parsed; empty where it does."""
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    try:
        block = inspect.getblock([line + "\n" for line in lines[first - 1 :]])
    except (SyntaxError, tokenize.TokenError):
        block = []
    begin = [number for number, line in enumerate(block) if line.strip().startswith("def ")]
    whole = textwrap.dedent("".join(block))
    named = re.search(r"^def\s+\w+\s*\(", whole, re.MULTILINE)
    if not begin or named is None:
        return f"the line of {function.name} must begin with `def {function.name}(`"
    bare = copy.copy(function)
    bare.decorator_list = []
    for text in (textwrap.dedent("".join(block[begin[-1] :])), whole[named.start() :]):
        if not _is(text, bare):
            return f"a line of text inside {function.name} begins with `def`: Triton would take the kernel to begin there"
    return ""


def _is(text: str, function: ast.FunctionDef) -> bool:
    try:
        return [ast.dump(one) for one in ast.parse(text).body] == [ast.dump(function)]
    except (SyntaxError, ValueError):
        return False
