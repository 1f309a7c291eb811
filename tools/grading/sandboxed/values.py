"""Arguments of a call as data: tensors by storage, offset, shape and strides; kernels of the checks by name."""

import importlib
import inspect

import numpy
import torch

from kernels.check.replay import View

from .recordings import as_data, from_data

#: Modules whose functions an argument may name.
MODULES = ("kernels.check.flash_mods",)


class Packed:
    """Values on their way out: ``header`` describes them, ``arrays`` are the bytes of their storages."""

    def __init__(self):
        self.storages: list[torch.UntypedStorage] = []
        self.arrays: list[numpy.ndarray] = []
        self._places: dict[int, int] = {}

    def value(self, value):
        """What stands for ``value`` in the header."""
        if isinstance(value, torch.Tensor):
            return as_data(self._view(value))
        if isinstance(value, (tuple, list)):
            return {"tuple": list(map(self.value, value))}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if hasattr(value, "block_shape"):  # a tensor descriptor of Gluon
            return {"gluon": self.value(value.base), "block": list(value.block_shape)}
        if type(value).__name__ in ("BlockedLayout", "NVMMADistributedLayout"):
            return {"layout": "rows" if type(value).__name__ == "BlockedLayout" else "product"}
        function = inspect.unwrap(getattr(value, "fn", value))
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        if module in MODULES and name.isidentifier():
            return {"function": [module, name]}
        raise ValueError(f"value is {value!r}: it must be a tensor, a number, text, or a function of {MODULES[0]}")

    def _view(self, tensor) -> View:
        storage = tensor.untyped_storage()
        key = storage.data_ptr() if storage.nbytes() else -id(tensor)
        if key not in self._places:
            self._places[key] = len(self.storages)
            self.storages.append(storage)
            self.arrays.append(bytes_of(storage))
        return View(self._places[key], tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


class Unpacked:
    """The same values on arrival, over storages of their own."""

    def __init__(self, arrays):
        self.storages = list(map(_storage, arrays))

    def value(self, given):
        """The value that ``given`` stands for."""
        if not isinstance(given, dict):
            return given
        if "view" in given:
            view = from_data(given)
            return view.of(self.storages[view.storage])
        if "tuple" in given:
            return tuple(map(self.value, given["tuple"]))
        if "function" in given:
            module, name = given["function"]
            return getattr(importlib.import_module(module), name)
        from kernels.check.exercises import pipeline_clinic

        if "layout" in given:
            return pipeline_clinic.layout(given["layout"])
        return pipeline_clinic.described(self.value(given["gluon"]), *given["block"])


def _storage(array: numpy.ndarray) -> torch.UntypedStorage:
    """A copy where torch allocates: at numpy's addresses, a row would touch one more 32-byte sector than it does at home."""
    copy = torch.empty(array.size, dtype=torch.uint8)
    copy.numpy()[:] = array
    return copy.untyped_storage()


def bytes_of(storage: torch.UntypedStorage) -> numpy.ndarray:
    """A storage's bytes, without a copy."""
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).numpy()
