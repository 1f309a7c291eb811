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
MOST = 2000  # things that are looked at; a mod that reaches more is traced anew, which takes no longer
DEEPEST = 50  # objects in objects; what gives a new object at every access has no end
#: Of the integers that become arguments: sums of some of them are 32-bit still, and float32 has each of them.
LARGEST = 2**24
_named = {}  # code -> all names in it and in what it reaches, so that the next look begins with them
MISSING = object()
# What reads state by a name that is not in the code; and what tells a number from a tensor in its place.
_READ_BY_NAME = {"getattr", "vars", "__dict__", "attrgetter"}
_READ_VARIABLES = {"eval", "exec", "globals", "locals"}
_ASK_FOR_TYPES = {"isinstance", "type", "hasattr", "callable", "issubclass", "is_tensor"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

#: Torch's switches on which operations depend, whether or not a mod reads them: functions and their arguments.
IN_FORCE = (
    (torch.get_default_dtype, ()),
    (getattr, (default, "device")),
    (torch.is_autocast_cache_enabled, ()),
    *((torch.is_autocast_enabled, (kind,)) for kind in ("cpu", "cuda")),
    *((torch.get_autocast_dtype, (kind,)) for kind in ("cpu", "cuda")),
)
#: Those that mods read by name, besides.
SWITCHES = """
    is_grad_enabled is_inference_mode_enabled are_deterministic_algorithms_enabled get_num_threads get_num_interop_threads
    is_deterministic_algorithms_warn_only_enabled get_deterministic_debug_mode get_float32_matmul_precision
    is_warn_always_enabled
""".split()
#: Names behind which there is state that is not read here: a mod with one of them is traced at every call.
_OTHERS = {"backends", "get_rng_state", "initial_seed", "is_anomaly_enabled", "is_anomaly_check_nan_enabled"}


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
        code = getattr(getattr(mod, "__func__", mod), "__code__", None)
        names = _named.get(code, frozenset())
        while True:  # an object is described by the attributes that the code names, all of which are known in the end
            self.complete = self.open = self.guarded = True
            self.tensors, self.numbers, self.places = [], [], []
            self.guards = [(operator.eq, function, args, function(*args)) for function, args in IN_FORCE]
            self.names, self.named_at_objects = names, None
            self.inside, self.path, self.left = set(), (), MOST
            self.structure = self.of(mod)
            if self.named_at_objects is None or self.named_at_objects == self.names:
                break
            names = self.names
            if code is not None:
                if len(_named) > 4096:
                    _named.clear()
                _named[code] = names
        self.complete &= self.named_at_objects is None or not self.names & _READ_BY_NAME
        self.complete &= not self.names & (_READ_VARIABLES | _OTHERS)
        for name in sorted(self.names.intersection(SWITCHES)):
            self.guards.append((operator.eq, getattr(torch, name), (), value := getattr(torch, name)()))
            self.structure = self.structure, name, value
        self.open &= not self.names & _ASK_FOR_TYPES

    @property
    def values(self):
        """The numbers, hashable: as they are written, since 0.0 and -0.0 are not the same number."""
        return tuple(map(repr, self.numbers))

    def within(self, step, x, whole=True):
        """``of(x)``, which is found by one step from here; ``None``: by none that can be gone back."""
        before = self.path
        self.path = None if before is None or step is None else (*before, step)
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
            i, own = next((i for i, t in enumerate(self.tensors) if t is x), len(self.tensors)), ()
            if i == len(self.tensors):
                if x.layout is not torch.strided or x.is_nested:
                    kind = "a nested tensor" if x.is_nested else f"a tensor of layout {x.layout}"
                    raise ValueError(f"score_mod or mask_mod captures {kind}, needs a dense one")
                self.tensors.append(x)
                # Both can be changed in place.
                self.guards += [(operator.eq, look, (x,), look(x)) for look in (_layout, torch.Tensor.stride)]
                own = self.named(vars(x)) if vars(x) else ()
            return "tensor", i, tuple(x.shape), x.stride(), x.dtype, x.requires_grad, x.device.type, *own
        kind = type(x)
        if self.path is not None and (abs(x) < LARGEST if kind is int else kind is float and math.isfinite(x)):
            self.numbers.append(x)
            self.places.append(self.path)
            return kind, len(self.numbers)
        if kind in _VALUES or isinstance(x, np.generic) and kind is not np.void:
            return kind, repr(x)
        if kind in (tuple, list, torch.Size):
            return self.once(x, self.items)
        if kind is dict:
            return self.once(x, self.entries)
        if kind is functools.partial:
            self.guard(x.keywords)
            parts = (("func", x.func), ("args", x.args), ("keywords", x.keywords))
            return kind, *(self.within((name, None), part) for name, part in parts)
        if isinstance(x, types.FunctionType):
            return self.once(x, self.function)
        if isinstance(x, Mod):
            self.guards.append((operator.is_, operator.getitem, (vars(x), "__wrapped__"), x.__wrapped__))
            return self.within(("wrapped", None), x.__wrapped__)
        if isinstance(x, types.MethodType):
            whole = _escapes(x.__func__.__code__, 0) if isinstance(x.__func__, types.FunctionType) else True
            return "method", self.within(("func", None), x.__func__), self.within(("self", None), x.__self__, whole)
        if isinstance(x, types.ModuleType):
            self.complete &= x.__name__.split(".")[0] in SAFE_PACKAGES
            return "module", x.__name__
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            of = getattr(x, "__self__", None)
            self.names |= {x.__name__}.intersection(SWITCHES)  # whatever a mod calls it
            if isinstance(of, type):
                return "builtin", x.__name__, weakref.ref(of)  # as the apply of an autograd.Function
            return "builtin", x.__name__, None if of is None else self.within(None, of)  # a list's __getitem__
        if isinstance(x, torch.nn.Module):
            return self.once(x, self.object, whole)
        package = (getattr(x, "__module__", None) or kind.__module__).split(".")[0]
        if isinstance(x, enum.Enum):  # the members of a class differ in nothing else
            return x._name_, self.within(None, x._value_), self.once(x, self.object, whole)
        if package not in SAFE_PACKAGES:
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
        self.inside.add(id(x))
        try:
            return describe(x, *more)
        finally:
            self.inside.discard(id(x))

    def guard(self, x):
        """Note the items of a list or a dict."""
        for items in (x, x.values()) if isinstance(x, dict) else (x,):
            self.guards.append((_identical, tuple, (items,), tuple(items)))

    def named(self, attributes):
        """Of those attributes of a function or a tensor that the code names."""
        self.named_at_objects = self.names
        found = sorted(self.names & attributes.keys())
        self.guarded &= not found
        return tuple((name, self.within(None, attributes[name])) for name in found)

    def items(self, x):
        """Of a list or tuple."""
        kind = type(x)
        if kind is list:
            self.guard(x)
        return kind, *(self.within(None if kind is torch.Size else ("item", i), one) for i, one in enumerate(x))

    def entries(self, x):
        """Of a dict."""
        self.guard(x)
        return dict, *((self.within(None, k), self.within(("item", k), v)) for k, v in x.items())

    # Functions.

    def function(self, f):
        """Of a function: its code, and what it reaches."""
        code, reached = f.__code__, ()
        if f.__module__ and f.__module__.split(".")[0] in SAFE_PACKAGES:  # whose globals stay as they are
            self.names |= (_ASK_FOR_TYPES | _OTHERS).union(SWITCHES) & {*code.co_names, code.co_name}
        else:
            names, space = _names(code), f.__globals__
            self.names |= names.keys()
            reached = tuple(
                self.within(("global", name), space[name], _escapes(code, name)) for name in names if name in space
            )
            self.guards += [(operator.is_, space.get, (name, MISSING), space.get(name, MISSING)) for name in names]
        made_of, own = ("__code__", "__defaults__", "__kwdefaults__"), weakref.proxy(f)
        self.guards += [(operator.is_, getattr, (own, name), getattr(f, name)) for name in made_of]
        if f.__kwdefaults__:
            self.guard(f.__kwdefaults__)
        cells = []
        for i, (name, cell) in enumerate(zip(code.co_freevars, f.__closure__ or (), strict=True)):
            try:
                x = cell.cell_contents
            except ValueError:  # a variable that is not set yet
                self.complete = False
                continue
            self.guards.append((operator.is_, getattr, (cell, "cell_contents"), x))
            cells.append(self.within(("cell", i), x, _escapes(code, name)))
        if vars(f):
            reached += self.named(vars(f))
        defaults = tuple(self.within(("default", i), x) for i, x in enumerate(f.__defaults__ or ()))
        keywords = tuple((k, self.within(("keyword", k), x)) for k, x in (f.__kwdefaults__ or {}).items())
        return code, code.co_filename, tuple(cells), defaults, keywords, reached

    # Objects: what the code can reach by the names that are in it.

    def object(self, x, whole):
        """Of an object, or a class: whatever of it has one of the names; of a module that torch itself computes with, all."""
        self.guarded = False
        is_class, is_module = isinstance(x, type), isinstance(x, torch.nn.Module)
        kind = x if is_class else type(x)
        holds_more = not is_class and _holds_more(kind)
        if len(self.inside) > DEEPEST or (whole and holds_more):
            self.complete = False
            return None
        held = vars(x) if hasattr(x, "__dict__") and not is_class else {}
        of_torch = is_module and (_is_safe(kind) or (whole and kind.forward.__module__.split(".")[0] == "torch"))
        if of_torch:
            names = [*(k for k in held if k[0] != "_"), *x._parameters, *x._buffers, *x._modules]
        else:
            names = sorted(self.names)
            self.named_at_objects = self.names if self.named_at_objects is None else self.named_at_objects
        above = type(x).__mro__ if is_class else ()  # a metaclass's properties
        computed = [c for c in (*kind.__mro__, *above) if not _is_safe(c)]
        by_call = any("__getattr__" in vars(c) or "__getattribute__" in vars(c) for c in computed)
        found = []
        for name in names:
            if name in held:
                found.append((name, self.within(("attribute", name), held[name])))
            elif is_module and name in x._modules:
                found.append((name, self.within(("child", name), x._modules[name])))
            elif is_module and (name in x._parameters or name in x._buffers):
                found.append((name, self.within(None, getattr(x, name))))
            elif holds_more and callable(getattr(kind, name, None)):
                self.complete = False  # a method that may look at all
            elif (there := next((vars(c)[name] for c in computed if name in vars(c)), MISSING)) is not MISSING:
                found.append((name, self.attribute(x, name, there)))
                if "super" in self.names:
                    found += ((name, self.within(None, vars(c)[name])) for c in computed if name in vars(c))
            elif by_call:
                found.append((name, self.read(x, name)))
        if is_module and (whole or of_torch):
            self.complete &= not any(getattr(x, hooks) for hooks in _HOOKS)
        if whole and not is_class and not of_torch:
            if is_module:
                found.append(("forward", self.within(None, held.get("forward", kind.forward))))
            for c in computed:
                special = ((k, v) for k, v in vars(c).items() if k[:2] == "__" and isinstance(v, types.FunctionType))
                found += ((k, self.within(None, v)) for k, v in special if k not in ("__init__", "__repr__", "__new__"))
        return weakref.ref(kind), *found  # a class made in a function would keep what that captures

    def attribute(self, x, name, there):
        """Something that x's class has."""
        if isinstance(there, staticmethod | classmethod | property):
            there = there.fget if isinstance(there, property) else there.__func__
        plain = isinstance(there, types.FunctionType) or not hasattr(type(there), "__get__")
        return self.within(None, there) if plain else self.read(x, name)

    def read(self, x, name):
        """What ``x.name`` gives."""
        try:
            value = getattr(x, name, None)
        except Exception:
            self.complete = False
            return name
        return self.within(None, value.__func__ if isinstance(value, types.MethodType) else value)


_VALUES = {type(None), bool, int, float, complex, str, bytes}
_VALUES |= {torch.dtype, torch.device, torch.layout, torch.memory_format}
_STATELESS = type, range, types.EllipsisType, types.NotImplementedType, types.MethodDescriptorType
_STATELESS += types.WrapperDescriptorType, torch._ops.OpOverload, torch._ops.OpOverloadPacket
_layout = operator.attrgetter("shape", "dtype", "requires_grad", "device")
_identical = lambda some, others: len(some) == len(others) and all(map(operator.is_, some, others))  # noqa: E731


def _holds_more(kind):
    """Whether instances of a class hold what is neither an attribute nor in a slot: numpy's arrays, whatever C defines,
    and classes derived from a dict or a number."""
    if issubclass(kind, enum.Enum):  # whose value is an attribute
        return False
    places = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)  # they may also be before the object
    for c in kind.__mro__:
        if "__slots__" in vars(c):
            places += sum(isinstance(there, types.MemberDescriptorType) for there in vars(c).values())
    reference = tuple.__itemsize__  # its bytes
    return kind.__itemsize__ > 0 or kind.__basicsize__ > object.__basicsize__ + places * reference


def _is_safe(kind):
    return kind.__module__.split(".")[0] in SAFE_PACKAGES


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
    steps = {}
    for (step, *rest), value in values.items():
        steps.setdefault(step, {})[tuple(rest)] = value
    new = lambda step, name, part: replaced(part, steps[step, name]) if (step, name) in steps else part  # noqa: E731
    each = lambda step, items: {name: new(step, name, part) for name, part in items}  # noqa: E731
    if type(x) in (tuple, list):
        return type(x)(each("item", enumerate(x)).values())
    if type(x) is dict:
        return each("item", x.items())
    if isinstance(x, functools.partial):
        func, args, named = (new(name, None, getattr(x, name)) for name in ("func", "args", "keywords"))
        return functools.partial(func, *args, **named)
    if isinstance(x, Mod):
        return new("wrapped", None, x.__wrapped__)
    if isinstance(x, types.MethodType):
        return types.MethodType(new("func", None, x.__func__), new("self", None, x.__self__))
    if isinstance(x, types.FunctionType):
        cells = list(x.__closure__ or ())
        for i in [i for step, i in steps if step == "cell"]:
            cells[i] = types.CellType(new("cell", i, cells[i].cell_contents))
        changed = each("global", ((name, x.__globals__[name]) for step, name in steps if step == "global"))
        names = {**x.__globals__, **changed} if changed else x.__globals__
        made = types.FunctionType(x.__code__, names, x.__name__, None, tuple(cells) or None)
        made.__defaults__ = x.__defaults__ and tuple(each("default", enumerate(x.__defaults__)).values())
        made.__kwdefaults__ = x.__kwdefaults__ and each("keyword", x.__kwdefaults__.items())
        made.__module__, made.__qualname__ = x.__module__, x.__qualname__
        return made
    made = object.__new__(type(x))
    made.__dict__.update(each("attribute", vars(x).items()))
    if any(step == "child" for step, _ in steps):
        made.__dict__["_modules"] = each("child", x._modules.items())
    return made
