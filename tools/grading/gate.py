"""Which submitted lines may run at all: an allow-list over the syntax tree of the answer cells.

Only answer cells come from a student; all others are the released ones. In an answer cell

* a ``@triton.jit`` or ``@gluon.jit`` function speaks Triton's language and nothing else, so that what it stores can only
  come from what it loads, and a trace of it is true;
* a launcher looks at shapes and strides, and launches kernels;
* a program, the compiler of exercise 07, is Python without imports and without Python's own machinery. What it emits is
  text, which passes the first list before it runs;
* a test, of a clinic, is such Python too, with what torch offers to make inputs and to compare, and the trace.

What is on no list is refused, with its line and the reason. Nothing is executed here.
"""

import ast
from dataclasses import dataclass

from tools.grading import reading, trials
from tools.grading import vocabulary as words
from tools.grading.given import Given, constants_of, imports_of, is_constant, is_kernel, is_pure, names_of
from tools.grading.host_lines import Launcher, Program, Test
from tools.grading.kernel_lines import Kernel
from tools.grading.lines import Refusal, Refused, Undefined, bound_at_top, bound_in, is_pythons
from tools.grading.vocabulary import MOST_CHARACTERS


@dataclass(frozen=True)
class Answer:
    """What the gate says of one answer cell: why it may not run, or why Python cannot read it, or nothing."""

    refusals: tuple[Refusal, ...] = ()
    unreadable: str = ""
    source: str | None = None  # what may run, where it is not the whole cell
    note: str = ""


def check(
    cell: str,
    source: str,
    released: str,
    given: Given,
    program: bool = False,
    earlier: Given | None = None,
    clinic: bool = False,
) -> Answer:
    """Hold an answer cell to its list.

    cell: its name. source: what was submitted. released: the cell as it was released, which says what it defines and
    whether it holds functions besides kernels. given: what all released cells give. program: it is part of a compiler.
    earlier: what the answers before it define. clinic: it is a diagnosis or a test.
    """
    try:
        return _check(cell, source, released, given, program, earlier or Given(), clinic)
    except (
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # of Python's own, at a number or a nest that is too large
        return Answer((Refusal(cell, 1, f"Python cannot look through the cell: {type(error).__name__}"),))


def _check(cell, source, released, given, program, earlier, clinic) -> Answer:
    if source == released:
        return Answer()
    if len(source) > MOST_CHARACTERS:
        return Answer((Refusal(cell, 1, f"the cell has {len(source)} characters, {MOST_CHARACTERS} are the most"),))
    if strange := next((letter for letter in source if letter in reading.LINE_ENDS), None):
        why = f"the character {strange!r} ends a line for some readers of Python and not for others"
        return Answer((Refusal(cell, source[: source.index(strange)].count("\n") + 1, why),))
    source, commands = reading.without_commands(source)
    try:
        tree, model = ast.parse(source), ast.parse(released)
    except SyntaxError as error:
        line = (error.text or "").strip()
        if line.startswith(("%", "!", "?")):
            return Answer((Refusal(cell, error.lineno or 1, f"`{line[:60]}` is a command of IPython, not Python"),))
        return Answer(unreadable=f"SyntaxError: {error.msg} in line {error.lineno} of your cell, `{line[:80]}`")
    except (ValueError, RecursionError, MemoryError) as error:
        return Answer((Refusal(cell, 1, f"Python cannot parse the cell: {type(error).__name__}"),))
    own = Given()
    for statement in model.body:
        own.learn(statement)
    written = [s for s in tree.body if isinstance(s, ast.FunctionDef) and not _is_given(s, given, own)]
    mine = {statement.name for statement in written if is_kernel(statement)}
    hosts = {statement.name for statement in written if not is_kernel(statement)}
    assignments = [s for s in tree.body if isinstance(s, (ast.Assign, ast.AnnAssign, ast.AugAssign))]
    assigned = {name for s in assignments for name in _targets(s)}
    fixed = constants_of(tree, given.constants | earlier.constants)
    constants = set().union(*fixed.values())
    pure = {
        name for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))
        for name, text in imports_of(s).items() if is_pure(name, text)
    }  # fmt: skip
    kernels, names = given.kernels | earlier.kernels | mine, hosts | assigned | pure
    known = given.with_answers(earlier)
    found, unreadable, tried = [], "", []
    tries, taken = (
        bool(released) and not program and not clinic,
        given.names | own.names | trials.wanted(tree, own.names),
    )
    every = given.names | own.names | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for statement in tree.body:
        if _is_given(statement, given, own):
            tried.append(statement)
            continue
        trial = tries and statement not in fixed and trials.is_trial(statement, taken)
        trial = trial or bool(released) and trials.is_unneeded(statement, taken if tries else every)
        if trial and not isinstance(statement, ast.FunctionDef):
            tried.append(statement)
            continue
        try:
            _statement(statement, cell, own, given, known, kernels, names, constants, fixed, program, clinic)
            if is_kernel(statement) and (why := reading.why_not(statement, source.split("\n"))):
                found.append(Refusal(cell, statement.lineno, why))
        except Refused as refused:
            if trial:  # a function that may not run, and that nothing needs
                tried.append(statement)
            else:
                found.append(refused.args[0])
        except Undefined as undefined:
            if trial:
                tried.append(statement)
                continue
            unreadable = unreadable or str(undefined)
        except RecursionError:
            found.append(Refusal(cell, statement.lineno, "this statement is nested too deeply"))
    command = "".join(f"cell {cell}, line {line}: `{text[:60]}` is not run" for line, text in commands[:1])
    if commands and not tried:
        return Answer(tuple(found), "" if found else unreadable, source, command)
    if tried and not found:
        without = trials.blanked(source, tried)
        if without is None:
            return Answer(
                (Refusal(cell, tried[0].lineno, "an answer cell defines functions, and runs nothing itself"),)
            )
        first = tried[0]
        if _is_given(first, given, own):
            what = f"{first.name} is the exercise's own, and counts as it was released"
        else:
            what = f"`{reading.text_of(first).splitlines()[0][:60]}` is not run"
        return Answer((), unreadable, without, f"cell {cell}, line {first.lineno}: {what}")
    return Answer(tuple(found), "" if found else unreadable)


def _targets(assignment) -> set[str]:
    """Names that an assignment binds, but for those that its value binds for itself."""
    targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
    stored = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
    return {node.id for node in stored if isinstance(node.ctx, ast.Store)}


def _is_given(statement, given: Given, own: Given) -> bool:
    """Whether it is a function of another cell, word for word, as cells that were merged hold it: the released one counts."""
    function = isinstance(statement, ast.FunctionDef) and statement.name not in own.names
    return function and given.functions.get(statement.name) == ast.dump(statement)


def _statement(statement, cell, own, given, known, kernels, names, constants, fixed, program, clinic):
    """One statement of an answer cell at its top level."""
    lines = (Test if clinic else Program if program else Launcher)(cell, known, kernels, names)
    program = program or clinic
    allowed = own.names | {name for name in names | kernels if name not in given.names}

    def may_bind(name):
        if name not in allowed or name.startswith("__"):
            lines.refuse(statement, f"{name} is given by the exercise, and may not be defined anew")
        given_too = words.IN_PROGRAMS_BUILTINS | {"torch", "tl", "triton", "check", "kernels", "math"}
        if is_pythons(name) or name in given_too:
            lines.refuse(statement, f"{name} may not be defined anew")

    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        for name, text in imports_of(statement).items():
            if given.imports.get(name) == text:
                continue
            if not is_pure(name, text):
                lines.refuse(statement, f"`{text}`: an answer imports nothing but math")
            if name != "math":
                may_bind(name)
    elif is_kernel(statement):
        may_bind(statement.name)
        Kernel(cell, known, kernels, constants).function(statement)
    elif isinstance(statement, ast.FunctionDef):
        if statement.decorator_list:
            lines.refuse(statement, f"@{reading.text_of(statement.decorator_list[0])}: a kernel bears @triton.jit alone")
        # What the release binds to None is a launcher that the learner writes whole, and what it needs besides.
        if not program and not own.hosts | own.constants:
            lines.refuse(statement, f"{statement.name} bears no @triton.jit: this cell takes kernels")
        may_bind(statement.name)
        for default in [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]:
            lines.hold(default, set())
            lives = not is_constant(default, constants | known.constants) and _lives(default, kernels - given.kernels)
            if lives and not program:
                text = reading.text_of(default)[:60]
                lines.refuse(default, f"`{text}`: a launcher's default is a number, a name or a table")
        if not program:
            _without_annotations(statement, lines)
        local = bound_in(statement)
        for inner in statement.body:
            lines.hold(inner, local)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if (bound := names_of(target)) is not None:
                for name in bound:
                    may_bind(name.id)
            elif not program:
                lines.refuse(statement, "an answer cell assigns to names")
        written = reading.text_of(statement.annotation) if isinstance(statement, ast.AnnAssign) else "tl.constexpr"
        if written not in ("tl.constexpr", "gl.constexpr") and not _is_type(statement.annotation):
            lines.refuse(statement, "a constant of kernels is a tl.constexpr")
        if statement.value is None or statement in fixed:
            return
        if program:
            lines.hold(statement, set())
        elif not _joins(statement, own, given, kernels) and not _renames(statement, own, names - constants - kernels):
            lines.refuse(statement, "outside of functions, an answer cell assigns constants alone")
    elif (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) or isinstance(statement, ast.Pass)
    ):
        return
    elif program and isinstance(statement, (ast.For, ast.If, ast.Expr, ast.Assert)):
        lines.hold(statement, bound_at_top(statement, given))
    else:
        what = reading.text_of(statement).splitlines()[0][:60]
        lines.refuse(statement, f"`{what}`: an answer cell defines functions, and runs nothing itself")


def _lives(default, kernels) -> bool:
    """Whether a default could tell a call from the one before it, or keep a kernel whose name went to another."""
    kept = (node for node in ast.walk(default) if isinstance(node, ast.Name) and node.id in kernels)
    made = (node for node in ast.walk(default) if isinstance(node, (ast.Call, ast.GeneratorExp, ast.Lambda)))
    return any(kept) or any(made)


def _without_annotations(function, lines) -> None:
    """Take the types off a launcher and off what is defined in it; what names no plain type is refused."""
    for node in ast.walk(function):
        for place in ("annotation", "returns"):
            if (written := getattr(node, place, None)) is not None:
                if not _is_type(written):
                    lines.refuse(written, f"`{reading.text_of(written)[:60]}` is no plain type: an annotation is evaluated")
                setattr(node, place, ast.Constant(None) if isinstance(node, ast.AnnAssign) else None)


def _is_type(node) -> bool:
    """``int``, ``torch.Tensor``, text, and what brackets and bars make of them."""
    if isinstance(node, ast.Constant):
        return node.value is None or node.value is ... or isinstance(node.value, str)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_type, node.elts))
    if isinstance(node, ast.Subscript):
        return _is_type(node.value) and _is_type(node.slice)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and _is_type(node.left) and _is_type(node.right)
    return isinstance(node, (ast.Name, ast.Attribute)) and reading.text_of(node) in words.ANNOTATIONS


def _joins(statement, own, given, kernels) -> bool:
    """``name = given_function(kernels)``, as the released cell has it."""
    call, target = statement.value, getattr(statement, "targets", [None])[0]
    named = isinstance(target, ast.Name) and target.id in own.names
    plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords
    return (
        named
        and plain
        and call.func.id in given.hosts
        and all(isinstance(a, ast.Name) and a.id in kernels for a in call.args)
    )


def _renames(statement, own, hosts) -> bool:
    """``name = my_name``: a launcher that was written under another name."""
    target, value = getattr(statement, "targets", [None])[0], statement.value
    return (
        isinstance(target, ast.Name) and target.id in own.names - own.kernels
        and isinstance(value, ast.Name) and value.id in hosts
    )  # fmt: skip


def emitted(text: str, given: Given, known: set[str]) -> Answer:
    """Hold emitted text to the list of kernels. known: kernels that it may call."""
    answer = check("emitted text", text, "", Given(known, set(), set(), given.imports, given.fields))
    if answer.refusals or answer.unreadable:
        return answer
    body = ast.parse(text).body
    functions = [statement for statement in body if is_kernel(statement)]
    if len(functions) != len(body):
        return Answer((Refusal("emitted text", 1, "the text holds one @triton.jit function and nothing else"),))
    return answer


def jit_functions_alone(source: str) -> str:
    """``source`` with every line blank that belongs to no function with a decorator."""
    lines, kept = source.splitlines(), set()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
            kept.update(range(statement.decorator_list[0].lineno, statement.end_lineno + 1))
    return "\n".join(line if number in kept else "" for number, line in enumerate(lines, 1))
