"""A learner's exception in two phrases: what went wrong on which line of theirs, and what it usually means."""

import os
import re
import traceback

import torch
import triton
from numpy import unravel_index  # a function, which no cell of the notebook can assign to

from kernels import runtime
from kernels.lab.accesses import Operand, RaceInside

_ADDRESS = "an address is no block: tl.load brings what lies there, and tl.zeros takes a shape and a type"
_EXPLAINED = (
    ("'tuple' object has no attribute 'dtype'", "to a tuple of blocks one adds a tuple, X += (block,), with the comma"),
    ("Expected dtype ['fp32'", "this function takes float32: convert right after the load"),
    ("is not defined", "a name is used that no line above defines"),
    ("cannot access local variable", "a name is used before a line defines it"),
    ("must be a power of 2", "a block's length must be a power of two: round it up and mask the rest"),
    ("incompatible dimensions", "two blocks of different shapes meet: look at each [:, None] and [None, :]"),
    ("must match", "two blocks of different shapes meet: look at each [:, None] and [None, :]"),
    ("addresses of shape", "two blocks of different shapes meet: look at each [:, None] and [None, :]"),
    ("'tuple' object has no attribute", "a tuple of strides is not a number: take one of them, stride_x[0]"),
    ("tuple index out of range", "the tuple is shorter: a tensor has one stride for each of its axes, a window what it got"),
    ("to unpack", "the function on the right returns another number of values than the line takes"),
    ("must be of type tl.constexpr", "a block's length is known when the kernel is compiled: a tl.constexpr"),
    ("'torch.dtype' object has no attribute 'is_ptr'", "a kernel is launched as kernel[grid](...), not called"),
    ("get_pointer<", _ADDRESS),
    ("cannot cast", _ADDRESS),  # Triton 3.7 makes a block of addresses, and finds out where it is stored
    ("must be Tensor, not tensor", "torch's functions take no blocks: in a kernel it is tl.exp, tl.sum, tl.where, ..."),
    ("type(s) for @", "the product of two blocks is tl.dot(a, b, acc)"),
    (
        "must have equal reduction dimensions",
        "tl.dot(a, b) sums over the columns of a and the rows of b: one of the two lies the other way, see tl.trans, or its "
        "offsets lack their [:, None] or [None, :]",
    ),
    ("for divmod()", "Python's divmod takes no blocks: the quotient is //, the remainder %"),
    ("module 'triton.language' has no attribute", "Triton has no function of this name: arithmetic is +, *, //, %"),
    ("out of bounds for dimension", "an index lies beyond the end of its axis: which of the places exist?"),
    ("outside of the scope of a kernel", "a kernel is launched as kernel[grid](...), not called"),
    ("Did you forget to add @triton.jit", "tl functions work inside a function decorated with @triton.jit only"),
    (
        "does not fill the tile",
        "a result has the shape of what it depends on: add it to tl.zeros(score.shape, tl.float32)",
    ),
    (
        "'int' object is not iterable",
        "a pointer is not indexed but added to, tl.load(x_ptr + ...); a block has no elements to pick: load the ones that "
        "you want; and Python's own sum, max and min take no block, but tl.sum, tl.max and tl.min do",
    ),
    ("unsupported tensor index", "a block has no part to pick: load the elements that you want, tl.load(x_ptr + ...)"),
    (
        "'tuple' object does not support",
        "a tuple's blocks are not replaced: make a new tuple, block by block, new += (x,)",
    ),
    ("does not support item assignment", "a kernel stores with tl.store(out_ptr + ..., value)"),
    ("Unsupported ptr type", "tl.load and tl.store take addresses, x_ptr + ..., and this is a block of values"),
    (
        "out of bounds for shape",
        "the second argument of tl.max, tl.min and tl.sum is an axis: tl.maximum and tl.minimum compare two blocks",
    ),
    ("KeyError", "a dictionary lacks this entry (of a compiler's table: each operation needs its own)"),
    ("is no Python", "the text must be a function that Python can read: print it"),
    ("defines no function", "the text must define the function that the exercise names"),
    (
        "'function' object is not subscriptable",
        "a kernel that is launched as kernel[grid](...) is decorated with @triton.jit",
    ),
)

_SHAPES = re.compile(r"Expected pointer argument to have shape (.*) but got (.*)")

_DISAGREE = re.compile(
    r"(?:(\w+)\(\) )?(?:missing \d+ required|takes (?:\d+|from \d+ to \d+) positional|got multiple values for|"
    r"got an unexpected keyword|missing a required argument|too many positional arguments)"
)

_EXPLAINED_IN_PYTHON = {  # where no kernel is at work
    "computes outside a kernel": "what is stored must come from a kernel: hand it the tensor, and let it do this",
    "must match": "two tensors of different shapes meet: look at each [:, None], and at slices whose bound may fall below 0",
    "'int' object is not iterable": "a number stands where a tuple or a list is needed",
    "NoneType": "something is None here: does a function lack its `return`?",
}


RACE = "nothing orders the lanes of a program: put tl.debug_barrier() between the two, or keep the value in registers"
COLLIDE = "two lanes store here, so an address or a mask is wrong"
SLOW = "a kernel that is right ends within a second: see whether a loop ever ends, and whether it advances by a block"


def explain_race(race: RaceInside, operand: Operand, name: str = "") -> tuple[str, str, str]:
    """For which element two lanes of a program race, the lines, and the cause; ``name``: if not the operand's."""
    index = ", ".join(str(i) for i in unravel_index(race.element, operand.shape))
    first, then = ({"load": "loaded", "store": "stored", "atomic": "updated"}[kind] for kind in race.kinds)
    element = (name or operand.name.removesuffix("_ptr")) + f"[{index}]" * bool(index)
    where = f"{element} is {first} by one lane of a program and then {then} by another"
    both = dict.fromkeys(f"line {line} `{source}`" for line, source in zip(race.lines, race.sources, strict=True))
    return where, " and ".join(both), COLLIDE if race.kinds == ("store", "store") else RACE


def explain_slow(error: BaseException, launches: list, seconds: float, given: tuple[str, ...] = ()) -> tuple[str, str]:
    """The same for a call that was ended because it took too long: where it was, and how far it had come."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if is_theirs(frame.filename)]
    theirs = [frame for frame in theirs if frame.name not in given] or theirs
    line = f" in line {theirs[-1].lineno} of your cell, `{theirs[-1].line}`" if theirs else ""
    done = ""
    if launches and launches[-1].accesses:
        last = launches[-1]
        programs = len({access.program for access in last.accesses})
        done = f"; {last.kernel} had executed {last.executed.total():,} loads and stores, in program {programs}"
    return f"still running after {seconds:g} s{line}{done}", SLOW


def explain(error: BaseException, given: tuple[str, ...] = ()) -> tuple[str, str]:
    """A learner's exception in two phrases: what and on which line of theirs, and what it usually means.

    given: functions that the exercise gives. What goes wrong in one of them is its caller's doing.
    """
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    text = re.sub(r"\[[^\[\]]{80,}\]", "[…]", _text(root).strip()) or type(root).__name__  # no printed blocks
    text = _SHAPES.sub(_met, text)
    said = f"{type(root).__name__}: {text.splitlines()[-1].strip()}"
    chain, seen = error, None
    while chain is not None:
        theirs = [frame for frame in traceback.extract_tb(chain.__traceback__) if is_theirs(frame.filename)]
        own = [frame for frame in theirs if frame.name not in given]
        seen = own[-1] if own else seen or (theirs[-1] if theirs else None)
        chain = chain.__cause__
    place = "text" if seen and seen.filename.startswith("<generated") else "cell"
    line = f" in line {seen.lineno} of your {place}, `{seen.line}`" if seen else ""
    named = f"{type(root).__name__}: {text}"
    if called := _DISAGREE.search(text):
        return f"{said}{line}", _disagreement(called[1] or "the function", seen.line if seen else "")
    explained = _EXPLAINED if _in_triton(error) else {**dict(_EXPLAINED), **_EXPLAINED_IN_PYTHON}.items()
    otherwise = f"{'Triton' if _in_triton(error) else 'Python'} cannot run this line"
    means = next((means for part, means in explained if part in named), otherwise)
    return f"{said}{line}", means


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a class's own mistake, or an integer of more digits than Python writes
        return "its text cannot be read"


def _met(found) -> str:
    """Triton's words on addresses and values that do not fit, without its types: both shapes, and what they make together."""
    both, addresses = (", ".join(re.findall(r"\d+", shape)) for shape in found.groups())
    return f"addresses of shape [{addresses}] meet values that make them [{both}]"


def _disagreement(called: str, line: str) -> str:
    """Whose arguments they are: a launcher's, which come in a long row, or those of a call inside the kernel."""
    if "](" in line:  # kernel[grid](...)
        return "the launcher and the kernel's signature do not agree: hold one beside the other, from the first argument on"
    return f"the call and the signature of {called} do not agree"


def _in_triton(error: BaseException | None) -> bool:
    """Whether Triton was at work when the error, or what caused it, was raised."""
    folder = os.path.dirname(os.path.abspath(triton.__file__)) + os.sep
    while error is not None:
        if any(frame.filename.startswith(folder) for frame in traceback.extract_tb(error.__traceback__)):
            return True
        error = error.__cause__
    return False


_LIBRARIES = (runtime.__file__, triton.__file__, torch.__file__, os.__file__)
CHECKS_OWN = "<generated by a check"  # the file names of kernels that a check writes itself
_OURS = tuple(os.path.dirname(os.path.abspath(place)) + os.sep for place in _LIBRARIES)


def is_theirs(filename: str) -> bool:
    """Whether a file or cell is the learner's: no library, nothing of ours."""
    installed = f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename
    generated = filename == "<string>"  # the methods that dataclasses and named tuples write themselves
    return not installed and not generated and not filename.startswith((*_OURS, "<frozen", CHECKS_OWN))
