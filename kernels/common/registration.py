"""Operators of PyTorch's: a schema, what runs, what it gives, and its gradient, by ``torch.library``.

A public function checks its arguments and calls such an operator; everything that looks on at a call sees that one:
``torch.compile``, ``torch.export``, fake tensors, autograd, profilers, counters of operations, ``opcheck``.

What registration doesn't give stands here: a second derivative, and a first one of what has none, are refused by name; an
output that was not used has ``None`` for a gradient.

Two of PyTorch's names here are private, guards below dispatch keys, tried with 2.11 and 2.13.
"""

from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import register_flop_formula

from kernels.common.checks import refuse_batched_gradients

NAMESPACE = "kernels_from_math"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_BELOW_AUTOGRAD = torch._C._AutoDispatchBelowAutograd
_BELOW_VIEWS = torch._C._AutoDispatchBelowADInplaceOrView


def register(
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
    operator: str | None = None,
    flops: Callable | None = None,
    backward_flops: Callable | None = None,
) -> Callable:
    """The operator ``torch.ops.kernels_from_math.<name>``, called with its schema's arguments by position.

    Args:
        schema: ``"name(Tensor x, Tensor? bias, Tensor[] captured, float scale) -> (Tensor y, Tensor state)"``; there are no
            defaults, ``Tensor(a!) state`` is written in place.
        forward: ``forward(*arguments)`` gives what the schema returns, a tuple where it is several tensors; one that was not
            asked for is an empty tensor. No output shares memory with an argument.
        fake: ``fake(*arguments)`` gives ``new_empty`` tensors of the same shapes, dtypes and strides.
        backward: ``backward(*output_gradients, *saved, *numbers, needs)`` gives a gradient for each tensor of ``gradients``,
            ``None`` where ``needs``, a list of bools, says that it isn't wanted. An output's gradient is ``None`` where the
            output was not used; ``numbers`` are all arguments that are no tensors. It is an operator itself,
            ``<name>_backward``, which returns a list of the gradients that were needed. Without it: not differentiable.
        gradients: names of the arguments that ``backward`` differentiates for, in the order of its answer and of ``needs``; a
            ``Tensor[]`` counts once for each of its tensors.
        saved: names of the arguments and returns that ``backward`` reads, in the order it takes them.
        fake_backward: takes what ``backward`` takes and gives ``new_empty`` tensors; needed where a gradient is not a
            contiguous tensor of its argument's shape and dtype, or its argument is not saved.
        passed: ``{argument: return}`` where the argument's gradient is the return's gradient itself, cast to its dtype.
        constant: names of the returns that have no gradient; ``backward`` takes none for them.
        public: the public function's name, in messages; ``None``: the schema's.
        operator: the folder under ``kernels`` that it lives in; ``None``: one of the public function's name.
        flops, backward_flops: numbers of floating-point operations, of what the operator and its backward pass take.
    """
    name, types, returned = _parse(schema)
    names, public = list(types), public or name
    reference = f"kernels.{operator or public}.reference.{public}_reference"
    written = [i for i, kind in enumerate(types.values()) if "!" in kind]
    op = _define(schema, name, forward, fake)
    _count(op, flops)
    if backward is None:
        why = "it updates a tensor in place" if written else "its kernel has no backward pass"
        _without_gradient(op, name, written, f"{public} is not differentiable: {why}. For gradients use {reference}.")
        return op

    numbers = [i for i, kind in enumerate(types.values()) if not kind.startswith("Tensor")]
    varying = [i for i, out in enumerate(returned) if out not in constant]
    places, kept = [names.index(n) for n in gradients], [[*names, *returned].index(n) for n in saved]
    given = [saved.index(n) if n in saved else None for n in gradients]
    passes = [(names.index(n), returned.index(out)) for n, out in (passed or {}).items()]

    def like_arguments(*args):
        saved_ones = args[len(varying) :]
        like = [t for i in given for t in (saved_ones[i] if isinstance(saved_ones[i], list | tuple) else [saved_ones[i]])]
        return [t.new_empty(t.shape) if need else None for t, need in zip(like, args[-1], strict=True)]

    def needed(function):
        return lambda *args: [grad for grad, need in zip(function(*args), args[-1], strict=True) if need]

    if fake_backward is None and None in given:
        raise ValueError(f"{name}: gradients of arguments that are not saved need a fake_backward")
    taken = [f"Tensor? grad_{returned[i]}" for i in varying]
    taken += [f"{types.get(n, 'Tensor')} {n}" for n in saved] + [f"{types[names[i]]} {names[i]}" for i in numbers]
    backward_name = f"{name}_backward"
    backward_schema = f"{backward_name}({', '.join(taken)}, bool[] needs) -> Tensor[]"
    backward_op = _define(backward_schema, backward_name, needed(backward), needed(fake_backward or like_arguments))
    _count(backward_op, backward_flops)
    _without_gradient(
        backward_op, backward_name, [],
        f"{public} has no second derivative: its backward pass is a kernel without a gradient of its own. "
        f"For double backward use {reference}.",
    )  # fmt: skip

    def setup_context(ctx, inputs, output):
        outputs = output if len(returned) > 1 else (output,)
        every = (*inputs, *outputs)
        ctx.lengths = [len(every[i]) if isinstance(every[i], list | tuple) else None for i in kept]
        ctx.save_for_backward(*(t for i, n in zip(kept, ctx.lengths) for t in ([every[i]] if n is None else every[i])))
        ctx.numbers = [inputs[i] for i in numbers]
        ctx.dtypes = [getattr(inputs[i], "dtype", None) for i, _ in passes]
        # What torch wants for arguments without a gradient: a list of as many ``None``, of tensors or of nothing.
        listed = [isinstance(x, list | tuple) and all(isinstance(t, torch.Tensor) for t in x) for x in inputs]
        ctx.nothing = [[None] * len(x) if of_tensors else None for x, of_tensors in zip(inputs, listed)]
        ctx.set_materialize_grads(False)
        if fixed := [out for i, out in enumerate(outputs) if i not in varying]:
            ctx.mark_non_differentiable(*fixed)

    def differentiate(ctx, *grads):
        refuse_batched_gradients(public, grads)
        tensors = iter(ctx.saved_tensors)
        saved_ones = [next(tensors) if n is None else [next(tensors) for _ in range(n)] for n in ctx.lengths]
        answer = list(ctx.nothing)
        for (i, out), dtype in zip(passes, ctx.dtypes, strict=True):
            if ctx.needs_input_grad[i] and grads[out] is not None:
                answer[i] = grads[out].to(dtype)
        wanted = [ctx.needs_input_grad[i] for i in places]
        needs = [bool(n) for need in wanted for n in (need if isinstance(need, list | tuple) else [need])]
        used = [grads[i] for i in varying]
        if any(needs) and any(grad is not None for grad in used):
            made = iter(backward_op(*used, *saved_ones, *ctx.numbers, needs))
            for i, need in zip(places, wanted, strict=True):
                several = isinstance(need, list | tuple)
                answer[i] = [next(made) if n else None for n in need] if several else next(made) if need else None
        return tuple(answer)

    torch.library.register_autograd(f"{NAMESPACE}::{name}", differentiate, setup_context=setup_context, lib=_LIBRARY)
    return op


def _define(schema, name, forward, fake):
    """An operator without a gradient yet."""
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, forward, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _without_gradient(op, name, written, message):
    """To differentiate the operator raises a ``RuntimeError``; what it writes in place is noticed."""

    def in_place(*args):
        for i in written:
            torch.autograd.graph.increment_version(args[i])
        with _BELOW_VIEWS():
            return op(*args)

    class Refused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, args, *tensors):
            with _BELOW_AUTOGRAD():
                return _tupled(op(*args))

        @staticmethod
        def backward(ctx, *grads):
            raise RuntimeError(message)

    def autograd(*args):
        flat = [t for arg in args for t in (arg if isinstance(arg, list | tuple) else [arg])]
        if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in flat):
            out = Refused.apply(args, *flat)
            return list(out) if isinstance(out, tuple) else out
        with _BELOW_AUTOGRAD():
            return op(*args)

    _LIBRARY.impl(name, autograd, "Autograd")
    if written:
        _LIBRARY.impl(name, in_place, "ADInplaceOrView")


def _tupled(out):
    return tuple(out) if isinstance(out, list) else out


def _count(op, formula):
    if formula is not None:
        raw = lambda *args, out_val=None, **rest: formula(*args)  # noqa: E731
        register_flop_formula(op.overloadpacket, get_raw=True)(raw)


def _parse(schema):
    """``(name, {argument: type}, [return])`` of ``"name(Type argument, ...) -> (Type return, ...)"``."""
    head, tail = schema.split(" -> ")
    name, arguments = head.removesuffix(")").split("(", 1)
    types = {word: kind for kind, word in (part.rsplit(" ", 1) for part in arguments.split(", "))}
    tail = tail.removeprefix("(").removesuffix(")")
    return name, types, [part.rsplit(" ", 1)[-1] for part in tail.split(", ") if part]
