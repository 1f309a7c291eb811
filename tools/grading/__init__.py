"""Grading a class: a trusted judge runs the checks, a contestant in a sandbox runs the submission's kernels."""

import sys

# jsonschema, which nbformat imports, takes this for one format that no notebook has, and building its grammar takes longer
# than judging a submission. It does without where it is not installed.
sys.modules.setdefault("rfc3987_syntax", None)
