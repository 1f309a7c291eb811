"""nbgrader's configuration: the sources of the assignments are solutions/, what students receive is exercises/."""

import os
import sys
from pathlib import Path

c = get_config()
# The plugins below are found here; formgrader under a JupyterHub runs elsewhere.
sys.path.append(str(Path(__file__).resolve().parent))
# nbgrader starts `alembic` by its name, also where it was itself started as .venv/bin/nbgrader.
os.environ["PATH"] = os.pathsep.join(dict.fromkeys([f"{sys.prefix}/bin", *os.environ.get("PATH", "").split(os.pathsep)]))

c.CourseDirectory.course_id = "kernels-from-math"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
# SQLite beside the course, or a server's PostgreSQL: postgresql://user:password@host/database
c.CourseDirectory.db_url = os.environ.get("NBGRADER_DATABASE_URL", "sqlite:///gradebook.db")

# An unsolved exercise runs to its end: its checks say what is missing.
c.ClearSolutions.code_stub = {"python": "# your lines here\npass"}
c.ClearSolutions.text_stub = "*Your answer here.*"

# A submission that never ends costs two minutes a cell; the rest of it is still graded.
c.ExecutePreprocessor.timeout = 120

# `nbgrader zip_collect NAME` sorts a download from Moodle or Canvas that lies in downloaded/NAME/archive/, by roster.csv.
c.ZipCollectApp.collector_plugin = "tools.grading.collect.Platforms"
c.ZipCollectApp.extractor_plugin = "tools.grading.collect.Notebooks"

# A folder in the exchange counts as handed in by the user who owns it, whatever its name; feedback goes to whom it can reach.
c.ExchangeFactory.collect = "tools.grading.exchange.Collect"
c.ExchangeFactory.release_feedback = "tools.grading.exchange.ReleaseFeedback"
