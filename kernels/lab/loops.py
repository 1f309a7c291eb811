"""The loops of compiled code, as PTX or as the GPU's own instructions, and what comes first in them."""

import re
from typing import NamedTuple

#: A line of a disassembly, and one of PTX: predicate, opcode, operands.
SASS = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(@\S+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
PTX = re.compile(r"\s*(@\S+\s+)?([a-z][\w.:]*)\s*([^;]*);")
_LABEL = re.compile(r"\s*([.$]?\w+):")
_ENDS = re.compile(r"EXIT|RET|exit|ret|trap")
_BRANCH = re.compile(r"BR[AX]|br[ax]")


class Instruction(NamedTuple):
    """One line of code: ``predicate`` is empty where it is always executed."""

    predicate: str
    opcode: str
    operands: str

    def __str__(self) -> str:
        return f"{self.opcode} {self.operands}"


class Code:
    """The instructions of a text, read by one of the two patterns, and which may follow which."""

    def __init__(self, text: str, pattern: re.Pattern):
        self.instructions: list[Instruction] = []
        labels: dict[str, list[int]] = {}
        # PTX writes the targets of a jump by number in a table; a disassembly has them in the instruction
        for table, targets in re.findall(r"(\w+):\s*\.branchtargets([^;]*);", text):
            text = re.sub(rf"(brx\.idx.*){table};", rf"\1{' '.join(targets.split())};", text)
        for line in text.splitlines():
            if found := pattern.match(line):
                self.instructions.append(Instruction(*(part or "" for part in found.groups())))
            elif found := _LABEL.match(line):
                labels.setdefault(found[1], []).append(len(self.instructions))
        last = len(self.instructions) - 1
        self.next: list[set[int]] = []
        for i, (predicate, opcode, operands) in enumerate(self.instructions):
            after = {i + 1} if i < last else set()
            if _BRANCH.match(opcode):
                named = [labels[name] for name in re.findall(r"[.$]?\w+", operands) if name in labels]
                # inline PTX may give a label twice, in two blocks: the nearest is meant
                targets = {min(places, key=lambda at: abs(at - i)) for places in named}  # noqa: B023
                conditional = predicate or opcode[2] in "Aa" and "," in operands
                after = after | targets if conditional else targets
            elif _ENDS.match(opcode) and not predicate:
                after = set()
            self.next.append(after)

    def loops(self) -> dict[int, set[int]]:
        """By its head, each loop's instructions: those from which a branch back to the head is reached without passing it.

        A branch backwards to a place that is also reached in another way is none: a block that stands behind the code, such
        as a wait, returns by one.
        """
        before: list[list[int]] = [[] for _ in self.next]
        for i, after in enumerate(self.next):
            for j in after:
                before[j].append(i)
        found: dict[int, set[int]] = {}
        for branch, after in enumerate(self.next):
            for head in after:
                if head <= branch:
                    body, pending = {head}, [branch]
                    while pending:
                        i = pending.pop()
                        if i not in body:
                            body.add(i)
                            pending += before[i]
                    if head == 0 or 0 not in body:
                        found[head] = found.get(head, set()) | body
        return found

    def before(self, first: str, second: str) -> bool | None:
        """Whether each pass through the innermost loops that hold both comes to ``first`` first; None if no loop does."""
        firsts, seconds = (
            {i for i, x in enumerate(self.instructions) if str(x).startswith(w)} for w in (first, second)
        )
        both = {head: body for head, body in self.loops().items() if body & firsts and body & seconds}
        inner = {head: body for head, body in both.items() if not any(other < body for other in both.values())}
        for head, body in inner.items():
            seen, pending = set(), [head]
            while pending:
                i = pending.pop()
                if i in seconds:
                    return False
                if i not in seen and i not in firsts:
                    seen.add(i)
                    pending += self.next[i] & body
        return True if inner else None
