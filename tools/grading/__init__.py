"""Grading a class: a trusted judge runs the checks, a contestant in a sandbox runs the submission's kernels."""
