"""``compare`` says what a reader needs, the same on every machine, and never passes what is wrong."""

import pytest
import torch

from kernels.lab import compare

REFERENCE = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(3, 4)


def test_agreement_is_one_portable_line(capsys):
    assert compare("dx", REFERENCE.float() * (1 + 2e-6), REFERENCE) is True
    assert capsys.readouterr().out == "dx         ok      (3, 4), relative error below 1e-05\n"


def test_difference_names_the_furthest_element(capsys):
    ours = REFERENCE.float()
    ours[0, 1] += 0.5
    ours[2, 0] = -1
    assert compare("dx", ours, REFERENCE) is False
    assert capsys.readouterr().out == "dx         DIFFERS at (2, 0): got -1, expected 9\n"


def test_numbers_that_look_alike_are_told_apart_by_their_error(capsys):
    assert not compare("dx", REFERENCE * (1 + 3e-5), REFERENCE)
    said = "dx         DIFFERS at (2, 3): got 12, expected 12, a relative error of 3e-05 (ratio=1e-05 lets less pass)\n"
    assert capsys.readouterr().out == said


def test_the_error_is_relative_to_the_whole_reference():
    ours = REFERENCE.clone()
    ours[0, 0] += 0.9e-5 * REFERENCE.norm()
    assert compare("y", ours, REFERENCE)
    ours[0, 0] += 0.2e-5 * REFERENCE.norm()
    assert not compare("y", ours, REFERENCE)
    assert compare("y", ours, REFERENCE, ratio=2e-5)


@pytest.mark.parametrize("which", ["ours", "reference", "both"])
def test_nan_never_passes(which, capsys):
    ours, reference = REFERENCE.clone(), REFERENCE.clone()
    if which in ("ours", "both"):
        ours[1, 2] = torch.nan
    if which in ("reference", "both"):
        reference[1, 2] = torch.nan
    assert not compare("y", ours, reference)
    assert "DIFFERS at (1, 2): " in capsys.readouterr().out


def test_infinities_pass_only_in_pairs(capsys):
    reference = REFERENCE.clone()
    reference[0, 3] = -torch.inf
    assert compare("lse", reference.clone(), reference)
    assert not compare("lse", REFERENCE, reference)
    assert not compare("lse", REFERENCE.where(reference.isfinite(), torch.inf), reference)
    assert "DIFFERS at (0, 3): got inf, expected -inf" in capsys.readouterr().out
    wrong_elsewhere = reference.clone()
    wrong_elsewhere[2, 2] = 0
    assert not compare("lse", wrong_elsewhere, reference)


def test_a_reference_of_zeros_admits_only_zeros():
    assert compare("dx", torch.zeros(3), torch.zeros(3))
    assert not compare("dx", torch.tensor([0.0, 1e-30, 0.0]), torch.zeros(3))


def test_shape_is_not_broadcast(capsys):
    assert not compare("y", REFERENCE[:1], REFERENCE)
    assert not compare("y", torch.zeros(0, 4), torch.zeros(0, 3))
    out = capsys.readouterr().out
    assert "shape (1, 4), expected (3, 4)" in out and "shape (0, 4), expected (0, 3)" in out


def test_zero_size_agrees(capsys):
    assert compare("y", torch.zeros(0, 4), torch.zeros(0, 4))
    assert capsys.readouterr().out == "y          ok      (0, 4), no elements\n"


def test_integers_and_booleans_are_exact(capsys):
    big = torch.tensor([2**53, 2**53 + 1])
    assert compare("offsets", big, big.clone())
    assert not compare("offsets", big + torch.tensor([0, 1]), big)
    assert not compare("mask", torch.tensor([True, True]), torch.tensor([True, False]))
    assert not compare("offsets", big.double(), big)
    out = capsys.readouterr().out
    assert "offsets    ok      (2,), equal" in out
    assert "at (1,): got 9007199254740994, expected 9007199254740993" in out
    assert "at (1,): got True, expected False" in out
    assert "dtype torch.float64, expected torch.int64" in out


def test_scalars_low_precision_and_autograd_tensors():
    assert compare("loss", torch.tensor(1.5, requires_grad=True), torch.tensor(1.5, dtype=torch.float64))
    assert compare("y", REFERENCE.bfloat16(), REFERENCE, ratio=1e-2)


def test_a_missing_answer_is_reported_not_raised(capsys):
    assert not compare("dx", None, REFERENCE)
    assert capsys.readouterr().out == "dx         DIFFERS got None, expected a tensor of shape (3, 4)\n"


def test_an_answer_of_another_kind_is_reported_not_raised(capsys):
    nested = torch.nested.as_nested_tensor([REFERENCE[0]] * 3, layout=torch.jagged)
    said = {
        "a tuple": (REFERENCE,),
        "a ndarray": REFERENCE.numpy(),
        "a tensor of layout torch.sparse_coo": REFERENCE.to_sparse(),
        "a tensor on the meta device": REFERENCE.to("meta"),
        "a nested tensor": nested,
    }
    for words, ours in said.items():
        assert not compare("y", ours, REFERENCE)
        assert f"DIFFERS got {words}" in capsys.readouterr().out
    assert not compare("y", *[REFERENCE * float("nan")] * 2)
    assert "got nan, expected nan: NaN never passes" in capsys.readouterr().out


def test_complex_numbers_are_rounded_as_others_are(capsys):
    exact = torch.complex(REFERENCE, 1 + REFERENCE)
    assert compare("y", exact.to(torch.complex64), exact) and "ok      (3, 4)," in capsys.readouterr().out
    assert not compare("y", exact.conj(), exact)
    assert not compare("y", exact.real, exact) and "dtype torch.float" in capsys.readouterr().out


def test_bad_arguments():
    with pytest.raises(ValueError, match="reference is a tensor on the meta device"):
        compare("y", REFERENCE, REFERENCE.to("meta"))
    with pytest.raises(ValueError, match="ratio is 'small': it must be a positive number"):
        compare("y", REFERENCE, REFERENCE, ratio="small")
    with pytest.raises(ValueError, match="reference is a list"):
        compare("y", REFERENCE, [1.0])
    with pytest.raises(ValueError, match="ratio is 0"):
        compare("y", REFERENCE, REFERENCE, ratio=0)
    with pytest.raises(ValueError, match="ratio is nan"):
        compare("y", REFERENCE, REFERENCE, ratio=float("nan"))
