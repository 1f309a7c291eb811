"""torchvision's and timm's convolution networks, small and with random weights, with every Conv2d replaced by ours."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import runtime
from kernels.conv_wgrad import Conv2d
from tests.programs.installed import documented, program

models = program("torchvision.models")
timm = program("timm")

DEVICE = runtime.device
DOCUMENTED = documented("Convolution networks")


def vgg():
    layers = models.vgg.make_layers([8, "M", 12, 16, "M"], batch_norm=False)
    return nn.Sequential(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def mobilenet_v3():
    block = partial(models.mobilenetv3.InvertedResidualConfig, width_mult=0.5)
    settings = [
        block(16, 3, 24, 16, True, "RE", 2, 1),
        block(16, 5, 40, 24, True, "HS", 2, 1),
        block(24, 5, 48, 24, False, "HS", 1, 2),  # dilated
    ]
    return models.MobileNetV3(settings, last_channel=32, num_classes=5)


def efficientnet():
    block = partial(models.efficientnet.MBConvConfig, width_mult=0.25, depth_mult=0.3)
    settings = [block(1, 3, 1, 32, 32, 1), block(4, 5, 2, 32, 48, 2), block(4, 3, 2, 48, 64, 1)]
    return models.EfficientNet(settings, dropout=0.0, stochastic_depth_prob=0.0, num_classes=5)


def convnext():
    block = models.convnext.CNBlockConfig
    return models.ConvNeXt([block(16, 24, 1), block(24, None, 1)], layer_scale=1.0, num_classes=5)


def regnet():
    parameters = models.regnet.BlockParams.from_init_params(depth=3, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25)
    return models.RegNet(parameters, num_classes=5, stem_width=8)


def deeplab():
    """Dilated convolutions, whose output is brought back to the image's size."""
    backbone = models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], replace_stride_with_dilation=[False, True, True])
    return nn.Sequential(
        *(backbone.conv1, backbone.bn1, backbone.relu, backbone.maxpool, backbone.layer1, nn.Conv2d(256, 16, 1)),
        models.segmentation.deeplabv3.ASPP(16, [2, 3], out_channels=8),
        nn.Upsample(scale_factor=4, mode="bilinear"),
    )


TORCHVISION = {
    "resnet": lambda: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=5),
    "resnext": lambda: models.ResNet(models.resnet.Bottleneck, [1, 1, 0, 0], num_classes=5, groups=8, width_per_group=4),
    "alexnet's features": lambda: nn.Sequential(models.alexnet().features[:6], nn.Flatten(), nn.LazyLinear(5)),
    "vgg": vgg,
    "squeezenet": lambda: models.SqueezeNet("1_1", num_classes=5, dropout=0.0),
    "densenet": lambda: models.DenseNet(8, (2, 3), 16, num_classes=5, memory_efficient=False),
    "densenet with checkpoints": lambda: models.DenseNet(8, (2, 3), 16, num_classes=5, memory_efficient=True),
    "mobilenet v2": lambda: models.MobileNetV2(5, 0.1, [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]], dropout=0.0),
    "mobilenet v3": mobilenet_v3,
    "mnasnet": lambda: models.MNASNet(0.1, num_classes=5, dropout=0.0),
    "shufflenet": lambda: models.ShuffleNetV2([1, 1, 1], [8, 16, 24, 32, 40], num_classes=5),
    "efficientnet": efficientnet,
    "convnext": convnext,
    "regnet": regnet,
    "deeplab": deeplab,
}
TIMM = "byobnet convnext convnext2 coatnet efficientnet efficientnet_gn mambaout maxvit nfnet resnet vit".split()
NETWORKS = TORCHVISION | {f"timm {name}": partial(timm.create_model, f"test_{name}", num_classes=5) for name in TIMM}
FIXED = {"timm coatnet", "timm maxvit", "timm vit"}  # whose images are all of one size


def with_ours(network):
    """A copy with every torch.nn.Conv2d replaced by ours, as documented."""
    return DOCUMENTED["with_ours"](copy.deepcopy(network))


class Counted(TorchDispatchMode):
    """How many backward passes of convolutions were ours, and how many torch's."""

    def __init__(self):
        super().__init__()
        self.ours = self.torchs = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.ours += function is torch.ops.kernels_from_math.conv2d_backward.default
        self.torchs += function is torch.ops.aten.convolution_backward.default
        return function(*args, **kwargs or {})


def step(network, images):
    """``(output, gradients, parameters after one step, output after it)``."""
    torch.manual_seed(2)  # dropout, where a network has it
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    out = network(images)
    out.float().square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    optimizer.step()
    return out.detach(), gradients, {name: p.detach() for name, p in network.named_parameters()}


def network_and_images(name):
    torch.manual_seed(0)
    side = 160 if name in FIXED else 40
    images = torch.randn(2, 3, side, side, device=DEVICE)
    network = NETWORKS[name]().to(DEVICE)
    for module in network.modules():  # statistics of few pixels would magnify every rounding
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    network(images)  # lazy layers
    return network, images


def agree(got, want):
    """In the norm of each tensor: sums in another order, through many layers."""
    for a, b in zip(got, want, strict=True):
        pairs = [(name, a[name], b[name]) for name in b] if isinstance(b, dict) else [("output", a, b)]
        if isinstance(b, dict):
            assert a.keys() == b.keys() and len(b) > 3
        for name, one, other in pairs:
            assert (one - other).norm() <= 1e-4 * other.norm() + 1e-6, name


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_of_training(name):
    network, images = network_and_images(name)
    ours = with_ours(network)
    replaced = sum(isinstance(layer, Conv2d) for layer in ours.modules())
    assert replaced >= 1 and not any(type(layer) is nn.Conv2d for layer in ours.modules())
    with Counted() as counted:
        got = step(ours, images)
    assert counted.ours >= replaced and (counted.torchs == 0 or name == "timm nfnet")
    agree(got, step(network, images))


@pytest.mark.parametrize("name", ["mobilenet v3", "timm convnext", "resnext"])
def test_channels_last(name):
    network, images = network_and_images(name)
    network, images = network.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    ours = with_ours(network)
    agree(step(ours, images), step(network, images))
    layouts = []
    for layer in ours.modules():
        if isinstance(layer, Conv2d):
            layer.register_forward_hook(lambda m, i, y: layouts.append(y.is_contiguous(memory_format=torch.channels_last)))
    ours(images)
    assert layouts and all(layouts)


def test_bfloat16_by_autocast():
    network, images = network_and_images("resnext")
    with torch.autocast(DEVICE.type, torch.bfloat16):
        got, gradients, *_ = step(with_ours(network), images)
    want, wanted_gradients, *_ = step(network, images)
    assert got.dtype == torch.bfloat16 and (got.float() - want).norm() < 0.02 * want.norm()
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32 and (gradient - wanted_gradients[name]).norm() < 0.1 * want.norm(), name


@pytest.mark.parametrize("name", ["test_nfnet", "test_efficientnet"])
def test_layers_that_call_the_function(name, monkeypatch):
    """Weights standardised before, and TensorFlow's padding: subclasses of Conv2d with a forward of their own."""
    torch.manual_seed(0)
    options = {"pad_type": "same"} if name == "test_efficientnet" else {}
    network = timm.create_model(name, num_classes=5, **options).to(DEVICE).eval()
    images = torch.randn(2, 3, 41, 41, device=DEVICE)
    want = step(copy.deepcopy(network), images)
    monkeypatch.setattr(nn.functional, "conv2d", DOCUMENTED["functional"])
    with Counted() as counted:
        got = step(network, images)
    assert counted.ours > 3
    agree(got, want)


def test_what_is_done_to_networks():
    """Features are cut out of a recorded graph, convolutions and normalisations are merged, weights averaged and shared."""
    network, images = network_and_images("resnext")
    network.eval()
    ours = with_ours(network)
    extract = program("torchvision.models.feature_extraction").create_feature_extractor
    got, want = (extract(n, ["layer1.0.conv2", "layer2"])(images) for n in (ours, network))
    torch.testing.assert_close(got, want)
    merged = torch.nn.utils.fusion.fuse_conv_bn_eval(ours.conv1, ours.bn1)
    torch.testing.assert_close(merged(images), network.bn1(network.conv1(images)), atol=1e-5, rtol=1e-5)
    average = program("timm.utils").ModelEmaV3(ours, decay=0.5)
    with torch.no_grad():
        ours.conv1.weight.add_(2.0)
    average.update(ours)
    torch.testing.assert_close(average.module.conv1.weight, network.conv1.weight + 1.0)
    torch.nn.utils.parametrizations.weight_norm(ours.conv1)
    ours(images).sum().backward()
    assert ours.conv1.parametrizations.weight.original1.grad.any()
    frozen = timm.create_model("test_resnet", features_only=True, out_indices=(1, 2)).to(DEVICE).eval()
    torch.testing.assert_close(with_ours(frozen)(images), frozen(images))
