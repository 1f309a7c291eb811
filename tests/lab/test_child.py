"""A kernel carried into another process is the same kernel: its helpers, constants and lines come along."""

import functools
import importlib
import inspect
import math
import os
import sys
import textwrap
import time

import pytest
import torch
import triton
import triton.language as tl
import triton.language.core as an_alias_of_core

from kernels.check import flash_mods
from kernels.lab import CompileError, _child, _fork_server, compile_report, trace
from kernels.lab.accesses import Trace
from kernels.lab.trace import _record_in_child

SCALE = tl.constexpr(2.5)
FOUR = 4
WIDTHS = tl.constexpr((1, 2))
UNUSED = object()


CELL = """
    import math
    FACTOR = tl.constexpr(3)

    @triton.jit
    def times(v, factor):
        return v * factor


    @triton.jit(noinline=False,
                do_not_specialize=["n"])
    def kernel(x, y, n, BLOCK: tl.constexpr = 8):  # a comment
        '''Doc.'''
        i = tl.arange(0, BLOCK)
        tl.store(y + i, times(tl.load(x + i, mask=i < n, other=0.0), FACTOR), mask=i < n)
"""


def test_a_cell_comes_along_whole(cell):
    names = cell(CELL)
    x, y = torch.arange(8.0), torch.zeros(8)
    text, origins = _child.export(names["kernel"], {"a": 1})
    again = cell(text)
    again["KERNEL"][(1,)](x, y, 6)
    assert y.tolist() == [0, 3, 6, 9, 12, 15, 0, 0] and again["VALUES"] == {"a": 1}
    assert "do_not_specialize=['n']" in text
    cell_lines, new_lines = textwrap.dedent(CELL).splitlines(), text.splitlines()
    assert len(origins) == 2
    for new, original in origins:
        assert new_lines[new - 1] == cell_lines[original - 1] and "def " in new_lines[new - 1]


def test_a_kernels_source_is_read_once_and_anew_after_an_autoreload(cell, monkeypatch):
    names, reads, read = cell(CELL), [], inspect.getsourcelines
    monkeypatch.setattr(inspect, "getsourcelines", lambda function: reads.append(function) or read(function))
    first, _ = _child.export(names["kernel"], {})
    assert _child.export(names["kernel"], {})[0] == first and len(reads) == 2  # the kernel and its helper
    names["times"].fn.__code__ = cell(CELL.replace("v * factor", "factor * v"))["times"].fn.__code__
    assert "factor * v" in _child.export(names["kernel"], {})[0]


def test_what_the_checks_define_is_written_out_but_where_a_name_is_taken(cell):
    kernel = "@triton.jit\ndef kernel(x, MOD: tl.constexpr):\n    tl.store(x, MOD(tl.load(x), 0, 0){})\n"
    values = {"MOD": flash_mods.same}
    text, _ = _child.export(cell(kernel.format(""))["kernel"], values)
    x, again = torch.ones(1), cell(text)
    assert "import kernels" not in text and "torch" not in text
    again["KERNEL"][(1,)](x, again["VALUES"]["MOD"])
    assert x.item() == 1
    own = "@triton.jit\ndef same(s):\n    return 2 * s\n" + kernel.format(" + same(1.0)")
    text, _ = _child.export(cell(own)["kernel"], values)
    again = cell(text)
    assert "import kernels.check.flash_mods" in text
    again["KERNEL"][(1,)](x, again["VALUES"]["MOD"])
    assert x.item() == 3


def test_only_what_is_used_comes_along_and_locals_hide_globals(cell):
    names = cell(
        """
        @triton.jit
        def kernel(x):
            total = tl.load(x)
            tl.store(x, total.to(tl.float32).sum)
        """,
        total=torch.zeros(3),  # hidden by the local
        sum=torch.zeros(3),  # an attribute, not the global
        other=torch.zeros(3),
    )
    text, _ = _child.export(names["kernel"], {})
    assert "total =" not in text.replace("total = tl.load", "") and "sum =" not in text and "other" not in text


def test_closures_aliases_modules_types_and_functions_as_values(cell):
    OFFSET = tl.constexpr(7)

    @triton.jit
    def plus(v):
        return v + OFFSET

    alias = plus

    @triton.jit
    def kernel(x, y, F: tl.constexpr, DTYPE: an_alias_of_core.constexpr, N: tl.constexpr = FOUR):
        v = F(alias(tl.load(x + tl.arange(0, N)))) * SCALE + WIDTHS[1] + math.pi
        tl.store(y + tl.arange(0, N), (v * 0 + 1).to(DTYPE) + v)

    values = {
        "F": plus,
        "DTYPE": tl.float32,
        "types": [torch.bfloat16, tl.float16, float("inf"), -0.5, None, {"k": (True,)}],
        (3,): {1, 2},
    }
    again = cell(_child.export(kernel, values)[0])
    assert again["VALUES"]["types"] == values["types"] and again["VALUES"][3,] == {1, 2}
    x, y = torch.arange(4.0), torch.zeros(4)
    again["KERNEL"][(1,)](x, y, F=again["VALUES"]["F"], DTYPE=again["VALUES"]["DTYPE"])
    torch.testing.assert_close(y, (x + 14) * 2.5 + 2 + math.pi + 1)


def test_recursion_between_helpers_ends(cell):
    names = cell(
        """
        @triton.jit
        def even(n: tl.constexpr):
            if n == 0:
                return True
            return odd(n - 1)

        @triton.jit
        def odd(n: tl.constexpr):
            if n == 0:
                return False
            return even(n - 1)

        @triton.jit
        def kernel(x):
            tl.store(x, even(4) - odd(4))
        """
    )
    x = torch.zeros(1)
    cell(_child.export(names["kernel"], {})[0])["KERNEL"][(1,)](x)
    assert x.item() == 1


def test_what_a_fresh_process_can_import_is_imported(cell, tmp_path, monkeypatch):
    package = tmp_path / "a_package_of_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "some.py").write_text(
        "import triton\nimport triton.language as tl\nWEIGHT = object()  # could not be carried\n"
        "@triton.jit\ndef helper(v):\n    return v + 1\n"
        "@triton.jit\ndef kernel(x):\n    tl.store(x, helper(tl.load(x)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    some = importlib.import_module("a_package_of_kernels.some")
    text, origins = _child.export(some.kernel, {})
    assert "KERNEL = a_package_of_kernels.some.kernel" in text and "def " not in text and origins == []
    names = cell("@triton.jit\ndef user(x):\n    tl.store(x, helper(tl.load(x)))\n", helper=some.helper)
    text, _ = _child.export(names["user"], {})
    assert "helper = a_package_of_kernels.some.helper" in text and "def helper" not in text
    monkeypatch.setattr(some, "helper", None)  # what goes by that name now is something else: carry the source
    assert "def helper" in _child.export(names["user"], {})[0]


def test_what_lives_in_main_is_carried(cell, tmp_path, monkeypatch):
    names = cell(
        """
        @triton.jit
        def helper(v):
            return v

        @triton.jit
        def kernel(x):
            tl.store(x, helper(1.0))
        """
    )
    main = sys.modules["__main__"]  # as in `python folder/`: the child's __main__ would be another
    monkeypatch.setattr(main, "helper", names["helper"], raising=False)
    monkeypatch.setattr(main, "__file__", str(tmp_path / "__main__.py"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert "def helper" in _child.export(names["kernel"], {})[0]


def test_an_annotation_that_is_not_tritons_comes_along_as_text(cell):
    header = "def kernel(x, n: Optional[int], w: tl.int32, BLOCK: tl.constexpr) -> Optional[str]:"
    text, _ = _child.export(cell(f"from typing import Optional\n@triton.jit\n{header}\n    pass\n")["kernel"], {})
    assert "def kernel(x, n: 'Optional[int]', w: tl.int32, BLOCK: tl.constexpr) -> 'Optional[str]':" in text
    assert "typing" not in text


def test_what_cannot_be_carried_is_named(cell):
    def kernel_with(**names):
        return cell("@triton.jit\ndef kernel(x):\n    tl.store(x, thing)\n", **names)["kernel"]

    with pytest.raises(ValueError, match="kernel uses 'thing' in 'kernel': a Tensor cannot be carried"):
        _child.export(kernel_with(thing=torch.zeros(1)), {})
    with pytest.raises(
        ValueError, match="kernel uses 'thing' in 'kernel': '<lambda>' is not defined by `def`|cannot be read"
    ):
        _child.export(kernel_with(thing=eval("lambda v: v")), {})
    with pytest.raises(ValueError, match="a partial cannot be carried"):
        _child.export(kernel_with(thing=functools.partial(int)), {})
    with pytest.raises(ValueError, match="a type cannot be carried .*, in line 3, `tl.store\\(x, thing\\)`$"):
        _child.export(kernel_with(thing=type("Constants", (), {})), {})
    # A name that nobody defined is the compiler's business.
    assert "thing" in _child.export(kernel_with(), {})[0]


def test_two_things_of_one_name_are_refused(cell):
    one = cell("@triton.jit\ndef helper(v):\n    return v + SHIFT\n", SHIFT=tl.constexpr(1))["helper"]
    body = "@triton.jit\ndef kernel(x):\n    tl.store(x, helper(SHIFT))\n"
    two = cell(body, helper=one, SHIFT=tl.constexpr(2))["kernel"]
    with pytest.raises(ValueError, match="two things called 'SHIFT'"):
        _child.export(two, {})
    other = cell("@triton.jit\ndef helper(v):\n    return v\n")["helper"]
    with pytest.raises(ValueError, match="two functions called 'helper'"):
        _child.export(other, {"F": one})


def test_a_child_that_dies_leaves_its_last_words(cell):
    names = cell(
        "@triton.jit\ndef kernel(x, die: tl.constexpr):\n    die()\n",
    )

    def die():
        sys.stderr.write("so long")
        sys.stderr.flush()
        os.abort()

    die = cell(textwrap.dedent(inspect.getsource(die)), os=os, sys=sys)["die"]
    x = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"kernel failed in the interpreter: .* status -6:\nso long"):
        _record_in_child(names["kernel"], (1,), (x, die), {}, guard=True, write_back=True)


def test_tracing_in_a_child_is_tracing_here(cell):
    kernel = cell(CELL)["kernel"]
    x, storage = torch.arange(8.0), torch.full((12,), -1.0)
    y = storage[2:8]
    launches = _record_in_child(
        kernel, lambda args: (args["n"] // 4,), (x, y), {"n": 8, "num_warps": 8}, guard=True, write_back=True
    )
    assert storage.tolist() == [-1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1]  # the store past y's end was left out
    there, again = Trace(launches), y.clone()
    here = trace(kernel, (2,), x, again, 8)
    assert torch.equal(again, y)
    assert there.requested_bytes == here.requested_bytes and there.launches[0].grid == (2,)
    assert [(a.program, a.kind, a.tensor, a.line, a.source) for a in there.accesses] == [
        (a.program, a.kind, a.tensor, a.line, a.source) for a in here.accesses
    ]
    assert [a.outside.tolist() for a in there.outside()] == [[6, 7], [6, 7]]


def test_a_failing_kernel_fails_here_with_its_message(cell):
    names = cell("@triton.jit\ndef kernel(x):\n    tl.store(x, undefined_name)\n")
    with pytest.raises(RuntimeError, match="kernel failed in the interpreter: .*undefined_name"):
        _record_in_child(names["kernel"], (1,), (torch.zeros(1),), {}, guard=True, write_back=False)


@pytest.fixture
def busy(cell):
    """A kernel whose compilation does what it is told: ``busy("...")``."""

    def make(statement):
        return cell(
            f"""
            @triton.constexpr_function
            def act():
                exec({statement!r})
                return 1.0

            @triton.jit
            def kernel(x):
                tl.store(x, act())
            """
        )["kernel"]

    return make


def test_one_process_raises_all_children_and_none_sees_what_another_did(busy, tmp_path):
    leave = "import os; open({!r}, 'w').write(f'{{os.getsid(0)}} {{os.environ.get(chr(88))}}'); os.environ[chr(88)] = '1'"
    for name in ("one", "two"):
        compile_report(busy(leave.format(str(tmp_path / name))), "*fp32")
    (parent, left), (again, left_again) = ((tmp_path / name).read_text().split() for name in ("one", "two"))
    assert parent == again != str(os.getsid(0)) and left == left_again == "None"  # it begins a session of its own


def test_children_live_in_the_environment_of_now(busy, tmp_path, monkeypatch):
    tell = f"import os; open({str(tmp_path / 'told')!r}, 'w').write(os.environ['A_WORD'] + os.getcwd())"
    monkeypatch.chdir(tmp_path)
    for word in ("first", "second"):
        monkeypatch.setenv("A_WORD", word)
        compile_report(busy(tell + f"  # {word}"), "*fp32")
        assert (tmp_path / "told").read_text() == word + str(tmp_path)


def test_a_file_that_stands_in_a_modules_place_is_what_the_error_names(busy, monkeypatch, tmp_path):
    (tmp_path / "json.py").write_text("raise AttributeError('no json of the library')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match="no process can be started.*AttributeError: no json of the library"):
        compile_report(busy("pass  # beside a json"), "*fp32")


def test_a_child_that_takes_too_long_is_given_up_with_all_it_hangs_on(busy, monkeypatch, tmp_path):
    wait = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    compile_report(busy("pass"), "*fp32")  # from here on a child comes at once
    monkeypatch.setattr(_fork_server, "TIMEOUT_SECONDS", 5)
    with pytest.raises(CompileError, match="no answer within 5 s"):
        compile_report(busy(wait), "*fp32")
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # the system may take a moment
            os.kill(int((tmp_path / "pid").read_text()), 0)
            time.sleep(0.1)


def test_the_next_child_comes_though_the_process_that_forks_them_has_left(busy):
    compile_report(busy("pass"), "*fp32")
    server = _fork_server.ForkServer._started[os.getpid(), False, False]  # a grader's, of another test, is confined
    server.process.stdin.close()  # as when it has had nothing to do for a while
    server.process.wait(timeout=60)
    assert compile_report(busy("1"), "*fp32").registers > 0
    assert server.process.returncode == 0


def test_a_report_is_kept_by_the_content_of_its_kernel(busy, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('.')"
    reports = [compile_report(busy(count), "*fp32") for _ in range(2)]
    assert reports[0] == reports[1] and (tmp_path / "count").read_text() == "."
    assert compile_report(busy(count), "*bf16").sass != reports[0].sass
    compile_report(busy(count + "  # another text"), "*fp32")
    assert (tmp_path / "count").read_text() == "..."
