"""``check.your_kernel`` on kernels as learners write them: those that are right pass, the others are told why."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import check, runtime
from kernels.check.cases import Case, Output
from kernels.check.submission import Submission
from kernels.check.tensors import Fenced
from kernels.lab.compile_report import prepare

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="the text is the same, the interpreter shows more of it")


def held(fn, reference, inputs, outputs, **more):
    return check.your_kernel(fn, reference, inputs, outputs, verdicts="right", **more)


@triton.jit
def _square(x_ptr, out_ptr, N, stride_x, stride_o, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n * stride_x, mask=n < N)
    x = x.to(tl.float32) if WIDE else x
    tl.store(out_ptr + n * stride_o, (x * x).to(out_ptr.dtype.element_ty), mask=n < N)


def square(x, out, WIDE=True):
    _square[(triton.cdiv(len(x), 32),)](x, out, len(x), *x.stride(), *out.stride(), WIDE, 32)


LINE = {"x": "N"}, {"out": "N"}


@triton.jit
def _norm_grad(dy_ptr, x_ptr, out_ptr, N, dm, dn, xm, xn, om, on, eps, BLOCK: tl.constexpr):
    m, n = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    dy = tl.load(dy_ptr + m * dm + n * dn, mask=n < N, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + m * xm + n * xn, mask=n < N, other=0.0).to(tl.float32)
    centred = tl.where(n < N, x - tl.sum(x, 0) / N, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / N + eps)
    h = centred * scale
    dx = scale * (dy - tl.sum(dy, 0) / N - h * tl.sum(dy * h, 0) / N)
    tl.store(out_ptr + m * om + n * on, dx.to(out_ptr.dtype.element_ty), mask=n < N)


def norm_grad(dy, x, out, *, eps):
    strides = *dy.stride(), *x.stride(), *out.stride()
    _norm_grad[(len(x),)](dy, x, out, x.shape[1], *strides, eps, triton.next_power_of_2(x.shape[1]))


def norm_grad_formula(dy, x, eps):
    x = x.requires_grad_()
    y = (x - x.mean(1, keepdim=True)) * (x.var(1, unbiased=False, keepdim=True) + eps).rsqrt()
    return torch.autograd.grad(y, x, dy)[0]


def test_where_the_right_answer_is_zero_its_formulas_rounding_is_forgiven():
    """Rows of equal numbers (stride 0), whose normalisation's gradient is 0, times 300."""
    axes, eps = ({"dy": "MN", "x": "MN"}, {"out": "MN"}), {"launch": {"eps": 1e-5}}
    assert held(norm_grad, norm_grad_formula, *axes, **eps, dtypes=torch.float32, sizes={"M": 4})


@triton.jit
def _quantise(x_ptr, q_ptr, s_ptr, N, xm, xn, qm, qn, ss, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    m, n = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + m * xm + n * xn, mask=n < N, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(x), 0) / 127
    q = tl.floor(x / scale + 0.5) if ROUND else x / scale
    tl.store(q_ptr + m * qm + n * qn, q.to(tl.int8), mask=n < N)
    tl.store(s_ptr + m * ss, scale.to(s_ptr.dtype.element_ty))


def quantiser(rounded):
    def quantise(x, q, s):
        N = x.shape[1]
        strides = *x.stride(), *q.stride(), *s.stride()
        _quantise[(len(x),)](x, q, s, N, *strides, rounded, triton.next_power_of_2(N))

    return quantise


def quantised(x):
    scale = x.abs().amax(1) / 127
    return {"s": scale, "q": (x / scale[:, None] + 0.5).floor().to(torch.int8)}


@pytest.mark.parametrize("kind", [dict, list])
def test_outputs_by_name_or_as_a_list_and_a_conversion_that_cuts_off(kind, capsys):
    answers = {dict: quantised, list: lambda x: [quantised(x)[name] for name in "qs"]}[kind]
    axes = {"x": "MN"}, {"q": "MN", "s": "M"}
    assert held(quantiser(True), answers, *axes, dtypes=torch.float32, sizes={"M": 5})
    assert not held(quantiser(False), answers, *axes, dtypes=torch.float32, sizes={"M": 5})
    assert "each is one nearer to 0: .to(an integer) cuts the fraction off" in capsys.readouterr().out


def test_float64_and_bfloat16():
    assert held(square, torch.square, *LINE, dtypes=torch.float64, tolerance=1e-6)
    assert held(lambda x, out: square(x, out, False), torch.square, *LINE, dtypes=torch.float64)
    assert held(square, torch.square, *LINE, dtypes=torch.bfloat16)
    assert held(lambda x, out: square(x, out, False), torch.square, *LINE, dtypes=torch.bfloat16)


@triton.jit
def _count(x_ptr, out_ptr, N, stride_x, stride_o, ATOMIC: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n * stride_x, mask=n < N, other=0)
    if ATOMIC:
        tl.atomic_add(out_ptr + x * stride_o, 1, mask=n < N)
    else:
        tl.store(out_ptr, tl.load(out_ptr) + tl.sum(tl.where(n < N, x, 0), 0))


def counter(clear, atomic=True):
    def count(x, out):
        if clear:
            out.zero_()
        _count[(triton.cdiv(len(x), 8),)](x, out, len(x), *x.stride(), out.stride(0), atomic, 8)

    return count


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.bool])
def test_inputs_of_narrow_integers(dtype):
    values = {"x": lambda n: torch.randint(0, 2, (n,)).to(dtype)}
    assert held(square, lambda x: x.double() ** 2, *LINE, values=values, dtypes=torch.float32)


def test_a_size_of_zero_asks_for_no_store():
    assert held(lambda x, out: square(x, out) if len(x) else None, torch.square, *LINE, sizes={"N": 0}, dtypes=torch.float32)


BINS = {"values": {"x": lambda n: torch.randint(0, 5, (n,), dtype=torch.int32)}, "dtypes": torch.float32}


def test_a_histogram_and_one_that_nobody_clears(capsys):
    axes, formula = ({"x": "N"}, {"out": "B"}), lambda x: torch.bincount(x, minlength=5)
    assert held(counter(True), formula, *axes, sizes={"B": 5}, **BINS)
    assert not held(counter(False), formula, *axes, sizes={"B": 5}, **BINS)
    assert "out is only updated, never stored" in capsys.readouterr().out


@triton.jit
def shared_mean(x_ptr, out_ptr, mean_ptr, N, stride_m, stride_n, stride_om, stride_on, stride_mean, BLOCK: tl.constexpr):
    """Every program of a row stores the row's mean: all the same."""
    row, offs = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = 0.0
    for i in range(N):
        total += tl.load(x_ptr + row * stride_m + i * stride_n).to(tl.float32)
    x = tl.load(x_ptr + row * stride_m + offs * stride_n, mask=offs < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * stride_om + offs * stride_on, x - total / N, mask=offs < N)
    tl.store(mean_ptr + row * stride_mean, total / N)


def test_programs_that_store_the_same_number_are_not_in_conflict():
    def launch(x, out, mean, BLOCK=16):
        grid = x.shape[0], triton.cdiv(x.shape[1], BLOCK)
        shared_mean[grid](x, out, mean, x.shape[1], *x.stride(), *out.stride(), *mean.stride(), BLOCK)

    def formula(x):
        return x - x.mean(1, keepdim=True), x.mean(1)

    axes = {"x": "MN"}, {"out": "MN", "mean": "M"}
    assert held(launch, formula, *axes, sizes={"M": 3, "N": 20}, dtypes=torch.float32)


def test_programs_that_add_to_one_element_without_atomics(capsys):
    axes = {"x": "N"}, {"out": "B"}
    assert not held(counter(True, False), lambda x: x.sum()[None], *axes, sizes={"B": 1}, **BINS)
    said = capsys.readouterr().out
    assert "FAILED  programs in any order: one program stores 1 element of out and another touches it" in said
    assert said.count("FAILED") == 1
    assert not held(counter(False, False), lambda x: x.sum()[None], *axes, sizes={"B": 1}, **BINS)
    assert "FAILED  whole blocks: out is loaded before anything is stored there" in capsys.readouterr().out


def test_an_autotuned_kernel(cell):
    source = """
    @triton.autotune(configs=[triton.Config({{"BLOCK": n}}) for n in {blocks}], key=["N"])
    @triton.jit
    def kernel(x_ptr, out_ptr, N, stride_x, stride_o, BLOCK: tl.constexpr):
        n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + n * stride_o, tl.load(x_ptr + n * stride_x, mask=n < N), mask=n < N)


    def same(x, out):
        kernel[lambda m: (triton.cdiv(len(x), m["BLOCK"]),)](x, out, len(x), *x.stride(), *out.stride())
    """
    one, two = (cell(source.format(blocks=blocks))["same"] for blocks in ("(32,)", "(32, 64)"))
    assert held(one, lambda x: x, *LINE)
    assert held(two, lambda x: x, *LINE)  # the first of them, where there is no GPU to time both on
    x = torch.zeros(8)
    case = Case([Fenced("x", "N", x)], [Output(Fenced("out", "N", torch.empty(8)), x)])
    (launched,) = Submission(one).kernels(case).prepared  # what is compiled: the launch has its options, too
    assert launched.kernel == "kernel"
    with pytest.raises(ValueError, match="num_ctas is 3: a cluster has 1, 2, 4"):
        prepare(_square, x, x, 8, 1, 1, True, 32, num_ctas=3)
    with pytest.raises(ValueError, match="ir_override is 'x': compile_report knows num_warps"):
        prepare(_square, x, x, 8, 1, 1, True, 32, ir_override="x")


HALF = {"launch": {"half": 2}}
MISTAKEN = [
    (dict(fn=_square), "fn is the kernel _square, needs a function that launches it"),
    (dict(outputs={}), "outputs names nothing"),
    (dict(outputs={"x": "N"}), r"x is an input and an output.*def fn\(x, out\): out.copy_\(x\)"),
    (dict(inputs={"x": "NN"}), "x has axes 'NN', needs letters in a text, each once"),
    (dict(inputs={"x": ["N"]}), r"x has axes \['N'\]"),
    (dict(values={"y": torch.rand}), "values names y, the inputs are x"),
    (dict(values={"x": lambda n: torch.rand(3)}), r"values\['x'\] gives a tensor \[3\] for x \[N\], needs \[32\]"),
    (dict(values={"x": lambda n: [0.0] * 3}), r"values\['x'\] gives \[0.0, 0.0, 0.0\]"),
    (dict(blocks={"BLOCK": 16}), r"blocks\['BLOCK'\] is 16, needs the values to try"),
    (dict(blocks={"BLOCK": ()}), r"blocks\['BLOCK'\] is \(\)"),
    (dict(reference=lambda x: None), r"reference gives None for out \[N\], needs \[32\]"),
    (dict(reference=lambda x: x[1:]), r"reference gives a tensor \[31\] for out \[N\], needs \[32\]; an axis that it fixes"),
    (dict(dtypes=()), r"dtypes is \(\), needs some of torch.float32"),
    (dict(dtypes=torch.int8), r"dtypes is \(torch.int8,\), needs some of .*others come from values"),
    (dict(reference=lambda x: torch.complex(x, x)), "reference gives complex numbers for out, needs real ones"),
    (dict(reference=lambda x: (x, x)), "reference gives 2 outputs, needs 1: out"),
    (dict(reference=lambda x: {"y": x}), "reference gives y, the outputs are out"),
    (dict(reference=lambda x: x.nothing), "reference fails on float64 tensors: AttributeError"),
    (dict(**HALF, reference=lambda x: x), "reference fails on float64 tensors, half=2: TypeError"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKEN)
def test_arguments_that_do_not_fit_are_named(mistake, message):
    with pytest.raises(ValueError, match=message):
        held(**dict(fn=square, reference=torch.square, inputs={"x": "N"}, outputs={"out": "N"}) | mistake)
