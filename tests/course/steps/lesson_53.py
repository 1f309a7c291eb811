"""Wrong answers to lesson 53's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def last(before="(tiles - 1) % STAGES", parity="(tiles - 1) // STAGES & 1", running="0"):
    return f"""@gluon.jit
def add_last(p, acc, v_s, v_ready, v_free, tiles, STAGES: gl.constexpr):
    before = {before}
    mbarrier.wait(v_ready.index(before), {parity})
    acc = warpgroup_mma(p, v_s.index(before), acc, is_async=True)
    acc = warpgroup_mma_wait({running}, deps=(acc,))
    mbarrier.arrive(v_free.index(before), count=1)
    return acc
"""


def turn(parity="(n + (group == 0)) % 2", following="(group + 1) % GROUPS"):
    return f"""def my_turn(group, n, GROUPS):
    return {parity}, {following}
"""


BACK = "turn * programs + (programs - 1 - program if turn % 2 else program)"


def deal(item=BACK, turns="-(-items // programs)", kept="n < items"):
    return f"""def items_of(program, items, programs):
    numbers = [{item} for turn in range({turns})]
    return [n for n in numbers if {kept}]
"""


TURNED = """def items_of(program, items, programs):
    rounds = [list(range(first, min(first + programs, items))) for first in range(0, items, programs)]
    rounds = [row[::-1] if turn % 2 else row for turn, row in enumerate(rounds)]
    return [row[program] for row in rounds if program < len(row)]
"""

WRONG = {
    "53-last": [
        (last(before="tiles % STAGES"), "The model's finding"),
        (last(parity="tiles // STAGES & 1"), "whose number is tiles − 1"),
        (last(parity="((tiles - 1) // STAGES & 1) ^ 1"), "whose number is tiles − 1"),
        (last(running="1"), "let none of them run on"),
        (last(before="tiles - 1"), "a slot is below STAGES"),
        (last(before="0"), "The model's finding"),
    ],
    "53-turn": [
        (turn("(n + 1 + group) % 2"), "right for two groups alone"),
        (turn("n % 2"), "it begins"),
        (turn("(n + 1) % 2"), "by completing phase n"),
        (turn(following="1 - group"), "hands on to"),
        (turn(following="group + 1"), "comes the first again"),
    ],
    "53-deal": [
        (deal("turn * programs + program"), "the longest item each time"),
        (deal("turn * programs + (program if turn % 2 else programs - 1 - program)"), "expected"),
        (TURNED, "a short round that runs back begins with the last program"),
        (deal(kept="True"), "the last round may not be whole"),
        (deal(turns="items // programs"), "an item is missing"),
        (deal("turn * programs + (programs - program if turn % 2 else program)"), "expected"),
    ],
}
