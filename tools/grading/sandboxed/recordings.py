"""A recording as data: what the process says that recorded a submission's launches, and what the one is given that replays.

A launch is a module's text, with its kernel and what no tensor is, as ``_child.export`` writes it; its tensors, each as a
view of a storage; and what the launcher wrote itself, as arrays. What a text may say is the judge's business
(``texts.hold``); a number that is out of place ends the process that replays.
"""

import ast
import collections
import json
import linecache

import numpy
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.check import replay
from kernels.lab import _child
from kernels.lab._triton_private import python_function

MOST_LAUNCHES = 1000
MOST_MADE = 1 << 28  # bytes of the tensors that a launcher makes
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: How the members of a submission's own named tuples begin in a text: as nothing does that any other value has.
MEMBER = "member_"


def pack(recording: replay.Recording, sources, known=frozenset()) -> tuple[dict, list[numpy.ndarray]]:
    """A recording's description and its arrays. ``sources(kernel)``: the texts of the functions that are the submission's.

    known: what a kernel may ask of any value, and the members of the release's named tuples, which keep their names.

    Raises ``ValueError`` where a kernel uses what is none of Triton's, or is launched with what no message can hold.
    """
    launches, arrays, texts = [], [], {}
    for launch in recording.launches:
        filename, line = launch.line
        try:
            launches.append(_described(launch, known, arrays))
            json.dumps(launches[-1])  # a number may have more digits than are written, an option may be none
        except (TypeError, ValueError) as error:
            launched = f", in line {line}, `{linecache.getline(filename, line).strip()}`"
            raise ValueError(f"{error}{launched if ' in line ' not in str(error) else ''}") from None
        texts.update((source, None) for source in sources(launch.kernel))
    described = {"launches": launches, "made": recording.made, "sources": list(texts)}
    return described | {"after": _packed(recording.after, arrays)}, arrays


def _described(launch: replay.Launch, known, arrays: list) -> dict:
    """A launch's description; its arrays are added to ``arrays``."""
    held = {name: value for name, value in launch.arguments.items() if replay.views(value)}
    values = {name: value for name, value in launch.arguments.items() if name not in held}
    text, lines = _child.export(launch.kernel, values)
    text, own = _with_own_members(text, _members(tuple(held.values())), known)
    return {
        "name": python_function(launch.kernel).__name__,
        "text": text,
        "lines": lines,
        "order": list(launch.arguments),
        "tensors": {name: as_data(value, own) for name, value in held.items()},
        "whole": {name: value for name, value in values.items() if type(value) is int},
        "grid": list(launch.grid),
        "options": launch.options,
        "line": [launch.line[1], linecache.getline(*launch.line)],
        "fills": _packed(launch.fills, arrays),
    }


def _packed(fills: dict[int, replay.Fill], arrays: list) -> list:
    """What a launcher wrote, as a description; its arrays are added to ``arrays``."""
    described = []
    for storage, fill in fills.items():
        described.append([storage, _NAMES[fill.dtype], [[c.source, _NAMES[c.dtype]] for c in fill.copies]])
        arrays += [fill.to.numpy(), fill.constants.long().numpy()]
        arrays += [each.numpy() for copies in fill.copies for each in (copies.to, copies.places)]
    return described


def _members(value) -> set[str]:
    """The names of the members of all named tuples in a value."""
    if not isinstance(value, tuple) or isinstance(value, (replay.View, replay.Described)):
        return set()
    return set(getattr(value, "_fields", ())).union(*map(_members, value))


def _with_own_members(text: str, members: set[str], known) -> tuple[str, set[str]]:
    """The text with ``MEMBER`` before these names, and those of the tuples that it makes itself, and which they are."""
    nodes = list(ast.walk(ast.parse(text)))
    made = [node.args[1].elts for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == _MAKER]
    own = members.union(name.value for names in made for name in names) - known
    edits = {name: repr(MEMBER + name.value) for names in made for name in names if name.value in own}
    modules = {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes if own else ():
        if isinstance(node, ast.Attribute) and node.attr in own and ast.unparse(node.value).partition(".")[0] not in modules:
            end = {"lineno": node.end_lineno, "end_lineno": node.end_lineno, "end_col_offset": node.end_col_offset}
            name = ast.Name(node.attr, col_offset=node.end_col_offset - len(node.attr.encode()), **end)
            if ast.get_source_segment(text, name) == node.attr:
                edits[name] = MEMBER + node.attr
    return "\n".join(_child.edited(text, edits)), own


_MAKER = "collections.namedtuple"


def as_data(value, own=frozenset()):
    """A value with views of tensors in it, as JSON; ``own``: members that are called ``MEMBER`` and their name."""
    if isinstance(value, replay.View):
        return {"view": [value.storage, _NAMES[value.dtype], value.offset, value.shape, value.strides]}
    if isinstance(value, replay.Described):
        return {"descriptor": as_data(value.base), "fields": value.fields}
    if isinstance(value, tuple):
        fields = [MEMBER + name if name in own else name for name in getattr(value, "_fields", ())]
        return {"tuple": [as_data(each, own) for each in value], "fields": fields}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise ValueError(f"a {type(value).__name__} beside a tensor in one argument cannot be carried into another process")


def unpack(described: dict, arrays: list[numpy.ndarray]) -> replay.Recording:
    """The recording again."""
    made, arrays = described["made"], iter(arrays)
    if len(described["launches"]) > MOST_LAUNCHES or sum(made) > MOST_MADE:
        raise ValueError(f"a call makes at most {MOST_LAUNCHES} launches, and tensors of {MOST_MADE >> 20} MB")
    launches = []
    for number, item in enumerate(described["launches"]):
        kernel, values = defined(item["text"], item["lines"])
        arguments = {name: values.get(name) for name in item["order"]}
        arguments |= {name: from_data(value) for name, value in item["tensors"].items()}
        line, text = item["line"]
        linecache.cache[f"<launch {number}>"] = (0, None, ["\n"] * (line - 1) + [str(text)], f"<launch {number}>")
        launch = replay.Launch(kernel, tuple(item["grid"]), arguments, item["options"], (f"<launch {number}>", line))
        launch.fills.update(_unpacked(item["fills"], arrays))
        launches.append(launch)
    return replay.Recording(launches, made, _unpacked(described["after"], arrays))


def _unpacked(described: list, arrays) -> dict[int, replay.Fill]:
    """The next of ``arrays`` as what a launcher wrote."""
    found = {}
    for storage, name, copies in described:
        dtype = DTYPES[name]
        to, constants = _next(arrays), _next(arrays).to(replay.BITS[dtype.itemsize])
        made = [replay.Copies(_next(arrays), source, DTYPES[of], _next(arrays)) for source, of in copies]
        found[storage] = replay.Fill(dtype, to, constants, made)
    return found


def _next(arrays) -> torch.Tensor:
    return torch.from_numpy(next(arrays).copy())


def from_data(value):
    """The value again."""
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        members = [from_data(member) for member in value["tuple"]]
        fields = value["fields"]
        return collections.namedtuple("Tuple", fields)(*members) if fields else tuple(members)
    if "descriptor" in value:
        return replay.Described(TensorDescriptor, from_data(value["descriptor"]), value["fields"])
    storage, dtype, offset, shape, strides = value["view"]
    return replay.View(storage, DTYPES[dtype], offset, tuple(shape), tuple(strides))


_KNOWN: dict[str, dict] = {}


def defined(text: str, lines: list) -> tuple:
    """``(KERNEL, VALUES)`` of a text, whose functions say the lines that they have in their cell.

    The values are the last line, and all that differs between most calls: functions are defined, and rewritten by Triton's
    interpreter, once.
    """
    text, _, values = text.rpartition("\nVALUES = ")
    if text not in _KNOWN:
        namespace, origins = {}, dict(map(tuple, lines))
        rows = text.split("\n")
        for statement in ast.parse(text).body:
            filename = f"<launched {len(_KNOWN)} {statement.lineno}>"
            begins = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
            shift = origins.get(statement.lineno, statement.lineno) - statement.lineno
            own = ["\n"] * (begins - 1 + shift) + [row + "\n" for row in rows[begins - 1 : statement.end_lineno]]
            linecache.cache[filename] = (sum(map(len, own)), None, own, filename)
            ast.increment_lineno(statement, shift)
            exec(compile(ast.Module([statement], []), filename, "exec"), namespace)
        _KNOWN[text] = namespace
    return _KNOWN[text]["KERNEL"], eval(values, _KNOWN[text])
