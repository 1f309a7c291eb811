"""The tensors of a case: what lies around them, what was stored in them, which elements are wrong, what sizes are drawn."""

import numpy
import pytest
import torch

from kernels import runtime
from kernels.check.cases import Output, Seen
from kernels.check.tensors import NAN, Draw, Fenced

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")


def test_small_elements_that_matter_are_judged_among_themselves():
    values = torch.tensor([1.0, 2.0, 1e-8, 2e-8], dtype=torch.float64)
    tensor = Fenced("out", "N", torch.empty(4))
    got = Output(tensor, values).array(values + torch.tensor([0.0, 0.0, 0.0, 2e-8]))
    assert Output(tensor, values).wrong(got).tolist() == [False] * 4
    groups = torch.tensor([0, 0, 1, 1])
    assert Output(tensor, values, groups).wrong(got).tolist() == [False, False, False, True]
    assert Output(tensor, 0 * values, groups).wrong(got * 0).tolist() == [False] * 4


def test_only_infinity_itself_is_infinity():
    inf = float("inf")
    out = Output(Fenced("lse", "M", torch.empty(3)), torch.tensor([1.0, -inf, -inf], dtype=torch.float64))
    assert out.wrong(out.array(torch.tensor([1.0, -inf, 0.0]))).tolist() == [False, False, True]
    assert out.wrong(out.array(torch.tensor([-inf, inf, -1e30]))).tolist() == [True] * 3


def test_entries_that_are_free_may_hold_anything_or_nothing():
    tensor = Fenced("idx", "C", torch.empty(3, dtype=torch.int32))
    out = Output(tensor, torch.tensor([4.0, 7.0, 0.0]), free=torch.tensor([False, False, True]))
    tensor.erase()
    tensor.view[0] = 4
    seen = Seen(out.array(tensor.view.double()), *tensor.touched())
    assert out.wrong(seen.got).tolist() == out.unstored(seen).tolist() == [False, True, False]
    tensor.view[1:] = torch.tensor([7, 9], dtype=torch.int32)
    assert not out.wrong(out.array(tensor.view.double())).any()


class TestFenced:
    def tensor(self, **how):
        return Fenced("x", "MN", torch.arange(6.0).view(2, 3), fence={"M": 1, "N": 4}, **how)

    @pytest.mark.parametrize("order", ["MN", "NM"])
    def test_holds_its_values_and_what_is_around_them(self, order):
        x = self.tensor(order=order)
        x.fill(7.0, [("N", "after")])
        assert x.view.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert x.slab("N", "after").isnan().all() and x.slab("N", "after").shape == (2, 4)
        assert (x.slab("N", "before") == 7).all() and (x.slab("M", "after") == 7).all()
        assert x.intact()
        x.view[1, 2] = 0
        assert not x.intact()

    @pytest.mark.parametrize("order", ["MN", "NM"])
    @pytest.mark.parametrize(
        ("index", "end"),
        [
            ((1, 3), ("N", "after")),
            ((-1, 0), ("M", "before")),
            ((2, 6), ("", "")),
            ((0, -4), ("N", "before")),
            ((2, 0), ("M", "after")),
        ],
    )
    def test_finds_the_end_that_an_address_is_beyond(self, order, index, end):
        x = self.tensor(order=order)
        distance = sum(i * stride for i, stride in zip(index, x.view.stride()))
        assert x.beyond(numpy.array([distance])) == ([end], False)
        assert x.beyond(numpy.array([distance, 1 << 40, distance]))[1]

    def test_repeats_one_element_along_a_shared_axis(self):
        x = Fenced("x", "MN", torch.ones(1, 3).expand(2, 3), fence={"N": 1}, shared="M")
        assert x.view.shape == (2, 3) and x.view.stride(0) == 0
        assert x.ends() == [("N", "before"), ("N", "after")]

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
    def test_what_cannot_be_nan_has_another_poison(self, dtype):
        x = Fenced("mask", "MN", torch.zeros(1, 3, dtype=dtype).expand(2, 3), fence={"N": 4}, shared="M")
        x.fill(0, [("N", "after")])
        assert x.slab("N", "after").all() and not x.slab("N", "before").any() and x.intact()
        x.fill(None)
        assert x.slab("N", "before").all() and x.intact()
        x.view[0, 0] = 1
        assert not x.intact()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_knows_what_was_stored_even_where_nan_was(self, dtype):
        x = Fenced("out", "MN", torch.empty(2, 3, dtype=dtype), fence={"M": 1, "N": 4})
        x.erase()
        assert not x.touched()[0].any() and x.touched()[1] == []
        x.view[0, 1] = NAN
        assert x.touched()[0].tolist() == [[False, True, False], [False] * 3]
        x.slab("N", "after")[1, 0] = 1.0
        assert x.touched()[1] == [("N", "after")]
        x.erase()
        x.flat[0] = 0.0
        assert x.touched()[1] == [("", "")]


def test_a_size_divides_as_asked():
    shown = Draw(0, grading=False)
    assert shown.size(13, 9, 15) == 13
    graded = [Draw(seed, grading=True).size(20, 17, 47, but_not_of=16) for seed in range(50)]
    assert set(graded) <= set(range(17, 48)) - {32} and len(set(graded)) > 5
