"""Texts of kernels: every line of Triton's passes, and what is none of it is refused."""

import pytest

from kernels.check.framework import Draw
from kernels.check.submission import Submission
from tests.course.mutants import ROOT, submission, targets
from tools.grading import texts
from tools.grading.assignment import read_all
from tools.grading.judge import exercise_of
from tools.grading.sandboxed import recordings

TEXT = "import triton as _triton, triton.language as _tl\n"
ASSIGNMENTS = read_all(ROOT / "exercises")
KERNEL = (
    TEXT + "import triton.language as tl\n"
    "@_triton.jit()\ndef load_block(x_row, offs_n, N, stride_xn):\n    {}\n    return x_row"
)


def says(text):
    """Why a text of kernels may not be run; empty if it may."""
    try:
        texts.hold(text)
    except texts.NotKernels as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(
    "line",
    (
        "y = tl.load(x_row, mask=offs_n < N, other=0.0).to(tl.float32)",
        "tl.static_assert(N > 0, 'text')\n    assert N > 0",
        "for i in tl.static_range(4):\n        x_row += i",
        "while N > 0:\n        N -= 1",
        "y = tl.math.exp(N) if N > 3 else -N\n    print(y)",
        "high, low = (tl.max(offs_n, axis=0), N)",
        "BLOCK: tl.constexpr = 16",
        "y = tl.reduce(offs_n, 0, load_block)",
        "y = [i for i in reversed(range(4))]\n    y.append(N)\n    x_row += sum(i for i, _ in zip(y, enumerate(y)))",
        "row = lambda i: i[:, None]\n    x_row = row(offs_n)",
        "if (last := N - 1) > 3:\n        tl.static_print(f'{last}')",
        "import math\n    y = math.log2(math.e)",
        "y: tl.tensor = offs_n\n    raise NotImplementedError",
        "__mine = N\n    iter = dir = __mine + 1\n    type = object = iter * dir",
        "sum = N\n    sum += 1\n    id = tl.program_id(0)\n    max = tl.max(offs_n, 0) + sum + id",
    ),
)
def test_a_kernel_may(line):
    assert says(KERNEL.format(line)) == ""


@pytest.mark.parametrize(
    ("line", "why"),
    (
        ("y = lambda: open", "none of Triton's"),
        ("y = [i.fn for i in N]", "nothing that a kernel may look at"),
        ("y = {i for i in N}", "is not part"),
        ("y = {1: 2}", "is not part"),
        ("x_row.x = 1", "stored with tl.store"),
        ("x_row[0] = 1", "stored with tl.store"),
        ("del N", "is not part"),
        ("y = tl.inline_asm_elementwise()", "on no list"),
        ("y = tl.tensor(N, N)", "on no list"),
        ("y = x_row._type", "nothing that a kernel may look at"),
        ("y = x_row.handle.data", "nothing that a kernel may look at"),
        ("y = x_row[0](N)", "calls what has no name"),
        ("def inner():\n        pass", "begins with `def`"),
        ("tl = 3", "may not be replaced"),
        ("y = [0 for eval in (1, 2)]\n    load_block(eval, '1')", "none of Triton's"),
        ("y = [0 for np in (1, 2)]\n    load_block(np, '1')", "none of Triton's"),
        ("f = lambda eval: 0\n    load_block(eval, '1')", "none of Triton's"),
        ("load_block(getattr)\n    getattr = 0", "none of Triton's"),
        ("y = torch.load\n    torch = 0", "none of Triton's"),
        ("import math as m", "is not part"),
        ("import os", "is not part"),
        ("with N:\n        pass", "is not part"),
        ("yield N", "is not part"),
        ("y = __name__", "none of Triton's"),
        ("y = tl.core.builtin", "on no list"),
        ("y = triton.runtime", "on no list"),
        ("y = globals()", "none of Triton's"),
        ("\"\"\"\n    def load_block(*a):\n        import os\n    \"\"\"", "begins with `def`"),
    ),
)
def test_a_kernel_may_not(line, why):
    assert why in says(KERNEL.format(line))


def test_what_is_no_kernel_is_named_with_its_line():
    assert says(KERNEL.format("y = x_row.handle  # mine")).endswith(", in your line `y = x_row.handle  # mine`")
    used = KERNEL.format("y = np.log2(N)").replace("import triton.language as tl", "import numpy as np")
    assert says(used) == "numpy is no module of kernels, in your line `y = np.log2(N)`"
    used = used.replace("y = np.log2(N)", "pass")
    assert says(used) == "numpy is no module of kernels, in your line `import numpy`"


@pytest.mark.parametrize("header", ("_xn: open('x')):", "_xn=open('x')):", "_xn: [open('x')]):", "_xn) -> open('x'):"))
def test_what_a_header_calls_is_looked_at(header):
    """An annotation and a default are evaluated where a kernel is defined."""
    assert "none of Triton's" in says(KERNEL.format("pass").replace("_xn):", header))


def test_triton_finds_a_kernel_where_python_does():
    """Its compiler looks for the first line of the form `def name(`: here a docstring holds it, and another program."""
    hidden = '"""\ndef load_block(x):\n    import os\n    x = \'\'\'"""\n    # \'\'\''
    source = KERNEL.format(hidden).replace("def load_block", "def \\\nload_block")
    assert "that is `def load_block(`" in says(source)


def test_a_name_that_nothing_defines_is_a_mistake_and_no_offence():
    with pytest.raises(texts.Unfinished, match="NameError: name 'maks'"):
        texts.hold(KERNEL.format("y = maks"))
    with pytest.raises(texts.Unfinished, match="AttributeError: module 'triton"):
        texts.hold(KERNEL.format("y = tl.tanh(N)"))
    assert "is assigned" in says(KERNEL.format("tl.tanh = N"))


@pytest.mark.parametrize(
    "text",
    (
        "import os",
        "from triton import *",
        "x = __import__('os')",
        "x = eval\n@_triton.jit()\ndef f(y):\n    x('1')",
        "x = torch.os.system('a')",
        "x = torch.hub.load",
        "x = triton.__builtins__",
        "x = tl.core.sys.exit()",
        "x = [y() for y in z]",
        "x.y = 1",
        "@_triton.jit()\ndef f(x):\n    import os",
        "@_triton.jit()\ndef f(x):\n    return x.__class__",
        "@_triton.jit()\ndef f(x=open(1)):\n    return x",
        "@print\ndef f(x):\n    return x",
        "def f(x):\n    return x",
        "f()",
        "class A: pass",
        "while True: pass",
        "x = triton.runtime.cache.os.system",
        "x = triton.language.core.warn",
        "tuple = triton.language.load\nx = tuple(1)",
        "import triton.language as collections\nx = collections.namedtuple(1)",
        "import triton.tools.compile",
        "x = triton.experimental.gluon.language.__builtins__['eval']('1')",
        "x = triton.experimental.gluon.language._core.warnings.warn('1')",
        "x = triton.experimental.gluon.language._core.barrier('1')",
        "x = collections.namedtuple('T', ['handle'])(1)\n@_triton.jit()\ndef f(x):\n    return x.handle",
        "x = 1 #\x0cimport os",
        "@_triton.jit()\ndef f(x):\n    f(getattr)\n    getattr = 0",
        "@_triton.jit()\ndef f(x):\n    y = [0 for getattr in (1,)]\n    f(getattr)",
        "import torch\n@_triton.jit()\ndef f(x):\n    f(torch.load)\n    torch = 0",
    ),
)
def test_a_text_for_the_compiler_holds_kernels_alone(text):
    with pytest.raises(texts.NotKernels):
        texts.hold(TEXT + text)


def test_calls_that_differ_in_values_alone_share_one_kernel():
    text = KERNEL.format("'\\\nVALUES = 1'") + "\nKERNEL = load_block\nVALUES = {}\n"
    texts.hold(text)
    (one, first), (two, second) = (recordings.defined(text[:-3] + values, []) for values in ("{'N': 1}\n", "{'N': 2}\n"))
    assert one is two and (first, second) == ({"N": 1}, {"N": 2})


def test_no_comment_says_how_a_text_for_the_compiler_is_encoded():
    texts.hold(TEXT + "# coding: utf-7\nx = 1")
    with pytest.raises(texts.NotKernels):
        texts.hold("# coding: utf-7\n" + TEXT + "#+AAo-import os")


def test_texts_of_the_solutions_are_for_the_compiler():
    known = {target.function: target for target in targets()}
    for name in ("row_softmax", "flash_backward", "wgrad_split"):
        exercise = exercise_of(name)
        case = next(iter(exercise.properties[0].cases(Draw(0, False))))
        for one in Submission(submission(known[name])).kernels(case).prepared:
            literals = map(repr, (one.lines, one.signature, one.attributes, one.options))
            fields = ASSIGNMENTS[known[name].assignment].fields
            assert texts.prepared([one.kernel, one.text, *literals], fields).key == one.key
