"""Another text of the same kernels: what a clinic's test is shown, so that it can know none of them by its lines.

A trace says which line made an access, and every kernel of a clinic is published. So names, the sides of comparisons, the
order of statements that do not depend on each other, and the lines' numbers are drawn anew for each check; what is passed
to a load or a store is computed before it, and numbers stand far from where they are used. What a test may ask for by name
keeps it: functions, tensors, and the launcher's own arguments.
"""

import ast
import random

_SWAPPED = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
_SIMPLE = ast.Assign | ast.AugAssign | ast.Expr


def disguised(source: str, seed: int | str) -> str:
    """Kernels and launcher that compute what those of ``source`` compute, written otherwise."""
    draw = random.Random(str(seed))
    module = ast.parse(source)
    kernels = [one for one in module.body if isinstance(one, ast.FunctionDef) and one.decorator_list]
    names = {kernel.name: _names(kernel, draw) for kernel in kernels}
    for function in module.body:
        _Renamed(names, names.get(getattr(function, "name", ""), {}), draw).visit(function)
    for kernel in kernels:
        numbers = _Numbers(draw)
        kernel.body = [numbers.visit(statement) for statement in kernel.body]
        for block in _blocks(kernel):
            block[:] = [new for old in block for new in _taken_apart(old, draw)]
            _reorder(block, draw)
        kernel.body[:0] = numbers.assigned
    text = "\n\n\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in module.body)
    return "\n" * draw.randrange(1, 40) + text + "\n"


def _blocks(kernel: ast.FunctionDef) -> list[list[ast.stmt]]:
    found = [getattr(node, part, None) for node in ast.walk(kernel) for part in ("body", "orelse")]
    return [block for block in found if isinstance(block, list)]


def _new(draw: random.Random) -> str:
    return f"{draw.choice('bcfghpqruvz')}{draw.randrange(10**8):08}"


def _names(kernel: ast.FunctionDef, draw: random.Random) -> dict[str, str]:
    """A new name for all that a kernel assigns, for its strides and for its constants."""
    arguments = [*kernel.args.args, *kernel.args.kwonlyargs]
    old = {one.arg for one in arguments if one.annotation is not None or one.arg.startswith("stride_")}
    old |= {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    old -= {one.arg for one in arguments} - {one.arg for one in arguments if one.annotation or "stride_" in one.arg}
    return {name: _new(draw) for name in sorted(old)}


class _Renamed(ast.NodeTransformer):
    """A function with other names, constants and comparisons."""

    def __init__(self, kernels: dict[str, dict[str, str]], names: dict[str, str], draw: random.Random):
        self.kernels, self.names, self.draw = kernels, names, draw

    def visit_Name(self, node):
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node):
        node.arg = self.names.get(node.arg, node.arg)
        return self.generic_visit(node)

    def visit_Call(self, node):
        """A kernel's keyword arguments have its new names."""
        called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        renamed = self.kernels.get(called.id, {}) if isinstance(called, ast.Name) else {}
        for keyword in node.keywords:
            keyword.arg = renamed.get(keyword.arg, keyword.arg)
        return self.generic_visit(node)

    def visit_Compare(self, node):
        self.generic_visit(node)
        swapped = _SWAPPED.get(type(node.ops[0])) if len(node.ops) == 1 else None
        if self.names and swapped and self.draw.random() < 0.5:
            return ast.Compare(node.comparators[0], [swapped()], [node.left])
        return node

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if self.names and isinstance(node.op, ast.BitAnd) and self.draw.random() < 0.5:
            node.left, node.right = node.right, node.left
        return node


class _Numbers(ast.NodeTransformer):
    """Numbers with a point, and infinities, out of the lines: ``assigned`` gives each a name at the kernel's beginning."""

    def __init__(self, draw: random.Random):
        self.draw, self.assigned = draw, []

    def _named(self, node: ast.expr) -> ast.Name:
        name = _new(self.draw)
        self.assigned.append(ast.Assign([ast.Name(name, ast.Store())], node))
        return ast.Name(name, ast.Load())

    def visit_Constant(self, node):
        return self._named(node) if type(node.value) is float else node

    def visit_UnaryOp(self, node):
        """``-float("inf")`` is one number."""
        whole = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Call | ast.Constant)
        if whole and "float(" in ast.unparse(node):
            return self._named(node)
        return self.generic_visit(node)

    def visit_Call(self, node):
        return self._named(node) if ast.unparse(node.func) == "float" else self.generic_visit(node)


def _taken_apart(statement: ast.stmt, draw: random.Random):
    """A statement, after others that compute what it passes to loads, stores and updates."""
    lazy = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)
    if isinstance(statement, _SIMPLE) and not any(isinstance(node, lazy) for node in ast.walk(statement)):
        for call in [node for node in ast.walk(statement) if isinstance(node, ast.Call)]:
            if ast.unparse(call.func).startswith(("tl.load", "tl.store", "tl.atomic")):
                values = [(call.args, i, value) for i, value in enumerate(call.args)]
                keywords = [one for one in call.keywords if one.arg == "mask"]
                for place, i, value in values:
                    if isinstance(value, ast.BinOp):
                        place[i] = ast.Name(name := _new(draw), ast.Load())
                        yield from _taken_apart(ast.Assign([ast.Name(name, ast.Store())], value), draw)
                for keyword in keywords:
                    if isinstance(keyword.value, ast.BinOp | ast.Compare):
                        value, keyword.value = keyword.value, ast.Name(name := _new(draw), ast.Load())
                        yield ast.Assign([ast.Name(name, ast.Store())], value)
    yield statement


def _reorder(block: list[ast.stmt], draw: random.Random) -> None:
    """Neighbours change places, many times, where neither needs the other."""
    for _ in range(4 * len(block)):
        at = draw.randrange(len(block))
        pair = block[at : at + 2]
        if len(pair) == 2 and all(isinstance(one, _SIMPLE) for one in pair) and _independent(*map(_touched, pair)):
            block[at : at + 2] = pair[::-1]


def _touched(statement: ast.stmt) -> tuple[set[str], set[str], int]:
    """The names that a statement reads and assigns, and what it does to memory: nothing 0, loads 1, stores 2."""
    named = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    assigned = {node.id for node in named if isinstance(node.ctx, ast.Store)}
    read = {node.id for node in named if isinstance(node.ctx, ast.Load)}
    if isinstance(statement, ast.AugAssign):
        read |= assigned
    called = [ast.unparse(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)]
    ordered = "tl.store", "tl.atomic", "tl.debug_barrier"
    stores = [name for name in called if "." not in name or name.startswith(ordered)]  # or who knows
    return read, assigned, 2 if stores else int("tl.load" in called)


def _independent(first, second) -> bool:
    apart = not (first[1] & (second[0] | second[1]) or first[0] & second[1])
    return apart and not (first[2] and second[2] and 2 in (first[2], second[2]))
