"""The package ``kernels`` under the name that its wheel installs it by, where both names mean this folder's one source."""

import importlib
import importlib.abc
import importlib.util
import sys


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives ``kernels.x``, the same module, to who imports ``kernels_from_math.x``."""

    def find_spec(self, name, path=None, target=None):
        """A spec for names inside the package."""
        return importlib.util.spec_from_loader(name, self) if name.startswith(f"{__name__}.") else None

    def create_module(self, spec):
        """The module of the other name, which keeps its own spec."""
        module = importlib.import_module("kernels" + spec.name.removeprefix(__name__))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        """It has run already."""
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Alias())
sys.modules[__name__] = importlib.import_module("kernels")
