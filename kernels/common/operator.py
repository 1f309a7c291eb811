"""From a schema to a launch: PyTorch's registration, the plan for tensors with given layouts, the kernel on their device.

A public function checks its arguments and calls an operator that ``register`` made; everything that looks on at a call sees
that one: ``torch.compile``, ``torch.export``, fake tensors, autograd, profilers, counters of operations, ``opcheck``. What
``torch.library`` doesn't give stands here: a second derivative, and a first one of what has none, are refused by name; an
output that was not used has ``None`` for a gradient.

Behind the dispatcher an operator looks up its plan: all that is launched for tensors with these layouts, kernels, grids,
sizes, tiles. It is made once and kept (``planned``), the one cache between a call and its launch.
"""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import register_flop_formula

from kernels import runtime
from kernels.common.checks import refuse_batched_gradients
from kernels.common.torch_private import after_autograd, below_autograd, below_views

NAMESPACE = "kernels_from_math"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


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
        kept_ones = [args[len(varying) + i] for i in given]
        like = [t for one in kept_ones for t in (one if isinstance(one, list | tuple) else [one])]
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
    why = f"{public} has no second derivative: its backward pass is a kernel without a gradient of its own."
    _without_gradient(backward_op, backward_name, [], f"{why} For double backward use {reference}.")

    tensors = [i for i, kind in enumerate(types.values()) if kind.startswith("Tensor")]
    lists = [i for i in tensors if "[]" in list(types.values())[i]]

    class Differentiable(torch.autograd.Function):
        """Of all arguments as they are and, for autograd to see, the tensors among them, those of lists behind the others."""

        @staticmethod
        def forward(ctx, keys, args, *flat):
            with below_autograd():
                output = op.redispatch(keys & after_autograd, *args)
            outputs = output if len(returned) > 1 else (output,)
            every = (*args, *outputs)
            ctx.lengths = [len(args[i]) for i in lists]
            ctx.kept = [len(every[i]) if i in lists else None for i in kept]
            ctx.save_for_backward(*(t for i, n in zip(kept, ctx.kept) for t in ([every[i]] if n is None else every[i])))
            ctx.numbers = [args[i] for i in numbers]
            ctx.dtypes = [getattr(args[i], "dtype", None) for i, _ in passes]
            ctx.set_materialize_grads(False)
            if constant:
                ctx.mark_non_differentiable(*[out for i, out in enumerate(outputs) if i not in varying])
            return output

        @staticmethod
        def backward(ctx, *grads):
            refuse_batched_gradients(public, grads)
            at, where = 2, {}  # which of the inputs an argument's tensors are
            for i in (*[i for i in tensors if i not in lists], *lists):
                n = ctx.lengths[lists.index(i)] if i in lists else 1
                where[i], at = range(at, at + n), at + n
            answer = [None] * at
            for (i, out), dtype in zip(passes, ctx.dtypes, strict=True):
                if ctx.needs_input_grad[where[i][0]] and grads[out] is not None:
                    answer[where[i][0]] = grads[out].to(dtype)
            inputs = [n for i in places for n in where[i]]
            needs = [ctx.needs_input_grad[n] for n in inputs]
            used = [grads[i] for i in varying]
            if any(needs) and any(grad is not None for grad in used):
                stored = iter(ctx.saved_tensors)
                saved_ones = [next(stored) if n is None else [next(stored) for _ in range(n)] for n in ctx.kept]
                made = iter(backward_op(*used, *saved_ones, *ctx.numbers, needs))
                for n, need in zip(inputs, needs, strict=True):
                    answer[n] = next(made) if need else None
            return tuple(answer)

    def autograd(keys, *args):
        if torch.is_grad_enabled():
            flat = [args[i] for i in tensors if i not in lists]
            for i in lists:
                flat += args[i]
            for t in flat:
                if t is not None and t.requires_grad:
                    return Differentiable.apply(keys, args, *flat)
        with below_autograd():
            return op.redispatch(keys & after_autograd, *args)

    _LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
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
        with below_views():
            return op(*args)

    class Refused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, keys, args, *tensors):
            with below_autograd():
                return _tupled(op.redispatch(keys & after_autograd, *args))

        @staticmethod
        def backward(ctx, *grads):
            raise RuntimeError(message)

    def autograd(keys, *args):
        flat = [t for arg in args for t in (arg if isinstance(arg, list | tuple) else [arg])]
        if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in flat):
            out = Refused.apply(keys, args, *flat)
            return list(out) if isinstance(out, tuple) else out
        with below_autograd():
            return op.redispatch(keys & after_autograd, *args)

    _LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
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


MOST = 1024  # plans of one kind that are kept; the least recently used goes first
planners = []  # the functions whose answers are kept


def lock_over_forks():
    """A reentrant lock that a forked process finds free, and what it guards whole: a fork waits for the thread that holds it.

    Of two that one thread may hold at once, the one that it takes last is made first.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


_one_at_a_time = lock_over_forks()


class Layout(NamedTuple):
    """What a plan may depend on of a tensor; ``address`` is modulo 16 bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    address: int

    def meta(self):
        """A tensor with this layout, of no memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


def strided(tensor):
    """The ``Layout`` of a tensor whose address doesn't matter, ``None`` of ``None``."""
    return None if tensor is None else Layout(tensor.shape, tensor.stride(), tensor.dtype, 0)


def layout(tensor):
    """The ``Layout`` of a tensor, ``None`` of ``None``."""
    return None if tensor is None else Layout(tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr() & 15)


class Launch(NamedTuple):
    """A grid, the integers behind the tensors, and the options."""

    grid: tuple[int]
    numbers: tuple[int, ...]
    meta: dict


def planned(function):
    """``function`` of hashable arguments, its latest ``MOST`` answers kept until ``clear_caches``; safe among threads."""
    cached = functools.lru_cache(MOST)(function)
    planners.append(cached)
    return cached


def launch(kernel, grid, *args, **meta):
    """Run ``kernel[grid](*args, **meta)`` on the device of its tensors; an empty grid runs nothing.

    Args:
        kernel: a ``@triton.jit`` function.
        grid: tuple of 1 to 3 ints, the number of programs along each axis.
        args: the kernel's positional arguments; ``None`` stands for a tensor the kernel does not use.
        meta: constexpr arguments, ``num_warps``, ``num_stages``.
    """
    if 0 in grid:
        return
    if runtime.interpreted:
        # The interpreter keeps the running program's place in globals, which threads would overwrite. And it computes with
        # numpy, which warns of what lies in memory that nobody has written, in lanes that nobody stores.
        with _one_at_a_time, np.errstate(all="ignore"):
            kernel[grid](*args, **meta)
        return
    device = next(arg.get_device() for arg in args if isinstance(arg, torch.Tensor))
    # CPU tensors where kernels are compiled: the model of Gluon executes this launch, and there is no device to enter.
    if device < 0 or device == torch.cuda.current_device():
        kernel[grid](*args, **meta)
    else:
        with torch.cuda.device(device):
            kernel[grid](*args, **meta)


def clear_caches():
    """Drop every plan: what they were made from has changed (a test's or the tuner's table of configurations)."""
    for cached in planners:
        cached.cache_clear()
