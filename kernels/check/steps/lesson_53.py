"""Lesson 53's "Your turn" cells: the last tile's values, whose turn it is among several groups, items back and forth."""

from kernels.check.steps import described, step
from kernels.check.steps.helpers import said_by_model

#: Kind of finding -> what in these lines leads to it, in the order in which they are asked for.
CAUSES = {
    "missing wait": "The sums leave while their last product may still run: let none of them run on",
    "wrong phase": "The wait is for another round than that of the last tile, whose number is tiles − 1",
    "early read": "The values that are multiplied are not those that were waited for, or not the last tile's",
    "barrier": "Another buffer is handed back than the last tile's",
    "deadlock": "Nobody brings the tile that you wait for: the last one's number is tiles − 1",
}


@step("53-last", "the values of the last tile")
def last(run):
    """One, three and four tiles through rings of two and of three buffers, whatever the order of events."""
    for tiles, STAGES in ((3, 2), (4, 2), (1, 2), (4, 3)):
        try:
            result, right = run(tiles, STAGES)
        except RuntimeError as stopped:
            if "index" not in str(stopped):
                raise
            return f"With {tiles} tiles and {STAGES} buffers there is no such number as you name: a slot is below STAGES"
        if said := said_by_model(result, right, CAUSES, f"{tiles} tiles and {STAGES} buffers"):
            return said
    return ""


@step("53-turn", "whose turn it is")
def turn(answer):
    """Two, three and four groups that ask in a ring, five turns each."""
    for GROUPS in (3, 2, 4):
        for group in range(GROUPS):
            for n in range(5):
                got = answer(group, n, GROUPS)
                if not isinstance(got, (tuple, list)) or len(got) != 2:
                    return f"It must return parity and following, and returns {described(got)}: {got!r}"
                parity, following = (n + 1 if group == 0 else n) % 2, (group + 1) % GROUPS
                case = f"Of {GROUPS} groups, number {group} in its turn number {n}"
                if got[0] != parity:
                    if group == 0:
                        why = "it begins, so its turn n comes after phase n − 1, and a fresh barrier lets it pass"
                    elif got[0] == (n + 1 + group) % 2:
                        why = "that is right for two groups alone: only the first one is a phase ahead of its barrier"
                    else:
                        why = "somebody hands it its turn n by completing phase n of its barrier"
                    return f"{case} waits for parity {got[0]!r}, expected {parity}: {why}"
                if got[1] != following:
                    is_last = group == GROUPS - 1
                    why = "behind the last one comes the first again" if is_last else "the next one's number is one more"
                    return f"{case} hands on to {got[1]!r}, expected {following}: {why}"
    return ""


@step("53-deal", "items back and forth")
def deal(answer):
    """Rounds that are whole and a last one that is not, forwards and backwards, one program, more programs than items."""
    for items, programs in ((16, 4), (10, 4), (7, 3), (6, 4), (14, 4), (5, 1), (3, 8)):
        rounds = [list(range(first, first + programs)) for first in range(0, items, programs)]
        taken = set()
        for program in range(programs):
            got = answer(program, items, programs)
            try:
                got = [int(item) for item in got]
            except TypeError:
                return f"It must return a list of items, and returns {described(got)}"
            right = [row[-1 - program] if turn % 2 else row[program] for turn, row in enumerate(rounds)]
            right = [item for item in right if item < items]
            taken |= set(got)
            if got == right:
                continue
            short = [range(first, min(first + programs, items)) for first in range(0, items, programs)]
            turned = [list(reversed(row)) if turn % 2 else list(row) for turn, row in enumerate(short)]
            why = "every second round runs from the last program to the first"
            if got == [item for item in range(program, items, programs)]:
                why = "you begin every round with program 0, so it gets the longest item each time"
            elif any(item >= items for item in got):
                why = f"there are only {items} items: the last round may not be whole"
            elif got == [row[program] if turn % 2 else row[-1 - program] for turn, row in enumerate(rounds)]:
                why = "round 0 runs forwards"
            elif got == [row[program] for row in turned if program < len(row)]:
                why = "a short round that runs back begins with the last program, too: the first ones get nothing"
            elif got == right[:-1]:
                why = "an item is missing in the last round"
            return f"Of {items} items and {programs} programs, program {program} gets {got}, expected {right}: {why}"
    return ""
