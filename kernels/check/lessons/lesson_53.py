"""Lesson 53's turns: whose turn it is among several groups, and items back and forth. The third is in ``by_model.py``."""

from kernels.check.lessons import Turn, as_given, listed


def _turns(my_turn, GROUPS):
    turns = [[my_turn(group, n, GROUPS) for n in range(5)] for group in range(GROUPS)]
    parity = [[one for one, _ in mine] for mine in turns]
    following = [[one for _, one in mine] for mine in turns]
    return parity, following


def _dealt(items_of, items, programs):
    return {f"program {program:2}": items_of(program, items, programs) for program in range(programs)}


PARITY = "(n + 1) % 2 if group == 0 else n % 2"
BACK = "programs - 1 - program if turn % 2 else program"
SHORT = (  # a round that is not whole, turned around by itself
    "mine = [range(items)[turn * programs : (turn + 1) * programs][::-1 if turn % 2 else 1] for turn in range(rounds)]\n"
    "    mine = [row[program] for row in mine if program < len(row)]"
)
TURNS = {
    "53-turn": Turn(
        "whose turn it is",
        arguments=as_given,
        cases=listed("GROUPS", (3,), (2,), (4,)),
        slips=(
            (PARITY, "(n + 1 + group) % 2", "for two groups that is right: only the first is a phase ahead"),
            (PARITY, "n % 2", "group 0 begins: its turn n comes after phase n − 1, as a fresh barrier says"),
            (PARITY, "(n + 1) % 2", "somebody hands any other group its turn n by completing phase n of its barrier"),
            (PARITY, "n - 1 if group == 0 else n", "a parity is one bit: the phase modulo 2"),
            (
                PARITY,
                "n % 2 if group == 0 else (n + 1) % 2",
                "exchanged: it is group 0 whose barrier is a phase behind",
            ),
            (
                PARITY,
                "(n // GROUPS + 1) % 2 if group == 0 else n // GROUPS % 2",
                "n counts the turns of this group, and each completes a phase of its own barrier",
            ),
            ("(group + 1) % GROUPS", "1 - group", "the next one's number is one more; of two groups, 1 - group"),
            ("(group + 1) % GROUPS", "group + 1", "behind the last one comes the first again"),
        ),
        run=_turns,
    ),
    "53-deal": Turn(
        "items back and forth",
        arguments=as_given,
        cases=listed("items programs", (16, 4), (10, 4), (7, 3), (6, 4), (14, 4), (5, 1), (3, 8)),
        slips=(
            (BACK, "program", "every round begins with program 0, so it gets the longest item each time"),
            (BACK, "program if turn % 2 else programs - 1 - program", "round 0 runs forwards"),
            (
                "mine = [turn * programs + place for turn, place in enumerate(places)]",
                SHORT,
                "a short round that runs back begins with the last program, too: the first ones get nothing",
            ),
            (" if item < items", "", "there are only so many items: the last round may not be whole"),
            ("-(-items // programs)", "items // programs", "items are missing: the last round may not be whole"),
            ("programs - 1 - program", "programs - program", "the last program's place is programs - 1"),
        ),
        run=_dealt,
    ),
}
