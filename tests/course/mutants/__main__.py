"""Write docs/kill_table.md."""

from tests.course.mutants import TABLE, table

TABLE.write_text(table())
print(TABLE)
