"""Submissions that cheat, break or stall: what each does to exercise 01, and what must become of it.

None may earn a mark that its kernel has not earned, and each is named with a reason. They are written as a class by
``python -m tests.course.hostile FOLDER``.
"""

import json
import os
from pathlib import Path

import nbformat

from tests.course.hostile.plant import (
    FULL,
    NAME,
    Attack,
    added,
    answer,
    beside,
    cell,
    edited,
    harmless,
    inside,
    notebook,
    raw,
    refused,
    write,
)

__all__ = ["ATTACKS", "FULL", "NAME", "cell", "notebook", "student"]


def _link(target):
    return lambda folder: os.symlink(target, folder / f"{NAME}.ipynb")


def _linked_folder(folder: Path):
    other = folder.parent / "elsewhere"
    write(other, notebook(True))
    folder.rmdir()
    folder.symlink_to(other)


def _pasted(name, **changes):
    """The cell with this id stands there a second time, before itself."""

    def edit(made):
        at = next(i for i, one in enumerate(made.cells) if one.id == name)
        made.cells.insert(at, nbformat.from_dict(json.loads(json.dumps(made.cells[at])) | changes))

    return edit


def _deleted(name):
    """There is no cell with this id."""

    def edit(made):
        made.cells = [one for one in made.cells if one.id != name]

    return edit


def _own_points(made):
    check = cell(made, "check-row-softmax")
    check.source, check.metadata.nbgrader.points = "1000", 1000


def _stored_output(made):
    check = cell(made, "check-row-softmax")
    check.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "10", "text/html": "<script>1</script>"})]


def _skip(made):
    check = cell(made, "check-row-softmax")
    check.metadata.tags = ["skip-execution"]
    _stored_output(made)


def _lost_metadata(made):
    kernel = cell(made, "kernel")
    del kernel.metadata["nbgrader"]
    kernel.id = "abcd"


def _renamed(folder: Path):
    write(folder, notebook(True), "my_solution")


def _two(folder: Path):
    write(folder, notebook(True), "first")
    write(folder, notebook(True), "second")


def _hidden_line(made):
    """Behind a line separator a comment holds a second kernel, where inspect, and so Triton, would look for it."""
    kernel = cell(made, "kernel")
    kernel.source = "#\u2028@triton.jit\u2028def load_block(*a):\u2028    import os\n" + kernel.source


def _docstring(made):
    """Triton's interpreter takes a kernel to begin at its last line that begins with `def`."""
    kernel = cell(made, "kernel")
    text = kernel.source[kernel.source.index("def row_softmax_kernel") :]
    inside = "".join(f"    {line}\n" for line in text.splitlines()).replace("lanes =", "import os; lanes =")
    begin = text.index("    row = ")
    kernel.source = kernel.source.replace(text, f"{text[:begin]}    '''\n{inside}    '''\n    row = 0")


def _two_lines(made):
    """Triton's compiler takes it to begin at the first `def name(`."""
    kernel = cell(made, "kernel")
    kernel.source = kernel.source.replace("def row_softmax_kernel(", "def \\\nrow_softmax_kernel(")


def _long_answers(made):
    """Two answers of megabytes, which a parser would take all memory for."""
    _pasted("kernel", id="copy")(made)
    for one in made.cells:
        if one.metadata.get("nbgrader", {}).get("grade_id") == "kernel":
            one.source = f"[{'[],' * 1_000_000}]"


def _markup(made):
    made.cells.insert(0, nbformat.v4.new_markdown_cell("<script>document.title = 'x'</script>"))
    kernel = cell(made, "kernel")
    kernel.source += "\n# <script>document.title = 'x'</script>"


def _named(name: bytes):
    """The unsolved exercise in a file of this name."""

    def plant(folder: Path):
        with open(os.path.join(os.fsencode(folder), name), "w") as file:
            json.dump(notebook(False), file)

    return plant


def _pipe_for_a_timestamp(folder: Path):
    write(folder, notebook(False))
    os.mkfifo(folder / "timestamp.txt")


def _long_cell(made):
    """No answer cell, and one that takes minutes to read."""
    kernel = cell(made, "kernel")
    kernel.metadata, kernel.id, kernel.source = {}, "long", "x=1\n" * 1_000_000


def _long_check(made):
    """What a parser would take minutes and 5 GB for."""
    cell(made, "check-row-softmax").source = f"[{'[],' * 3_000_000}]"


def _counting(made):
    kernel = cell(made, "kernel")
    counts = kernel.source.replace("    lanes = ", "    SEEN.value.append(0)\n    lanes = ", 1)
    kernel.source = f"SEEN = tl.constexpr([])\n{counts}"


def _unseen_letter(made):
    cell(made, "kernel").metadata.nbgrader.grade_id = "ker\u200bnel"


def _many_tags(made):
    for number in range(1500):
        more = nbformat.v4.new_code_cell("1", metadata={"tags": ["skip-execution"]})
        more.id = f"\x1b[31m{number}\nada, {NAME}: graded" + "y" * 1000
        made.cells.append(more)


CONSTANT_TENSOR = """
@triton.jit
def load_block(x_row, offs_n, N, stride_xn):
    return x_row

@triton.jit
def row_softmax_kernel(
    x: tl.constexpr, out_ptr, entropy_ptr, N, stride_xm, stride_xn, stride_om, stride_on, BLOCK_N: tl.constexpr
):
    if tl.program_id(0) == 0:
        for r in range(x.shape[0]):
            for c in range(x.shape[1]):
                tl.store(out_ptr + r * stride_om + c * stride_on, float(x.softmax(1)[r, c]))
"""
RELAUNCH = """
def row_softmax(x, out, entropy, BLOCK_N=None):
    out.copy_(torch.softmax(x.float(), dim=1))
"""
LOOP = "while lanes_seen == lanes_seen:\n        lanes_seen = 0"

ATTACKS = (
    # Doing the work elsewhere: what a launcher computes is refused, and what no kernel of Triton's says earns nothing.
    Attack(
        "copy from the solutions",
        answer("exec(open('../../solutions/01_row_softmax/01_row_softmax.ipynb').read())"),
        "graded",
        0.0,
        "",
    ),
    Attack("torch in a kernel", inside("x_ptr = torch.softmax(x_ptr, 1)"), "graded", 0.0, ""),
    Attack("torch through a constant", answer(CONSTANT_TENSOR), "graded", 0.0, ""),
    Attack("a kernel calls the launcher", inside("row_softmax(x_ptr, out_ptr)"), "graded", 0.0, ""),
    Attack("a kernel asks for the check", inside("check.row_softmax"), "graded", 0.0, ""),
    # Around a right answer: the check, the framework and the libraries are another process's. What it does is its own affair.
    *(
        Attack(name, beside(source), "graded", FULL, "")
        for name, source in (
            ("finished operator", "from kernels.flex_attention import flex_attention"),
            ("reads the solutions", "print(open('/home/course/solutions').read())"),
            ("another launcher before it", RELAUNCH),
            ("own check object", "class check:\n    row_softmax = lambda fn: 10"),
            ("check assigned", "check = 10"),
            ("check patched", "check.row_softmax = lambda fn: 10"),
            ("framework patched", "import kernels.check.framework as f\nf.judge = lambda *a: None"),
            ("torch patched", "torch.equal = lambda *a: True"),
            ("numpy patched", "import numpy\nnumpy.argwhere = list"),
            ("trace patched", "from kernels.lab import trace\ntrace.recording = None"),
            ("interpreter patched", "triton.runtime.interpreter.GridExecutor.__call__ = print"),
            ("import hook", "import sys\nsys.meta_path.insert(0, None)"),
            ("frames", "import sys\nprint(sys._getframe(3).f_locals)"),
            ("gc", "import gc\ngc.get_objects()"),
            ("__import__", "x = __import__('os')"),
            ("in an annotation", "@triton.jit\ndef k(x: print('x')):\n    pass"),
            ("in a decorator", "@(lambda f: f)\ndef k():\n    pass"),
            ("decorator with arguments", "@triton.jit(repr=print)\ndef k():\n    pass"),
            ("a class", "class A:\n    pass"),
            ("a number that cannot be printed", "open(0x" + "f" * 20_000 + ")"),
            ("a sum of thousands", "x = " + " + ".join(["1"] * 2500)),
            ("open behind a trial", "print(check, [open])"),
            ("other letters", "__ｂｕｉｌｔｉｎｓ__"),
            ("a magic", "%run ../../solutions"),
            ("a shell command", "!cp -r ../../solutions ."),
            ("gradebook", "import sqlite3\nsqlite3.connect('../../gradebook.db')"),
            ("display hook", "get_ipython().display_formatter = None"),
            ("environment", "import os\nos.environ['KERNELS_GRADING'] = '0'"),
            ("memorised seed", "import random\nrandom.seed(0)"),
            ("a list of 8 GB", "Y = [0] * 10 ** 9"),
        )
    ),
    Attack("triton replaced", beside("triton = None"), "graded", 0.0, ""),
    Attack("a kernel called range", beside("@triton.jit\ndef range(a):\n    return a"), "graded", 0.0, ""),
    Attack("a line behind a separator", edited(_hidden_line, True), "graded", FULL, ""),
    *(
        Attack(name, plant, "crashed", 0.0, "the program ended in the middle")
        for name, plant in (
            ("ctypes", beside("import ctypes\nctypes.string_at(0)")),
            ("segmentation fault", answer("import ctypes\nctypes.string_at(0)")),
            ("in a default", beside("@triton.jit\ndef k(x=__import__('os')._exit(0)):\n    pass")),
            ("os._exit", answer("import os\nos._exit(0)")),
        )
    ),
    # A kernel is Triton and nothing else.
    *(
        Attack(f"{line.splitlines()[0][:40]} in a kernel", inside(line), "graded", 0.0, "")
        for line in (
            "x_ptr.__class__",
            "lanes0 = x_ptr.handle.data",
            "lanes0 = [0 for eval in (1, 2)], eval('1')",
            "lanes0 = getattr(tl, 'core'); getattr = 0",
            "tl.core.sys",
            "getattr(x_ptr, 'handle')",
            "eval('1')",
            "np.zeros(3)",
            "f = lambda: open",
            "f'{x_ptr.handle}'",
            "(y := open)",
            "global check",
            "import os",
            "try:\n        pass\n    except BaseException:\n        pass",
        )
    ),
    Attack("another program in a docstring", edited(_docstring, True), "graded", 0.0, ""),
    Attack("def on two lines", edited(_two_lines, True), "graded", 0.0, ""),
    # No Python at all.
    Attack(
        "nested too deeply",
        answer("x = " + "(" * 190 + "1" + ")" * 190 + "\nx = " + "-" * 50_000 + "1"),
        "graded",
        0.0,
        "",
    ),
    Attack("too many characters", answer("#" * 100_000), "graded", 0.0, ""),
    Attack("no text", answer("x = '\0'"), "graded", 0.0, ""),
    harmless(
        "half a surrogate", edited(lambda made: cell(made, "kernel").update(source="# \ud800\nrow = 1"), False), ""
    ),
    # The machine.
    Attack("10 000 processes", answer("import os\nfor i in range(10_000):\n    os.fork()"), "graded", 0.0, ""),
    Attack(
        "a process that outlives", answer("import subprocess\nsubprocess.Popen(['sleep', '999'])"), "graded", 0.0, ""
    ),
    Attack("endless loop", inside(f"lanes_seen = 0\n    {LOOP}"), "out of time", 0.0, "did not end within"),
    Attack("100 GB", inside("big = tl.zeros((1 << 20, 1 << 15), tl.float32)"), "graded", 0.0, ""),
    Attack("a far store", inside("tl.store(out_row + 1099511627776, 1.0)"), "graded", 0.0, ""),
    Attack("a pointer from a number", inside("x_row = tl.cast(140000000000000, x_ptr.dtype)"), "graded", 0.0, ""),
    Attack("1 GB of output", inside("for i in range(2000):\n        print('x' * 500000)"), "graded", FULL - 2, ""),
    Attack("a report in an assertion", inside("assert N < 0, '\\npassed  strides'"), "graded", 0.0, ""),
    Attack(
        "another program for the compiler",
        inside("row = row if tl.constexpr(1) is 1 else [row for _ in range(1)][0]"),
        "graded",
        FULL - 2,
        "",
    ),
    Attack("a list in a constant", edited(_counting, True), "graded", FULL - 2, ""),
    # The notebook.
    harmless(
        "own check in a new cell",
        added("class check:\n    row_softmax = staticmethod(lambda fn: 10)"),
        "cells were added",
    ),
    harmless(
        "patch in a new cell",
        added("import kernels.check.framework as f\nf.check = lambda *a, **k: 10"),
        "cells were added",
    ),
    harmless("os._exit in a new cell", added("import os\nos._exit(0)"), "cells were added"),
    harmless("check rewritten", edited(_own_points, False), "cell check-row-softmax was changed"),
    harmless("stored output", edited(_stored_output, False), ""),
    harmless("skip tag", edited(_skip, False), "tag skip-execution on cell check-row-softmax"),
    harmless("a check of 9 MB", edited(_long_check, False), "cell check-row-softmax was changed"),
    refused("a letter that nobody sees", edited(_unseen_letter, True), "what has its id is called 'ker"),
    harmless("check deleted", edited(_deleted("check-row-softmax"), False), "cell check-row-softmax was deleted"),
    harmless("script in a text", edited(_markup, False), ""),
    Attack("check pasted twice", edited(_pasted("check-row-softmax"), True), "graded", FULL, "is there 2 times"),
    Attack("answer pasted twice", edited(_pasted("kernel", id="copy"), True), "graded", FULL, "is there 2 times"),
    Attack(
        "answer without its metadata", edited(_lost_metadata, True), "graded", FULL, "another cell defines the same"
    ),
    refused("answer deleted", edited(_deleted("kernel"), True), "answer cell kernel is not in the notebook"),
    Attack("renamed", raw(_renamed), "graded", FULL, "the notebook is called 'my_solution.ipynb'"),
    refused(
        "another exercise", raw(lambda folder: write(folder, notebook(True, "02_tiled_matmul"))), "another exercise"
    ),
    refused("two notebooks", raw(_two), "2 notebooks"),
    harmless("a name of another encoding", raw(_named(b"\xfcbung.ipynb")), "called '?bung.ipynb'"),
    harmless("a name that a terminal obeys", raw(_named(b"\x1b]0;x\x07.ipynb")), "called '?]0;x?.ipynb'"),
    harmless("a pipe for a timestamp", raw(_pipe_for_a_timestamp), ""),
    harmless("a thousand tags", edited(_many_tags, False), "more notes"),
    refused("a cell of 4 MB", edited(_long_cell, True), "is not in the notebook"),
    Attack("answers of megabytes", edited(_long_answers, True), "graded", 0.0, "is there 2 times"),
    refused("not JSON", raw(b"{" * 10), "is not JSON"),
    refused("nested JSON", raw(b"[" * 100_000), "is not JSON"),
    refused("a number", raw(b"17"), "no list of cells"),
    refused("not a notebook", raw(b'{"cells": 17}'), "no list of cells"),
    refused("cells of nothing", raw(b'{"cells": [1, null]}'), "no list of cells"),
    refused("odd cells", raw(b'{"cells": [{"source": 7, "metadata": [], "id": {}}]}'), "is not in the notebook"),
    refused("too large", raw(b" " * (21 << 20)), "too large"),
    refused("a link to a notebook", raw(_link("/etc/passwd")), "symbolic link"),
    refused("a linked folder", raw(_linked_folder), "symbolic link"),
    refused("a pipe", raw(lambda folder: os.mkfifo(folder / f"{NAME}.ipynb")), "is no file"),
    refused("a folder", raw(lambda folder: (folder / f"{NAME}.ipynb").mkdir()), "no file"),
    Attack("an empty folder", raw(lambda folder: None), "missing", None, "holds no notebook"),
)


def student(attack: Attack) -> str:
    """The folder's name of an attack's author, no formula to a spreadsheet."""
    return "".join(letter if letter.isalnum() else "-" for letter in attack.name).strip("-")
