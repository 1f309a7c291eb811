"""What the package prints in a notebook has no line that JupyterLab, a repository's page or a phone would break anywhere."""

import re

import pytest
import torch

from kernels import check
from kernels.common import lines
from kernels.common.lines import joined, unbroken, wrapped
from kernels.conv_wgrad import conv2d_wgrad
from kernels.dynamic_conv import dynamic_conv
from kernels.flex_attention import causal_block_mask, flex_attention
from kernels.lab import bars, compare, ladder, predict, recorded, roofline, trace
from kernels.lab.law import Prediction
from kernels.lab.roofline import RESULTS
from kernels.recurrent_attention import recurrent_attention
from tests.check.softmax import KERNEL

LADDERS = sorted(path.stem.removeprefix("ladder_") for path in RESULTS.glob("ladder_*.json"))
OPERATORS = ("conv_wgrad", "dynamic_conv", "flex_attention", "recurrent_attention")


@pytest.fixture(autouse=True)
def lines_fit(lines_stay_whole, monkeypatch):
    monkeypatch.setattr(lines, "WIDTH", 80)


@pytest.fixture
def fitting(capsys):
    """What was printed, once it is seen to fit."""
    return lambda: fits(capsys.readouterr().out)


def fits(text: str) -> str:
    assert text and [line for line in text.splitlines() if len(line) > 80] == []
    return text


def test_what_continues_a_line_stands_further_in():
    text = "FAILED  a: " + "words and " * 12 + "\n  more " + "of them " * 12 + "\nthe end"
    made = fits(wrapped(text, 8)).splitlines()
    assert [len(line) - len(line.lstrip()) for line in made] == [0, 8, 2, 10, 0]
    assert " ".join(made).split() == text.split()
    with unbroken():
        assert wrapped(text) == text


@pytest.mark.parametrize("whole", ["`x = tl.load(x_ptr + offs)`", "(2, 16, 16, 32)", "[64 x 147]", "stride_xm = 1"])
def test_no_line_ends_inside_code_or_a_shape(whole):
    for before in range(50, 80):
        assert whole in fits(wrapped(f"{'.' * before} {whole} and more"))
    assert joined("1 .s", "of 1 ms") == "of 1\xa0ms" and wrapped("of 1\xa0ms") == "of 1 ms"


def test_compare(fitting):
    x = torch.ones(2, 16, 16, 16, 32)
    compare("a name of 24 characters_", x, x)
    assert fitting().count("\n") == 1
    compare("a name of 24 characters_", x.half() * (1 - 1e-3), x)
    fitting()
    compare("a name that is longer than most of the names are", x, x)
    assert fitting().splitlines()[1] == "    (2, 16, 16, 16, 32), relative error below 1e-05"


def test_predict(fitting):
    amounts = {"bytes": 4e12, "sectors": 8e9, "turns": 9e9, "instructions": 2e10, "special_functions": 1e10}
    predict(**amounts, products=2e12, programs=100_000, launches=1000, chain=[(10_000, 336)] * 5)
    assert fitting().count("\n") == 14


@pytest.mark.parametrize("lesson", LADDERS)
def test_ladder(lesson, fitting):
    rungs = recorded(f"ladder_{lesson}")["rungs"]
    ladder(lesson)
    ladder(lesson, predicted={row["rung"]: Prediction({"requested sectors": row["ms"] / 2e3}) for row in rungs})
    assert len(fitting().splitlines()) == 2 * (2 + len(rungs))


@pytest.mark.parametrize("name", OPERATORS)
def test_bars_and_roofline(name, fitting):
    for kind in {row["pass"] for row in recorded(name)["rows"]}:
        bars(name, select={"pass": kind})
    roofline(name, point=("a kernel of one's own with quite a long name, at that", None, 1e9, 1e8))
    assert not re.search(r"[\d.]+×$", fitting(), flags=re.MULTILINE)


def test_table(fitting, cell):
    kernel = cell("""
    @triton.jit
    def a_kernel_with_a_name(a_tensor_ptr, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(a_tensor_ptr + offs, tl.load(a_tensor_ptr + offs) + 1)
    """)["a_kernel_with_a_name"]
    found = trace(kernel, (64, 1, 1), torch.zeros(2**20), 2**14)
    found.table()
    assert "4,194,304" in fitting()


Q = torch.zeros(1, 4, 64, 16)


@pytest.mark.parametrize(
    "explained",
    [
        lambda: dynamic_conv.explain(torch.zeros(2, 512, 64).mT, torch.zeros(512, 4)),
        lambda: recurrent_attention.explain(*[torch.zeros(1, 128, 2, 16)] * 3),
        lambda: flex_attention.explain(Q, Q, Q, block_mask=causal_block_mask(64, BLOCK_SIZE=16)),
        lambda: conv2d_wgrad.explain(torch.zeros(2, 16, 16, 64), torch.zeros(2, 16, 16, 64), 3, 3, padding=1),
    ],
    ids=["dynamic_conv", "recurrent_attention", "flex_attention", "conv2d_wgrad"],
)
def test_explained(explained):
    with unbroken():
        whole = explained()
    assert max(map(len, whole.splitlines())) > 80 and fits(explained()).split() == whole.split()


def test_a_report_and_what_it_is_made_of(fitting, cell):
    unmasked = cell(KERNEL.replace(', mask=mask_n, other=-float("inf")', ""))["row_softmax"]
    assert check.row_softmax(unmasked) < 15

    print(check.case())
    with check.guarded():
        unmasked(torch.ones(3, 37), torch.zeros(3, 37), torch.zeros(3))
    check.diagnosis_0a(dict(line=1, cause="a cause that is none", smallest=dict(M=1)))
    fitting()


def test_a_finding_of_the_model(fitting):
    pytest.importorskip("triton", minversion="3.8")
    from kernels import gluon_model
    from tests.gluon_model import gluon_kernels
    from tests.gluon_model.cases import gemm

    for stages in (1, 2):
        how = {"M": 32, "N": 32, "K": 64, "stages": stages, "block": (32, 32, 32)}
        result = gemm(gluon_kernels.gemm_ring, **how)[0](schedule="greedy")
        print(result, *result.findings, result.state(0), sep="\n")
        print(gemm(gluon_kernels.gemm_ring, **how)[0](run=gluon_model.check_all_schedules))
    said = fitting()
    assert "deadlock" in said and "same bits" in said
