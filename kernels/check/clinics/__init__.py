"""The clinics: after each part of the course three broken kernels, without any message of a check.

``CHECKS`` has two functions a kernel, ``diagnosis_0a(answer)`` and ``finds_0a(test)``, which ``kernels.check`` offers.
"""

from collections.abc import Callable

from kernels.check.clinics import part_0, part_1, part_2, part_3, part_4
from kernels.check.clinics.patient import CAUSES, Patient
from kernels.check.clinics.sheets import Sheet, Tester, check_diagnosis, check_finds, diagnosis, finds

__all__ = ["CAUSES", "CHECKS", "PATIENTS", "SHEETS", "Patient", "Sheet", "Tester", "check_diagnosis", "check_finds"]

PATIENTS: dict[str, Patient] = {one.key: one for part in (part_0, part_1, part_2, part_3, part_4) for one in part.PATIENTS}
SHEETS: dict[str, Sheet] = {
    sheet.name: sheet for one in PATIENTS.values() for sheet in (diagnosis(one), finds(one))
}  # fmt: skip


def _check(sheet: Sheet) -> Callable:
    held = check_finds if sheet.name.startswith("finds_") else check_diagnosis

    def check(answer, **how) -> int:
        return held(sheet, answer, **how)

    check.__name__ = check.__qualname__ = sheet.name
    what = "test, fn(kernel) -> bool," if held is check_finds else "diagnosis, dict(line, cause, smallest),"
    check.__doc__ = f"Check a {what} of kernel {sheet.patient.key}. Returns points, of {sheet.points}."
    check.sheet = sheet
    return check


CHECKS: dict[str, Callable] = {name: _check(sheet) for name, sheet in SHEETS.items()}
