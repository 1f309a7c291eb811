"""An operator of PyTorch's, made from what differs between one and another.

An ``Operator`` runs in one of two ways with the same result. Where nothing looks on (plain tensors, no dispatch mode, no
tracer) it calls its forward pass directly, inside an ``autograd.Function`` where a gradient is wanted. Everywhere else it is
a call through PyTorch's dispatcher, of an operator with a fake and a backward operator of its own: ``torch.compile``,
``torch.export``, fake tensors, counters of operations, tensor subclasses and ``opcheck`` see that.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.utils.flop_counter import register_flop_formula

from kernels.common.alike import Passes
from kernels.common.checks import (
    as_usual,
    nothing_looks_on,
    once_differentiable,
    refuse_batched_gradients,
    refuse_parts,
)

NAMESPACE = "kernels_from_math"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
AHEAD = 2  # what the autograd.Function is given before its tensors


class _Places(NamedTuple):
    """Where a call's tensors stand among the inputs of the autograd.Function, which come as ``Operator.flat`` puts them.

    needs: gives of something about each input what is about those that ``backward`` differentiates for. answer: gives of
    ``None`` and their gradients one for each input. passed: ``(input, return)``, the one's gradient is the other's.
    saved: of each saved argument or return among the saved tensors, a place or a slice; ``None`` where each is one tensor.
    """

    needs: Callable
    answer: Callable
    passed: list[tuple[int, int]]
    saved: list[int | slice] | None


class Known(NamedTuple):
    """What a call runs that is alike an earlier one: see ``Operator.known``."""

    forward: Callable
    backward_of: Callable | None
    places: _Places


class Operator:
    """An operator by what differs: call it with its schema's arguments, by position.

    Args:
        schema: ``"name(Tensor x, Tensor? bias, Tensor[] captured, float scale) -> (Tensor y, Tensor state)"``: the first
            argument is a tensor, there are no defaults, ``Tensor(a!) state`` is written in place.
        forward: ``forward(*arguments)`` gives what the schema returns, a tuple where it is several tensors; ``None`` stands
            for one that was not asked for, an empty tensor to the dispatcher. No output shares memory with an argument.
        fake: ``fake(*arguments)`` gives ``new_empty`` tensors of the same shapes, dtypes and strides, ``None`` likewise.
        backward: ``backward(*output_gradients, *saved, *numbers, needs)`` gives a gradient for each tensor of ``gradients``,
            ``None`` where ``needs``, a list of bools, says that it isn't wanted. An output's gradient is ``None`` where the
            output was not used; ``numbers`` are all arguments that are no tensors. Without a function: not differentiable.
        gradients: names of the arguments that ``backward`` differentiates for, in the order of its answer and of ``needs``; a
            ``Tensor[]`` counts once for each of its tensors.
        saved: names of the arguments and returns that ``backward`` reads, in the order it takes them. Only these are kept,
            through autograd: changes in place are noticed, and hooks on saved tensors see them.
        fake_backward: takes what ``backward`` takes and gives ``new_empty`` tensors; needed where a gradient is not a
            contiguous tensor of its argument's shape and dtype, or its argument is not saved.
        passed: ``{argument: return}`` where the argument's gradient is the return's gradient itself, cast to its dtype.
        constant: names of the returns that have no gradient; ``backward`` takes none for them.
        public: the public function's name, in messages; ``None``: the schema's.
        room: the folder under ``kernels`` that it lives in; ``None``: one of the public function's name.

    ``torch.ops.kernels_from_math.<name>`` is the operator, ``<name>_backward`` its backward pass: it takes what ``backward``
    takes and returns a list of the gradients that were needed.
    """

    def __init__(
        self,
        schema: str,
        forward: Callable,
        fake: Callable,
        *,
        backward: Callable | None = None,
        gradients: Sequence[str] = (),
        saved: Sequence[str] = (),
        fake_backward: Callable | None = None,
        passed: dict[str, str] | None = None,
        constant: Sequence[str] = (),
        public: str | None = None,
        room: str | None = None,
    ) -> None:
        self.name, types, returned = _parse(schema)
        names = list(types)
        self._public, self._room = public or self.name, room
        self._forward, self._backward, self._fake_backward = forward, backward, fake_backward
        self._several = len(returned) > 1
        self._tensors = [i for i, name in enumerate(names) if types[name].startswith("Tensor")]
        self._lists = [i for i in self._tensors if types[names[i]].endswith("[]")]
        self._alone = [i for i in self._tensors if i not in self._lists]
        self._written = [i for i in self._tensors if "!" in types[names[i]]]
        self._numbers = [i for i in range(len(names)) if i not in self._tensors]
        self._gradients = [names.index(name) for name in gradients]
        self._passed = [(names.index(name), returned.index(out)) for name, out in (passed or {}).items()]
        self._constant = [returned.index(name) for name in constant]
        self._varying = [i for i in range(len(returned)) if i not in self._constant]
        every = [*names, *returned]
        self._saved = [every.index(name) for name in saved]
        self._saved_lists = [i for i in self._saved if i in self._lists]
        self._saved_alone = [i for i in self._saved if i not in self._lists]
        self._gradients_saved = [list(saved).index(name) if name in saved else None for name in gradients]
        if backward is not None and fake_backward is None and None in self._gradients_saved:
            raise ValueError(f"{self.name}: gradients of arguments that are not saved need a fake_backward")

        self._define(schema, forward, fake)
        if backward is not None:
            taken = [f"Tensor? grad_{returned[i]}" for i in self._varying]
            taken += [f"{types.get(name, 'Tensor')} {name}" for name in saved]
            taken += [f"{types[names[i]]} {names[i]}" for i in self._numbers]
            self._define_backward(f"{self.name}_backward({', '.join([*taken, 'bool[] needs'])}) -> Tensor[]")
        forward = self._run if self._written else self._forward
        self._usual, self._dispatched = (
            functools.lru_cache(256)(functools.partial(self.known, run)) for run in (forward, self._dispatch)
        )
        picked = self._alone, self._saved_alone, self._numbers
        self._of_tensors, self._of_saved, self._of_numbers = map(_picker, picked)
        self._function = self._make_function()
        self._apply = super(torch.autograd.Function, self._function).apply  # for who has seen that no transform is on

    def __call__(self, *args, known=None):
        """The outputs, by the shorter way where nothing looks on. known: the ``Known`` of such calls, if there is one."""
        if torch.compiler.is_compiling() or not (args[0].is_cuda or args[0].is_cpu):
            return self.op(*args)
        flat = self.flat(args)
        if nothing_looks_on(flat):
            return self.directly(known or self._usual(*self._lengths(args)), args, flat)
        refuse_parts(self._public, flat)
        return self.op(*args)

    def known(self, forward, *lengths, backward_of=None):
        """The ``Known`` of calls that are alike, for ``directly``.

        Args:
            forward: what runs in place of the forward pass.
            lengths: of the operator's lists in such a call.
            backward_of: ``backward_of(*output_gradients, *saved)``, plain tensors or ``None``, lists' behind the others, is
                what runs in place of the backward pass, ``run(*output_gradients, *saved, needs)``, or ``None`` for the
                usual. It asks the tensors for their addresses, and may raise what they then raise.
        """
        return Known(forward, backward_of, self._make_places(lengths))

    def alike(self, *numbers, switch=None):
        """The ``Known`` of calls that are ``alike``, of an operator without lists: its own passes, which take ``launches``.

        Args:
            numbers: the arguments that are no tensors.
            switch: ``switch()`` is what the passes depend on beside their arguments, ``None`` for nothing.
        """
        passes = Passes(self._forward, self._backward, numbers, switch)
        return self.known(passes.forward, backward_of=passes.backward_of)

    def directly(self, known, args, flat):
        """The outputs by the shorter way, for who has seen that nothing looks on: neither at the call nor at ``flat``, the
        tensors among ``args``, lists' behind the others. ``known``: the ``Known`` of such calls."""
        run, given = known.forward, args
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*flat):
            run, given = self._apply, (known, args, *flat)
        if torch.autograd._profiler_enabled():  # it names what the dispatcher calls, which is not asked here
            with torch.profiler.record_function(f"{NAMESPACE}::{self.name}"):
                return run(*given)
        return run(*given)

    def counts(self, forward, backward=None):
        """Tell torch's counter of floating-point operations: ``forward(*arguments)`` and ``backward`` of what the backward
        operator takes give their numbers."""
        for op, formula in ((self.op, forward), (self.backward_op if backward else None, backward)):
            if formula is not None:
                register_flop_formula(op.overloadpacket, get_raw=True)(
                    lambda *args, formula=formula, out_val=None, **rest: formula(*args)
                )

    def _run(self, *args):
        out = self._forward(*args)
        for i in self._written:
            if not args[i].is_inference():
                torch.autograd.graph.increment_version(args[i])
        return out

    def _dispatch(self, *args):
        with torch._C._AutoDispatchBelowAutograd():
            return self.op(*args)

    def _lengths(self, args):
        return [len(args[i]) for i in self._lists]

    def flat(self, args):
        """The tensors among the arguments, the lists' behind the others: what autograd is told of a call."""
        flat = self._of_tensors(args)
        for i in self._lists:
            flat = *flat, *args[i]
        return flat

    def _make_places(self, lengths):
        """The ``_Places`` of a call whose lists have these lengths."""
        lengths = dict(zip(self._lists, lengths, strict=True))
        places, at = {}, AHEAD
        for i in (*self._alone, *self._lists):
            places[i] = list(range(at, at := at + lengths.get(i, 1)))
        gradients = [place for i in self._gradients for place in places[i]]
        answer = [gradients.index(place) + 1 if place in gradients else 0 for place in range(at)]
        passed = [(place, out) for i, out in self._passed for place in places[i]]
        saved = {i: at for at, i in enumerate(self._saved_alone)}
        at = len(saved)
        for i in self._saved_lists:
            saved[i] = slice(at, at := at + lengths[i])
        in_order = [saved[i] for i in self._saved] if lengths else None
        return _Places(_picker(gradients), _picker(answer), passed, in_order)

    def _define(self, schema, forward, fake):
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.op = op = getattr(getattr(torch.ops, NAMESPACE), self.name).default

        def filled(function):
            if not self._several:
                return function

            def run(*args):
                out = function(*args)
                like = next(t for t in out if t is not None)
                return tuple(like.new_empty(0) if t is None else t for t in out)

            return run

        def autograd(*args):
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
                known = self._dispatched(*self._lengths(args))
                return self._function.apply(known, args, *self.flat(args))
            return self._dispatch(*args)

        def in_place(*args):
            for i in self._written:
                torch.autograd.graph.increment_version(args[i])
            with torch._C._AutoDispatchBelowADInplaceOrView():
                return op(*args)

        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(self.name, filled(forward), key)
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", filled(fake), lib=_LIBRARY)
        _LIBRARY.impl(self.name, autograd, "Autograd")
        if self._written:
            _LIBRARY.impl(self.name, in_place, "ADInplaceOrView")

    def _define_backward(self, schema):
        name = f"{self.name}_backward"
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.backward_op = op = getattr(getattr(torch.ops, NAMESPACE), name).default
        tensors = len(self._varying) + len(self._saved)

        def wanted(function):
            return lambda *args: [grad for grad, need in zip(function(*args), args[-1], strict=True) if need]

        def like_arguments(*args):
            given = _spread([args[len(self._varying) + i] for i in self._gradients_saved])
            return [t.new_empty(t.shape) if need else None for t, need in zip(given, args[-1], strict=True)]

        def autograd(*args):
            with torch._C._AutoDispatchBelowAutograd():
                grads = op(*args)
            return list(once_differentiable(self._public, tuple(grads), _spread(args[:tensors]), self._room))

        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, wanted(self._backward), key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", wanted(self._fake_backward or like_arguments), lib=_LIBRARY)
        _LIBRARY.impl(name, autograd, "Autograd")

    def _make_function(self):
        several, saved_lists, constants = self._several, self._saved_lists, self._constant
        of_saved, of_numbers, of_varying = self._of_saved, self._of_numbers, _picker(self._varying)

        def forward(ctx, known, args, *flat):
            out = known.forward(*args)
            ctx.known = known
            kept = of_saved((*args, *out) if several else (*args, out))
            for i in saved_lists:
                kept = *kept, *args[i]
            ctx.save_for_backward(*kept)
            ctx.numbers = of_numbers(args)
            ctx.set_materialize_grads(False)
            if constants and (fixed := [out[i] for i in constants if out[i] is not None]):
                ctx.mark_non_differentiable(*fixed)
            return out

        def backward(ctx, *grads):
            if self._backward is None:
                self._refuse()
            _, _, places = known = ctx.known
            needed = ctx.needs_input_grad
            needs = places.needs(needed)
            made = (None,) * len(needs)
            if True in needs:
                varying = of_varying(grads) if constants else grads
                if varying[0] is not None or any(grad is not None for grad in varying):  # else none of them was used
                    made = self._differentiate(ctx, known, varying, needs)
            if not places.passed:
                return places.answer((None, *made))
            answer = list(places.answer((None, *made)))
            for i, out in places.passed:
                answer[i] = grads[out] if needed[i] else None
            return tuple(answer)

        name = "".join(word.capitalize() for word in self.name.split("_"))
        passes = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(name, (torch.autograd.Function,), passes)

    def _differentiate(self, ctx, known, grads, needs):
        """The gradients that ``needs`` asks for, ``None`` between them."""
        tensors = saved = ctx.saved_tensors
        if known.backward_of is not None and as_usual((*grads, *tensors)):
            try:
                run = known.backward_of(*grads, *tensors)
            except RuntimeError:  # they have no address: a transform's
                run = None
            if run is not None:
                return run(*grads, *tensors, needs)
        if (places := known.places.saved) is not None:
            saved = [tensors[place] for place in places]
        if torch.compiler.is_compiling() or not nothing_looks_on((*grads, *tensors)):
            made = iter(self.backward_op(*grads, *saved, *ctx.numbers, list(needs)))
            return [next(made) if need else None for need in needs]
        refuse_batched_gradients(self._public, grads)
        if not torch.is_grad_enabled():  # as in every backward pass that is not differentiated itself
            return self._backward(*grads, *saved, *ctx.numbers, needs)
        with torch.no_grad():
            made = self._backward(*grads, *saved, *ctx.numbers, needs)
        return once_differentiable(self._public, made, (*grads, *tensors), self._room)

    def _refuse(self):
        """Of an operator without a backward pass: its outputs have no gradient, not even a first one."""
        why = "it updates a tensor in place" if self._written else "its kernel has no backward pass"
        raise RuntimeError(
            f"{self._public} is not differentiable: {why}. For gradients use "
            f"kernels.{self._room or self._public}.reference.{self._public}_reference."
        )


def _parse(schema):
    """``(name, {argument: type}, [return])`` of ``"name(Type argument, ...) -> (Type return, ...)"``."""
    head, tail = schema.split(" -> ")
    name, arguments = head.removesuffix(")").split("(", 1)
    types = {word: kind for kind, word in (part.rsplit(" ", 1) for part in arguments.split(", "))}
    tail = tail.removeprefix("(").removesuffix(")")
    return name, types, [part.rsplit(" ", 1)[-1] for part in tail.split(", ") if part]


def _picker(places):
    """The function that gives the items at these places as a tuple."""
    if len(places) < 2:  # of one place the itemgetter would give the item itself
        return lambda items: tuple([items[i] for i in places])
    return operator.itemgetter(*places)


def _spread(items):
    """``items`` with the elements of those that are lists in their place."""
    flat = []
    for item in items:
        if isinstance(item, (list, tuple)):
            flat += item
        else:
            flat.append(item)
    return flat
