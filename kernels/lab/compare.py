"""Compare a tensor with its reference and say so in one line that reads the same on every machine."""

from numbers import Real

import torch

from kernels.common.lines import joined, wrapped


def compare(name: str, ours, reference, *, ratio: float = 1e-5) -> bool:
    """Print and return whether ‖ours − reference‖ ≤ ratio · ‖reference‖, computed in float64.

    name: what is compared, the first word of the line.
    ours, reference: tensors of one shape, any device. Two floating-point types may differ (a float32 kernel beside a
        float64 reference), and two complex ones; integers and booleans must agree exactly. Several outputs are compared one
        by one.
    ratio: the largest relative root-mean-square error that passes.

    NaN never passes, in either tensor. An infinity passes only beside the same infinity and is left out of the
    norms. Beside a reference of zeros only zeros pass. On failure the line names the element that is furthest off, and where
    both numbers look alike the relative error, which ``ratio`` decides about.
    Nothing is raised for a wrong ``ours``, so that a notebook runs on; ``ValueError`` if ``reference`` is not a
    tensor or ``ratio`` not positive.
    """
    if not isinstance(reference, torch.Tensor) or (unfit := _unfit(reference)):
        kind = unfit if isinstance(reference, torch.Tensor) else f"a {type(reference).__name__}"
        raise ValueError(f"reference is {kind}: compare needs a torch.Tensor, dense and with values")
    if not isinstance(ratio, Real) or not ratio > 0:
        raise ValueError(f"ratio is {ratio!r}: it must be a positive number")
    difference, agreement = _verdict(ours, reference, ratio)
    print(wrapped(f"{name:<10} {'DIFFERS' if difference else 'ok     '} {difference or joined('.+', agreement)}"))
    return not difference


def _verdict(ours, reference, ratio: float) -> tuple[str, str]:
    """What differs (empty when nothing does), and what to print when nothing does."""
    if not isinstance(ours, torch.Tensor):
        said = repr(ours)
        said = said if len(said) <= 40 and "\n" not in said else f"a {type(ours).__name__}"
        return f"got {said}, expected a tensor of shape {tuple(reference.shape)}", ""
    if unfit := _unfit(ours):
        return f"got {unfit}, expected a dense tensor of shape {tuple(reference.shape)}, with values", ""
    if ours.shape != reference.shape:
        return f"shape {tuple(ours.shape)}, expected {tuple(reference.shape)}", ""
    if (ours.is_floating_point(), ours.is_complex()) != (reference.is_floating_point(), reference.is_complex()):
        return f"dtype {ours.dtype}, expected {reference.dtype}", ""
    shape = str(tuple(reference.shape))
    if ours.is_complex():  # as pairs of numbers; the last index of an element says which
        ours, reference = (torch.view_as_real(t.detach().resolve_conj()) for t in (ours, reference))
    if reference.numel() == 0:
        return "", f"{shape}, no elements"
    ours, reference = ours.detach().cpu(), reference.detach().cpu()
    if not reference.is_floating_point():
        wrong = ours != reference
        return (_where(wrong.double(), ours, reference), "") if wrong.any() else ("", f"{shape}, equal")

    ours, reference = ours.double(), reference.double()
    nan = ours.isnan() | reference.isnan()
    if nan.any():
        where = _where(nan.double(), ours, reference)
        return where + ": NaN never passes" * where.endswith("got nan, expected nan"), ""
    infinite = ours.isinf() | reference.isinf()
    unequal = infinite & (ours != reference)
    if unequal.any():
        return _where(unequal.double(), ours, reference), ""
    error = torch.where(infinite, 0.0, ours - reference)
    if error.norm() > ratio * torch.where(infinite, 0.0, reference).norm():
        where = _where(error.abs(), ours, reference)
        got, expected = where.partition(": got ")[2].split(", expected ")
        if got == expected:
            relative = (error.norm() / torch.where(infinite, 0.0, reference).norm()).item()
            where += f", a relative error of {relative:.0e} (ratio={ratio:g} lets less pass)"
        return where, ""
    return "", f"{shape}, relative error below {ratio:g}"


def _unfit(tensor: torch.Tensor) -> str:
    """What a tensor is that has no elements to look at; empty for one that has."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return f"a nested tensor ({tensor.layout})" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
    if tensor.is_quantized:
        return f"a quantised tensor ({tensor.dtype})"
    return "a tensor on the meta device" if tensor.is_meta else ""


def _where(badness: torch.Tensor, ours: torch.Tensor, reference: torch.Tensor) -> str:
    """Name the (first) element with the largest badness."""
    index = tuple(int(i) for i in torch.unravel_index(badness.argmax(), badness.shape))
    got, expected = ours[index].item(), reference[index].item()
    style = ".3g" if isinstance(expected, float) else ""
    return f"at {index}: got {got:{style}}, expected {expected:{style}}"
