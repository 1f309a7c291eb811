"""Grade every submission in submitted/STUDENT/ASSIGNMENT/ and write the marks to build/marks.csv: `make grade`.

A submission runs in a sandbox, as a user of its own, without a network; the checks and the marks are elsewhere. Each
comes to a status: graded, late, missing, refused, crashed, out of time. Run again, it goes on: only what is new is graded.
docs/instructor_guide.md says more.
"""

import argparse
import os
import sys
from pathlib import Path

from tools.grading.sandbox import ROOT, UNSAFE, why_not


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.grade", description=__doc__.partition("\n")[0])
    parser.add_argument("--course", type=Path, default=ROOT, help="the course's folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="submissions judged at the same time")
    parser.add_argument("--seconds", type=float, default=30.0, help="what one call of a submission's function may take")
    parser.add_argument("--total", type=float, default=180.0, help="what one submission may take")
    parser.add_argument(
        "--scheduler", default="", help="address of a Dask scheduler whose workers judge: tcp://host:8786"
    )
    parser.add_argument("--again", action="store_true", help="grade everything anew")
    parser.add_argument("--unsafe", action="store_true", help=f"without a sandbox: {' '.join(UNSAFE.split())}")
    arguments = parser.parse_args(argv)
    if arguments.unsafe:
        print(f"--unsafe: {UNSAFE}.", file=sys.stderr)
    elif why := why_not():
        print(
            f"Nothing is graded: {why}.\nWith --unsafe it would be graded all the same; but {UNSAFE}.", file=sys.stderr
        )
        return 2
    # Here, because the judges' processes import this file, too, and need nothing of the gradebook.
    from tools.grading.batch import Batch, How
    from tools.grading.course import Course, NotACourse

    os.environ.pop("KERNELS_GRADING", None)
    how = How(
        arguments.jobs, arguments.seconds, arguments.total, arguments.unsafe, arguments.again,
        scheduler=arguments.scheduler,
    )  # fmt: skip
    try:
        return Batch(Course.at(arguments.course), how).run()
    except NotACourse as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:  # the disk is full, or may not be written to
        print(f"Not finished: {error}. What is judged is kept: run this again", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
