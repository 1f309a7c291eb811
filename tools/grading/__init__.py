"""Grading a class: a trusted judge runs the checks, a process in a sandbox runs the submission's kernels."""

import os
import sys
import types

# jsonschema, which nbformat imports, takes these for formats that no notebook has, and building the first one's grammar
# takes longer than judging a submission. It does without where they are not installed.
for _name in ("rfc3987_syntax", "rfc3986_validator", "isoduration"):
    sys.modules.setdefault(_name, None)


def _extension(name: str) -> types.ModuleType:
    """A module that stands for one of nbgrader's extensions of Jupyter's server."""
    made = types.ModuleType(f"nbgrader.server_extensions.{name}")
    made.load_jupyter_server_extension = lambda app: None
    return made


def import_nbgrader() -> None:
    """Import nbgrader without its extensions of Jupyter's server, and without that: it takes as long as a submission."""
    if "nbgrader" in sys.modules:
        return
    names = ("assignment_list", "course_list", "validate_assignment", "formgrader")
    modules = {f"nbgrader.server_extensions.{name}": _extension(name) for name in names}
    sys.modules.update(modules)
    try:
        import nbgrader  # noqa: F401
    finally:
        for name in modules:  # whoever asks for one gets it
            del sys.modules[name]


def leave(status: int = 0) -> None:
    """End this process without taking its interpreter apart, in which Triton's bindings complain of all that they hold."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
