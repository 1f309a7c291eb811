"""Generated modules: written to a file named after its content, imported, and kept while they are in use."""

import functools
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

from kernels.common.operator import lock_over_forks
from kernels.flex_attention.mods import device

lock = lock_over_forks()


class Bounded(OrderedDict):
    """The entries used last; a module that goes leaves ``sys.modules``, too."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def find(self, key):
        """What is kept, or ``None``."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def keep(self, key, value):
        """``value``, kept."""
        self[key] = value
        if len(self) > self.most:
            _, gone = self.popitem(last=False)
            sys.modules.pop(getattr(gone, "__name__", None), None)
        return value


_modules = Bounded(2048)


def module_text(title, *functions):
    """A module that holds these functions' texts and imports what they call."""
    body = "\n\n".join(functions)
    helpers = sorted(name for name in vars(device) if re.search(rf"(?<![.\w]){name}\(", body) and name[0] != "_")
    imports = f"\nfrom kernels.flex_attention.mods.device import {', '.join(helpers)}\n" if helpers else ""
    return f'"""Generated from {title}."""\n\nimport triton\nimport triton.language as tl\n{imports}\n\n{body}'


def cache_folder():
    """Where generated modules are kept: ``$KERNELS_CACHE_DIR``, or ``~/.cache/kernels_from_math``."""
    named = os.environ.get("KERNELS_CACHE_DIR")
    return Path(named) if named else Path.home() / ".cache" / "kernels_from_math"


def load(text):
    """Write ``text`` to a file named after its content, import it; the same text is the same module."""
    name = f"flex_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with lock:
        if (module := _modules.find(name)) is not None:
            return module
        path = cache_folder() / f"{name}.py"
        try:
            _write(path, text)
        except OSError:  # a home that cannot be written to
            path = Path(_own_folder()) / path.name
            _write(path, text)
        spec = importlib.util.spec_from_file_location(f"kernels_generated_{name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return _modules.keep(name, module)


def _write(path, text):
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".py", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)  # whole or not at all, for processes that import it at the same time


@functools.cache
def _own_folder():
    return tempfile.mkdtemp(prefix="kernels_from_math_")
