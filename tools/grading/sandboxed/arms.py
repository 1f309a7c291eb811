"""Which arms of a kernel's conditions and loops, and which functions, the interpreter runs: the compiler must see them, too.

A condition that is known when a kernel is compiled need not come out there as it does in the interpreter: what ``is`` says,
the text of a number, a type. Such a kernel would show the compiler one program, and run another.
"""

import ast
import builtins

from triton.runtime import interpreter

from kernels.lab._child_main import place, skipped

_TAKE = "__arm__"  # which no answer may say: it begins like Python's machinery
_taken: set[str] = set()


class _Noting(interpreter.ASTTransformer):
    """Triton's own rewriting of a kernel, after a call was put before each arm."""

    wanted = False

    def visit_Module(self, tree):
        for function in tree.body if self.wanted else ():
            _note(function)
        return self.generic_visit(tree)


def note() -> None:
    """From now on kernels of cells and of texts, whose files have names such as <cell a>, say which arms they run."""
    rewriter, noting = interpreter.FunctionRewriter, _Noting()
    transform = rewriter._transform_ast

    def transformed(self, source):
        noting.wanted = self.filename.startswith("<")
        return transform(self, source)

    setattr(builtins, _TAKE, _take)
    rewriter.ast_transformer, rewriter._transform_ast = noting, transformed


def taken() -> list[str]:
    """The arms that ran since this was last asked."""
    found = sorted(_taken)
    _taken.clear()
    return found


def _take(arm: str) -> bool:
    _taken.add(arm)
    return True


def _note(function) -> None:
    def call(node, where=place):
        return ast.Call(ast.Name(_TAKE, ast.Load()), [ast.Constant(where(function.name, node))], [])

    def noted(node):
        return ast.copy_location(ast.Subscript(ast.Tuple([call(node), node], ast.Load()), ast.Constant(1), ast.Load()), node)

    for node in list(ast.walk(function)):
        if isinstance(node, (ast.FunctionDef, ast.If, ast.For, ast.While)):
            for arm in filter(None, (node.body, getattr(node, "orelse", None))):
                arm.insert(0, ast.copy_location(ast.Expr(call(arm[0])), arm[0]))
            if isinstance(node, ast.If) and not node.orelse:  # what comes after it is an arm, too, where it leaves or stays
                node.orelse = [ast.copy_location(ast.Expr(call(node, skipped)), node)]
        elif isinstance(node, ast.IfExp):
            node.body, node.orelse = noted(node.body), noted(node.orelse)
        elif isinstance(node, ast.BoolOp):
            node.values[1:] = map(noted, node.values[1:])
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            node.elt = noted(node.elt)
        elif isinstance(node, ast.Lambda):
            node.body = noted(node.body)
