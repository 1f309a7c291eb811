"""``check.kernel``, on a lesson made up for it: what it says, what it gives back, what stands in the generated module."""

import sys
import types
from pathlib import Path

import nbformat
import pytest
import torch

from kernels import check
from kernels.check import lessons
from kernels.lab.source import readable
from tests.course.turns import lessons as notebooks
from tools import lesson_kernels

KERNEL = """@triton.jit
def attend_kernel(q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, M, N, scale, D: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d, mask=m[:, None] < M, other=0.0)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for n0 in range(0, N, BLOCK_N):
        n = n0 + tl.arange(0, BLOCK_N)
        k, v = rows(k_ptr, n, N, D), rows(v_ptr, n, N, D)
        ...  # yours: the scores, the new maximum, what is left of the old sums, the new ones
    tl.store(o_ptr + m[:, None] * D + d, acc / l[:, None], mask=m[:, None] < M)
    tl.store(lse_ptr + m, top + tl.log(l), mask=m < M)


attend_kernel = check.kernel("90-attend", attend_kernel, attention)"""
ANSWER = """<details><summary>Answer</summary>

```python
        z = tl.where(n < N, scale * tl.dot(q, tl.trans(k), input_precision="ieee"), float("-inf"))
        new = tl.maximum(top, tl.max(z, 1))
        alpha = tl.exp(top - new)
        p = tl.exp(z - new[:, None])
        l = l * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        top = new
```

−∞ goes in before the maximum.
</details>"""
ABOVE = """import torch
import triton
import triton.language as tl

from kernels import check

BLOCK: tl.constexpr = 16


@triton.jit
def rows(ptr, n, N, D: tl.constexpr):
    return tl.load(ptr + n[:, None] * D + tl.arange(0, D), mask=n[:, None] < N, other=0.0)


def attention(q, k, v, scale):
    o, lse = torch.empty_like(q), torch.empty(len(q), device=q.device)
    grid = (triton.cdiv(len(q), 16),)
    attend_kernel[grid](q, k, v, o, lse, len(q), len(k), scale, q.shape[1], 16, 16)
    return o, lse"""
TURN = """def both(a, b):
    ...


check.step("90-both", both)"""
TURN_ANSWER = (
    "<details><summary>Answer</summary>\n\n```python\ndef both(a, b):\n    return a.exp() + b\n```\n</details>"
)


def _arguments(draw, M=16, N=16, D=16, scale=0.25, dtype=torch.float32):
    q, k, v = (draw.normal(length, D, dtype=dtype) for length in (M, N, N))
    return {"q": q, "k": k, "v": v, "scale": scale}


SLIPS = (
    ("l * alpha + tl.sum(p, 1)", "l + tl.sum(p, 1)", "the sums before this tile were made with another maximum (l)"),
    ("acc * alpha[:, None]", "acc", "acc is not rescaled"),
    ('float("-inf"))', "0.0)", "a key that isn't there has a score of 0"),
    ("range(0, N, BLOCK_N)", "range(0, BLOCK_N, BLOCK_N)", "only the first tile of keys is looked at"),
    (", mask=m < M)", ")", ""),
    ("mask=m[:, None] < M, other=0.0)", "mask=m[:, None] < M + BLOCK_M, other=0.0)", ""),
)
CASES = {
    "one tile": {},
    "several tiles": {"M": 48, "N": 80},
    "ragged": {"M": 21, "N": 37},
    "bfloat16": {"dtype": torch.bfloat16},
}
DATA = lessons.LessonKernel(_arguments, CASES, SLIPS)
BOTH = lessons.Turn(
    "the sum of an exponential and a number",
    lambda draw, n=5: {"a": draw.normal(n), "b": draw.normal(n)},
    {"five": {}, "seven": {"n": 7}},
    (("a.exp()", "a", "a's exponential is added, not a"),),
)


def cell(kind, source, name):
    return {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}[kind](source, id=name)


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """A notebook of lesson 90, its data and its generated module in place; gives the notebook's path."""
    kinds = [("code", ABOVE), ("code", KERNEL), ("markdown", ANSWER), ("code", TURN), ("markdown", TURN_ANSWER)]
    path = tmp_path / "90_attend.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell(*one, f"c{i}") for i, one in enumerate(kinds)]), path)
    data = types.ModuleType("kernels.check.lessons.lesson_90")
    data.KERNELS, data.TURNS = {"90-attend": DATA}, {"90-both": BOTH}
    monkeypatch.setitem(sys.modules, data.__name__, data)
    own = types.ModuleType("kernels.lessons.lesson_90")
    monkeypatch.setitem(sys.modules, own.__name__, own)
    exec(readable(lesson_kernels.module(path), f"/lesson/{path.parent.name}.py"), vars(own))
    return path


def executed(path: Path, change=lambda source: source, *, answers=False) -> dict:
    """The names of the notebook's code cells, run one after the other."""
    notebook = lesson_kernels.with_answers(path) if answers else nbformat.read(path, as_version=4)
    namespace = {"__name__": "__main__"}
    for place, one in enumerate(notebook.cells):
        if one.cell_type == "code":
            exec(readable(change(one.source), f"/cell/{path.parent.name}/{place}-{hash(change)}.py"), namespace)
    return namespace


def test_unwritten_the_lesson_goes_on_with_its_own(lesson, capsys):
    names = executed(lesson)
    said = capsys.readouterr().out
    assert (
        "attend_kernel: not written yet (line 13 of the cell still has `...`).\nThe lesson goes on with its own.\n"
        in said
    )
    assert names["attend_kernel"] is sys.modules["kernels.lessons.lesson_90"].attend_kernel
    q, k, v = (torch.randn(n, 16, generator=torch.Generator().manual_seed(n)) for n in (21, 37, 37))
    right = ((0.25 * q @ k.T).softmax(1)) @ v
    assert torch.allclose(names["attention"](q, k, v, 0.25)[0].cpu(), right, atol=1e-5)


def test_right_it_goes_on_with_the_readers(lesson, capsys):
    names = executed(lesson, answers=True)
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        "passed  right: one tile, several tiles, ragged, bfloat16",
        "passed  compiles",
        "passed  cheap",
        "The lesson goes on with yours.",
    ]
    assert names["attend_kernel"] is not sys.modules["kernels.lessons.lesson_90"].attend_kernel
    assert said[4].startswith("Your turn 90-both: right, the sum of")


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip[1][:30])
def test_a_slip_is_named(lesson, slip, capsys):
    names = executed(lesson, lambda source: source.replace(*slip[:2]), answers=True)
    said = capsys.readouterr().out
    assert "FAILED" in said and "The lesson goes on with its own." in said
    assert slip[2] in said
    if not slip[2]:
        assert "outside" in said
    assert names["attend_kernel"] is sys.modules["kernels.lessons.lesson_90"].attend_kernel


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("p = tl.exp(z - new[:, None])", "p = tl.exp(z - new[:, None]", None),
        ("tl.trans(k)", "k", "expected"),
        ("tl.max(z, 1)", "tl.max(z, 2)", "line 14 of your cell"),
        (
            "        top = new\n",
            "        top = new\n        for _ in [0]:\n            pass\n",
            "a loop in a kernel runs over range",
        ),
        ("where(n < N,", "where((n < N) and (n < 4),", "`(n < N) and (n < 4)`: `and` asks whether a whole block"),
        ("rows(v_ptr, n, N, D)", "rows(v_ptr, n, N, D) + 0 * rows(v_ptr, n, N, D)", "FAILED  cheap: loads ask for"),
    ],
)
def test_other_mistakes_are_explained(lesson, old, new, said, capsys):
    if said is None:
        with pytest.raises(SyntaxError):
            executed(lesson, lambda source: source.replace(old, new), answers=True)
        return
    executed(lesson, lambda source: source.replace(old, new), answers=True)
    assert said in capsys.readouterr().out


def test_the_readers_own_line_is_quoted_and_once(lesson, capsys):
    """A helper from above is not to blame for where it is sent, and the same line in another case is no news."""
    executed(lesson, lambda source: source.replace("rows(v_ptr, n, N, D)", "rows(v_ptr, n + 1, N + 1, D)"), answers=True)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("FAILED  one tile: `k, v = rows(k_ptr, n, N, D), rows(v_ptr, n + 1, N + 1, D)` in program")
    assert said[1:3] == ["FAILED  several tiles: the same.", "FAILED  ragged: the same."]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "tl.store(lse_ptr + m,",
            "for i in tl.static_range(2):\n        tl.store(lse_ptr + (m + i) % M,",
            "two lanes store here, so an address or a mask is wrong.",
        ),
        ("lse_ptr + m,", "lse_ptr + tl.where(M == 16, m - 1, m + 1),", "the first at 1 element before lse. On a GPU"),
    ],
)
def test_what_one_line_does_to_memory_is_told_once(lesson, old, new, said, capsys):
    executed(lesson, lambda source: source.replace(old, new), answers=True)
    first, *others = capsys.readouterr().out.splitlines()
    assert said in first and "debug_barrier" not in first
    assert others[:2] == ["FAILED  several tiles: the same.", "FAILED  ragged: the same."]


def test_a_line_of_a_cell_above_is_not_called_the_readers(lesson, capsys):
    executed(lesson, lambda source: source.replace("M, N, scale, D:", "M, N, more, scale, D:"), answers=True)
    said = capsys.readouterr().out.splitlines()[0]
    assert "in a cell above, `attend_kernel[grid](q, k, v," in said and "your cell" not in said


def test_a_turn_that_is_data(lesson, capsys):
    executed(lesson, lambda source: source.replace("return a.exp() + b", "return a + b"), answers=True)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("Your turn 90-both: not yet. five: ") and said.endswith("a's exponential is added, not a.")


def test_who_calls_it_wrongly_is_told(lesson):
    names = executed(lesson)
    kernel = names["attend_kernel"]
    for arguments, message in (
        (("90-other", kernel, names["attention"]), "name is '90-other'"),
        (("90-attend", names["attention"], names["attention"]), "check.kernel takes the @triton.jit function"),
        (("90-attend", names["rows"], names["attention"]), "launches rows"),
        (("90-attend", kernel, names["rows"]), "launcher is"),
    ):
        with pytest.raises(ValueError, match=message.replace("[", r"\[")):
            check.kernel(*arguments)


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_the_module_is_the_notebooks(path):
    stored = Path(f"kernels/lessons/lesson_{path.name[:2]}.py")
    assert (stored.read_text() if stored.exists() else "") == lesson_kernels.module(path)
