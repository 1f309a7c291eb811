"""Lesson 51's turns: who waits forever, clocks that learn from each other, which two accesses are a race."""

from kernels.check.lessons import Turn, as_given


class Walked(dict):
    """A dictionary in which a walk that does not end is noticed."""

    looks = 0

    def _counted(self, found):
        self.looks += 1
        if self.looks > 1000:
            raise RuntimeError("the walk does not end")
        return found

    def __contains__(self, key):
        return self._counted(super().__contains__(key))

    def __getitem__(self, key):
        return self._counted(super().__getitem__(key))

    def get(self, key, default=None):
        return self._counted(super().get(key, default))


def _waits(draw, who, waits, signals):
    return {"who": who, "waits": Walked(waits), "signals": Walked(signals)}


def _waiting(waits, signals, *who):
    """Cases: p waits for barrier b, which partition q signals, by ``{p: b}`` and ``{b: q}``; who is asked about."""
    text = ", ".join(f"{p} waits for {b}, which {signals[b]} signals" for p, b in waits.items())
    return {f"where {text}, {one}": {"who": one, "waits": waits, "signals": signals} for one in who}


ACTORS = ("loader", "multiplier", "product")


def _known(learns, before, mine, other):
    after = learns(dict(mine), dict(other))
    events = ((actor, number) for actor in ACTORS for number in (1, 2, 3, 4))
    known = {f"whether event {n} of the {actor} is known": before(actor, n, dict(other)) for actor, n in events}
    return {f"the clock of the {actor}": after.get(actor, 0) for actor in ACTORS} | known


def _access(actor, number, clock, writes):
    return {"actor": actor, "number": number, "clock": clock, "writes": writes}


PRODUCT, LATER = _access("product", 1, {"copy": 1}, False), _access("copy", 2, {"product": 1}, True)
HASTY, OTHER = _access("copy", 2, {"multiplier": 1}, True), _access("second product", 1, {"copy": 1}, False)
STORED, READ = _access("loader", 4, {"multiplier": 3}, True), _access("multiplier", 3, {"loader": 2}, True)
STORE = _access("store", 1, {}, True)
AFTER, COPY = _access("product", 1, {"copy": 2}, False), _access("copy", 2, {}, True)
ONE_KNOWS = "who knows of the other came after it, and one that does is enough, whichever is named first"
LARGER = "max(mine.get(actor, 0), other.get(actor, 0))"
CLOCK = f"{{actor: {LARGER} for actor in {{*mine, *other}}}}"
LAST = "a clock's number is the *last* event it knows of, and it knows all before that"
ITS_OWN = "a clock knows an actor's events up to its number for *this* actor, and none of one that is not in it"
NOTHING = "an actor is looked up that a clock has no entry for: nothing is known of it, which is 0, so .get(actor, 0)"
TURNS = {
    "51-stuck": Turn(
        "who waits forever",
        arguments=_waits,
        cases={
            **_waiting(
                {"loader": "empty", "multiplier": "ready"},
                {"empty": "multiplier", "ready": "loader"},
                "loader",
                "multiplier",
            ),
            **_waiting({"a": "x", "b": "y"}, {"x": "b", "y": "c"}, "a", "b", "c"),
            **_waiting({"a": "x", "b": "y", "c": "z", "d": "x"}, {"x": "b", "y": "c", "z": "a"}, "b", "d"),
            **_waiting({"a": "x", "b": "y"}, {"x": "a", "y": "c"}, "a", "b"),
        },
        slips=(
            (
                "who in waits and who not in seen",
                "who in waits",
                "ask whether the walk has been at this place before, for not everybody who waits forever is in the ring",
            ),
            ("who in waits and ", "", "whoever has no entry in waits can go on, so ask `who in waits` before"),
            ("return who in seen", "return bool(seen)", "who waits for somebody who can go on waits only for a while"),
            ("not in seen:", "not in seen and not seen:", "the walk goes on until it ends, or comes to somebody again"),
        ),
    ),
    "51-clocks": Turn(
        "what an actor learns, and what it knows",
        arguments=as_given,
        cases={
            "the other is ahead": {"mine": {"loader": 3, "multiplier": 1}, "other": {"multiplier": 2}},
            "each is ahead": {"mine": {"loader": 3, "multiplier": 5}, "other": {"loader": 4, "multiplier": 2}},
            "a first clock": {"mine": {}, "other": {"product": 2}},
        },
        slips=(
            (CLOCK, "{**mine, **other}", "it has forgotten events: older news must not replace newer"),
            (CLOCK, "{**other, **mine}", "nothing new is learnt: where both have a number, the larger counts"),
            ("{*mine, *other}", "mine", "who is in one clock only has a number, too: the other's is 0"),
            ("{*mine, *other}", "other", "who is in one clock only has a number, too: the other's is 0"),
            (LARGER, "mine.get(actor, 0) + other.get(actor, 0)", "nothing is added up: the larger counts"),
            ("mine.get(actor, 0)", "mine.get(actor)", NOTHING),
            ("mine.get(actor, 0), other.get(actor, 0)", "mine[actor], other[actor]", NOTHING),
            (CLOCK, "max(mine, other)", "whole clocks are compared: each has a number for each actor"),
            (CLOCK, "mine.update(other)", "a clock is asked for, and update returns None"),
            ("clock.get(actor, 0) >= number", "clock[actor] >= number", NOTHING),
            (">= number", "== number", LAST),
            (">= number", "> number", LAST),
            ("clock.get(actor, 0) >= number", "actor in clock", ITS_OWN),
            ("clock.get(actor, 0)", "max(clock.values())", ITS_OWN),
        ),
        run=_known,
    ),
    "51-race": Turn(
        "which two accesses are a race",
        arguments=as_given,
        cases={
            "one that writes, and neither knows of the other": {"a": PRODUCT, "b": HASTY},
            "the same two, exchanged": {"a": HASTY, "b": PRODUCT},
            "two readers": {"a": PRODUCT, "b": OTHER},
            "a copy that knows of the product": {"a": PRODUCT, "b": LATER},
            "a product that knows of the copy": {"a": AFTER, "b": COPY},
            "a copy that knows of the product, named first": {"a": LATER, "b": PRODUCT},
            "two writers, one of which knows": {"a": STORED, "b": READ},
            "two writers that nothing orders": {"a": HASTY, "b": STORE},
        },
        slips=(
            ('(a["writes"] or b["writes"]) and ', "", "two readers disturb nobody"),
            ('a["writes"] or b', 'a["writes"] and b', "one that writes is enough, if neither knows of the other"),
            ('a["writes"] or b', 'a["writes"] != b', "two that write are a race, too, if neither knows of the other"),
            ('(a["writes"] or b["writes"]) and', 'a["writes"] or b["writes"] and', "`and` comes before `or`"),
            (" and not knows(a, b)", "", ONE_KNOWS),
            (" and not knows(b, a)", "", ONE_KNOWS),
            ("not knows(a, b) and not knows(b, a)", "not (knows(a, b) and knows(b, a))", ONE_KNOWS),
        ),
    ),
}
