"""Lesson 04's law in a line, and its kernel: the sums of numbers that lie a stride apart."""

from kernels.check.lessons import LessonKernel, Turn


def _numbers(draw, N=80, stride=1, BLOCK=8):
    return {"x": draw.normal(N * stride), "stride": stride, "BLOCK": BLOCK}


def _amounts(draw, names=("bytes", "products"), spread=1, unused=()):
    amounts = {name: 1000 + 100 * spread * place for place, name in enumerate(names)}
    return {
        "amounts": amounts,
        "rates": {name: 10 + 3 * place for place, name in enumerate((*unused, *reversed(names)))},
    }


TURNS = {
    "04-law": Turn(
        "the seconds of what a kernel waits for most",
        arguments=_amounts,
        cases={
            "two resources": {},
            "the first is the longest": {"spread": -9},
            "three resources": {"names": ("bytes", "sectors", "programs")},
            "one resource": {"names": ("turns",)},
            "more rates than amounts": {"unused": ("launches", "chain")},
        },
        slips=(
            (
                "amount / rates[name]",
                "amount * rates[name]",
                "an amount is divided by its rate, which is so many a second",
            ),
            ("amount / rates[name]", "rates[name] / amount", "the quotient is upside down: seconds are amount / rate"),
            (
                "amount / rates[name] for name, amount in amounts.items()",
                "amounts[name] / rate for name, rate in rates.items()",
                "`rates` has more resources than a kernel may want: go through `amounts`",
            ),
            (
                "amount / rates[name] for name, amount in amounts.items()",
                "amount / rate for amount, rate in zip(amounts.values(), rates.values())",
                "amounts and rates are paired by their order, but a rate is found by its name: rates[name]",
            ),
            (
                "max(amount / rates[name] for name, amount in amounts.items())",
                "max(amounts.values()) / max(rates.values())",
                "the largest amount and the largest rate may be those of two resources: divide first",
            ),
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
            (
                "tl.store(out_ptr + tl.program_id(0)",
                "tl.store(out_ptr + offs",
                "the one sum is stored at a whole block of places: program p has place p of out",
            ),
            (
                "* stride, mask",
                ", mask",
                "each lane takes its neighbour's neighbour: the next number is `stride` further",
            ),
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
