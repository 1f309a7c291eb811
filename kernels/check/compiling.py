"""The verdict "compiles": what a GPU's compiler says to a learner's kernels, without a GPU, in the learner's words.

A kernel that the interpreter runs may be one that no GPU gets: Python's lists and loops, an accumulator that changes its
type, float32 operands that are rounded to TF32 unawares. Each kernel is compiled once for each text.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kernels import runtime
from kernels.check.cases import Case, Failed
from kernels.check.experiments import Finding, amount_wrong, where_wrong
from kernels.check.submission import Submission
from kernels.check.tensors import Draw
from kernels.check.wording import otherwise_compiled
from kernels.lab.compile_report import CompileError, CompileReport, Prepared, compile_prepared

ARCHES = (80, 90)  # Ampere and Hopper


@dataclass(frozen=True)
class Compiles:
    """What the compiler must make of a function's kernels.

    ``calls(draw)`` gives calls of the size that the lesson has in mind; what compiles is run, too. ``products`` maps an
    architecture to the matrix instruction that stands in at least one of the kernels of a call with 16-bit inputs; ``exact``
    forbids TF32. ``own_blocks(draw)``, where the default blocks are the learner's: a call whose answers no block changes. It
    is made without blocks, so these must fit into registers, and what they compute is looked at like the rest. ``lesson``
    says what to read again.
    """

    calls: Callable[[Draw], Iterable[Case]]
    lesson: str
    products: dict[int, str] = field(default_factory=dict)
    exact: bool = True
    arches: tuple[int, ...] = ARCHES
    points: int = 2
    own_blocks: Callable[[Draw], Case] | None = None

    def cases(self, draw: Draw) -> Iterable[Case]:
        """The calls, and one without blocks where these are the learner's own."""
        yield from self.calls(draw)
        if self.own_blocks:
            case = self.own_blocks(draw)
            yield case.relaunched({name: value for name, value in case.launch.items() if name not in _blocks(case)})


class _Refused(NamedTuple):
    """The compiler's own line and reason."""

    line: str
    reason: str


def judge_compiled(spec: Compiles, submission: Submission, case: Case) -> Finding | None:
    """Compile what one call launches, and look at what came out."""
    found = submission.kernels(case)
    own = spec.own_blocks is not None and not _blocks(case)
    amount = f"with {case.sizes}" + " and your own blocks" * own
    arches = spec.arches[-1:] if own else spec.arches  # a thread has as many registers on one as on the other
    if found.error:
        return Finding("the launch cannot be compiled", f"{found.error[0]} ({amount})", found.error[1])
    if not found.prepared:
        return Finding("no Triton kernel is launched", amount, "something else fills the output")
    reports = []
    for prepared in found.prepared:
        if own and (beyond := _beyond_registers(prepared)):
            return Finding(beyond, amount, "choose smaller blocks, or more num_warps, and let the compiler confirm it")
        made = compiled(prepared, arches)
        if isinstance(made, str):
            return refusal(prepared.kernel, made, amount)
        reports.append((prepared, made))
    half = any(tensor.flat.element_size() == 2 for tensor in case.inputs) and not own  # no lesson promises for these
    looks = (_look(spec, amount, reports, arch, half) for arch in arches)
    try:
        finding = next(filter(None, looks), None)
    except CompileError as error:  # the disassembler had too much to read
        return refusal(reports[0][0].kernel, str(error), amount)
    products = any(spec.products.get(arch) for arch in arches) and half
    return finding or _answers(submission, case, amount, own, products)


def otherwise_interpreted(spec: Compiles, submission: Submission) -> Finding | None:
    """What the interpreter may run of a kernel that the compiler never sees, in whichever call launches it.

    A condition may come out otherwise when it is compiled; and what is Python's alone may stand in an arm that the calls
    above leave out: then all that launch it are compiled.
    """
    for text in submission.written:
        if found := otherwise_compiled(text):
            return Finding(f"`{found}` comes out otherwise when it is compiled", "in a kernel", "== compares numbers")
    for case in submission.pythonic:
        for prepared in submission.kernels(case).prepared:
            if isinstance(made := compiled(prepared, spec.arches[-1:]), str):
                shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in case.tensors)
                return refusal(prepared.kernel, made, f"in a call with {shapes}")
    return None


def _answers(submission: Submission, case: Case, amount: str, own: bool, products: bool) -> Finding | None:
    """Perform the call, too: it may launch another kernel than calls of other sizes do, one that only compiles. Where its
    products were asked for, they must enter the answer: with each of them doubled it is another one."""
    try:
        run = case.traced(submission).run if runtime.interpreted else case.run(submission)
    except Failed as failed:
        return Finding(f"the call that was compiled ends in an error, {failed.args[0]}", amount, failed.args[1])
    for out in case.outs:
        bad = None if out.expected is None else out.wrong(run.seen[out.name].got)
        if bad is not None and bad.any():
            words = amount_wrong(case, out, run.seen[out.name], bad)
            where = where_wrong(out, bad) + " with your own blocks" * own
            return Finding(where, words, "only a right answer is worth compiling: mend it first")
    if products and runtime.interpreted:
        doubled, judged = case.run(submission, products=2.0), (out for out in case.outs if out.expected is not None)
        if not any(out.wrong(doubled.seen[out.name].got).mean() > 0.5 for out in judged):
            where = "no product of tl.dot makes the answer"
            return Finding(where, amount, "with each product doubled it is the same: what is stored is to come from them")
    return None


_MOST_REGISTERS = 255  # of a thread


def _beyond_registers(prepared: Prepared) -> str:
    """What is wrong with blocks that no compiler need be asked about: it takes minutes over these."""
    largest = sorted((n, name) for name, n in prepared.sizes.items() if str(name).startswith("BLOCK"))[-2:]
    warps = prepared.options["num_warps"]
    if not isinstance(warps, int) or warps < 1:  # the compiler says why
        return ""
    threads = 32 * warps
    each = math.prod(n for n, _ in largest) // threads
    if each <= 2 * _MOST_REGISTERS:
        return ""
    tile = " × ".join(f"{name} = {n}" for n, name in largest)
    return (
        f"a tile of {tile} in {prepared.kernel} is {each:,} numbers for each of {threads} threads, and a thread has "
        f"{_MOST_REGISTERS} registers"
    )


def _blocks(case: Case) -> list[str]:
    return [name for name in case.launch if name.startswith("BLOCK")]


def refusal(kernel: str, message: str, amount: str) -> Finding:
    """The compiler's complaint, with its line, its reason, and what that usually means."""
    refused = _refused(message)
    at = f" at `{refused.line}`" if refused.line else ""
    where = f"no GPU can run {kernel}, the compiler says: {refused.reason}{at}"
    return Finding(where, amount, in_words(refused.reason))


_KEPT: dict[tuple, dict[int, CompileReport] | str] = {}
_MOST_KEPT = 64  # a judge compiles thousands, each as long as a book


def compiled(prepared: Prepared, arches: tuple[int, ...]) -> dict[int, CompileReport] | str:
    """The reports by architecture, as ``compile_prepared`` gives them, or the compiler's complaint; made once for a text."""
    key = prepared.key, arches
    if key not in _KEPT:
        try:
            _KEPT[key] = compile_prepared(prepared, arches)
        except CompileError as error:
            _KEPT[key] = str(error)
        if len(_KEPT) > _MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
    return _KEPT[key]


#: The lines of PTX from which these instructions come, and come from no other.
_IN_PTX = {
    name: rf"^\s*(@\S+\s+)?{ptx}\.\S+\.(f16|bf16|tf32)\b"
    for name, ptx in (("HMMA", r"mma\.sync"), ("HGMMA", r"wgmma\.mma_async"))
}


def _multiplies(report: CompileReport, instruction: str) -> bool:
    """Whether a matrix instruction stands in the code: read from its PTX, as to disassemble takes as long as to compile."""
    return re.search(_IN_PTX[instruction], report.ptx, re.MULTILINE) is not None


def _rounds(report: CompileReport) -> bool:
    """Whether a product's float32 operands are rounded to TF32; as three products of their halves, "tf32x3", they are not.

    Whether one is meant to be of TF32 stands in PTX already: a report's code is disassembled when it is read.
    """
    if "tf32" not in report.ptx or not re.search(r"MMA\S*\.TF32", report.sass):
        return False
    dots = precisions(report)
    return not dots or "tf32" in dots


def precisions(report: CompileReport) -> list[str]:
    """How each ``tl.dot`` of float32 rounds its operands, by what the compiler reads: "tf32", "tf32x3" or "ieee"."""
    return re.findall(r"inputPrecision = (\w+) : tensor<\w+xf32", report.asm.get("ttir", ""))


def _look(spec: Compiles, amount: str, reports: list, arch: int, half: bool) -> Finding | None:
    """Spills, TF32 and missing matrix instructions on one architecture."""
    for prepared, made in reports:
        name, report = prepared.kernel, made[arch]
        if spec.exact and _rounds(report):
            return Finding(
                f"{name} rounds float32 operands to TF32 on sm_{arch}",
                amount,
                'a product of float32 blocks keeps 10 of 23 bits unless it says input_precision="ieee"',
            )
        if report.spill_bytes and "vprintf" in report.ptx:
            return Finding(
                f"{name} prints, and what it prints takes {report.spill_bytes} bytes of memory a thread on sm_{arch}",
                amount,
                "tl.device_print is for looking: take its lines out of what you hand in",
            )
        if report.spill_bytes:  # after the precision, which changes what is kept in registers
            return Finding(
                f"{name} spills {report.spill_bytes} bytes a thread on sm_{arch}",
                amount,
                "more blocks are alive at once than the registers hold: load each where it is used, once for each step",
            )
    promised = spec.products.get(arch) if half else ""
    if promised and not any(_multiplies(made[arch], promised) for _, made in reports):
        return Finding(
            f"no {promised} stands in the code for sm_{arch}",
            amount,
            "the product does not reach the tensor cores: tl.dot of two blocks in the tensors' own dtype, at least 16 on "
            "each axis, does",
        )
    return None


def _refused(message: str) -> _Refused:
    """The innermost line that the compiler points to, and its reason, out of its message."""
    lines = message.rstrip().splitlines()
    carets = [i for i, line in enumerate(lines) if line.strip() == "^"]
    if not carets:
        said = re.sub(r"^\w+ does not compile: (for sm_\d+: )?(\w+Error: )?", "", lines[-1].strip())
        return _Refused("", re.sub(r" at 0x[0-9a-f]+", "", said))
    last = carets[-1]
    reason = " ".join(line.strip() for line in lines[last + 1 :]) or lines[0]
    reason = re.sub(r"^\w+\(([\"'])(.*)\1\)$", r"\2", reason).strip()
    reason = re.sub(r"^(.+?) \w+Error: \1$", r"\1", reason)  # said twice
    return _Refused(lines[last - 1].strip(), reason.split(" Please make sure")[0].split(". Triton kernels can")[0])


_BUILTINS = (
    "sum|max|min|abs|len|enumerate|zip|reversed|sorted|map|filter|any|all|list|dict|set|print|int|float|bool|round"
)
_LISTS = "a kernel has no lists to append to and no comprehensions: add to an accumulator in the loop"
_LOOPS = "a loop in a kernel runs over range(...) or tl.static_range(...) and over nothing else"
_IN_WORDS = (
    (
        r"has no attribute '?append|only tuple comprehensions|ListComp|unsupported AST node type: List|"
        r"cannot be interpreted as an integer",
        _LISTS,
    ),
    (r"Unsupported function referenced: <function (\w+)", r"a kernel calls `\1`, so it is decorated with @triton.jit, too"),
    (
        r"static_range \w+ value is not a constexpr",
        "tl.static_range is unrolled when the kernel is compiled, so its ends are known then: tl.constexpr in the signature",
    ),
    (
        r"Did you forget to add @triton.jit",
        "this function is none for kernels: triton.cdiv is tl.cdiv there, and one of your own is decorated with @triton.jit",
    ),
    (r"must be a power of 2", "lanes come in powers of two: choose such a block, and mask the rest"),
    (r"incompatible dimensions", "two blocks of different shapes meet: look at each [:, None] and [None, :]"),
    (r"'(enumerate|zip|reversed|sorted|map|filter)'? is not defined|(enumerate|zip|reversed) is not defined", _LOOPS),
    (r"object has no attribute 'func'|Only `range` and|iterators are currently supported", _LOOPS),
    (rf"\b({_BUILTINS}) is not defined", r"Python's own `\1` does not exist in a kernel: tl has functions for blocks"),
    (
        r"(\w+) is not defined",
        r"nothing defines `\1` on every way there: what is first set inside an `if` or a loop exists in it alone",
    ),
    (
        r"Cannot access global variable (\w+)",
        r"a kernel sees a number of the notebook only as a constant: \1 = tl.constexpr(...), or pass it as an argument",
    ),
    (r"`return` statements inside", "a kernel cannot leave from inside a loop: mask what should not happen"),
    (r"AST node type: (Break|Continue)", "a compiled loop has no break and no continue: give it its end beforehand"),
    (r"AST node type: (\w+)", r"a kernel is no full Python: \1 is not part of it"),
    (r"Boolean value of Tensor", "an `if` asks one question, and this is a block of answers: use tl.where or a mask"),
    (r"arange's arguments must be of type", "a block's length is known when the kernel is compiled: a tl.constexpr"),
    (
        r"should have M >= \d+, N >= \d+ and K >= \d+",
        "tl.dot takes no axis below 16 along the sum: widen and mask the block",
    ),
    (r"unsupported tensor index", "a block has no part to pick: load the elements that you want, tl.load(x_ptr + ...)"),
    (
        r"^AssertionError:?$",
        "where this line picks from a tuple, the index is known when the kernel is compiled: written in the brackets, of "
        "constants and numbers of a tl.static_range",
    ),
    (
        r"error encountered during parsing",
        "a block that a loop carries on, in a tuple perhaps, leaves the step with another type or shape than it entered it "
        "with: convert what is loaded, by .to(tl.float32), as it is before the loop",
    ),
    (r"inconsistent types|Mismatched type", "both ways of an `if` must give the same type and shape"),
    (
        r"no answer within",
        "the compiler did not come to an end: is a loop of thousands of steps unrolled by tl.static_range?",
    ),
)


def in_words(reason: str) -> str:
    """What the compiler's reason usually means."""
    carried = re.search(r"variable (\w+) has initial type (.+?) but is re-assigned to (.+?) in loop", reason)
    if carried:
        name, before, after = carried[1], _type(carried[2]), _type(carried[3])
        return (
            f"`{name}` is {before} before the loop and {after} after a step, and a compiled loop keeps each variable's type "
            f"and shape: let it begin as such a block, by tl.zeros or tl.full, and stay so"
        )
    for pattern, words in _IN_WORDS:
        if found := re.search(pattern, reason):
            return found.expand(words)
    return "Triton's interpreter takes this, its compiler does not"


def _type(text: str) -> str:
    """``<['16', '32'], fp32>`` as words."""
    block = re.fullmatch(r"<\[(.*)\], (\w+)>", text.strip())
    names = {"fp": "float", "bf": "bfloat"}
    dtype = re.sub(r"^(fp|bf)(?=\d)", lambda found: names[found[1]], block[2] if block else text.strip())
    sizes = block[1].replace("'", "") if block else ""
    return f"a {dtype} block [{sizes}]" if block else f"a number, {dtype},"
