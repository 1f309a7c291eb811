"""Write docs/kill_table.md, or the part of it that belongs to the exercises named."""

import sys

from tests.course.mutants import TABLE, table, targets

if unknown := set(sys.argv[1:]) - {target.assignment for target in targets()}:
    sys.exit(f"no exercise has mutants under the name {', '.join(sorted(unknown))}")
TABLE.parent.mkdir(exist_ok=True)
TABLE.write_text(table(tuple(sys.argv[1:])))
print(TABLE)
