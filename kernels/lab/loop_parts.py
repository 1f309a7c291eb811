"""What one pass through a compiled loop asks of the warp that runs it, and how long it takes a program that is alone."""

import math
import re
from collections import Counter
from typing import NamedTuple

from kernels.lab.compile_report import CompileReport
from kernels.lab.loops import SASS, Code, Instruction
from kernels.lab.machine_record import numbers

ARITHMETIC = 4  # ticks until a multiply-add's result can be used
WIDE = {".128": 4, ".64": 2}  # registers; and turns of shared memory, each of which serves 32 lanes with 4 bytes
_REGISTER = re.compile(r"\b(UR|UP|R|P)(\d+)(\.64)?")
_NO_RESULT = ("ST", "RED", "BAR", "BRA", "NOP", "EXIT", "WARPSYNC", "MEMBAR")
_ON_ITS_WAY = ("LDS", "SHFL", "MUFU", "LDC", "LDL")  # answered about as late as L1, the same unit as shared memory
_PRODUCT = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)\.F32\.(TF32)?")  # of tensor cores, by rows, columns and terms
SCHEDULERS = 4  # of a multiprocessor: its warps are dealt to them


class LoopParts(NamedTuple):
    """One pass of one warp. turns: of shared memory, a shuffle is one. counts: of every instruction, by its name."""

    instructions: int
    turns: int
    counts: Counter
    body: list[Instruction]

    def pass_ns(self, rows_ns: float, num_warps: int = 1) -> float:
        """How long a pass takes if no other program is in the way and what is loaded from memory comes after ``rows_ns``.

        An instruction starts a tick after the one before it, and not before its operands are there; the warps of a program
        share schedulers, turns and tensor cores, and are otherwise taken to be in step. Tensor cores work beside them until
        the code waits for the products, as copies into shared memory do.
        """
        known = numbers()
        ticks, trip = known["ghz"], known["l1_ns"]
        operations = 1e3 * known["tensor_tflop_per_s"] / known["multiprocessors"] / ticks  # a tick, 16 bits
        together = max(1, num_warps / SCHEDULERS)
        ready: dict[str, float] = {}
        starts, groups = [], []
        now = free = products = copies = 0.0
        for _ in range(6):  # the last pass begins with what the ones before it left
            starts.append(now)
            for instruction in self.body:
                name = instruction.opcode
                results, operands = _registers(instruction)
                now = max([now, *(ready.get(register, 0.0) for register in operands)])
                late = ARITHMETIC
                if product := _PRODUCT.match(f"{name}{instruction.operands}"):
                    size = 2 * math.prod(map(int, product.groups()[:3])) * (2 if product[4] else 1)
                    products = max(products, now) + together * size / operations
                elif name.startswith("WARPGROUP.DEPBAR"):
                    now = max(now, products)
                elif name.startswith("LDGSTS"):
                    copies = now + rows_ns * ticks
                elif name == "LDGDEPBAR":
                    groups.append(copies)
                elif name.startswith("DEPBAR"):  # until no more groups than this are on their way
                    now = max([now, *groups[: len(groups) - int(instruction.operands.split()[-1], 16)]])
                elif name.startswith("LDG"):
                    late = rows_ns * ticks
                elif name.startswith(_ON_ITS_WAY):
                    late = trip * ticks
                if turns := _turns(name):
                    now = max(now, free)
                    free = now + num_warps * turns
                    late += num_warps * turns
                ready |= dict.fromkeys(results, now + late)
                now += together
        return (starts[-1] - starts[-3]) / 2 / ticks  # two, where every other pass waits


def loop_parts(report: CompileReport) -> LoopParts:
    """Those of the longest loop in ``report``. ``ValueError`` if it has none."""
    code = Code(report.sass, SASS)
    loops = code.loops().values()
    if not loops:
        raise ValueError(f"report is of {report.kernel}, in which no loop is left")
    body = [code.instructions[i] for i in sorted(max(loops, key=len))]
    counts = Counter(instruction.opcode for instruction in body)
    return LoopParts(len(body), sum(_turns(name) * count for name, count in counts.items()), counts, body)


def _turns(name: str) -> int:
    return _width(name) if name.startswith(("LDS", "STS")) else int(name.startswith("SHFL"))


def _width(name: str) -> int:
    return next((registers for end, registers in WIDE.items() if end in name), 1)


def _registers(instruction: Instruction) -> tuple[list[str], list[str]]:
    """The registers that an instruction writes, and those that it reads."""
    name, operands = instruction.opcode, re.split(r",(?![^\[]*\])", instruction.operands)
    results, at = [], 0
    if not name.startswith(_NO_RESULT):  # a register, and predicates before and behind it
        wide = 2 if name.startswith("CS2R") or ".WIDE" in name else _width(name)
        for kind in ("U?P",) if "SETP" in name else ("U?P", "U?R", "U?P"):
            while at < len(operands) and (found := re.fullmatch(rf"({kind})(\d+|T|Z)(\.\w+)*", operands[at].strip())):
                number = int(found[2]) if found[2].isdigit() else None
                count = wide if "R" in found[1] and number is not None else 1
                results += [f"{found[1]}{found[2] if number is None else number + i}" for i in range(count)]
                at += 1
                if "R" in found[1]:
                    break
    read = [instruction.predicate, *operands[at:]]
    names = [(kind, int(number), pair) for text in read for kind, number, pair in _REGISTER.findall(text)]
    return results, [f"{kind}{number + i}" for kind, number, pair in names for i in range(2 if pair else 1)]
