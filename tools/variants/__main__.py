"""Write a course whose exercises ask something else than the published ones: `make variants SEED=7`.

Its folder, build/variants/SEED/, is one for `make release COURSE=...`, `make grade COURSE=...` and `make bundle COURSE=...`.
The same seed gives the same files.
"""

import argparse
import sys
from pathlib import Path

from tools.kernel_environment import ROOT


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make variants", description=__doc__.partition("\n")[0])
    parser.add_argument("seed", help="letters and digits that students do not know: make variants SEED=autumn-4711")
    parser.add_argument("--course", type=Path, default=ROOT, help="the folder whose solutions/ are varied")
    arguments = parser.parse_args(argv)
    from tools.variants import build

    try:
        folder = build.folder_of(arguments.course, arguments.seed)
        drawn = build.write(arguments.course, folder, arguments.seed)
    except ValueError as error:
        print(f"Nothing is varied: {error}", file=sys.stderr)
        return 2
    for name, task in drawn.items():
        ways = f"(one of {len(task.others())})" if task else ""
        print(f"{name:24}{task.asked if task else 'as published'} {ways}".rstrip())
    place = folder.relative_to(arguments.course)
    print(f"The solutions stand in {place}/solutions/. What students get: make release COURSE={place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
