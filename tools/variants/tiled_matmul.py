"""Exercise 02 in other words: another number between a code and what it stands for, or the halves of a byte exchanged."""

from kernels.check.tiled_matmul import Packing
from tools.variants.edits import Edits

COLUMNS = ((5, 7), (-4, 1))


def edits(task: Packing) -> Edits:
    """What changes in the solution of exercise 02."""
    o, low = task.offset, task.first == "low"
    even, odd = f"(q_{{2j,n}} + {o})", f"(q_{{2j+1,n}} + {o})"
    whole = f"{even} + 16\\,{odd}" if low else f"{odd} + 16\\,{even}"
    halves = ("low", "high") if low else ("high", "low")
    bits = ("b & 15", "b >> 4") if low else ("b >> 4", "b & 15")
    return {
        "specification": (
            "$q_{k,n}$ from −8 to 7. Four bits hold one of them, as the code $q + 8$,",
            f"$q_{{k,n}}$ from −{o} to {15 - o}. Four bits hold one of them, as the code $q + {o}$,",
            r"(q_{2j,n} + 8) + 16\,(q_{2j+1,n} + 8)",
            whole,
            "Neither has the last high half of a byte",
            f"Neither has the last {halves[1]} half of a byte",
        ),
        "by-hand-text": _by_hand(task),
        "by-hand": (
            "[[253, 148]]",
            f"[[{_byte(task, 0)}, {_byte(task, 1)}]]",
            "(b & 15, b >> 4)):  # the low four bits, the high four bits",
            f"({', '.join(bits)})):  # the {halves[0]} four bits, the {halves[1]} four bits",
            "codes.float() - 8",
            f"codes.float() - {o}",
        ),
        "kernel": (
            "(b & 15).to(a_even.dtype) - 8",
            f"({bits[0]}).to(a_even.dtype) - {o}",
            "(b >> 4).to(a_odd.dtype) - 8",
            f"({bits[1]}).to(a_odd.dtype) - {o}",
        ),
        "hints": (
            "columns `2 j` of `a` with the low halves, columns\n`2 j + 1` with the high ones.",
            f"columns `2 j` of `a` with the {halves[0]} halves, columns\n`2 j + 1` with the {halves[1]} ones.",
        ),
        "symptoms": (
            "A code less 8 in uint8 wraps round: 3 − 8 is 251.",
            f"A code less {o} in uint8 wraps round: 3 − {o} is {(3 - o) % 256}.",
        ),
    }


def _codes(task: Packing, column: int) -> tuple[int, int]:
    return tuple(n + task.offset for n in COLUMNS[column])


def _sum(task: Packing, column: int) -> str:
    even, odd = _codes(task, column)
    return f"{even} + 16 · {odd}" if task.first == "low" else f"{odd} + 16 · {even}"


def _byte(task: Packing, column: int) -> int:
    even, odd = _codes(task, column)
    return even + 16 * odd if task.first == "low" else odd + 16 * even


def _by_hand(task: Packing) -> tuple[str, ...]:
    first, second = (_codes(task, column) for column in (0, 1))
    return (
        "their codes 13 and 15, the byte 13 + 16 · 15 = 253.",
        f"their codes {first[0]} and {first[1]}, the byte {_sum(task, 0)} = {_byte(task, 0)}.",
        "the codes 4 and 9, the byte 4 + 16 · 9 = 148.",
        f"the codes {second[0]} and {second[1]}, the byte {_sum(task, 1)} = {_byte(task, 1)}.",
    )
