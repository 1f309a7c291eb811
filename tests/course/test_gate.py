"""The lists let every honest line pass and refuse what is on none: of kernels, and of clinics' tests."""

import contextlib
import dataclasses

import pytest

from kernels.check.framework import Draw
from kernels.check.submission import Submission
from kernels.lab.compile_report import CompileError, compile_prepared
from tests.course.mutants import ROOT, cells, submission, targets
from tools.grading import gate, texts
from tools.grading.assignment import read_all
from tools.grading.given import Given
from tools.grading.judge import exercise_of

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


def of_clinic(name, cell, source):
    """What is said of a clinic's answer."""
    one, earlier = ASSIGNMENTS[name], Given()
    for each in one.answers:
        if each == cell:
            break
        earlier.add(cells(name)[each])
    found = gate.of_clinic(cell, source, one.answers[cell].source, one.given, earlier)
    return found, "; ".join(found.notes) or found.unreadable


@pytest.mark.parametrize("name", [name for name in ASSIGNMENTS if name.startswith("clinic")])
def test_diagnoses_and_tests_of_the_solutions_pass(name):
    written = cells(name)
    for cell, released in ASSIGNMENTS[name].answers.items():
        for source in (written[cell], released.source):
            found, said = of_clinic(name, cell, source)
            assert (said, found.source.split()) == ("", source.split())


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
        "y: tl.tensor = offs_n\n    raise NotImplementedError",
        "sum = N\n    sum += 1\n    id = tl.program_id(0)\n    max = tl.max(offs_n, 0) + sum + id",
    ),
)
def test_a_kernel_may(line):
    assert says(KERNEL.format(line)) == ""


@pytest.mark.parametrize(
    ("line", "why"),
    (
        ("y = lambda: open", "may not use open"),
        ("f = lambda: 0\n    f = N\n    f()", "is a value here, not a function"),
        ("y = [i.fn for i in N]", "may not look at"),
        ("y = {i for i in N}", "SetComp is not part"),
        ("y = {1: 2}", "a dict"),
        ("x_row.x = 1", "may not be assigned"),
        ("x_row[0] = 1", "elements are stored with tl.store"),
        ("del N", "del is not part"),
        ("y = print", "print is called, not kept"),
        ("y = tl.inline_asm_elementwise()", "not on the list"),
        ("y = tl.tensor(N, N)", "not on the list"),
        ("f = load_block\n    f(1)", "is a value here, not a function"),
        ("y = x_row._type", "may not look at"),
        ("y = b'1'", "bytes are nothing"),
        ("def inner():\n        pass", "begins with `def`"),
        ("tl = 3", "is given, and may not be replaced"),
        ("y = [0 for eval in (1, 2)]\n    load_block(eval, '1')", "eval means something already"),
        ("f = lambda eval: 0\n    load_block(eval, '1')", "may not use eval"),
        ("load_block(getattr)\n    getattr = 0", "getattr means something already"),
        ("getattr(tl, 'core')\n    getattr = lambda: 0", "getattr means something already"),
        ("y = torch.load\n    torch = 0", "torch means something already"),
        ("with N:\n        pass", "with is not part"),
        ("yield N", "yield is not part"),
        ("y = __name__", "machinery"),
        ("y = triton.runtime", "may not look at .runtime"),
        ("y = globals()", "may not use globals"),
        ("\"\"\"\n    def load_block(*a):\n        import os\n    \"\"\"", "inside load_block begins with `def`"),
    ),
)
def test_a_kernel_may_not(line, why):
    assert why in says(KERNEL.format(line))


def test_a_kernels_default_is_nothing_that_a_call_could_leave_for_the_next():
    for default in ("[]", "(0, [1])"):
        source = KERNEL.format("pass").replace("_xn)", f"_xn={default})")
        assert "default is a number" in says(source)


def test_triton_finds_a_kernel_where_python_does():
    """Its compiler looks for the first line of the form `def name(`: here a docstring holds it, and another program."""
    hidden = '"""\ndef load_block(x):\n    import os\n    x = \'\'\'"""\n    # \'\'\''
    source = KERNEL.format(hidden).replace("def load_block", "def \\\nload_block")
    assert "must begin with `def load_block(`" in says(source)


@pytest.mark.parametrize(
    ("line", "why"),
    (
        ("import kernels", "a test imports math"),
        ("x = (lambda: 0).__globals__", "machinery"),
        ("x = torch.os.system('true')", "not on the list"),
        ("x = torch.load('x')", "not on the list"),
        ("x = torch.from_file('x')", "not on the list"),
        ("x = np.load('x')", "not on the list"),
        ("x = np.testing.os", "not on the list"),
        ("x = [torch][0].os", "asked for what it has, not kept"),
        ("x = open('x')", "may not use open"),
        ("x = getattr(torch, 'x')", "may not use getattr"),
        ("x = (i for i in []).gi_frame", "machinery"),
        ("x = '{0.x}'.format(1)", "machinery"),
        ("x = check", "may not use check"),
        ("trace = None", "may not be defined anew"),
        ("if 1:\n    eval('1')\nelse:\n    eval = 0", "may not use eval"),
        ("x = [0 for eval in (1,)], eval", "may not use eval"),
        ("eval = 3", "eval may not be defined anew"),
        ("def f():\n    def g(eval):\n        pass\n    return eval", "may not use eval"),
    ),
)
def test_a_clinics_test_may_not(line, why):
    """It is not run, and the rest of the cell is."""
    source = cells("clinic_0_foundations")["test-a"]
    found, said = of_clinic("clinic_0_foundations", "test-a", f"{source}\n{line}")
    assert why in said and found.source.split() == source.split()


@pytest.mark.parametrize(
    "line",
    (
        "x = torch.nn.functional.softmax(torch.ones(3), 0)",
        "import numpy as np\nx = np.zeros(3)\nnp.testing.assert_allclose(x, x)",
        "class Shape:\n    size = 3",
        "def close(x, y):\n    return compare('x', x, y)",
    ),
)
def test_a_clinics_test_may(line):
    source = cells("clinic_0_foundations")["test-a"]
    assert of_clinic("clinic_0_foundations", "test-a", f"{source}\n{line}")[1] == ""


def test_a_name_that_nothing_defines_is_a_mistake_and_no_offence():
    with pytest.raises(texts.Unfinished, match="NameError: name 'maks'"):
        texts.hold(KERNEL.format("y = maks"))
    with pytest.raises(texts.Unfinished, match="AttributeError: module 'triton"):
        texts.hold(KERNEL.format("y = tl.tanh(N)"))
    assert "may not be assigned" in says(KERNEL.format("tl.tanh = N"))
    found, said = of_clinic("clinic_0_foundations", "test-a", "def f(:")
    assert said.startswith("SyntaxError") and not found.notes


@pytest.mark.parametrize(
    "text",
    (
        "import os",
        "from triton import *",
        "x = __import__('os')",
        "x = torch.os.system('a')",
        "x = torch.hub.load",
        "x = triton.__builtins__",
        "x = tl.core.sys.exit()",
        "x = [y() for y in z]",
        "x.y = 1",
        "@_triton.jit()\ndef f(x):\n    import os",
        "@_triton.jit()\ndef f(x):\n    return x.__class__",
        "@_triton.jit()\ndef f(x=print(1)):\n    return x",
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
            fields = ASSIGNMENTS[known[name].assignment].given.fields
            assert texts.prepared([one.kernel, one.text, *literals], fields).key == one.key


def test_a_text_that_passed_all_the_same_has_no_way_to_python(tmp_path, monkeypatch):
    """Should the list ever miss one: Triton's compiler, which has no sandbox, knows no ``getattr`` for what others wrote."""
    monkeypatch.setattr(texts, "hold", lambda *_: None)
    told = tmp_path / "told"
    text = f"""{TEXT}import triton.language as tl
@_triton.jit()
def use(fn: tl.constexpr):
    fn("open({str(told)!r}, 'w').write('x')")
@_triton.jit()
def find(g: tl.constexpr):
    use(g(g(g(tl, 'core'), 'builtins'), 'eval'))
@_triton.jit()
def k(x_ptr):
    find(getattr)
KERNEL = k
VALUES = {{}}
"""
    options = {"num_warps": 4, "num_stages": 3, "maxnreg": None, "num_ctas": 1}
    literals = [repr(each) for each in ([], {"x_ptr": "*fp32"}, {}, options)]
    for foreign in (True, False):
        one = dataclasses.replace(texts.prepared(["k", text, *literals]), foreign=foreign)
        with contextlib.suppress(CompileError):
            compile_prepared(one, (90,))
        assert told.exists() is not foreign  # without it, the way is there: this test would see it
