"""A mod with something else in the places of some of its numbers: how a number becomes an argument of the kernel."""

import functools
import types

from kernels.flex_attention.mods.zoo import Mod


def replaced(x, values):
    """``x`` anew, with other things in some of its places.

    Args:
        x: what a ``Fingerprint`` was made of; it is left as it is.
        values: dict of what stands in which place.
    """
    if () in values:
        return values[()]
    steps = {}
    for (step, *rest), value in values.items():
        steps.setdefault(step, {})[tuple(rest)] = value
    new = lambda step, part: replaced(part, steps[step]) if step in steps else part  # noqa: E731
    if type(x) in (tuple, list):
        return type(x)(new(("item", i), one) for i, one in enumerate(x))
    if type(x) is dict:
        return {k: new(("item", k), v) for k, v in x.items()}
    if isinstance(x, functools.partial):
        return functools.partial(
            new(("func", None), x.func), *new(("args", None), x.args), **new(("keywords", None), x.keywords)
        )
    if isinstance(x, Mod):
        return new(("wrapped", None), x.__wrapped__)
    if isinstance(x, types.MethodType):
        return types.MethodType(new(("func", None), x.__func__), new(("self", None), x.__self__))
    if isinstance(x, types.FunctionType):
        cells = tuple(
            types.CellType(new(("cell", i), c.cell_contents)) if ("cell", i) in steps else c
            for i, c in enumerate(x.__closure__ or ())
        )
        changed = {name: new((step, name), x.__globals__[name]) for step, name in steps if step == "global"}
        names = {**x.__globals__, **changed} if changed else x.__globals__
        made = types.FunctionType(x.__code__, names, x.__name__, None, cells or None)
        made.__defaults__ = x.__defaults__ and tuple(new(("default", i), d) for i, d in enumerate(x.__defaults__))
        made.__kwdefaults__ = x.__kwdefaults__ and {k: new(("keyword", k), d) for k, d in x.__kwdefaults__.items()}
        made.__module__, made.__qualname__ = x.__module__, x.__qualname__
        return made
    made = object.__new__(type(x))
    made.__dict__.update({k: new(("attribute", k), v) for k, v in vars(x).items()})
    if any(step == "child" for step, _ in steps):
        made.__dict__["_modules"] = {k: new(("child", k), v) for k, v in x._modules.items()}
    return made
