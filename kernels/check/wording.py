"""What a kernel's text shows by itself: conditions on blocks that Python reads otherwise than they are meant."""

import ast
import textwrap
from collections.abc import Iterator

_SIGNS = {ast.BitAnd: "&", ast.BitOr: "|"}
_COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def misread(texts: list[str]) -> Iterator[tuple[str, str]]:
    """(the text of a condition, what is wrong with it) for each condition that is not what it looks like."""
    for text in texts:
        text = textwrap.dedent(text)
        function = ast.parse(text).body[0]
        blocks = _blocks(function)
        for node in ast.walk(function):
            shown = " ".join((ast.get_source_segment(text, node) or "").split()) if hasattr(node, "lineno") else ""
            if isinstance(node, ast.Compare) and (sign := _swallowed(text, node)):
                low, high = sign, _COMPARED.get(type(node.ops[0]), "<")
                yield (
                    shown,
                    f"`{low}` binds tighter than `{high}`, so this is no `{low}` of two comparisons: put each of them in "
                    f"parentheses, (a {high} b) {low} (...)",
                )
            elif isinstance(node, ast.BoolOp) and any(_is_block(value, blocks) for value in node.values):
                word, sign = ("and", "&") if isinstance(node.op, ast.And) else ("or", "|")
                yield (
                    shown,
                    f"`{word}` asks whether a whole block is true; lane by lane it is `{sign}`, with each comparison in "
                    "parentheses",
                )
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and _is_block(node.operand, blocks):
                yield shown, "`not` asks whether a whole block is false; lane by lane it is `~`, before a parenthesis"


def _swallowed(text: str, node: ast.Compare) -> str:
    """The sign that took in a comparison's operand: & or | without parentheses around it."""
    lines = text.splitlines()
    for operand in (node.left, *node.comparators):
        if isinstance(operand, ast.BinOp) and type(operand.op) in _SIGNS:
            before = lines[operand.lineno - 1].encode()[: operand.col_offset].decode().rstrip()
            after = lines[operand.end_lineno - 1].encode()[operand.end_col_offset :].decode().lstrip()
            if not (before.endswith("(") and after.startswith(")")):
                return _SIGNS[type(operand.op)]
    return ""


def _blocks(function: ast.FunctionDef) -> set[str]:
    """Names that hold a block: made by tl.arange or by a load, or from another block."""
    names: set[str] = set()
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    for _ in assigned:  # at most as many rounds as there are links in a chain
        found = {
            name.id
            for node in assigned
            if _is_block(node.value, names)
            for target in node.targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        if found <= names:
            break
        names |= found
    return names


def _is_block(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is made of a block and not reduced to a number."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called in ("tl.sum", "tl.max", "tl.min", "tl.program_id", "tl.num_programs", "tl.cdiv"):
            return False
        if called in ("tl.arange", "tl.zeros", "tl.full"):
            return True
        return any(_is_block(part, names) for part in [node.func, *node.args])
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return _is_block(node.value, names)
    return any(_is_block(child, names) for child in ast.iter_child_nodes(node))
