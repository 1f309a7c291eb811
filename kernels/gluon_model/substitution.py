"""Take a Gluon kernel's own code and let it call the model: the same lines, other globals.

The only file of the model that knows how Triton wraps functions, constants and aggregates.
"""

from __future__ import annotations

import builtins
import types

import triton
import triton.language as tl
from triton.runtime.jit import ConstexprFunction, JITFunction

from kernels.gluon_model import hardware  # noqa: F401 (its functions enter TABLE)
from kernels.gluon_model.language import TABLE, loop
from kernels.gluon_model.memory import View
from kernels.gluon_model.source import Locator
from kernels.gluon_model.values import ModelError
from kernels.lab._triton_private import InterpretedFunction


class Module:
    """One of Triton's modules, as the kernel sees it: the same names, each standing for its model."""

    def __init__(self, module, substitution):
        self._module, self._substitution = module, substitution

    def __getattr__(self, name: str):
        return self._substitution.of(getattr(self._module, name), f"{self._module.__name__.split('.')[-1]}.{name}")


class Substitution:
    """Replaces what a kernel names, once for each object, so that functions and classes may name each other."""

    def __init__(self, locator: Locator):
        self._locator = locator
        self._done: dict[int, tuple] = {}  # by id: the stand-in, and the original to keep its id its own

    def of(self, value, name: str = ""):
        """What stands for ``value`` in the model: often the value itself."""
        if id(value) in TABLE:
            return TABLE[id(value)]
        if id(value) not in self._done:
            self._remember(value, self._replace(value, name))
        return self._done[id(value)][0]

    def _remember(self, value, stand_in):
        self._done[id(value)] = stand_in, value
        return stand_in

    def _replace(self, value, name: str):
        if isinstance(value, tl.constexpr):
            return self.of(value.value)
        if isinstance(value, types.ModuleType) and value.__name__.split(".")[0] == "triton":
            return Module(value, self)
        if isinstance(value, (JITFunction, InterpretedFunction, ConstexprFunction)):
            return self._function(value, value.fn)
        if isinstance(value, type) and getattr(value, "__triton_aggregate__", False):
            return self._aggregate(value)
        if type(value) is tuple:
            return tuple(self.of(member) for member in value)
        if callable(value) and not isinstance(value, type) and getattr(value, "__triton_builtin__", False):
            return _Unknown(name or value.__name__)
        return value

    def _function(self, value, original: types.FunctionType) -> types.FunctionType:
        """The function with the same code, whose globals, defaults and closure are those of the model."""
        self._locator.adopt(original.__code__)
        own = {"__builtins__": vars(builtins) | {"range": loop}, "__name__": original.__module__}
        cells = tuple(types.CellType() for _ in original.__closure__ or ())
        function = self._remember(
            value, types.FunctionType(original.__code__, own, original.__name__, None, cells or None)
        )
        function.__defaults__ = original.__defaults__ and tuple(self.of(default) for default in original.__defaults__)
        function.__kwdefaults__ = {key: self.of(default) for key, default in (original.__kwdefaults__ or {}).items()}
        for cell, theirs in zip(cells, original.__closure__ or ()):
            cell.cell_contents = self.of(theirs.cell_contents)
        for name in _names(original.__code__):
            if name in original.__globals__:
                own[name] = name != _ON_A_GPU and self.of(original.__globals__[name], name)
        return function

    def _aggregate(self, cls):
        """The class behind ``@gluon.aggregate`` with its methods on the model; fields hold model values."""
        stand_in = self._remember(cls, type(cls.__name__, (), {"fields": cls.__aggregate_fields__}))
        for name, member in vars(cls).items():
            if isinstance(member, (JITFunction, ConstexprFunction)):
                setattr(stand_in, name, self.of(member))
            elif isinstance(member, types.FunctionType) and name not in _MACHINERY:
                setattr(stand_in, name, self._function(member, member))
        init = cls.hash_attrs[0]
        if getattr(init, "__triton_builtin__", False):
            stand_in.__init__ = _fill_fields(cls.__name__, stand_in.fields, cls.__aggregate_defaults__, self)
        else:
            stand_in.__init__ = self._function(init, getattr(init, "fn", init))
        stand_in.__setattr__ = _name_and_set
        return stand_in


def _names(code: types.CodeType) -> set[str]:
    """Every global that a function, or a function inside it, may name."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


#: A global of this name chooses between a GPU's own instructions and what they compute: here it is false.
_ON_A_GPU = "COMPILED"

_MACHINERY = {"__new__", "__setattr__", "_set_name", "_flatten_ir", "_get_instance", "__init__"}


def _name_and_set(self, name: str, value) -> None:
    """Set a field; memory that was allocated without a variable of its own takes the field's name."""
    if isinstance(value, View) and value.allocation.name.startswith("the "):
        value.allocation.name = name
    object.__setattr__(self, name, value)


def _fill_fields(owner: str, fields, defaults: dict, substitution: Substitution):
    def __init__(self, *args, **kwargs):
        given = dict(zip(fields, args)) | kwargs
        for name in fields:
            if name not in given and name not in defaults:
                raise ModelError(f"{owner} is made without its field {name!r}")
            setattr(self, name, given[name] if name in given else substitution.of(defaults[name]))

    return __init__


class _Unknown:
    """A Triton builtin that the model does not know; it says so when it is called."""

    def __init__(self, name: str):
        self._name = name

    def __call__(self, *args, **kwargs):
        raise ModelError(f"{self._name} is not modelled (Triton {triton.__version__})")
