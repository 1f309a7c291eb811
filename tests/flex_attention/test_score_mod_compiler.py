"""Python to Triton: what is generated, when it is generated anew, and what cannot be."""

import functools
import inspect
import re
import traceback

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import ModError, flex_attention, mods
from kernels.flex_attention.mods import bind, compiler
from kernels.flex_attention.mods.fingerprint import Fingerprint
from kernels.flex_attention.mods.trace import trace
from tests.flex_attention import cases


def qkv(B=1, H=2, M=5, N=6, D=16):
    return [torch.randn(B, H, n, D, device=runtime.device) for n in (M, N, N)]


def test_the_text_is_python_with_the_users_lines():
    text = flex_attention.source(mods.alibi(8), mods.causal)
    assert "# return score + (kv_idx - q_idx) * torch.exp2(-8.0 * (h + 1) / heads)" in text
    assert "def score_mod(score, b, h, q_idx, kv_idx, tables):" in text
    assert "def score_gradient(score, b, h, q_idx, kv_idx, grad, tables):\n    return grad\n" in text
    assert "# return q_idx >= kv_idx\n    return q_idx >= kv_idx\n" in text
    compile(text, "generated", "exec")


def test_the_users_names_are_kept():
    def mod(score, b, h, q_idx, kv_idx):
        distance = q_idx - kv_idx
        penalty = distance * distance * 0.5
        return score - penalty

    text = flex_attention.source(mod)
    assert "distance = q_idx - kv_idx\n" in text and "penalty = " in text


@pytest.mark.parametrize("made", [lambda: torch.tensor(6), lambda: torch.tensor(-0.5), lambda: torch.tensor(True)])
def test_a_number_that_a_mod_makes_is_written_in_its_text(made):
    """Not read from memory, which would be the CPU's."""
    mod = lambda score, b, h, q_idx, kv_idx: score * made()  # noqa: E731
    compiled, captured = compiler.compile_mod(mod, "score_mod", runtime.device, differentiate=True)
    assert compiled.sources == () and list(captured) == []
    q = torch.randn(1, 1, 5, 16, device=runtime.device)
    o = flex_attention(q, q, q, mod)
    assert cases.relative_error(o, flex_attention(q, q, q, lambda score, b, h, m, n: score * made().item())) < 1e-6


def test_what_does_not_depend_on_the_key_is_loaded_once_a_query():
    """A tensor indexed by the query alone is read in a column, not in the whole tile."""
    ids = torch.zeros(9, dtype=torch.int64)
    text = flex_attention.source(None, mods.document(ids))
    assert "tl.load(table_0 + q_idx) == tl.load(table_0 + kv_idx)" in text


def test_modules_are_kept_by_content_and_importable():
    _, k, v = qkv()
    bind._compiled.clear()  # from the second number on it would be an argument of other code
    bound = bind.bind(mods.softcap(7.0), "score_mod", runtime.device)
    function = bound.compiled.value
    again = compiler.compile_mod(mods.softcap(7.0), "score_mod", runtime.device)[0].value
    assert again is function
    assert inspect.getsourcefile(function.fn).startswith(str(compiler.cache_folder()))
    other = bind.bind(mods.softcap(8.0), "score_mod", runtime.device).compiled.value
    assert other is not function


def test_a_file_changed_by_someone_else_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(tmp_path))
    text = '"""Generated."""\n\nVALUE = 41\n'
    path = compiler.load(text).__file__
    compiler._loaded.cache_clear()
    with open(path, "w") as file:
        file.write("VALUE = 13\n")
    assert compiler.load(text).VALUE == 41


def test_a_mod_defined_anew_is_traced_once(monkeypatch):
    traced = []
    original = compiler.trace
    monkeypatch.setattr(compiler, "trace", lambda *a, **k: traced.append(a) or original(*a, **k))
    q, k, v = qkv()
    for seed in range(3):
        slopes = torch.full((2,), float(seed), device=runtime.device)
        cap = 11.0

        def mod(score, b, h, q_idx, kv_idx, slopes=slopes):
            return cap * torch.tanh(score / cap) + slopes[h] * kv_idx  # noqa: B023

        o = flex_attention(q, k, v, mod)
        want = cases.flex_attention_reference(q.double(), k.double(), v.double(), mod)
        assert cases.relative_error(o, want) < 1e-5
    assert len(traced) == 1


@pytest.mark.parametrize("change", ["constant", "shape", "dtype", "stride", "global", "gradient"])
def test_what_changes_the_kernel_is_traced_again(change, monkeypatch):
    def make(window=3, bias=None):
        bias = torch.zeros(8, 8, device=runtime.device) if bias is None else bias
        return lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx] * window * SCALE

    bias = torch.zeros(8, 8, device=runtime.device)
    first = Fingerprint(make(bias=bias))
    if change == "constant":
        other = make(window=4)
    elif change == "global":
        monkeypatch.setitem(globals(), "SCALE", 3)
        other = make()
    else:
        changed = {"shape": bias[:7], "dtype": bias.half(), "gradient": bias.clone().requires_grad_()}
        changed["stride"] = torch.zeros(8, 9, device=runtime.device)[:, :8]
        other = make(bias=changed[change])
    other = Fingerprint(other)
    assert (other.structure, other.values) != (first.structure, first.values)
    assert (other.structure == first.structure) == (change in ("constant", "global"))


SCALE = 2


def test_the_same_tensor_twice_is_not_two_tensors():
    def make(a, b_):
        return lambda score, b, h, q_idx, kv_idx: score + a[h] + b_[h]

    one, two = (torch.zeros(2, device=runtime.device) for _ in range(2))
    assert Fingerprint(make(one, one)).structure != Fingerprint(make(one, two)).structure
    assert Fingerprint(make(one, two)).structure == Fingerprint(make(two, one)).structure


def test_state_that_cannot_be_told_is_traced_at_every_call():
    class Window:
        size = 2

        def mask(self, score, b, h, q_idx, kv_idx):
            return torch.where(q_idx - kv_idx < self.size, score, -float("inf"))

    window = Window()
    q, k, v = qkv(M=6)
    outputs = []
    for size in (2, 4):
        window.size = size
        o = flex_attention(q, k, v, window.mask)
        want = cases.flex_attention_reference(q.double(), k.double(), v.double(), window.mask)
        assert cases.relative_error(o, want) < 1e-5
        outputs.append(o)
    assert not torch.equal(*outputs)


def test_partials_lambdas_and_nested_functions():
    def with_cap(cap, score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    q, k, v = qkv()
    for mod in (functools.partial(with_cap, 5.0), lambda *args: with_cap(5.0, *args)):
        want = cases.flex_attention_reference(q.double(), k.double(), v.double(), mods.softcap(5.0))
        assert cases.relative_error(flex_attention(q, k, v, mod), want) < 1e-5


def test_in_place_arithmetic():
    def mod(score, b, h, q_idx, kv_idx):
        score *= 2
        score += kv_idx
        return score

    q, k, v = (t.requires_grad_() for t in qkv())
    o = flex_attention(q, k, v, mod)
    want = cases.flex_attention_reference(q, k, v, lambda s, b, h, m, n: s * 2 + n)
    for got, expected in zip(
        (o, *torch.autograd.grad(o.sum(), (q, k))), (want, *torch.autograd.grad(want.sum(), (q, k))), strict=True
    ):
        assert cases.relative_error(got, expected) < 1e-5


def test_indices_count_from_the_end_below_zero():
    table = torch.randn(9, device=runtime.device)
    q, k, v = qkv()
    mod = lambda score, b, h, q_idx, kv_idx: score + table[q_idx - kv_idx] + table[-1] + table[..., kv_idx]  # noqa: E731
    want = cases.flex_attention_reference(q.double(), k.double(), v.double(), mod)
    assert cases.relative_error(flex_attention(q, k, v, mod), want) < 1e-5


@pytest.mark.parametrize("dtype", "float16 bfloat16 float64 int8 uint8 bool int64".split())
def test_captured_tensors_of_every_dtype(dtype):
    table = (torch.arange(6, device=runtime.device) % 3).to(getattr(torch, dtype))
    q, k, v = qkv()
    mod = lambda score, b, h, q_idx, kv_idx: score + table[kv_idx] * 0.5  # noqa: E731
    want = cases.flex_attention_reference(q.double(), k.double(), v.double(), mod)
    assert cases.relative_error(flex_attention(q, k, v, mod), want) < 1e-5


def test_strided_and_expanded_captured_tensors():
    base = torch.randn(6, 4, device=runtime.device)
    q, k, v = qkv()
    for table in (base.T[1::2], base[::2, 1:].T, base[:1].T.expand(4, 6), base.T.flip(0)):
        mod = lambda score, b, h, q_idx, kv_idx, t=table: score + t[h, kv_idx % t.shape[1]]  # noqa: E731
        want = cases.flex_attention_reference(q.double(), k.double(), v.double(), mod)
        assert cases.relative_error(flex_attention(q, k, v, mod), want) < 1e-5


def test_the_graph_and_its_derivative_can_be_looked_at():
    slopes = torch.rand(4, requires_grad=True)
    t = trace(mods.learned_alibi(slopes), "score_mod", differentiate=True)
    assert [t.where[node] for node in t.targets] == ["target"] and t.captured == [slopes]
    assert t.score_gradient.name == "grad" and "aten.index.Tensor" in str(t.graph)


# What cannot be compiled.


def branches_on_an_index(b, h, q_idx, kv_idx):
    if q_idx >= kv_idx:
        return q_idx > 3
    return q_idx < 3


def reads_a_number(score, b, h, q_idx, kv_idx):
    return score * int(q_idx)


def uses_and(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx and q_idx < 5


def draws_numbers(score, b, h, q_idx, kv_idx):
    return score + torch.rand_like(score)


def leaves_a_dimension(score, b, h, q_idx, kv_idx):
    return score + torch.ones(3, 4)[h]


def sums_over_a_row(score, b, h, q_idx, kv_idx):
    return score + TABLE[q_idx].sum()


TABLE = torch.ones(8, 100)


@pytest.mark.parametrize(
    ("mod", "kind", "line", "advice"),
    [
        (branches_on_an_index, "mask_mod", "if q_idx >= kv_idx:", "torch.where"),
        (reads_a_number, "score_mod", "return score * int(q_idx)", "torch.where"),
        (uses_and, "mask_mod", "return q_idx >= kv_idx and q_idx < 5", "& | ~ instead"),
        (draws_numbers, "score_mod", "return score + torch.rand_like(score)", "draws random numbers"),
        (leaves_a_dimension, "score_mod", "return score + torch.ones(3, 4)[h]", "index every dimension"),
        (sums_over_a_row, "score_mod", "return score + TABLE[q_idx].sum()", "index every dimension"),
    ],
)
def test_a_mod_that_cannot_be_compiled_is_explained(mod, kind, line, advice):
    with pytest.raises(ModError, match=re.escape(advice)) as error:
        flex_attention.source(**{kind: mod})
    assert line in str(error.value) and __file__ in str(error.value)
    assert isinstance(error.value, ValueError)


def test_a_mod_with_the_wrong_arguments():
    with pytest.raises(ModError, match="score_mod must take score, b, h, q_idx, kv_idx"):
        flex_attention.source(mods.causal)


def test_source_is_traced_where_the_captured_tensors_are():
    table = torch.ones(8, device="meta")

    def mod(score, b, h, q_idx, kv_idx):
        return score * table[h]

    with pytest.raises(ValueError, match="on meta, needs cpu"):
        flex_attention.source(mod, device="cpu")
    assert "tables[0]" in flex_attention.source(mod)


def test_an_error_inside_the_mod_shows_its_line():
    def mod(score, b, h, q_idx, kv_idx):
        return score + undefined_name  # noqa: F821

    with pytest.raises(ModError, match="return score \\+ undefined_name"):
        flex_attention.source(mod)


def test_tracebacks_point_into_the_generated_file(monkeypatch):
    """A generated function that fails shows its own line, with the user's above it."""
    bound = bind.bind(lambda score, b, h, q_idx, kv_idx: score * 9.0, "score_mod", runtime.device)
    function = bound.compiled.value.fn
    try:
        function("not a tile", 0, 0, 0, 0, ())
    except Exception as error:  # whatever Triton or Python makes of a str
        frames = traceback.extract_tb(error.__traceback__)
    assert any(f.filename.startswith(str(compiler.cache_folder())) and "score * " in f.line for f in frames)
