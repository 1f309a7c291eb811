"""Where other people's programs come from, and what a test says where they aren't."""

import importlib
import os
import re

import pytest
import torch

from tools.kernel_environment import ROOT


def _load_torchvision():
    """PyPI's torchvision is built with CUDA; beside a torch without, its own operators don't load, and without them it
    cannot be imported (nor can what imports it: timm, transformers). No convolution network uses one."""
    register = torch.library.register_fake

    def where_it_exists(name, *arguments, **options):
        namespace, operator = name.split("::")
        if hasattr(getattr(torch.ops, namespace), operator):
            return register(name, *arguments, **options)
        return lambda function: function

    torch.library.register_fake = where_it_exists
    try:
        importlib.import_module("torchvision")
    finally:
        torch.library.register_fake = register


def program(name):
    """The module ``name``, or skipped tests that say how to install it; `make test-programs` takes no skip for an answer."""
    try:
        _load_torchvision()
        return importlib.import_module(name)
    except ImportError as error:
        if os.environ.get("PROGRAMS_REQUIRED"):
            raise
        pytest.skip(f"needs {name.split('.')[0]} ({error}): make test-programs", allow_module_level=True)


def documented(heading):
    """What the code below a heading of docs/other_programs.md defines."""
    sections = re.split(r"^## ", (ROOT / "docs" / "other_programs.md").read_text(), flags=re.M)
    (section,) = [text for text in sections if text.startswith(f"{heading}\n")]
    blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.M | re.S)
    namespace = {}
    exec(compile("\n".join(blocks), f"docs/other_programs.md, {heading}", "exec"), namespace)
    return namespace
