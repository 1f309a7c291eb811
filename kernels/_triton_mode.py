"""Triton that was imported before ``kernels``, told to interpret after all.

torch imports Triton by itself, in compiled mode: an optimizer's constructor does, torch.compile, torch.utils.flop_counter.
All that Triton decides for good while it is imported is what ``triton.jit`` makes of a function. Each of these functions,
Triton's own and the user's, becomes in place what it would have become: whoever holds one, by whatever name, holds the
interpreted one. The names below are the same in Triton 3.6 to 3.9.
"""

import gc

import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITCallable, JITFunction

OPTIONS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")


class Interpreted(JITCallable, InterpretedFunction):
    """An ``InterpretedFunction`` in the memory of a ``JITFunction``: for that, Python asks for the same first base."""

    __hash__ = object.__hash__  # JITCallable's reads the source


def interpret() -> None:
    """Turn every function that ``triton.jit`` has made so far into an interpreted one.

    Raises:
        RuntimeError: one of them has been launched, compiled.
    """
    made = [x for x in gc.get_objects() if type(x) is JITFunction]  # Gluon's are of another type, and stay compiled
    if launched := [f"{f.__module__}.{f.__qualname__}" for f in made if f.device_caches]:
        raise RuntimeError(
            f"{launched[0]} was launched, compiled, before kernels was imported, and since then TRITON_INTERPRET asks for "
            "the interpreter. Restart Python and write `import kernels` above the first launch, or set TRITON_INTERPRET "
            "before Python starts."
        )
    for function in made:
        options = {name: getattr(function, name) for name in OPTIONS}
        new = vars(InterpretedFunction(function.fn, **options)) | {"pre_run_hooks": function.pre_run_hooks}
        function.__class__ = Interpreted
        vars(function).update(new)
    for name, member in list(vars(tl.core.tensor).items()):
        if isinstance(member, Interpreted):  # x.sum() is a method, which hands x over
            setattr(tl.core.tensor, name, _method(member))


def _method(function):
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call
