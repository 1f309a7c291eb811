"""Lesson 04's law in a line, and its kernel: the sums of numbers that lie a stride apart."""

from kernels.check.lessons import LessonKernel, Turn


def _numbers(draw, N=16, stride=1, BLOCK=8):
    return {"x": draw.normal(N * stride), "stride": stride, "BLOCK": BLOCK}


def _amounts(draw, names=("bytes", "products"), spread=1):
    amounts = {name: 1000 + 100 * spread * place for place, name in enumerate(names)}
    return {"amounts": amounts, "rates": {name: 10 + place for place, name in enumerate(reversed(names))}}


TURNS = {
    "04-law": Turn(
        "the seconds of what a kernel waits for most",
        arguments=_amounts,
        cases={
            "two resources": {},
            "the second is the longest": {"spread": -9},
            "three resources": {"names": ("bytes", "sectors", "programs")},
            "one resource": {"names": ("turns",)},
        },
        slips=(
            ("amount / rates[name]", "amount * rates[name]", "an amount is divided by its rate, which is so many a second"),
            ("amount / rates[name]", "rates[name] / amount", "the quotient is upside down: seconds are amount / rate"),
            ("max(", "min(", "the shortest is taken, but a kernel is done when the last of its waits is over"),
            ("max(", "sum(", "the times are added up, but while the slowest is waited for, the others get done"),
        ),
    )
}

KERNELS = {
    "04-strided": LessonKernel(
        arguments=_numbers,
        cases={
            "neighbours": {},
            "every other number": {"stride": 2},
            "every eighth number": {"stride": 8},
            "a ragged end": {"N": 13, "stride": 3},
            "shorter than a block": {"N": 5},
        },
        slips=(
            ("* stride, mask", ", mask", "each lane takes its neighbour's neighbour: the next number is `stride` further"),
            (
                "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                "tl.arange(0, BLOCK)",
                "every program adds up the first BLOCK numbers: program p begins with number p * BLOCK",
            ),
            (
                "x_ptr + offs * stride, mask=offs < N",
                "x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) * stride, mask=offs < N",
                "a program's first number is multiplied by the stride, too: it is number p * BLOCK, at p * BLOCK * stride",
            ),
            (
                "mask=offs < N, other=0.0",
                "mask=offs * stride < N, other=0.0",
                "the mask compares addresses with a count of numbers",
            ),
            ("mask=offs < N, other=0.0", "mask=offs < N", ""),
            (", mask=offs < N, other=0.0", "", ""),
            ("tl.store(out_ptr + tl.program_id(0)", "tl.store(out_ptr", ""),
            ("tl.sum(x, axis=0)", "tl.max(x, axis=0)", "the largest of the block is stored, not the sum"),
        ),
    ),
}
