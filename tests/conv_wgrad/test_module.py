"""``Conv2d`` in place of ``torch.nn.Conv2d``: the same constructor, state_dict, results and training."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernels import runtime
from kernels.common import checks
from kernels.conv_wgrad import Conv2d
from tests.conv_wgrad import cases

OPTIONS = {
    "plain": {},
    "stride, padding": dict(stride=2, padding=1),
    "same, even filter": dict(kernel_size=(4, 3), padding="same", dilation=2),
    "valid": dict(padding="valid", bias=False),
    "reflected": dict(padding=(2, 1), padding_mode="reflect"),
    "circular, same, even": dict(kernel_size=4, padding="same", padding_mode="circular"),
    "replicated": dict(padding=1, padding_mode="replicate", stride=2),
    "grouped": dict(groups=2, padding=1),
    "depthwise": dict(groups=4, padding=1),
    "1x1, stride 2": dict(kernel_size=1, stride=2),
}


def pair(*args, **options):
    """torch's layer and ours with the same parameters."""
    torch.manual_seed(0)
    theirs, ours = nn.Conv2d(*args, **options), Conv2d(*args, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs.to(runtime.device), ours.to(runtime.device)


def compare(theirs, ours, x):
    """Output, the input's gradient and every parameter's to 1e-5 of their size."""
    results = []
    for module in (theirs, ours):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        y = module(leaf)
        module.zero_grad()
        y.backward(torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape))
        results.append({"y": y, "x": leaf.grad} | {name: p.grad for name, p in module.named_parameters()})
    for name, want in results[0].items():
        got = results[1][name]
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * want.abs().max().item(), msg=name)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_layer_is_torchs(name, memory_format):
    theirs, ours = pair(4, 8, **{"kernel_size": 3} | OPTIONS[name])
    assert repr(theirs) == repr(ours)
    compare(theirs, ours, cases.randn(2, 4, 9, 11).contiguous(memory_format=memory_format))


CHANGES = {
    "stride": (dict(padding=1), dict(stride=2)),
    "stride, of 3 rows": (dict(padding=1), dict(stride=(2,), padding=(0, 1))),
    "stride where the padding is same": (dict(padding="same"), dict(stride=(1, 2))),
    "same where there is a stride": (dict(padding=1, stride=2), dict(padding="same")),
    "same beside a stride, another mode": (dict(padding="same", padding_mode="circular"), dict(stride=2)),
    "same": (dict(padding=0), dict(padding="same", dilation=2)),
    "dilation where the padding is same": (dict(padding="same"), dict(dilation=(2, 1))),
    "dilation where it was, in another mode": (dict(padding="same", padding_mode="reflect"), dict(dilation=2)),
    "padding in another mode": (dict(padding=1, padding_mode="replicate"), dict(padding=0)),
    "mode": (dict(padding=1), dict(padding_mode="circular")),
    "mode, of the padding that there was": (dict(padding="valid"), dict(padding=2, padding_mode="reflect")),
    "mode zeros": (dict(padding="same", padding_mode="circular"), dict(padding_mode="zeros")),
    "mode constant": (dict(padding=(2, 1)), dict(padding_mode="constant", stride=2)),
    "no mode": (dict(padding=1), dict(padding_mode="mirrored")),
    "no padding of this name": (dict(padding=1), dict(padding="half")),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kernel_size", [3, (2, 4)])
def test_what_is_set_later_counts_as_it_does_in_torchs(name, kernel_size):
    """After a call."""
    options, changes = CHANGES[name]
    theirs, ours = pair(4, 8, kernel_size, **options)
    x = cases.randn(2, 4, 9, 11)
    compare(theirs, ours, x)
    for key, value in changes.items():
        setattr(theirs, key, value)
        setattr(ours, key, value)
    try:
        theirs(x)
    except (RuntimeError, NotImplementedError):
        with pytest.raises((ValueError, NotImplementedError)):
            ours(x)
    else:
        compare(theirs, ours, x)


def test_same_padding_beside_a_stride_that_was_set_later_is_named():
    _, ours = pair(4, 8, 3, padding="same")
    ours.stride = (2, 1)
    with pytest.raises(ValueError, match=r'stride is \(2, 1\), needs 1 with padding="same"'):
        ours(cases.randn(2, 4, 9, 11))


def test_one_image_without_a_batch():
    theirs, ours = pair(4, 8, 3, padding=1)
    compare(theirs, ours, cases.randn(4, 7, 6))


def test_a_channels_last_input_is_not_copied():
    _, ours = pair(4, 8, 3, padding=1)
    x = cases.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    y = ours(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    with cases.launches() as seen:
        y.sum().backward()
    assert any(x.data_ptr() in [t.data_ptr() for t in args if isinstance(t, torch.Tensor)] for _, _, args, *_ in seen)


class Block(nn.Module):
    """A residual block of ResNet that halves the image, with its 1x1 shortcut of stride 2."""

    def __init__(self, convolution, Ci=8, Co=16):
        super().__init__()
        self.conv1 = convolution(Ci, Co, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(Co)
        self.conv2 = convolution(Co, Co, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(Co)
        self.shortcut = convolution(Ci, Co, 1, stride=2, bias=False)
        self.norm3 = nn.BatchNorm2d(Co)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.norm3(self.shortcut(x)))


def test_a_residual_block_has_torchs_gradients():
    torch.manual_seed(0)
    theirs, ours = Block(nn.Conv2d), Block(Conv2d)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    compare(theirs.to(runtime.device), ours.to(runtime.device), cases.randn(4, 8, 12, 12))


@pytest.mark.thorough
def test_digits_are_learned_as_with_torch():
    """A small network on scikit-learn's digits: the loss of every epoch agrees to three digits, and it falls."""
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    images = torch.tensor(digits.images[:256] / 16, dtype=torch.float32, device=runtime.device)[:, None]
    labels = torch.tensor(digits.target[:256], device=runtime.device)

    def train(convolution):
        torch.manual_seed(0)
        network = nn.Sequential(
            convolution(1, 16, 3, padding=1), nn.ReLU(),
            convolution(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            convolution(32, 32, 3, padding=1, groups=32), convolution(32, 32, 1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 16, 10),
        ).to(runtime.device)  # fmt: skip
        optimizer = torch.optim.Adam(network.parameters(), lr=2e-2)
        losses = []
        for _ in range(6):
            total = 0.0
            for x, label in zip(images.split(128), labels.split(128), strict=True):
                loss = F.cross_entropy(network(x), label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() / 2
            losses.append(total)
        return losses

    ours, theirs = train(Conv2d), train(nn.Conv2d)
    assert ours[-1] < 0.7 * ours[0]
    assert ours == pytest.approx(theirs, rel=5e-4)


def test_on_the_cpu_beside_a_gpu_torch_computes(as_if_compiled, monkeypatch):
    monkeypatch.setattr(checks, "_left", set())
    theirs, ours = nn.Conv2d(4, 8, 3), Conv2d(4, 8, 3)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 6, 6)
    with pytest.warns(UserWarning, match="Conv2d is given tensors on the CPU") as warned:
        got = ours(x)
        ours(x)
    assert len(warned) == 1 and torch.equal(got, theirs(x))
