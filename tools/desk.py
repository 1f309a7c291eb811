"""What an instructor does besides grading: pages, tables for learning platforms, reports, a bundle for students.

python -m tools.desk rubric       each function's properties, points and lessons
python -m tools.desk feedback     a page for each submission: feedback/STUDENT/NAME/NAME.html
python -m tools.desk export       build/export/: tables that Moodle and Canvas import
python -m tools.desk plots        build/class.html: marks, and where the class is stuck
python -m tools.desk similar      build/similar.html: answers that are alike
python -m tools.desk bundle       build/kernels-from-math.zip: the course without its solutions
"""

import argparse
import sys
from pathlib import Path

from tools.grading import files, leave
from tools.grading.course import Course, NotACourse
from tools.grading.sandbox import ROOT


def feedback(course: Course) -> str:
    from tools.grading import feedback

    return f"{feedback.write_all(course)} pages in feedback/"


def export(course: Course) -> str:
    from tools.grading import marks

    return "\n".join(str(path.relative_to(course.root)) for path in marks.write_all(course))


def plots(course: Course) -> str:
    from tools.grading import feedback, plots

    results = feedback.results_of(course)
    files.write(course.build / "class.html", plots.page_of(results))
    return f"{len(results)} submissions in build/class.html"


def similar(course: Course) -> str:
    from tools.grading import feedback, similarity

    results = feedback.results_of(course)
    page = similarity.page_of(results, course.assignments(), course.root / "solutions")
    files.write(course.build / "similar.html", page)
    return f"{len(results)} submissions in build/similar.html"


def bundle(course: Course) -> str:
    from tools.grading import bundle

    target = course.build / f"{bundle.NAME}.zip"
    return f"{bundle.write(ROOT, target)} files in {target.relative_to(course.root)}"


def rubric(course: Course) -> str:
    from tools.grading.judge import exercise_of

    lines = []
    for name, assignment in course.assignments().items():
        lines += [f"## {name}: {assignment.points:g} points", ""]
        for one in assignment.checks:
            lines += [f"### `{one.function}`: {one.points:g}", "", "| points | property | taught in |", "|---|---|---|"]
            exercise = exercise_of(one.name)
            for item in exercise.properties:
                needs = " (on a GPU only)" if getattr(item, "needs", "") == "a GPU" else ""
                lines.append(f"| {item.points} | {item.name}{needs} | {item.lesson} |")
            for verdict, points in exercise.worth.items():
                if verdict != "right":
                    lines.append(f"| {points} | {verdict} | {getattr(getattr(exercise, verdict, None), 'lesson', '')} |")
            lines.append("")
    return "\n".join(lines)


COMMANDS = {
    "rubric": rubric,
    "feedback": feedback,
    "export": export,
    "plots": plots,
    "similar": similar,
    "bundle": bundle,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--course", type=Path, default=ROOT, help="the course's folder")
    arguments = parser.parse_args(argv)
    try:
        print(COMMANDS[arguments.command](Course.at(arguments.course)))
    except NotACourse as error:
        print(error, file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(f"{error.filename} is not there: run `make grade` first", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    leave(main())
