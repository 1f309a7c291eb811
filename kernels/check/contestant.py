"""The learner's side of a check: it runs calls, and knows no answer.

What crosses the line between the two sides, and nothing else does:

* towards the contestant, a call: the tensors' buffers (``Fenced.flat``) with the place, shape and strides of each view, those
  that it is to say it has (``Fenced.far``), and
  keyword arguments, which are numbers, tuples, small tensors and functions of this package;
* back, the buffers as the call left them, and an :class:`Outcome`: the error, the traced launches, the lines that left
  lanes undefined, or, where nothing is to be run, the kernels as text.

Cases, expected values, seeds, comparison and points stay on the other side, in ``cases``, ``experiments`` and
``framework``. Whoever runs the learner's code in another process derives a class with these two methods, and hands an
instance to a check in place of the function.
"""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from kernels.check import watch
from kernels.check.explanations import explain, explain_slow, is_theirs
from kernels.lab import _triton_private
from kernels.lab.accesses import Launch
from kernels.lab.compile_report import Prepared, prepare
from kernels.lab.trace import Undefined, trace


class Outcome(NamedTuple):
    """What one call leaves, besides what stands in the buffers of its tensors."""

    error: tuple[str, str] | None = None  # as ``explain`` says it: what and where, and what it usually means
    launches: list[Launch] = []  # as traced, with those of a call that ended in an error
    undefined: list[str] = []  # lines that load without ``other`` and leave lanes undefined


class Kernels(NamedTuple):
    """The kernels that one call would launch, as text."""

    prepared: list[Prepared] = []  # what the compiler needs of each launch
    texts: list[str] = []  # the source of each function of the learner's that takes part
    error: tuple[str, str] | None = None
    numbers: list[tuple[str, dict[str, int]]] = []  # of each launch: its kernel, and whole numbers by parameter


class Contestant:
    """A learner's function in this process; ``given`` names the helpers that the exercise gives, which are not to blame."""

    def __init__(self, fn: Callable, given: tuple[str, ...] = ()):
        self.fn, self.given = fn, given
        self.ran: dict[str, tuple[list, dict]] = {}  # arm of a kernel -> a call that ran it, where a judge has that noted
        self.compiled: set[str] = set()  # places of kernels' texts that the compiler has looked at

    def call(self, tensors: list, launch: dict, *, traced: bool = False, poison: float | None = None) -> Outcome:
        """Call the function on the tensors' views.

        traced: record the launches, and leave out accesses outside their tensors. poison: what undefined lanes hold then.
        """
        launches, undefined, error = [], [], None
        far = [(tensor.view, tensor.far) for tensor in tensors if tensor.far]
        with ExitStack() as stack:
            if poison is not None:
                undefined = stack.enter_context(Undefined(poison)).lines
            if traced:
                launches = stack.enter_context(trace.recording(helpers=self.given, far=far)).launches
            try:
                with watch.limited():
                    self.fn(*(tensor.view for tensor in tensors), **launch)
            except watch.TooSlow as raised:
                error = explain_slow(raised, launches, watch.CALL_SECONDS, self.given)
            except Exception as raised:
                error = explain(raised, self.given)
        return Outcome(error, launches, undefined)

    def kernels(self, tensors: list, launch: dict) -> Kernels:
        """What the function would launch on these tensors; no kernel runs."""
        prepared, texts, numbers = [], {}, []

        def instead(kernel, grid, args, kwargs):
            texts.update((function, None) for function in _sources(kernel))
            prepared.append(prepare(kernel, *args, **kwargs))
            given = zip(inspect.signature(kernel.fn).parameters, args)
            numbers.append((kernel.fn.__name__, {name: value for name, value in given if type(value) is int}))
            return False

        try:
            with _triton_private.before_launches(instead), watch.limited():
                self.fn(*(tensor.view for tensor in tensors), **launch)
        except watch.TooSlow as raised:
            return Kernels(prepared, list(texts), explain_slow(raised, [], watch.CALL_SECONDS, self.given))
        except Exception as raised:
            return Kernels(prepared, list(texts), explain(raised, self.given))
        return Kernels(prepared, list(texts), numbers=numbers)


def _sources(kernel, known: set | None = None):
    """The source text of a kernel and of the helpers that it names, where they are the learner's."""
    known = set() if known is None else known
    function = _triton_private.python_function(kernel)
    if function is None or function in known or not is_theirs(function.__code__.co_filename):
        return
    known.add(function)
    try:
        yield inspect.getsource(function)
    except (OSError, TypeError):
        return
    for name in function.__code__.co_names:
        if _triton_private.is_kernel(used := function.__globals__.get(name)):
            yield from _sources(used, known)
