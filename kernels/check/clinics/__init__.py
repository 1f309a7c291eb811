"""The clinics: after each part of the course three broken kernels, without any message of a check.

``CHECKS`` has two functions a kernel, ``diagnosis_0a(answer)`` and ``finds_0a(test)``, which ``kernels.check`` offers.
"""

from collections.abc import Callable

from kernels.check.clinics import part_0, part_1, part_2, part_3, part_4
from kernels.check.clinics.faulty_kernel import CAUSES, FaultyKernel
from kernels.check.clinics.worksheets import Tester, Worksheet, check_diagnosis, check_finds, diagnosis, finds

__all__ = [
    "CAUSES",
    "CHECKS",
    "FAULTY",
    "WORKSHEETS",
    "FaultyKernel",
    "Tester",
    "Worksheet",
    "check_diagnosis",
    "check_finds",
]

FAULTY: dict[str, FaultyKernel] = {one.key: one for part in (part_0, part_1, part_2, part_3, part_4) for one in part.FAULTY}
WORKSHEETS: dict[str, Worksheet] = {
    worksheet.name: worksheet for one in FAULTY.values() for worksheet in (diagnosis(one), finds(one))
}  # fmt: skip


def _check(worksheet: Worksheet) -> Callable:
    held = check_finds if worksheet.name.startswith("finds_") else check_diagnosis

    def check(answer, **how) -> int:
        return held(worksheet, answer, **how)

    check.__name__ = check.__qualname__ = worksheet.name
    what = "test, fn(kernel) -> bool," if held is check_finds else "diagnosis, dict(line, cause, smallest),"
    check.__doc__ = f"Check a {what} of kernel {worksheet.faulty.key}. Returns points, of {worksheet.points}."
    check.worksheet = worksheet
    return check


CHECKS: dict[str, Callable] = {name: _check(worksheet) for name, worksheet in WORKSHEETS.items()}
