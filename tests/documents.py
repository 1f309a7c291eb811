"""The code blocks of a page under docs/, executed as a reader would: one after the other, in one file, outputs compared."""

import contextlib
import io
import re
from pathlib import Path
from unittest import mock

from kernels.common import lines
from kernels.lab.source import readable

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def outputs(page: str):
    """``(code, stated, printed)`` for every ```python block; ``stated`` is the ```text block right behind it, or ''."""
    text = (DOCS / page).read_text()
    blocks = list(BLOCK.finditer(text))
    namespace = {"__name__": "__main__"}
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] != "python":
            continue
        code = block[2]
        stated = after[2] if after and after[1] == "text" and not text[block.end() : after.start()].strip() else ""
        file = f"/docs/{page}/{block.start()}.py"  # Triton and the model read a kernel's source again
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), mock.patch.object(lines, "WIDTH", 80):
            exec(readable(code, file), namespace)
        yield code, stated, printed.getvalue()


def check(page: str) -> None:
    """Every block of the page runs and prints what the page says."""
    found = list(outputs(page))
    assert found, f"{page} has no code"
    for code, stated, printed in found:
        assert printed == stated, f"{page} says\n{stated}\nand prints\n{printed}\nafter\n{code}"
