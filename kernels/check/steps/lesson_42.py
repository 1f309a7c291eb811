"""Lesson 42's "Your turn" cells: pieces of even length, a second pass that accumulates, a schedule's length."""

import torch

from kernels import runtime
from kernels.check.steps import described, step
from kernels.check.steps.helpers import launch


@step("42-even", "pieces whose lengths differ by one at most")
def even(answer):
    """All small sums: every step in one piece, in order, none empty, none two steps longer than another."""
    for steps in (10, 7, 24, 5, 1, 97):
        for pieces in range(1, min(steps, 12) + 1):
            bounds = [answer(z, steps, pieces) for z in range(pieces)]
            for one in bounds:
                if not isinstance(one, tuple) or len(one) != 2 or not all(type(n) is int for n in one):
                    return f"It must return two integers, first and last, and returns {described(one)}: {one!r}"
            case = f"With {steps} steps in {pieces} pieces: {', '.join(f'{a} to {b - 1}' for a, b in bounds[:6])}"
            case += ", …" * (pieces > 6)
            taken = [i for a, b in bounds for i in range(a, b)]
            if twice := sorted({i for i in taken if taken.count(i) > 1}):
                return (
                    f"{case}. Step {twice[0]} is in two pieces, and is added twice: a piece ends where the next begins"
                )
            if beyond := [i for i in taken if not 0 <= i < steps]:
                return f"{case}. There is no step {beyond[0]}"
            if missing := [i for i in range(steps) if i not in taken]:
                return f"{case}. Step {missing[0]} is in no piece: what is left after a division has to be given to somebody"
            lengths = [b - a for a, b in bounds]
            if taken != list(range(steps)):
                return f"{case}. Pieces must follow one another, so that the second pass adds the steps in order"
            if min(lengths) <= 0:
                return f"{case}. Piece {lengths.index(min(lengths))} is empty, a program that only writes zeros"
            if max(lengths) - min(lengths) > 1:
                return (
                    f"{case}. One piece has {max(lengths)} steps and another {min(lengths)}; everybody waits for the "
                    "longest, so share what is left, a step each"
                )
    return ""


@step("42-accumulate", "a second pass that adds to a float16 gradient")
def accumulate(kernel):
    """Slots whose sum, rounded after each, is another one; the order shows in float32; 21 elements in blocks of 8."""
    numel, pieces = 21, 5
    draw = torch.Generator().manual_seed(4)
    partial = torch.randn(pieces, numel, generator=draw)
    partial[1] = 2e4 * partial[1].sign()  # so large that float32 rounds what is added to it, and taken away at the end
    partial[4] -= partial[1]
    old = (3 * torch.randn(numel, generator=draw)).half()
    out = old.clone().to(runtime.device)
    launch(kernel, (3,), partial.to(runtime.device), out, numel, pieces, BLOCK=8)
    out = out.cpu()

    def total(slots, start, every=False):
        for slot in slots:
            start = start + slot
            start = start.half().float() if every else start
        return start

    def same(wanted):
        return torch.equal(out, wanted.half())

    zero = torch.zeros(numel)
    first_old, last_old = total(partial, old.float()), total(partial, zero) + old.float()
    if same(first_old) or same(last_old):
        return ""
    if same(total(partial, zero)):
        return "The gradient that was there is gone: `out` holds the sum of earlier batches, to which this one is added"
    if torch.equal(out, old):
        return "Nothing was stored: `out` is what it was"
    if same(total(partial, old.float(), every=True)):
        return "The sum is rounded to float16 after every slot: keep it in float32, and round once, at the store"
    if same(total(partial.flip(0), old.float())) or same(total(partial.flip(0), zero) + old.float()):
        return "The slots are added from the last to the first: right, but with other bits than the kernel above"
    first = partial[:1].expand(pieces, -1)
    if same(total(first, old.float())) or same(total(first, zero) + old.float()):
        return f"Slot 0 is added {pieces} times: slot z begins z · numel elements behind the first"
    if same(total(partial[:1], old.float())) or same(total(partial[:-1], old.float())):
        return f"Not all {pieces} slots are added: slot z begins z · numel elements behind the first"
    i = int((out != first_old.half()).nonzero()[0])
    return (
        f"Element {i} is {float(out[i]):.4g}, expected {float(first_old[i]):.4g}, which is {float(old[i]):.3g} and the sum "
        "of its five slots: offs, offs + numel, offs + 2 · numel, …, each once"
    )


@step("42-time", "when a schedule's first pass ends")
def time(answer):
    """Pieces of equal length, waves full and not, programs that stay and programs that do not."""
    for tiles, pieces, per, processors in ((5, 1, 24, 8), (5, 3, 8, 8), (5, 8, 3, 8), (4, 2, 12, 8), (9, 6, 4, 4)):
        waves = -(-tiles * pieces // processors)
        for persistent in (False, True):
            got = answer(tiles, pieces, per, processors, 2.0, persistent)
            if not isinstance(got, (int, float)):
                return f"It must return a number of steps, and returns {described(got)}"
            right = 2.0 + waves * per if persistent else waves * (2.0 + per)
            if got == right:
                continue
            kind = "that stay" if persistent else "that do not stay"
            case = (
                f"For {tiles} tiles in {pieces} pieces of {per} steps, on {processors} multiprocessors, programs {kind}, "
                f"yours is {got:g}, and the schedule ends after {right:g} steps"
            )
            exact = tiles * pieces / processors
            for wrong, why in (
                (waves * (2.0 + per), "A program that stays pays for its start once"),
                (2.0 + waves * per, "Each program pays for its start, wave after wave"),
                (waves * per, "Every program starts, and that takes 2 steps here"),
                (exact * (2.0 + per), "A wave that is not full takes as long as a full one: round up"),
                (2.0 + exact * per, "A wave that is not full takes as long as a full one: round up"),
                (int(exact) * (2.0 + per), "What is left over after whole waves takes a wave, too: round up"),
                (2.0 + int(exact) * per, "What is left over after whole waves takes a wave, too: round up"),
            ):
                if got == wrong:
                    return f"{case}. {why}"
            return f"{case}: ⌈tiles · pieces / processors⌉ waves of as many steps as a piece has, and the starts"
    return ""
