"""Draw the README's picture with lesson 10's own kernel: `.venv/bin/python -m tools.readme_picture`."""

import nbformat
from IPython.core.interactiveshell import InteractiveShell

from tools.kernel_environment import ROOT

LESSON = ROOT / "notebooks" / "10_dynamic_conv_forward.ipynb"
PICTURE = ROOT / "docs" / "images" / "dynamic_conv_reads.png"
CELLS = ("setup", "kernel")  # the lesson's imports, and its kernel


def main() -> None:
    shell = InteractiveShell.instance()  # Triton reads a kernel's source, which cells of a shell have
    cells = {cell.id: cell.source for cell in nbformat.read(LESSON, as_version=4).cells}
    for name in CELLS:
        shell.run_cell(cells[name]).raise_error()
    lesson = shell.user_ns
    torch, device = lesson["torch"], lesson["device"]

    B, T, D, W = 1, 11, 10, 4  # the last tiles overhang
    x, weight = torch.randn(B, T, D, device=device), torch.randn(B, T, D, W, device=device)
    with lesson["trace"].recording() as trace:
        lesson["tap_by_tap"](x, weight, torch.empty_like(x), BLOCK_T=8, BLOCK_D=4)
    picture = trace.picture("x_ptr", index=0, axes=("time t", "channel d"))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_bytes(picture.png())


if __name__ == "__main__":
    main()
