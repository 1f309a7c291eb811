"""Draw the README's picture with lesson 10's own kernel: `.venv/bin/python -m tools.readme_picture`."""

import torch

import kernels
from kernels.lab import trace
from kernels.lessons.lesson_10 import convolve
from tools.kernel_environment import ROOT

PICTURE = ROOT / "docs" / "images" / "dynamic_conv_reads.png"


def main() -> None:
    device = kernels.runtime.device
    T, D, W = 11, 10, 4  # the last tiles overhang
    x, weight = torch.randn(1, T, D, device=device), torch.randn(1, T, D, W, device=device)
    traced = trace(convolve, (3, 2, 1), x, weight, torch.empty_like(x), T, D, W=W, BLOCK_T=8, BLOCK_D=4)
    picture = traced.picture("x_ptr", index=0, axes=("time t", "channel d"))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_bytes(picture.png())


if __name__ == "__main__":
    main()
