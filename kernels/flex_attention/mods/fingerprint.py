"""What decides how a mod would be traced, found without tracing it: its code, what it captures, and the layouts of tensors.

Numbers are kept apart from all else: two mods that differ in numbers alone have one ``structure``. ``replaced`` makes a mod
anew with something else in the places of some of its numbers, which is how a number becomes an argument of the kernel.
"""

import dis
import enum
import functools
import math
import operator
import types
import weakref

import numpy as np
import torch

from kernels.common.checks import default
from kernels.flex_attention.mods.zoo import Mod

SAFE_PACKAGES = ("torch", "math", "builtins", "operator", "functools", "enum", "kernels", "kernels_from_math")
MOST, DEEPEST = 2000, 50  # things, and things in things; a mod that reaches more is traced anew, which takes no longer
#: Of the integers that become arguments: sums of some of them are 32-bit still, and float32 has each of them.
LARGEST = 2**24
MISSING = object()

#: Names behind which there is state that is not read here: a mod with one of them is traced at every call.
_UNREAD = {"eval", "exec", "globals", "locals", "backends", "get_rng_state", "initial_seed"}
_UNREAD |= {name for name in dir(torch) if name.startswith(("is_", "are_", "get_")) and name.endswith(("_enabled", "_only"))}
_UNREAD |= {"get_num_threads", "get_num_interop_threads", "get_deterministic_debug_mode", "get_float32_matmul_precision"}
_READ_BY_NAME = {"getattr", "vars", "__dict__", "attrgetter", "super"}  # at objects, too
#: What tells a number from a tensor in its place.
_ASK_FOR_TYPES = {"isinstance", "type", "hasattr", "callable", "issubclass", "is_tensor"}

#: Torch's switches on which operations depend, whether or not a mod reads them: functions and their arguments.
IN_FORCE = (
    (torch.get_default_dtype, ()),
    (getattr, (default, "device")),
    (torch.is_autocast_cache_enabled, ()),
    *((torch.is_autocast_enabled, (kind,)) for kind in ("cpu", "cuda")),
    *((torch.get_autocast_dtype, (kind,)) for kind in ("cpu", "cuda")),
)


def in_force():
    """How the switches are set that every operation may depend on: hashable."""
    return tuple(function(*args) for function, args in IN_FORCE)


class Fingerprint:
    """The fingerprint of a mod.

    structure: hashable, all but the numbers. complete: False where something is captured whose state cannot be read; such a
    mod is traced at every call. tensors: those captured. numbers: of Python, ``int`` and ``float``; places: where each is
    found, for ``replaced``; open: whether anything else may take their places.

    guards: what tells by identities whether all is as it was: ``(compare, function, arguments, value)``. guarded: False where
    something was read whose changes they do not show, such as an object's attributes. They hold no reference to the mod.
    """

    def __init__(self, mod):
        self.names, known = frozenset(), None
        while known != self.names:  # an object is described by the attributes that the code names, all known in the end
            known = self.names
            self.complete = self.open = self.guarded = True
            self.tensors, self.numbers, self.places = [], [], []
            self.guards = [(operator.eq, function, args, function(*args)) for function, args in IN_FORCE]
            self.inside, self.path, self.left, self.by_name, self.not_read = set(), (), MOST, False, set()
            self.structure = self.of(mod)
            known = known if self.by_name else self.names
        self.complete &= not self.names & (_UNREAD | self.not_read | (_READ_BY_NAME if self.by_name else set()))
        self.open &= not self.names & _ASK_FOR_TYPES

    @property
    def values(self):
        """The numbers, hashable: as they are written, since 0.0 and -0.0 are not the same number."""
        return tuple(map(repr, self.numbers))

    def within(self, x, *steps, whole=True):
        """``of(x)``, which is found by these steps from here; without one, by none that can be gone back."""
        before = self.path
        self.path = (*before, *steps) if steps and before is not None else None
        found = self.of(x, whole)
        self.path = before
        return found

    def of(self, x, whole=True):
        """A hashable description of ``x``. whole: x may be used in other ways than by its attributes."""
        self.left -= 1
        if self.left < 0:
            self.complete = False
            return None
        if isinstance(x, torch.Tensor):
            return self.tensor(x)
        kind = type(x)
        if self.path is not None and (abs(x) < LARGEST if kind is int else kind is float and math.isfinite(x)):
            self.numbers.append(x)
            self.places.append(self.path)
            return kind, len(self.numbers)
        if kind in _VALUES or isinstance(x, np.generic) and kind is not np.void:
            return kind, repr(x)
        if kind in _CONTAINERS:
            return self.once(x, self.container)
        if isinstance(x, types.FunctionType):
            return self.once(x, self.function)
        if isinstance(x, types.MethodType):
            whole = _escapes(x.__func__.__code__, 0) if isinstance(x.__func__, types.FunctionType) else True
            return "method", self.within(x.__func__, "__func__"), self.within(x.__self__, "__self__", whole=whole)
        if isinstance(x, types.ModuleType):
            self.complete &= _is_safe(x.__name__)
            return "module", x.__name__
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            of = getattr(x, "__self__", None)
            self.names |= {x.__name__}  # whatever a mod calls it
            if isinstance(of, type):
                return "builtin", x.__name__, weakref.ref(of)  # as the apply of an autograd.Function
            return "builtin", x.__name__, None if of is None else self.within(of)  # a list's __getitem__
        if isinstance(x, enum.Enum):  # the members of a class differ in nothing else
            return x._name_, self.within(x._value_), self.once(x, self.object, whole)
        if isinstance(x, torch.nn.Module) or not _is_safe(getattr(x, "__module__", None) or kind.__module__):
            return self.once(x, self.object, whole)
        if not isinstance(x, _STATELESS):
            self.complete = False  # what an iterator, a set or operator.attrgetter holds may change
            return kind
        return x

    def once(self, x, describe, *more):
        """``describe(x)``, unless x is being described already."""
        if id(x) in self.inside:
            self.guarded = self.open = False  # a number in it would have to be replaced in a circle
            return "itself"
        self.complete &= len(self.inside) < DEEPEST  # what gives a new object at every access has no end
        self.inside.add(id(x))
        found = describe(x, *more) if len(self.inside) <= DEEPEST else None
        self.inside.discard(id(x))
        return found

    def tensor(self, x):
        """Of a captured tensor: which it is, and its layout."""
        i = next((i for i, t in enumerate(self.tensors) if t is x), len(self.tensors))
        if i == len(self.tensors):
            if x.layout is not torch.strided or x.is_nested:
                kind = "a nested tensor" if x.is_nested else f"a tensor of layout {x.layout}"
                raise ValueError(f"score_mod or mask_mod captures {kind}, needs a dense one")
            self.tensors.append(x)
            # Both can be changed in place.
            self.guards += [(operator.eq, look, (x,), look(x)) for look in (_layout, torch.Tensor.stride)]
            self.not_read |= vars(x).keys()
        return "tensor", i, tuple(x.shape), x.stride(), x.dtype, x.requires_grad, x.device.type

    def container(self, x):
        """Of what Python puts things into."""
        for items in (x, x.values()) if isinstance(x, dict) else (x,) if isinstance(x, list) else ():
            self.guards.append((_identical, tuple, (items,), tuple(items)))
        if isinstance(x, Mod):
            self.guards.append((operator.is_, operator.getitem, (vars(x), "__wrapped__"), x.__wrapped__))
        parts = _parts(x)
        keys = [self.within(key) for key in parts] if isinstance(x, dict) else ()
        steps = () if isinstance(x, torch.Size) else parts
        return type(x), *keys, *(self.within(part, *([name] if steps else [])) for name, part in parts.items())

    def function(self, f):
        """Of a function: its code, and what it reaches."""
        code, parts = f.__code__, _parts(f)
        if _is_safe(f.__module__):  # whose globals stay as they are
            self.names |= (_ASK_FOR_TYPES | _UNREAD) & {*code.co_names, code.co_name}
        else:
            names, space = _names(code), f.__globals__
            self.names |= names.keys()
            parts |= {("global", name): space[name] for name in names if name in space}
            self.guards += [(operator.is_, space.get, (name, MISSING), space.get(name, MISSING)) for name in names]
        own = weakref.proxy(f)
        made_of = "__code__", "__defaults__", "__kwdefaults__"
        self.guards += [(operator.is_, getattr, (own, name), getattr(f, name)) for name in made_of]
        if f.__kwdefaults__:
            self.guards.append((_identical, tuple, (f.__kwdefaults__.values(),), tuple(f.__kwdefaults__.values())))
        self.guards += [(operator.is_, getattr, (cell, "cell_contents"), _content(cell)) for cell in f.__closure__ or ()]
        self.not_read |= vars(f).keys()
        found = [code, code.co_filename]
        for (kind, name), x in parts.items():
            variable = code.co_freevars[name] if kind == "cell" else name
            self.complete &= x is not MISSING  # a variable that is not set yet
            whole = kind in ("default", "keyword") or _escapes(code, variable)
            found.append((kind, name, self.within(x, (kind, name), whole=whole)))
        return tuple(found)

    def object(self, x, whole):
        """Of an object, or a class: whatever of it has one of the names that are in the code; of a module that torch itself
        computes with, all."""
        self.guarded, self.by_name = False, True
        is_class, is_module = isinstance(x, type), isinstance(x, torch.nn.Module)
        kind = x if is_class else type(x)
        named = isinstance(x, tuple) and hasattr(kind, "_fields")
        theirs = [c for c in kind.__mro__ if not _is_safe(c.__module__)]
        if is_class:
            self.complete &= type(x) is type or isinstance(x, enum.EnumMeta)
        elif not isinstance(x, enum.Enum) and not named:  # in C there may be more than attributes
            self.complete &= hasattr(x, "__dict__") and kind.__new__ is object.__new__
        self.complete &= not any("__getattr__" in vars(c) or "__getattribute__" in vars(c) for c in theirs)
        if not self.complete:
            return None
        held, inside = {} if is_class else getattr(x, "__dict__", {}), {}
        names = sorted(self.names | ({"forward"} & held.keys() if is_module else set()))
        if is_module:
            inside = {**x._parameters, **x._buffers, **x._modules}
            self.complete &= not whole or not any(getattr(x, hooks) for hooks in _HOOKS)
            if of_torch := whole and _is_safe(kind.forward.__module__):
                names = [*(name for name in held if name[0] != "_"), *inside]
        found = list(map(self.within, x)) if named else []
        for name in names:
            there = next((vars(c)[name] for c in theirs if name in vars(c)), MISSING)
            if name in held:
                found.append((name, self.within(held[name], ("attribute", name))))
            elif name in inside:
                steps = (("attribute", "_modules"), name) if name in x._modules else ()
                found.append((name, self.within(inside[name], *steps)))
            elif there is not MISSING:
                found.append((name, self.within(_of_class(x, name, there))))
        if whole and not is_class and not (is_module and of_torch):
            special = [(k, v) for c in theirs for k, v in vars(c).items() if k[:2] == "__" or is_module and k == "forward"]
            found += ((k, self.within(v)) for k, v in special if isinstance(v, types.FunctionType) and k not in _NOT_CALLED)
        return weakref.ref(kind), *found  # a class made in a function would keep what that captures


_CONTAINERS = tuple, list, torch.Size, dict, functools.partial, Mod
_VALUES = {type(None), bool, int, float, complex, str, bytes}
_VALUES |= {torch.dtype, torch.device, torch.layout, torch.memory_format}
_STATELESS = type, range, types.EllipsisType, types.NotImplementedType, types.MethodDescriptorType
_STATELESS += types.WrapperDescriptorType, torch._ops.OpOverload, torch._ops.OpOverloadPacket
_HOOKS, _NOT_CALLED = ("_forward_hooks", "_forward_pre_hooks"), ("__init__", "__repr__")
_layout = operator.attrgetter("shape", "dtype", "requires_grad", "device")
_identical = lambda some, others: len(some) == len(others) and all(map(operator.is_, some, others))  # noqa: E731


def _is_safe(module):
    return (module or "").split(".")[0] in SAFE_PACKAGES


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _of_class(x, name, there):
    """What ``x.name`` is by something that x's class has: the function that gives it, or itself."""
    if isinstance(there, staticmethod | classmethod):
        return there.__func__
    if isinstance(there, property):
        return there.fget
    plain = isinstance(there, types.FunctionType) or not hasattr(type(there), "__get__")
    return there if plain else getattr(x, name, None)


def _parts(x):
    """What a container, a method or a function holds: ``{step: part}``."""
    if isinstance(x, types.FunctionType):
        parts = {("cell", i): _content(cell) for i, cell in enumerate(x.__closure__ or ())}
        parts |= {("default", i): one for i, one in enumerate(x.__defaults__ or ())}
        return parts | {("keyword", name): one for name, one in (x.__kwdefaults__ or {}).items()}
    names = {functools.partial: ("func", "args", "keywords"), Mod: ("__wrapped__",)}.get(type(x))
    names = ("__func__", "__self__") if isinstance(x, types.MethodType) else names
    if names:
        return {name: getattr(x, name) for name in names}
    return x if isinstance(x, dict) else dict(enumerate(x))


@functools.lru_cache(4096)
def _names(code):
    """Names of globals and attributes that a function's code, and the functions defined in it, refer to."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


@functools.lru_cache(4096)
def _escapes(code, variable):
    """Whether a variable (its name, or 0 for the first argument) is used in any other way than ``variable.attribute``."""
    if variable == 0:
        if not code.co_argcount:
            return True
        variable = code.co_varnames[0]
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType) and variable in (*c.co_freevars, *c.co_names))
    if any(_escapes(c, variable) for c in inner):
        return True
    lines = [i for i in dis.get_instructions(code) if i.opname not in ("COPY_FREE_VARS", "MAKE_CELL", "LOAD_CLOSURE")]
    for i, after in zip(lines, [*lines[1:], None], strict=True):
        mentioned = variable == i.argval or (isinstance(i.argval, tuple) and variable in i.argval)
        if mentioned and not i.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST", "KW_NAMES")):
            plain = isinstance(i.argval, str) and i.opname.startswith("LOAD_")
            if not plain or after is None or not after.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
                return True
    return False


def replaced(x, values):
    """``x`` anew, with other things in some of its places.

    Args:
        x: what a ``Fingerprint`` was made of; it is left as it is.
        values: dict of places and what takes them.
    """
    if () in values:
        return values[()]
    below = {}
    for (step, *rest), value in values.items():
        below.setdefault(step, {})[tuple(rest)] = value
    if isinstance(x, types.FunctionType):
        parts = _parts(x) | {step: x.__globals__[step[1]] for step in below if step[0] == "global"}
    else:
        held = isinstance(x, (*_CONTAINERS, types.MethodType))
        parts = _parts(x) if held else {("attribute", name): part for name, part in vars(x).items()}
    parts = {step: replaced(part, below[step]) if step in below else part for step, part in parts.items()}
    if isinstance(x, tuple | list):
        return type(x)(parts.values())
    if isinstance(x, dict):
        return parts
    if isinstance(x, functools.partial):
        return functools.partial(parts["func"], *parts["args"], **parts["keywords"])
    if isinstance(x, Mod):
        return parts["__wrapped__"]
    if isinstance(x, types.MethodType):
        return types.MethodType(*parts.values())
    of = lambda kind: {name: part for (its, name), part in parts.items() if its == kind}  # noqa: E731
    if isinstance(x, types.FunctionType):
        names = {**x.__globals__, **changed} if (changed := of("global")) else x.__globals__
        there = enumerate(x.__closure__ or ())
        cells = tuple(types.CellType(parts["cell", i]) if ("cell", i) in below else cell for i, cell in there)
        made = types.FunctionType(x.__code__, names, x.__name__, tuple(of("default").values()), cells or None)
        made.__kwdefaults__, made.__module__, made.__qualname__ = of("keyword"), x.__module__, x.__qualname__
        return made
    made = object.__new__(type(x))
    made.__dict__.update(of("attribute"))
    return made
