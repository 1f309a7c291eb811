"""Wrong answers to lesson 51's "Your turn" cells: definitions, and a phrase of the diagnosis."""

LARGER = "{a: max(mine.get(a, 0), other.get(a, 0)) for a in {*mine, *other}}"


def clocks(learns=LARGER, before="clock.get(actor, 0) >= number"):
    return f"""def learns(mine, other):
    return {learns}


def before(actor, number, clock):
    return {before}
"""


def stuck(going="who in waits and who not in seen", last="who in seen"):
    return f"""def waits_forever(who, waits, signals):
    start, seen = who, set()
    while {going}:
        seen.add(who)
        who = signals[waits[who]]
    return {last}
"""


RING = """def waits_forever(who, waits, signals):
    at = signals[waits[who]] if who in waits else None
    while at in waits and at != who:
        at = signals[waits[at]]
    return at == who
"""


def race(judges):
    return f"def race(a, b):\n    return {judges}\n"


NEITHER = "not knows(a, b) and not knows(b, a)"

WRONG = {
    "51-stuck": [
        (RING, "does not end"),
        (stuck(last="who in waits or who == start"), "only for a while"),
        (stuck(going="who not in seen"), "ask `who in waits` before"),
        (stuck(last="start in waits"), "somebody who can go on"),
        (stuck(going="who in waits and not seen", last="who in waits"), "somebody who can go on"),
        (stuck(last="who == start"), "waits"),
    ],
    "51-clocks": [
        (clocks("{**mine, **other}"), "It has forgotten events of the multiplier"),
        (clocks("{**other, **mine}"), "nothing that is new"),
        (clocks("{a: max(n, other.get(a, 0)) for a, n in mine.items()}"), "Who is in one clock only"),
        (clocks("{a: mine.get(a, 0) + other.get(a, 0) for a in {*mine, *other}}"), "nothing is added up"),
        (clocks("{a: max(mine[a], other[a]) for a in {*mine, *other}}"), "learns looks an actor up"),
        (clocks("{a: max(mine.get(a), other.get(a)) for a in {*mine, *other}}"), "clock.get(actor, 0)"),
        (clocks("max(mine, other)"), "learns compares a whole clock"),
        (clocks(before="clock[actor] >= number"), "before looks an actor up"),
        (clocks("mine.update(other)"), "must be a clock"),
        (clocks(before="clock.get(actor, 0) == number"), "it knows all before that"),
        (clocks(before="clock.get(actor, 0) > number"), "it knows all before that"),
        (clocks(before="actor in clock"), "for *this* actor"),
        (clocks(before="max(clock.values()) >= number"), "for *this* actor"),
    ],
    "51-race": [
        (race(NEITHER), "two readers disturb nobody"),
        (race(f"a['writes'] and b['writes'] and {NEITHER}"), "neither knows of the other"),
        (race("(a['writes'] or b['writes']) and not knows(b, a)"), "whichever is named first"),
        (race("(a['writes'] or b['writes']) and not (knows(a, b) and knows(b, a))"), "so it came after"),
        (race("a['writes'] or b['writes'] and " + NEITHER), "knows of the product"),
    ],
}
