"""Operations of torch in a score mod, values and gradients, beside torch's own in float64."""

import pytest
import torch
import torch.nn.functional as F

from kernels import runtime
from kernels.flex_attention import ModError, flex_attention
from kernels.flex_attention.reference import flex_attention_reference
from tests.tensors import relative_error

INSIDE = lambda s: s.clamp(-0.9, 0.9)  # noqa: E731
OPERATIONS = {
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda s: F.celu(s, alpha=0.7),
    "relu6": F.relu6,
    "a bound past float32": lambda s: s.clamp(min=-1.5e300),
    "a number below float32's normal ones": lambda s: s + 1e-40,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "silu": F.silu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda s: F.threshold(s, 0.1, 0.5),
    "tan": lambda s: torch.tan(INSIDE(s)),
    "asin": lambda s: torch.asin(INSIDE(s)),
    "acos": lambda s: torch.acos(INSIDE(s)),
    "atan": lambda s: torch.atan(3 * s),
    "atan2": lambda s: torch.atan2(s, 0.5 - s),
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": lambda s: torch.asinh(3 * s),
    "acosh": lambda s: torch.acosh(s.abs() + 1.1),
    "atanh": lambda s: torch.atanh(INSIDE(s)),
    "erfc": torch.erfc,
    "hypot": lambda s: torch.hypot(s, s + 1),
    "lerp": lambda s: torch.lerp(s, s * s, 0.3),
    "logaddexp": lambda s: torch.logaddexp(s, 0.5 * s),
    "logaddexp2": lambda s: torch.logaddexp2(s, -s),
    "nan_to_num": lambda s: torch.nan_to_num(torch.where(s > 1, torch.nan, s), nan=0.25),
    "frac": torch.frac,
    "copysign": lambda s: torch.copysign(s * s, s),
    "addcmul": lambda s: torch.addcmul(s, s, s, value=0.5),
    "addcdiv": lambda s: torch.addcdiv(s, s, s.abs() + 1),
    "xlogy": lambda s: torch.xlogy(s.abs() + 0.1, s.abs() + 1),
    "sinc": torch.sinc,
    "logit": lambda s: torch.logit(torch.sigmoid(s)),
    "fmax": lambda s: torch.fmax(s, -s),
    "fmin": lambda s: torch.fmin(s, s * s),
    "deg2rad": torch.deg2rad,
    "lgamma": lambda s: torch.lgamma(s.abs() + 0.3),
    "lgamma of less than zero": lambda s: torch.lgamma(0.25 * torch.sin(s) - 0.5),
    "digamma": lambda s: torch.digamma(s.abs() + 0.3),
    "mvlgamma": lambda s: torch.mvlgamma(s.abs() + 1.5, 3),
    "erfinv": lambda s: torch.erfinv(INSIDE(s)),
    "erfcx": lambda s: torch.log(torch.special.erfcx(s)),
    "log_ndtr": torch.special.log_ndtr,
    "i0": lambda s: torch.log(torch.i0(3 * s)),
    "i0e": torch.special.i0e,
    "i1": lambda s: torch.special.i1(s),
    "i1e": lambda s: torch.special.i1e(4 * s),
    "xlog1py": lambda s: torch.special.xlog1py(s, s.abs()) + torch.special.xlog1py(s, 0.5),
    "angle": lambda s: torch.angle(s) + s,
    "overwriting": lambda s: F.relu6(s * 2, inplace=True) + F.silu(s + 0, inplace=True) + F.leaky_relu_(s * 3, 0.1),
    "a sign's exponential": lambda s: torch.exp(torch.sign(s) - 0.5) + s,
    "filled and copied": lambda s: s.clone().zero_() + s.clone().fill_(0.5) * s + torch.empty_like(s).copy_(s),
    "reductions of one": lambda s: s.sum() + s.amax() * torch.where((s > 0).any() | (s < -1).all(), s.max(), 2 * s.min()),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_value_and_gradient(name):
    torch.manual_seed(0)
    operation = OPERATIONS[name]
    leaves = [torch.randn(1, 1, 20, 16, device=runtime.device).requires_grad_() for _ in range(3)]
    exact = [t.detach().cpu().double().requires_grad_() for t in leaves]
    mod = lambda score, b, h, q_idx, kv_idx: operation(score)  # noqa: E731
    o, want = flex_attention(*leaves, mod), flex_attention_reference(*exact, mod)
    do = torch.randn_like(o)
    grads, wanted = torch.autograd.grad(o, leaves, do), torch.autograd.grad(want, exact, do.cpu().double())
    for what, got, expected in zip(("o", "dq", "dk", "dv"), (o, *grads), (want, *wanted), strict=True):
        assert relative_error(got, expected) <= 2e-5, what


def test_a_number_in_a_tensor_is_an_index():
    table, which = torch.randn(4, 20, device=runtime.device), torch.tensor(2, device=runtime.device)
    q, k, v = (torch.randn(1, 1, 20, 16, device=runtime.device) for _ in range(3))
    o = flex_attention(q, k, v, lambda s, b, h, i, j: s + table[which, j])
    torch.testing.assert_close(o, torch.softmax(q @ k.mT / 4 + table[2], -1) @ v, rtol=1e-4, atol=1e-5)


def test_modules_of_torch_and_tensors_taken_apart():
    device = runtime.device
    prelu, embedding, table = torch.nn.PReLU(), torch.nn.Embedding(20, 1), torch.randn(3, 20)
    prelu, embedding, table = prelu.to(device), embedding.to(device), table.to(device).requires_grad_()

    def mod(score, b, h, q_idx, kv_idx):
        rows, second, third = table
        order = table.sort(1).values.chunk(3)[2][0]
        bias = rows[q_idx] * second[kv_idx] + third.take((q_idx - kv_idx).abs()) + order[kv_idx] + table.amax()
        near = embedding((q_idx - kv_idx).abs()).squeeze(-1) + table[1].gather(0, kv_idx.long().view(1))[0]
        return prelu(score) + bias + near + table[1].index_select(0, h.view(1) + 3)[0] * score

    q, k, v = (torch.randn(1, 1, 20, 16, device=device).requires_grad_() for _ in range(3))
    o = flex_attention(q, k, v, mod)
    i = torch.arange(20, device=device)
    apart = (i[:, None] - i).abs()
    z = F.prelu(q @ k.mT / 4, prelu.weight) + table[0][:, None] * table[1] + table[2][apart]
    z = z + table.sort(1).values[2] + table.amax() + embedding(apart)[..., 0] + table[1] + table[1, 3] * (q @ k.mT / 4)
    want = torch.softmax(z, -1) @ v
    leaves = [q, k, v, prelu.weight, embedding.weight, table]
    do = torch.randn_like(o)
    for got, expected in zip((o, *torch.autograd.grad(o, leaves, do)), (want, *torch.autograd.grad(want, leaves, do))):
        assert relative_error(got, expected) <= 2e-5


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        (lambda x: torch.special.zeta(x.detach(), 2.0), "torch.special.zeta(x.detach()"),
        (lambda x: torch.special.bessel_j0(x), "torch.special.bessel_j0(x)"),
        (lambda x: torch.nextafter(x, x + 1), "torch.nextafter(x"),
        (lambda x: torch.histc(x, 4).sum(), "torch.histc(x, 4)"),
        (lambda x: torch.polygamma(2, x.detach()), "torch.polygamma(2"),
        (lambda x: x // 2, "x // 2"),  # forward it is there
        (lambda x: torch.igamma(x, x + 1), "torch.igamma(x, x + 1)"),
    ],
)
def test_an_operation_that_is_not_there_is_shown_with_its_line(operation, line):
    q = torch.randn(1, 1, 8, 16, device=runtime.device, requires_grad=True)
    with pytest.raises(ModError) as error:
        flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score + operation(score))
    assert line in str(error.value) and "mods/" not in str(error.value)
