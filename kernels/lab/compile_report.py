"""Compile a kernel for a GPU that need not be there, and read registers, shared memory, spills and instructions.

The compiler, the disassembler and ``cuobjdump`` are in Triton's wheel. Compilation runs in a child process, because a
process that interprets kernels cannot compile them, and because the compiler may abort its process.
"""

import inspect
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from kernels.lab.loops import PTX, SASS, Code


class CompileError(RuntimeError):
    """The compiler refused the kernel, or died on it; the message is its own."""


@dataclass(frozen=True)
class CompileReport:
    """What the compiler made of a kernel for one architecture. ``print(report)`` shows it as a table.

    registers: per thread. shared_bytes: shared memory a program. spill_bytes: stack and local memory a thread, where
    registers that did not fit are kept. threads: per program. instructions: group -> mnemonic -> how often it stands
    in the code (not how often it runs). ptx, sass: the code itself, as PTX and as the GPU's own instructions. asm:
    all of the compiler's stages as text, by name ("ttir", "ttgir", "llir", "ptx"). cubin: the binary.

    It is disassembled when ``sass``, ``instructions`` or ``count`` is first asked for: that takes as long as compiling.
    """

    kernel: str
    arch: int
    registers: int
    shared_bytes: int
    spill_bytes: int
    threads: int
    ptx: str = field(repr=False)
    asm: dict[str, str] = field(repr=False)
    cubin: bytes = field(repr=False)

    @cached_property
    def sass(self) -> str:
        """The GPU's own instructions, disassembled; raises ``CompileError`` where that fails."""
        from kernels.lab import _child

        answer = _child.run_text("disassemble", False, "", cubin=self.cubin)
        if "error" in answer:
            raise CompileError(f"{self.kernel} cannot be disassembled: {answer['error']}")
        return answer["sass"]

    @cached_property
    def instructions(self) -> dict[str, dict[str, int]]:
        """Group -> mnemonic -> how often it stands in the code."""
        return _instructions(self.sass)

    def count(self, prefix: str) -> int:
        """How many instructions in ``sass`` begin with ``prefix``: ``report.count("HGMMA")``."""
        return sum(x.opcode.startswith(prefix) for x in Code(self.sass, SASS).instructions)

    def before(self, first: str, second: str) -> bool:
        """Whether in a loop no way leads from its head to a ``second`` instruction without passing a ``first`` one.

        first, second: how the instructions begin, those of ``sass`` in capitals (``"WARPGROUP.DEPBAR"``, ``"MUFU.EX2"``,
        ``"WARPGROUP.DEPBAR.LE gsb0, 0x0"``), those of ``ptx`` in small letters (``"wgmma.wait_group"``, ``"ex2"``), which the
        compiler's last stage still puts in another order. The loop is the innermost that holds both. Where there are
        several, as of a kernel with two loops, it has to be so in each.

        Raises ``ValueError`` if no loop holds both.
        """
        small = first[:1].islower()
        if small != second[:1].islower():
            raise ValueError(f"first is {first!r}, second {second!r}: both must be of sass, in capitals, or both of ptx")
        found = Code(self.ptx, PTX).before(first, second) if small else Code(self.sass, SASS).before(first, second)
        if found is None:
            raise ValueError(f"first is {first!r}, second {second!r}: no loop of {self.kernel} holds both")
        return found

    def __str__(self) -> str:
        return _table([self])

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(str(self))  # a notebook shows the table, not the fields


class CompileReports(dict):
    """Reports by architecture: ``reports[90].registers``. ``print(reports)`` shows them side by side."""

    def __str__(self) -> str:
        return _table(list(self.values()))

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(str(self))


def compile_report(
    kernel, *args, arch=90,
    num_warps: int = 4, num_stages: int = 3, maxnreg: int | None = None, num_ctas: int = 1, **constexprs,
):  # fmt: skip
    """Compile ``kernel`` as a launch with these arguments would, without a GPU, and report what came out.

    kernel: a ``@triton.jit`` or ``@gluon.jit`` function, also one defined in a notebook cell, with its helpers and
        constants (Gluon's aggregates must live in a module).
    args: the launch's arguments, in order: tensors (on any device), tensor descriptors, numbers, dtypes
        (``torch.bfloat16`` stands for an aligned pointer to it) or Triton's own names of types (``"*bf16"``,
        ``"i32"``). As in a launch, a pointer
        at a multiple of 16 bytes and an integer divisible by 16 are compiled as such, and the integer 1 as a
    constant; ``"i32"`` is any integer. arch: 80 (Ampere), 90 (Hopper), 100 (Blackwell), …, or a tuple of them.
    num_warps, num_stages, maxnreg, num_ctas: as in a launch; of a cluster, the report counts one of its multiprocessors.
    constexprs: the remaining parameters by name.

    Returns a ``CompileReport``, or ``CompileReports`` by architecture if ``arch`` is a tuple. Raises ``ValueError``
    for arguments that don't fit the kernel or a kernel that cannot be carried into another process, ``CompileError``
    with the compiler's message if it refuses.
    """
    arches = arch if isinstance(arch, (tuple, list)) else (arch,)
    if not arches:
        raise ValueError("arch is empty: it must name at least one architecture, such as 90")
    for one in arches:
        if not isinstance(one, int) or one < 75:
            raise ValueError(f"arch is {one!r}: it must be a compute capability times ten, such as 80, 90 or 100")
    options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": maxnreg, "num_ctas": num_ctas}
    prepared = prepare(kernel, *args, **options, **constexprs)
    reports = compile_prepared(prepared, tuple(arches))
    return reports if isinstance(arch, (tuple, list)) else reports[arch]


@dataclass(frozen=True)
class Prepared:
    """A kernel and its launch as text, which any process can compile: ``key`` is the same for the same text."""

    kernel: str
    text: str
    lines: list[tuple[int, int]] = field(compare=False)  # where the text's functions come from, see _child.export
    signature: dict
    attributes: dict
    options: dict

    @property
    def key(self) -> str:
        """A name for what is compiled."""
        return repr((self.text, self.signature, self.attributes, self.options))

    @property
    def sizes(self) -> dict[str, int]:
        """The whole numbers among the constants of the launch, by parameter."""
        names = dict(enumerate(self.signature))
        found = re.findall(r"tuple\(\[(\d{1,4})\]\): (\d{1,12})[,}]", self.text.rpartition("VALUES = ")[2])
        return {names[int(place)]: int(value) for place, value in found if int(place) in names}


OPTIONS = ("num_warps", "num_stages", "maxnreg", "num_ctas")  # of a launch, that the compiler is given


def prepare(
    kernel, *args,
    num_warps: int = 4, num_stages: int = 3, maxnreg: int | None = None, num_ctas: int = 1, **constexprs,
) -> Prepared:  # fmt: skip
    """What ``compile_report`` with these arguments would compile; raises its ``ValueError``s."""
    from kernels.lab import _child, _triton_private

    if (override := constexprs.pop("ir_override", None)) is not None:  # an autotuner passes None
        raise ValueError(f"ir_override is {override!r}: compile_report knows {', '.join(OPTIONS)} alone")
    if num_ctas not in (1, 2, 4, 8, 16):
        raise ValueError(f"num_ctas is {num_ctas!r}: a cluster has 1, 2, 4, 8 or 16 multiprocessors")
    if not _triton_private.is_kernel(kernel):
        if hasattr(kernel, "arg_names"):  # an autotuner or a heuristic
            wrapper = type(kernel).__name__
            raise ValueError(f"kernel is wrapped by {wrapper}: compile_report needs kernel.fn, and what is chosen there, too")
        raise ValueError(
            f"kernel is {kernel!r}: compile_report needs a @triton.jit function (or Gluon's), and its arguments after it"
        )
    name = kernel.fn.__name__
    try:
        bound = inspect.signature(kernel.fn).bind(*args, **constexprs)
    except TypeError as error:
        raise ValueError(f"args do not fit {name}{inspect.signature(kernel.fn)}: {error}") from None
    bound.apply_defaults()
    try:
        signature, constants, attributes = _triton_private.specialize(kernel, bound.arguments)
    except TypeError as error:
        raise ValueError(f"args do not fit {name}: {error}") from None
    options = dict(zip(OPTIONS, (num_warps, num_stages, maxnreg, num_ctas), strict=True))
    return Prepared(name, *_child.export(kernel, constants), _child.plain(signature), attributes, options)


def compile_prepared(prepared: Prepared, arches: tuple[int, ...]) -> CompileReports:
    """Compile for each architecture; raises ``CompileError``."""
    from kernels.lab import _child

    answer = _child.run_text(
        "compile",
        False,
        prepared.text,
        lines=prepared.lines,
        signature=prepared.signature,
        attributes=prepared.attributes,
        arches=arches,
        options=prepared.options,
    )
    if "error" in answer:
        raise CompileError(f"{prepared.kernel} does not compile: {answer['error']}")
    return CompileReports({one: _report(prepared.kernel, one, answer[str(one)]) for one in arches})


def _report(kernel: str, arch: int, answer: dict) -> CompileReport:
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", answer["usage"])}
    return CompileReport(
        kernel=kernel,
        arch=arch,
        registers=usage["REG"],
        shared_bytes=answer["shared_bytes"],
        spill_bytes=usage["STACK"] + usage["LOCAL"],
        threads=int(re.search(r"\.reqntid\s+(\d+)", answer["asm"]["ptx"]).group(1)),
        ptx=answer["asm"]["ptx"],
        asm=answer["asm"],
        cubin=answer["cubin"],
    )


#: What is counted: group, the opcodes that belong to it (up to their first dot), and how each is named from the
# whole opcode.
_GROUPS = (
    ("matrix products", r"(UTC)?[A-Z]*MMA", "base"),
    ("async copies and TMA", r"LDGSTS|UTMA(LDG|STG|REDG|PF)|UBLKCP", "base"),
    ("global loads", r"LDG", "width"),
    ("global stores", r"STG", "width"),
    ("global atomics", r"ATOMG?|REDG?", "base"),
    ("shared-memory loads", r"LDSM?", "base"),
    ("shared-memory stores", r"STSM?", "base"),
    ("tensor-memory moves", r"LDTM|STTM", "base"),
    ("local memory (spills)", r"LDL|STL", "base"),
    ("barriers", r"BAR|SYNCS", "base"),
    ("multiply-adds", r"[FHD]FMA2?", "base"),
    ("special functions", r"MUFU", "function"),
)


def _instructions(sass: str) -> dict[str, dict[str, int]]:
    counts = {group: Counter() for group, _, _ in _GROUPS}
    for _, opcode, operands in Code(sass, SASS).instructions:
        base, *modifiers = opcode.split(".")
        if base.startswith("HFMA2") and "-RZ, RZ" in operands:
            continue  # 0 · 0 + c: how the compiler moves a constant, no arithmetic
        for group, pattern, naming in _GROUPS:
            if re.fullmatch(pattern, base):
                counts[group][_named(base, modifiers, naming)] += 1
    return {group: dict(sorted(count.items())) for group, count in counts.items()}


def _named(base: str, modifiers: list[str], naming: str) -> str:
    if (
        naming == "width"
    ):  # a modifier of 64, 128 or 256 is the width in bits, U8 to S16 a narrow one; otherwise it is 32
        widths = [re.fullmatch(r"[US]?(8|16|64|128|256)", modifier) for modifier in modifiers]
        return f"{base} {next((width.group(1) for width in widths if width), 32)} bits"
    if naming == "function" and modifiers:
        return f"{base}.{modifiers[0]}"
    return base


def _table(reports: list[CompileReport]) -> str:
    rows = [
        ("registers a thread", [r.registers for r in reports]),
        ("shared memory, bytes", [r.shared_bytes for r in reports]),
        ("spilled, bytes a thread", [r.spill_bytes for r in reports]),
        ("threads a program", [r.threads for r in reports]),
    ]
    for group, _, _ in _GROUPS:
        names = sorted({name for r in reports for name in r.instructions[group]})
        rows += [(f"{group}: {name}", [r.instructions[group].get(name, 0) for r in reports]) for name in names]
    title = f"{reports[0].kernel}"
    width = max(len(title), *(len(label) for label, _ in rows))
    columns = [max(len(f"sm_{r.arch}"), *(len(f"{row[i]:,}") for _, row in rows)) for i, r in enumerate(reports)]
    lines = [
        "  ".join([f"{title:<{width}}", *(f"{f'sm_{r.arch}':>{w}}" for r, w in zip(reports, columns, strict=True))])
    ]
    for label, row in rows:
        lines.append("  ".join([f"{label:<{width}}", *(f"{n:>{w},}" for n, w in zip(row, columns, strict=True))]))
    return "\n".join(lines)
