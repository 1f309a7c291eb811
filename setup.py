"""The package under two names: ``kernels`` in the course, ``kernels_from_math`` in other people's environments.

``kernels`` belongs to another distribution there (Hugging Face's, which transformers imports). So the wheel holds the folder
``kernels`` as the package ``kernels_from_math``, with its imports renamed; ``pip install -e .``, the course's own
environment, leaves the folder as it is, and ``kernels_from_math.py`` beside it gives it the other name, too.
"""

import re
import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE, THERE = "kernels", "kernels_from_math"
ROOT = Path(__file__).parent
PARTS = "|".join(sorted(path.stem for path in (ROOT / HERE).iterdir() if path.stem.isidentifier()))
# The package's name where it is one: before a part of it, in `import kernels`, and in `from kernels import`.
NAME = re.compile(
    rf"(?<![\w./-]){HERE}(?=\.(?:{PARTS})\b|\.\{{)|(?<=\bimport ){HERE}\b(?!\.)|(?<=\bfrom ){HERE}(?= import\b)"
)


class Renamed(build_py):
    """Copies each module with the package's other name in it."""

    def run(self):
        """Start with an empty folder: what an earlier build left there would be packed, too."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def build_module(self, module, module_file, package):
        """Copy, then rename."""
        outfile, copied = super().build_module(module, module_file, package)
        text = Path(outfile).read_text(encoding="utf-8")
        Path(outfile).write_text(NAME.sub(THERE, text), encoding="utf-8")
        return outfile, copied


if __name__ == "__main__":
    inside = [name.removeprefix(HERE) for name in find_packages(ROOT, include=[HERE, f"{HERE}.*"])]
    if "editable_wheel" in sys.argv:
        setup(packages=[HERE + name for name in inside], py_modules=[THERE])
    else:
        setup(
            packages=[THERE + name for name in inside],
            package_dir={THERE: HERE},
            package_data={"": ["*.json", "*.pyi", "py.typed"]},
            cmdclass={"build_py": Renamed},
        )
