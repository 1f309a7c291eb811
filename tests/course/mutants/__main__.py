"""Write docs/kill_table.md, or its parts of the exercises that are named."""

import sys

from tests.course.mutants import TABLE, table

text = table(sys.argv[1:])
TABLE.parent.mkdir(exist_ok=True)
TABLE.write_text(text)
print(TABLE)
