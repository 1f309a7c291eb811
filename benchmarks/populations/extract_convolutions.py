"""Every convolution of real image models, read by running them without memory, on torch's meta device.

Layers that see images of a single pixel, as those that squeeze and excite, are left out: they are linear layers.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TIMM = [  # names in timm, at the image size they were published for
    "resnet18", "resnet50", "resnet101d", "wide_resnet50_2", "resnext50_32x4d", "resnext101_32x8d", "seresnet50",
    "convnext_tiny", "convnext_base", "convnextv2_nano", "efficientnet_b0", "efficientnet_b4", "efficientnetv2_s",
    "mobilenetv2_100", "mobilenetv3_large_100", "mobilenetv4_conv_medium", "regnety_032", "regnety_160", "regnetx_032",
    "regnetx_160", "vit_base_patch16_224", "vit_large_patch14_224", "vit_small_patch32_224", "swin_tiny_patch4_window7_224",
    "densenet121", "inception_v3", "xception41", "hrnet_w18", "vgg16", "dla60", "darknet53", "repvgg_b0", "ghostnet_100",
    "maxvit_tiny_tf_224", "coatnet_0_rw_224", "res2net50_26w_4s", "skresnet50", "mnasnet_100", "rexnet_100", "nfnet_f0",
]  # fmt: skip

DIFFUSION = {  # name: (diffusers' class, its arguments, channels and size of its input, where the arguments are published)
    "stable-diffusion-v1-5 unet": (
        "UNet2DConditionModel", {"cross_attention_dim": 768}, (4, 64),
        "https://huggingface.co/stable-diffusion-v1-5/stable-diffusion-v1-5/blob/main/unet/config.json",
    ),
    "stable-diffusion-xl-base-1.0 unet": (
        "UNet2DConditionModel",
        {
            "block_out_channels": (320, 640, 1280),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "transformer_layers_per_block": (1, 2, 10), "attention_head_dim": (5, 10, 20), "cross_attention_dim": 2048,
            "use_linear_projection": True,
        },
        (4, 128),
        "https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0/blob/main/unet/config.json",
    ),
    "stable-diffusion vae": (
        "AutoencoderKL",
        {
            "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 4,
            "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
        },
        (3, 512),
        "https://huggingface.co/stabilityai/sd-vae-ft-mse/blob/main/config.json",
    ),
    "ddpm-cifar10-32": (
        "UNet2DModel",
        {
            "sample_size": 32, "block_out_channels": (128, 256, 256, 256), "layers_per_block": 2, "act_fn": "silu",
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"), "downsample_padding": 0,
        },
        (3, 32),
        "https://huggingface.co/google/ddpm-cifar10-32/blob/main/config.json",
    ),
    "ddpm-celebahq-256": (
        "UNet2DModel",
        {
            "sample_size": 256, "block_out_channels": (128, 128, 256, 256, 512, 512), "layers_per_block": 2,
            "down_block_types": ("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4, "downsample_padding": 0,
        },
        (3, 256),
        "https://huggingface.co/google/ddpm-celebahq-256/blob/main/config.json",
    ),
    "flux vae": (
        "AutoencoderKL",
        {
            "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 16,
            "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
            "use_quant_conv": False, "use_post_quant_conv": False,
        },
        (3, 1024),
        "https://huggingface.co/black-forest-labs/FLUX.1-dev/blob/main/vae/config.json",
    ),
}  # fmt: skip


class Convolutions(TorchDispatchMode):
    """Notes the sizes of every 2-D convolution that runs inside, each once."""

    def __init__(self):
        super().__init__()
        self.layers = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.convolution.default and args[0].ndim == 4 and not args[6]:
            x, weight, _, stride, padding, dilation, _, _, groups = args
            _, Ci, H, W = x.shape
            Co, _, R, S = weight.shape
            layer = {
                "Ci": Ci, "Co": Co, "H": H, "W": W, "R": R, "S": S, "groups": groups,
                "stride": list(stride), "padding": list(padding), "dilation": list(dilation),
            }  # fmt: skip
            if layer not in self.layers and (H, W) != (1, 1):
                self.layers.append(layer)
        return function(*args, **(kwargs or {}))


def convolutions_of(run):
    """The layers that ``run()`` goes through."""
    with Convolutions() as noted, torch.no_grad():
        run()
    return noted.layers


def of_timm(name):
    """A classifier's layers, on the image size that timm says it was trained with."""
    import timm

    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False).eval()
        image = torch.empty(1, *model.default_cfg["input_size"])
    return {"name": name, "source": "timm", "layers": convolutions_of(lambda: model(image))}


def of_diffusion(name):
    """A denoiser's or autoencoder's layers."""
    import diffusers

    kind, arguments, (channels, size), source = DIFFUSION[name]
    with torch.device("meta"):
        model = getattr(diffusers, kind)(**arguments).eval()
        image = torch.empty(1, channels, size, size)
        given = {"sample": image}
        if kind.startswith("UNet"):
            given["timestep"] = torch.zeros(1)
        if kind == "UNet2DConditionModel":
            given["encoder_hidden_states"] = torch.empty(1, 77, arguments["cross_attention_dim"])
    return {"name": name, "source": f"diffusers {kind}, {source}", "layers": convolutions_of(lambda: model(**given))}


def models():
    """Every model with its layers."""
    return [of_timm(name) for name in TIMM] + [of_diffusion(name) for name in DIFFUSION]
