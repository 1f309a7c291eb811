"""What lesson 51 goes on with, made from notebooks/51_deadlocks_and_races.ipynb: see this package."""

def waits_forever(who, waits, signals):
    seen = set()
    while who in waits and who not in seen:
        seen.add(who)
        who = signals[waits[who]]
    return who in seen


def learns(mine, other):
    return {actor: max(mine.get(actor, 0), other.get(actor, 0)) for actor in {*mine, *other}}


def before(actor, number, clock):
    return clock.get(actor, 0) >= number


def knows(b, a):  # whether the actor of access b knew of access a
    return b["clock"].get(a["actor"], 0) >= a["number"]


def race(a, b):
    return (a["writes"] or b["writes"]) and not knows(a, b) and not knows(b, a)
