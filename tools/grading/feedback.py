"""A page for every submission: what was asked, what was written, what each property found, and how to see it again."""

import datetime
import html
import json
import re
from pathlib import Path

from tools.grading import exchange, files, foreign, pages
from tools.grading.assignment import Assignment, grade_id, is_answer
from tools.grading.course import Course
from tools.grading.gradebook import Book
from tools.grading.results import Result
from tools.grading.sandbox import ROOT

SAID = {
    "missing": "There is no submission.",
    "refused": "This submission was not run, so it has no mark yet. Mend what is named here and hand in again, or ask.",
    "crashed": "The program ended while it was being checked.",
    "out of time": "The program did not come to its end and was stopped.",
    "failed": "This was not checked to its end, through no fault of yours, and will be tried again.",
}


def page_of(assignment: Assignment, result: Result, about: dict, mark: dict | None, url: str = "") -> str:
    """The feedback page of one submission, or of none."""
    name = " ".join(filter(None, (about.get("first_name"), about.get("last_name")))) or result.student
    title = next(
        (line[2:] for cell in assignment.notebook.cells for line in cell.source.splitlines() if line[:2] == "# "), ""
    )
    title = title or assignment.name
    parts = [f"<h1>{html.escape(title)}</h1>", _about(result, name), _mark(result, mark)]
    parts += [_said(result), *(_check(one, url) for one in result.checks)]
    comments = (mark or {}).get("comments", {})
    parts += [f'<div class="remark"><b>{html.escape(cell)}</b>: {_text(said)}</div>' for cell, said in comments.items()]
    parts.append("<h2>The exercise, and your answers</h2>")
    parts += [_cell(cell, result) for cell in assignment.notebook.cells if not cell.source.startswith("# ")]
    return pages.page(f"{title}: {name}", "\n".join(parts))


def _about(result, name) -> str:
    handed_in = _date(result.submitted)
    when = f", handed in {handed_in}" if handed_in else ""
    return f'<p class="about">{_text(name)} ({_text(result.student)}){when}</p>'


def _date(text: str) -> str:
    return datetime.datetime.fromisoformat(text).strftime("%d %B %Y, %H:%M UTC") if text else ""


def _mark(result, mark) -> str:
    if result.points is None and not (mark and mark["by_hand"]):
        return f'<p class="mark">no mark: {html.escape(result.status)}</p>'
    raw = mark["raw_score"] if mark else result.points
    lost = mark["late_submission_penalty"] if mark else 0.0
    late = f" ({raw:g} earned, {lost:g} lost because it came late)" if lost else ""
    return f'<p class="mark">{max(0.0, raw - lost):g} of {result.most:g} points{late}</p>'


def _said(result) -> str:
    said = [SAID["failed" if result.failed else result.status]] if result.status in SAID else []
    said += [result.reason] if result.reason else []
    said += [f"{note}." for note in result.notes]
    kind = "notice" if result.status in SAID else "remark"
    return f'<div class="{kind}">{"<br>".join(map(_text, said))}</div>' if said else ""


def _check(one, url) -> str:
    rows = []
    for line in one.lines:
        mark = {"passed": "✓ passed", "failed": "✗ failed"}.get(line.outcome, "– not verified")
        rows.append(
            f'<tr><td class="{line.outcome.replace(" ", "-")}">{mark}</td><td>{_text(line.name)}</td>'
            f'<td class="text">{_linked(_text(_diagnosis(line)), url)}</td>'
            f'<td class="points">{line.points:g} of {line.most:g}</td></tr>'
        )
    called = next((name for name in re.findall(r"^(\w+): \d", one.printed, re.M)), one.function)
    drawn = f", seed={one.seed}, grading=True" if f"(graded with seed {one.seed})" in one.printed else ""
    again = f"check.{called}({one.function}{drawn})"
    return (
        f"<h2><code>{_text(one.function)}</code>: {one.points:g} of {one.most:g} points</h2>\n"
        f"<table><tr><th></th><th>property</th><th>what was found</th><th>points</th></tr>{''.join(rows)}</table>\n"
        f"<p>The same numbers again, in your notebook: <code>{_text(again)}</code></p>"
    )


def _linked(text, url) -> str:
    """The lessons that a diagnosis names, as links; without an address for them, as text."""

    def link(match):
        found = sorted((ROOT / "notebooks").glob(f"{match[1]}_*.ipynb")) if url else []
        return f'<a href="{_text(url.rstrip("/"))}/notebooks/{found[0].name}">{match[0]}</a>' if found else match[0]

    return re.sub(r"Lesson (\d\d), step \d+", link, text)


def _diagnosis(line) -> str:
    """What a check said, without the words that the table says already."""
    if line.outcome == "passed":
        return ""
    return re.sub(rf"^FAILED  {re.escape(line.name)}: ", "", line.text).strip()


def _cell(cell, result) -> str:
    name = grade_id(cell)
    if cell.cell_type == "markdown":
        if is_answer(cell):
            return f'<div class="answer">{foreign.shown(result.texts.get(name, ""))}</div>'
        return pages.markdown(cell.source)
    if cell.cell_type != "code" or (name and cell.metadata.nbgrader.get("grade") and not is_answer(cell)):
        return ""
    if is_answer(cell) or name in result.answers:
        written = {**result.answers, **result.texts}.get(name)
        return f'<div class="answer">{pages.code(written if written is not None else "# nothing was handed in")}</div>'
    return pages.code(cell.source)


def _text(value: str) -> str:
    return html.escape(foreign.visible(str(value)))


def results_of(course: Course) -> list[Result]:
    """All results of a course, as the last run left them."""
    found = []
    for path in sorted(course.results.glob("*/*.json")):
        found.append(Result.from_json(json.loads(path.read_text())))
    return found


def write_all(course: Course) -> int:
    """Write every page, also for students on the roster who handed nothing in; returns how many."""
    assignments, results, count = course.assignments(), results_of(course), 0
    with Book(course.gradebook) as book:
        students = book.students()
        for name in sorted({result.assignment for result in results}):
            known = {result.student: result for result in results if result.assignment == name}
            for student in sorted(students | dict.fromkeys(known, {})):
                result = known.get(student) or Result(student, name, "missing", most=assignments[name].points)
                folder = course.root / "feedback" / student / name
                mark = book.mark(name, student) if student in known else None
                text = page_of(assignments[name], result, students.get(student, {}), mark, course.url)
                files.write(Path(folder, f"{name}.html"), text)
                exchange.carry_receipt(course.submitted / student / name, folder)
                count += 1
    return count
