"""Grading a class: a trusted judge runs the checks, a process in a sandbox runs the submission's kernels."""

import os
import sys


def leave(status: int = 0) -> None:
    """End this process without taking its interpreter apart, in which Triton's bindings complain of all that they hold."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
