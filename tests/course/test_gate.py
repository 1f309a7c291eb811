"""The gate lets every honest line pass and refuses what is on no list; the sandbox has tests of its own."""

import contextlib
import dataclasses
import math

import pytest
import torch

from kernels.check.framework import Draw
from kernels.check.submission import Submission
from kernels.lab.compile_report import CompileError, compile_prepared
from tests.course.mutants import ROOT, cells, patched, submission, targets
from tools.grading import gate, texts
from tools.grading.assignment import read_all
from tools.grading.judge import exercise_of
from tools.grading.sandboxed import sealed

TEXT = "import triton as _triton, triton.language as _tl\n"
ASSIGNMENTS = read_all(ROOT / "exercises")
KERNEL = "@triton.jit\ndef load_block(x_row, offs_n, N, stride_xn):\n    {}\n    return x_row"


def says(name, cell, source):
    """Why an answer cell is refused, or cannot run; empty if it may."""
    one = ASSIGNMENTS[name]
    found = gate.check(cell, source, one.answers[cell].source, one.given, one.program, clinic=one.clinic)
    return "; ".join(map(str, found.refusals)) or found.unreadable


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_solutions_and_released_cells_pass(name):
    written = cells(name)
    for cell, released in ASSIGNMENTS[name].answers.items():
        assert says(name, cell, written[cell]) == "" == says(name, cell, released.source)


def test_planted_bugs_pass():
    for target in targets():
        for mutant in target.mutants:
            cell = mutant.cell or target.cells[0]
            source = patched(cells(target.assignment)[cell], mutant.patch)
            assert says(target.assignment, cell, source) == "", (target.function, mutant.name)


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
    assert says("01_row_softmax", "kernel", KERNEL.format(line)) == ""


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
        ("def inner():\n        pass", "a function inside a function"),
        ("tl = 3", "is given, and may not be replaced"),
        ("y = [0 for eval in (1, 2)]\n    load_block(eval, '1')", "eval means something already"),
        ("f = lambda eval: 0\n    load_block(eval, '1')", "may not use eval"),
        ("load_block(getattr)\n    getattr = 0", "getattr means something already"),
        ("getattr(tl, 'core')\n    getattr = lambda: 0", "getattr means something already"),
        ("y = torch.load\n    torch = 0", "torch means something already"),
        ("with N:\n        pass", "with is not part"),
        ("yield N", "yield is not part"),
        ("y = __name__", "machinery"),
        ("y = triton.runtime", "not on the list"),
        ("y = globals()", "may not use globals"),
        ("\"\"\"\n    def load_block(*a):\n        import os\n    \"\"\"", "inside load_block begins with `def`"),
    ),
)
def test_a_kernel_may_not(line, why):
    assert why in says("01_row_softmax", "kernel", KERNEL.format(line))


def test_a_kernels_default_is_nothing_that_a_call_could_leave_for_the_next():
    for default in ("[]", "(0, [1])"):
        source = KERNEL.format("pass").replace("_xn)", f"_xn={default})")
        assert "default is a number" in says("01_row_softmax", "kernel", source)


def test_triton_finds_a_kernel_where_python_does():
    """Its compiler looks for the first line of the form `def name(`: here a docstring holds it, and another program."""
    hidden = '"""\ndef load_block(x):\n    import os\n    x = \'\'\'"""\n    # \'\'\''
    source = KERNEL.format(hidden).replace("def load_block", "def \\\nload_block")
    assert "must begin with `def load_block(`" in says("01_row_softmax", "kernel", source)
    with pytest.raises(texts.NotKernels, match="must begin with"):
        texts.hold(f"{TEXT}{source.replace('@triton.jit', '@_triton.jit()')}")


@pytest.mark.parametrize(
    ("cell", "old", "new", "why"),
    (
        ("lists-launcher-kernel", "R, C =", "mask = mask @ mask.T\n    R, C =", "multiplies no matrices"),
        ("lists-launcher-kernel", "R, C =", "torch.sum(mask)\n    R, C =", "torch.sum is not on the list"),
        ("lists-launcher-kernel", "R, C =", "t = torch\n    R, C =", "may not use torch, but for its dtypes"),
        ("lists-launcher-kernel", "R, C =", "torch.float32.x\n    R, C =", "not on the list"),
        ("lists-launcher-kernel", "R, C =", "num[0] = 1\n    R, C =", "elements are stored"),
        ("lists-launcher-kernel", "R, C =", "mask.__class__\n    R, C =", "may not look at"),
        ("lists-launcher-kernel", "R, C =", "compare(num, num)\n    R, C =", "may not use compare"),
        ("lists-launcher-kernel", "lists_kernel[R,]", "width[R,]", "width is no kernel"),
        ("lists-launcher-kernel", "R, C =", "[0 for eval in (1,)]\n    eval('1')\n    R, C =", "may not use eval"),
        ("lists-launcher-kernel", "R, C =", "[0 for eval in (eval,)]\n    R, C =", "may not use eval"),
        ("lists-launcher-kernel", "R, C =", "f = lambda open: 0\n    open('x')\n    R, C =", "may not use open"),
        ("lists-launcher-kernel", "R, C =", "def f(vars):\n        pass\n    vars()\n    R, C =", "may not use vars"),
        ("lists-launcher-kernel", "R, C =", "f = lambda x=open: 0\n    R, C =", "may not use open"),
    ),
)
def test_a_launcher_may_not(cell, old, new, why):
    source = cells("06_flash_attention")[cell]
    assert why in says("06_flash_attention", cell, source.replace(old, new, 1))


@pytest.mark.parametrize(
    ("default", "why"),
    (
        ("BLOCK_D=4 * 4, more=None, high=math.inf, kind=(torch.float32, 'x'), sizes=[1, 2]", ""),
        ("BLOCK_D=16, calls=enumerate(range(9))", "a launcher's default is a number"),
        ("BLOCK_D=16, calls=(0 for _ in range(9))", "a launcher's default is a number"),
        ("BLOCK_D=16, *, old=dweight_kernel", "a launcher's default is a number"),
    ),
)
def test_a_launchers_default_is_nothing_that_lives(default, why):
    name, cell = "03_dynamic_conv", "dweight-kernel"
    head, dot, rest = cells(name)[cell].rpartition("BLOCK_D=16")
    found = says(name, cell, "import math\n" + head + default + rest)
    assert dot and (why in found if why else found == ""), found


def test_no_kernel_goes_under_another_name():
    name, cell = "03_dynamic_conv", "dweight-kernel"
    text = cells(name)[cell].replace("@triton.jit", "def dweight_kernel():\n    pass\n\n\n@triton.jit", 1)
    assert says(name, cell, text) == ""
    assert "assigns constants alone" in says(name, cell, f"{text}\n\ndynamic_conv_dweight = dweight_kernel")


def test_an_answer_may_import_math_and_nothing_of_it_reaches_further():
    name, cell = "06_flash_attention", "lists-launcher-kernel"
    source, rules = cells(name)[cell], cells("07_score_mod_compiler")["rules-kernel"]

    def with_lines(line, used):
        return says(name, cell, f"{line}\n{source.replace('R, C =', f'{used}{chr(10)}    R, C =', 1)}")

    for line, used in (
        ("import math", "y = math.ceil(math.log2(num.numel()) / math.pi)"),
        ("from math import ceil, sqrt", "y = ceil(sqrt(num.numel()))"),
        ("import math\nLOG2E = tl.constexpr(math.log2(math.e))", "y = math.inf"),
        ("import math\nimport math", "y = math.prod(mask.shape)"),
    ):
        assert with_lines(line, used) == ""
    for line, used, why in (
        ("import math as m", "pass", "imports nothing but math"),
        ("import math, os", "pass", "imports nothing but math"),
        ("from math import *", "pass", "imports nothing but math"),
        ("from math import factorial", "pass", "imports nothing but math"),
        ("from math import sqrt as ceil", "pass", "imports nothing but math"),
        ("import math", "math.factorial(9)", "not on the list"),
        ("import math", "math.__loader__", "not on the list"),
        ("import math", "math = num", "may not be replaced"),
        ("math = 3", "pass", "may not be defined anew"),
    ):
        assert why in with_lines(line, used), line
    kernel = f"import math\n{KERNEL.format('y = math.sqrt(2)')}"
    assert "math.sqrt is not on the list" in says("01_row_softmax", "kernel", kernel)
    assert says("01_row_softmax", "kernel", kernel.replace("math.sqrt(2)", "-math.inf")) == ""
    assert says("07_score_mod_compiler", "rules-kernel", f"import math\n{rules}\nassert len(RULES) > 9, 'rules'") == ""


def test_a_launcher_lays_a_tensor_out_anew_and_gets_no_number_out_of_that():
    tensor = sealed.sealed(torch.arange(12.0).view(3, 4))
    for other in (tensor.T, tensor.mT.contiguous(), tensor[1:, None], tensor.view(-1), tensor.expand(2, 3, 4)):
        assert type(other) is sealed.Sealed
    assert "5" not in f"{tensor} {tensor!r}" and str(tensor) == "tensor(…, shape=(3, 4), dtype=torch.float32)"
    one = sealed.sealed(torch.tensor(2))
    for take in (
        lambda: tensor[one], lambda: tensor[:one], lambda: tensor[[0]], lambda: tensor[0, one], lambda: tensor.half(),
        lambda: tensor.transpose(dim0=0, dim1=one), lambda: tensor.expand(one, 3, 4), lambda: tensor[0, 0].item(),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="computes outside a kernel"):
            take()


def test_a_launcher_may_clear_a_tensor_and_gets_no_number_out_of_it():
    tensor = torch.ones(3)
    sealed.sealed(tensor).zero_()
    assert not tensor.any()
    one = sealed.sealed(torch.ones(1, dtype=torch.int32))
    for take in (float, int, bool, list, range, math.sqrt, math.isqrt, math.prod, lambda x: math.copysign(1, x)):
        with pytest.raises(TypeError, match="computes outside a kernel"):
            take(one)


@pytest.mark.parametrize(
    ("line", "why"),
    (
        ("import kernels", "imports nothing"),
        ("RULES['x'] = (lambda: 0).__globals__", "machinery"),
        ("RULES['x'] = torch.os.system('true')", "not on the list"),
        ("RULES['x'] = torch.load('x')", "not on the list"),
        ("RULES['x'] = [torch][0].os", "asked for what it has, not kept"),
        ("RULES['x'] = open('x')", "may not use open"),
        ("RULES['x'] = getattr(aten, 'x')", "may not use getattr"),
        ("RULES['x'] = (i for i in []).gi_frame", "machinery"),
        ("class A:\n    pass", "runs nothing itself"),
        ("RULES['x'] = check", "may not use check"),
        ("RULES['x'] = make_fx", "may not use make_fx"),
        ("record = None", "may not be defined anew"),
        ("if RULES:\n    eval('1')\nelse:\n    eval = 0", "may not use eval"),
        ("if RULES:\n    make_fx('1')\nelse:\n    make_fx = 0", "may not use make_fx"),
        ("RULES['x'] = [0 for eval in (1,)], eval", "may not use eval"),
        ("RULES['x'] = eval('1')\neval = 3", "eval may not be defined anew"),
        ("RULES['x'] = eval('1'), (eval := 3)", "may not use eval"),
        ("def f():\n    def g(eval):\n        pass\n    return eval", "may not use eval"),
    ),
)
def test_a_program_may_not(line, why):
    source = cells("07_score_mod_compiler")["rules-kernel"]
    assert why in says("07_score_mod_compiler", "rules-kernel", f"{source}\n{line}")


@pytest.mark.parametrize(
    ("text", "why"),
    (
        ("@triton.jit\ndef score_mod(score):\n    return score.__class__", "may not look at"),
        ("import os", "imports nothing"),
        ("def score_mod(score):\n    return score", "bears no @triton.jit"),
        ("@triton.jit\ndef score_mod(score):\n    return torch", "may not use torch"),
        ("x = 1\n@triton.jit\ndef score_mod(score):\n    return score", "nothing else"),
    ),
)
def test_emitted_text_is_a_kernel(text, why):
    given = ASSIGNMENTS["07_score_mod_compiler"].given
    assert why in "; ".join(map(str, gate.emitted(text, given, set()).refusals))


@pytest.mark.parametrize(
    "lines",
    (
        "x = torch.randn(2, 3)\nassert torch.allclose(x, x), 'not close'",
        "for n in (1, 5):\n    x = torch.ones(1, n)\n    print(f'{n}: {x}')",
        "if __name__ == '__main__':\n    with torch.no_grad():\n        print([i for i in range(3)])",
        "def test(n):\n    return torch.softmax(torch.ones(n), 0)\n\ntest(3)",
        "try:\n    print(unknown)\nexcept ValueError as error:\n    print(error)",
    ),
)
def test_lines_that_try_the_answer_out_are_left_out(lines):
    one = ASSIGNMENTS["01_row_softmax"]
    right = cells("01_row_softmax")["kernel"]
    found = gate.check("kernel", f"{right}\n{lines}", one.answers["kernel"].source, one.given)
    assert found.note.endswith("is not run") and found.source.rstrip() == right.rstrip()


@pytest.mark.parametrize(
    "lines",
    (
        "def row_softmax(x, out):\n    pass",
        "for load_block in [1]:\n    pass",
        "def f():\n    return open('x')",
        "torch.x = 1",
    ),
)
def test_nothing_that_counts_is_tried_out(lines):
    assert says("01_row_softmax", "kernel", f"{cells('01_row_softmax')['kernel']}\n{lines}")


def test_a_name_that_nothing_defines_is_a_mistake_and_no_offence():
    launch = cells("06_flash_attention")["lists-launcher-kernel"].replace("lists_kernel[C,]", "list_kernel[C,]")
    assert says("06_flash_attention", "lists-launcher-kernel", launch).startswith("NameError: name 'list_kernel'")
    assert says("01_row_softmax", "kernel", KERNEL.format("y = maks")).startswith("NameError: name 'maks'")
    assert says("01_row_softmax", "kernel", "def f(:").startswith("SyntaxError")
    assert says("01_row_softmax", "kernel", KERNEL.format("y = tl.tanh(N)")).startswith("AttributeError: module 'triton")
    assert "may not be assigned" in says("01_row_softmax", "kernel", KERNEL.format("tl.tanh = N"))


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
        for one in Submission(submission(known[name])).kernels(case.tensors, case.launch).prepared:
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
