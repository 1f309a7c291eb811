"""What a kernel's text shows: conditions that Python reads otherwise than meant, strides and indices that changed places."""

import ast
import contextlib
import functools
import re
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
            if isinstance(node, ast.Compare) and (sign := _swallowed(text, node)):
                low, high = sign, _COMPARED.get(type(node.ops[0]), "<")
                yield (
                    _shown(text, node),
                    f"`{low}` binds tighter than `{high}`, so this is no `{low}` of two comparisons: put each of them in "
                    f"parentheses, (a {high} b) {low} (...)",
                )
            elif isinstance(node, ast.BoolOp) and any(_is_block(value, blocks) for value in node.values):
                word, sign = ("and", "&") if isinstance(node.op, ast.And) else ("or", "|")
                yield (
                    _shown(text, node),
                    f"`{word}` asks whether a whole block is true; lane by lane it is `{sign}`, with each comparison in "
                    "parentheses",
                )
            elif isinstance(node, ast.If | ast.While | ast.IfExp) and _is_block(node.test, blocks):
                word = "while" if isinstance(node, ast.While) else "if"
                yield (
                    _shown(text, node.test),
                    f"`{word}` asks one question, and this is a block of answers: tl.where(..., a, b) answers lane by lane",
                )
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and _is_block(node.operand, blocks):
                yield (
                    _shown(text, node),
                    "`not` asks whether a whole block is false; lane by lane it is `~`, before a parenthesis",
                )


def _shown(text: str, node: ast.expr) -> str:
    """The node's text in one line. It splits the whole text: for what is shown alone, not for every node."""
    return " ".join((ast.get_source_segment(text, node) or "").split())


_STRIDE = re.compile(r"stride_(\w+)\w")  # stride_xm: x's, along m


def foreign_strides(texts: list[str]) -> Iterator[tuple[str, str]]:
    """(the product, what is wrong with it) for each stride of one tensor that stands in an address of another.

    Names tell whose a stride is: most addresses take all of theirs from the same tensor.
    """
    for text in texts:
        text = textwrap.dedent(text)
        addresses = [found for found in map(_address, _outermost_sums(ast.parse(text).body[0])) if found]
        whose = {next(iter(owners)): pointer for pointer, terms in addresses if len(owners := {*terms.values()}) == 1}
        for pointer, terms in addresses:
            owners = list(terms.values())
            for product, owner in terms.items():
                other = whose.get(owner, pointer)
                if len({*owners}) > 1 and other != pointer:
                    name = _STRIDE.search(ast.unparse(product))[0]
                    yield (
                        _shown(text, product),
                        f"{name} is a stride of {other.removesuffix('_ptr')}, and this is an address of "
                        f"{pointer.removesuffix('_ptr')}: each tensor is addressed by its own strides",
                    )


def exchanged_strides(
    texts: list[str], launches: list[tuple[str, dict[str, int]]], tensors: list
) -> Iterator[tuple[str, str]]:
    """(the stride's name, what is wrong) for each stride that a launch passes in another one's place.

    launches: a kernel's name and the whole numbers it was given, by parameter. tensors: those of the call, with ``name``,
    ``axes`` and ``view``. A stride's name says along which axis it is meant, ``stride_xt`` along T, and the address in which
    it stands, of which tensor; unless they are another tensor's, by name and number: then it is the address that is mistaken.
    """
    known = {tensor.name: dict(zip(tensor.axes, tensor.view.stride(), strict=True)) for tensor in tensors}
    for text in texts:
        function = ast.parse(textwrap.dedent(text)).body[0]
        addresses = [found for found in map(_address, _outermost_sums(function)) if found]
        for given in [numbers for kernel, numbers in launches if kernel == function.name]:
            for pointer, terms in addresses:
                own = known.get(name := pointer.removesuffix("_ptr"), {})
                owner = next(iter(terms.values()), "")
                if len({*terms.values()}) > 1 or (owner not in name and _anybodys(owner, given, known)):
                    continue
                for product in terms:
                    stride = _STRIDE.search(ast.unparse(product))[0]
                    axis, got = stride[-1].upper(), given.get(stride)
                    wanted = own.get(axis, got)
                    if got != wanted and (whose := _whose(got, {name: own} | known)):
                        yield (
                            stride,
                            f"the launch gives it {got}, {whose}, and {name}'s stride along {axis} is {wanted}: the strides "
                            f"come in another order there than in {function.name}'s signature",
                        )


def _anybodys(owner: str, given: dict[str, int], known: dict[str, dict[str, int]]) -> bool:
    """Whether the numbers under an owner's strides are those of some tensor, axis by axis."""
    named = {name: _STRIDE.fullmatch(name) for name in given}
    numbers = {name[-1].upper(): given[name] for name, found in named.items() if found and found[1] == owner}
    return any(numbers.items() <= own.items() for own in known.values())


def _whose(number: int, strides: dict[str, dict[str, int]]) -> str:
    found = (f"{name}'s stride along {axis}" for name, own in strides.items() for axis, n in own.items() if n == number)
    return next(found, "")


def exchanged_indices(texts: list[str], tensors: list) -> Iterator[tuple[str, str]]:
    """(the call, what is wrong) for each ``at(stride_x, n, h, w, c)`` whose indices stand in another order than x's axes."""
    known = {f"stride_{tensor.name}": tensor.axes for tensor in tensors}
    for text in texts:
        text = textwrap.dedent(text)
        for call in ast.walk(ast.parse(text)):
            if not (isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Name)):
                continue
            axes = known.get(call.args[0].id, "")
            if len(call.args) != len(axes) + 1:
                continue
            letters = [_letter(index) for index in call.args[1:]]
            named = [one for one in letters if one]
            wrong = [(at, one) for at, one in enumerate(letters) if one and one in axes and one != axes[at]]
            if wrong and len(set(named)) == len(named):
                at, letter = wrong[0]
                shown = " ".join((ast.get_source_segment(text, call) or "").split())
                name = call.args[0].id.removeprefix("stride_")
                yield (
                    shown,
                    f"{name} is [{', '.join(axes)}], and indices come in this order: the one of {letter} stands where "
                    f"{axes[at]}'s belongs",
                )


def exchanged_axes(texts: list[str], tensors: list) -> Iterator[tuple[str, str]]:
    """(the product, what is wrong) for each address whose indices and strides are those of the same axes, otherwise paired:
    ``offs_m * stride_xn + offs_n * stride_xm``."""
    known = {f"{tensor.name}_ptr": tensor.axes for tensor in tensors}
    for text in texts:
        text = textwrap.dedent(text)
        for pointer, terms in filter(None, map(_address, _outermost_sums(ast.parse(text).body[0]))):
            pairs = {product: _paired(product) for product in terms}
            indices, strides = zip(*pairs.values(), strict=True) if pairs else ((), ())
            if (
                sorted(indices) == sorted(strides)
                and len(set(strides)) == len(strides)
                and set(strides) <= {*known.get(pointer, "")}
            ):
                for product in (product for product, (index, stride) in pairs.items() if index != stride):
                    index, stride = pairs[product]
                    yield (
                        _shown(text, product),
                        f"the index counts along {index}, and this is {pointer.removesuffix('_ptr')}'s stride along "
                        f"{stride}: each index goes with the stride of its own axis",
                    )


def _paired(product: ast.BinOp) -> tuple[str, str]:
    """The axes that the two factors of ``offs_m * stride_xn`` are named for; empty where a name says none."""
    stride = next(
        side for side in (product.right, product.left) if isinstance(side, ast.Name) and _STRIDE.fullmatch(side.id)
    )
    return _letter(product.left if stride is product.right else product.right), stride.id[-1].upper()


def _letter(index: ast.expr) -> str:
    """The axis that an index's name says: n, offs_n; empty where it says none."""
    names = [
        node.id.removeprefix("offs_") for node in ast.walk(index) if isinstance(node, ast.Name) and node.id != "tl"
    ]
    return names[0].upper() if len(names) == 1 and len(names[0]) == 1 else ""


def odd_lanes(texts: list[str]) -> Iterator[tuple[str, str]]:
    """(``other=``, what is odd about it) for each load whose masked lanes hold a number that no sum forgives."""
    for text in texts:
        for node in ast.walk(ast.parse(textwrap.dedent(text))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load":
                for keyword in node.keywords:
                    if keyword.arg == "other" and isinstance(keyword.value, ast.Constant) and keyword.value.value:
                        shown = ast.unparse(keyword.value)
                        yield f"other={shown}", f"masked lanes hold {shown}, and what is added up there must be 0"


def _outermost_sums(tree: ast.AST) -> Iterator[ast.BinOp]:
    """The sums that are no part of a larger one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield node
        else:
            yield from _outermost_sums(node)


def _address(total: ast.BinOp) -> tuple[str, dict[ast.AST, str]] | None:
    """The pointer in a sum, and its products with a stride, each with the tensor in that stride's name."""
    pointers = [node.id for node in ast.walk(total) if isinstance(node, ast.Name) and node.id.endswith("_ptr")]
    if len(pointers) != 1:
        return None
    products = [node for node in ast.walk(total) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    factors = [(p, side.id) for p in products for side in (p.left, p.right) if isinstance(side, ast.Name)]
    return pointers[0], {product: found[1] for product, name in factors if (found := _STRIDE.fullmatch(name))}


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
    """Names that hold a block: made by tl.arange or by a load, or from another block, or given an axis."""
    names: set[str] = set()
    names |= {
        node.value.id
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and _adds_an_axis(node) and isinstance(node.value, ast.Name)
    }
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
    if isinstance(node, ast.Subscript) and _adds_an_axis(node):
        return True
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return _is_block(node.value, names)
    return any(_is_block(child, names) for child in ast.iter_child_nodes(node))


def _adds_an_axis(node: ast.Subscript) -> bool:
    """``offs[:, None]``, which a number does not have."""
    return any(isinstance(part, ast.Constant) and part.value is None for part in ast.walk(node.slice))


@functools.cache
def is_pythonic(text: str) -> bool:
    """Whether a text of kernels holds what is Python's alone, or nearly: its compiler takes a few of these."""
    for node in _nodes(text):
        name = getattr(node, "id", getattr(node, "attr", ""))
        if name in _PYTHONS or isinstance(node, ast.ListComp | ast.GeneratorExp | ast.Lambda | ast.Raise):
            return True
    return False


_PYTHONS = ("append", "zip", "enumerate", "reversed")


def _nodes(text: str):
    """The nodes of a text's syntax tree; none where Python cannot read it by itself."""
    with contextlib.suppress(SyntaxError):
        yield from ast.walk(ast.parse(textwrap.dedent(text)))


def otherwise_compiled(text: str) -> str:
    """A comparison in a text of kernels that is another one when it is compiled, if there is one.

    ``is`` asks for an object, and a number is another one there; so is the text of a number.
    """
    for node in _nodes(text):
        if isinstance(node, ast.Compare):
            none = all(isinstance(side, ast.Constant) and side.value is None for side in node.comparators)
            if any(isinstance(one, ast.Is | ast.IsNot) for one in node.ops) and not none:
                return ast.unparse(node)[:60]
            if any(isinstance(one, ast.JoinedStr) for one in ast.walk(node)):
                return ast.unparse(node)[:60]
    return ""
