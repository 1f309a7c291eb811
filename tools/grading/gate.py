"""Which lines of a clinic's answers may run: an allow-list over the syntax tree.

A clinic's test is given kernels as text, and says of each whether it is broken: one that looks at anything would read it off
their lines. So it is Python with what torch offers to make inputs and to compare, and the trace, and nothing of Python's own
machinery. What is on no list is not run, and its line and the reason are noted. Nothing is executed here. Answers of other
exercises may be any Python: of them only kernels count (``texts``).
"""

import ast
from typing import NamedTuple

from tools.grading import reading
from tools.grading import vocabulary as words
from tools.grading.given import Given, constants_of, imports_of, is_kernel, is_pure
from tools.grading.kernel_lines import Kernel
from tools.grading.lines import Refused, Undefined, bound_at_top, bound_in, is_pythons
from tools.grading.test_lines import Test

TAKEN = words.IN_PROGRAMS_BUILTINS | {"torch", "tl", "triton", "check", "kernels", "math"}


class Answer(NamedTuple):
    """What of an answer cell may run, what is said of the rest, and why Python cannot read it, or nothing."""

    source: str
    notes: list[str]
    unreadable: str = ""


def of_clinic(cell: str, source: str, released: str, given: Given, earlier: Given) -> Answer:
    """Hold a clinic's answer cell to the list.

    cell: its name. source: what was submitted. released: the cell as it was released. given: what all released cells give.
    earlier: what the answers before it define.
    """
    if source == released:
        return Answer(source, [])
    try:
        source, error = reading.python(source)
        if error:
            return Answer("", [], error)
        return _held(cell, source, Given().add(released), given, earlier)
    except (ValueError, RecursionError, MemoryError) as error:  # of Python's own, at a nest that is too deep
        return Answer("", [], f"Python cannot look through the cell: {type(error).__name__}")


def _held(cell, source, asked, given, earlier) -> Answer:
    tree, lines, notes = ast.parse(source), source.split("\n"), []
    fixed = constants_of(tree, given.constants | earlier.constants)
    own = Given()
    for statement in tree.body:
        own.learn(statement)
    kernels, known = given.kernels | earlier.kernels | own.kernels, given.with_answers(earlier)
    names, gone = own.names - own.kernels, {}
    for statement in tree.body:
        try:
            _statement(statement, cell, known, kernels, names, set().union(*fixed.values()), given, asked)
            if is_kernel(statement) and (why := reading.why_not(statement, lines)):
                notes.append(f"cell {cell}, line {statement.lineno}: not run, {why}")
        except Undefined as undefined:
            notes.append(f"cell {cell}: {undefined}")
        except Refused as refused:
            notes.append(f"{refused.args[0]}; not run")
            gone |= dict.fromkeys(Given().learn(statement), refused.args[0])
            first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
            lines[first - 1 : statement.end_lineno] = [""] * (statement.end_lineno - first + 1)
    wanted = [statement for statement in tree.body if Given().learn(statement) & asked]
    used = {node.id for statement in wanted for node in ast.walk(statement) if isinstance(node, ast.Name)}
    why = next((f"not run: {gone[name]}" for name in gone if name in used | asked), "")  # the page of a check says it
    return Answer("\n".join(lines), notes, why)


def _statement(statement, cell, known, kernels, names, constants, given, asked):
    """One statement of an answer cell at its top level."""
    lines = Test(cell, known, kernels, names)
    bound = Given().learn(statement)
    if taken := [name for name in bound if name not in asked and (name in given.names or is_pythons(name) or name in TAKEN)]:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            lines.refuse(statement, f"{taken[0]} may not be defined anew")
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        for name, text in imports_of(statement).items():
            if given.imports.get(name) != text and not is_pure(name, text) and text not in words.IN_TESTS_IMPORTS:
                lines.refuse(statement, f"`{text}`: a test imports math, numpy and torch.nn.functional, and no more")
    elif is_kernel(statement):
        Kernel(cell, known, kernels, constants).function(statement)
    elif isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
        local = bound_in(statement)
        for inner in [*statement.args.defaults, *filter(None, statement.args.kw_defaults), *statement.body]:
            lines.hold(inner, local)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.ClassDef)):
        lines.hold(statement, set())
    elif isinstance(statement, (ast.For, ast.If, ast.Expr, ast.Assert, ast.Pass)):
        lines.hold(statement, bound_at_top(statement, given))
    else:
        what = reading.text_of(statement).splitlines()[0][:60]
        lines.refuse(statement, f"`{what}` is not part of what a test may say")
