"""Write docs/kill_table.md."""

from tests.course.mutants import TABLE, table

TABLE.parent.mkdir(exist_ok=True)
TABLE.write_text(table())
print(TABLE)
