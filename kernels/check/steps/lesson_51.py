"""Lesson 51's "Your turn" cells: who waits forever, clocks that learn from each other, which two accesses are a race."""

from kernels.check.steps import Diagnosis, described, step


class Walked(dict):
    """A dictionary in which a walk that does not end is noticed."""

    looks = 0

    def _look(self):
        self.looks += 1
        if self.looks > 1000:
            raise Diagnosis(
                f"Your walk does not end where {self.case}. Who starts outside of the ring never comes back to the start: "
                "ask whether the walk has been at this place before."
            )

    def __contains__(self, key):
        """As in any dictionary, counted."""
        self._look()
        return super().__contains__(key)

    def __getitem__(self, key):
        """As in any dictionary, counted."""
        self._look()
        return super().__getitem__(key)

    def get(self, key, default=None):
        """As in any dictionary, counted."""
        self._look()
        return super().get(key, default)


@step("51-stuck", "who waits forever")
def stuck(waits_forever):
    """Rings of two and three, a chain that ends, somebody who waits for a ring without being in it, and nobody waiting."""
    two = {"loader": "empty", "multiplier": "ready"}, {"empty": "multiplier", "ready": "loader"}
    three = {"a": "x", "b": "y", "c": "z", "d": "x"}, {"x": "b", "y": "c", "z": "a"}
    chain = {"a": "x", "b": "y"}, {"x": "b", "y": "c", "z": "a"}
    itself = {"a": "x", "b": "y"}, {"x": "a", "y": "c"}
    for (waits, signals), who, right in (
        (two, "loader", True),
        (two, "multiplier", True),
        (chain, "a", False),
        (chain, "b", False),
        (chain, "c", False),
        (three, "b", True),
        (three, "d", True),
        (itself, "a", True),
        (itself, "b", False),
    ):
        case = ", ".join(f"{p} waits for {b}, which {signals[b]} signals" for p, b in waits.items())
        given = Walked(waits), Walked(signals)
        given[0].case = given[1].case = case
        try:
            got = waits_forever(who, *given)
        except KeyError as missing:
            return (
                f"Where {case}, you look {missing} up, which has no entry: whoever has none in waits can go on, so ask "
                "`who in waits` before"
            )
        if bool(got) != right:
            why = "the walk comes to somebody for the second time" if right else "the walk comes to somebody who can go on"
            return f"Where {case}, {who} waits {'forever' if right else 'only for a while'}, and you say otherwise: {why}"
    return ""


def _looked_up(function, *given):
    """What a function of clocks returns, or the ``Diagnosis`` of how it takes them."""
    try:
        return function(*given)
    except (KeyError, TypeError) as raised:
        if isinstance(raised, KeyError) or "NoneType" in str(raised):
            raise Diagnosis(
                f"{function.__name__} looks an actor up that a clock has no entry for: nothing is known of it, which is 0, "
                "so clock.get(actor, 0)"
            ) from None
        if "'dict'" in str(raised):
            raise Diagnosis(f"{function.__name__} compares a whole clock: it has a number for each actor") from None
        raise


@step("51-clocks", "what an actor learns, and what it knows")
def clocks(learns, before):
    """Clocks of which either may be ahead, in another place; then events seen, not yet seen, and never heard of."""
    cases = (
        ({"loader": 3, "multiplier": 1}, {"multiplier": 2}, {"loader": 3, "multiplier": 2}),
        ({"loader": 3, "multiplier": 5}, {"loader": 4, "multiplier": 2}, {"loader": 4, "multiplier": 5}),
        ({}, {"product": 2}, {"product": 2}),
        ({"product": 2}, {}, {"product": 2}),
    )
    for mine, other, right in cases:
        given = dict(mine), dict(other)
        got = _looked_up(learns, *given)
        if not isinstance(got, dict):
            return f"What learns returns must be a clock, a dict, and is {described(got)}"
        got = {actor: n for actor, n in got.items() if n}
        if got == right:
            continue
        case = f"Whoever knows {mine} and is told {other} comes to know {right}; yours knows {got}"
        if got == {**mine, **other}:
            actor = next(actor for actor in right if got[actor] < right[actor])
            return f"{case}. It has forgotten events of the {actor}: older news must not replace newer"
        if got == {**other, **mine}:
            return f"{case}. It has learnt nothing that is new: where both have a number, the larger counts"
        if set(got) != set(right):
            return f"{case}. Who is in one clock only has a number, too: the other's is 0"
        return f"{case}. Where both have a number, the larger counts, and nothing is added up"
    for actor, number, clock, right in (
        ("product", 1, {"product": 1}, True),
        ("product", 2, {"product": 1}, False),
        ("product", 1, {"product": 3}, True),
        ("product", 1, {"multiplier": 4}, False),
        ("loader", 2, {"loader": 1, "product": 9}, False),
    ):
        got = _looked_up(before, actor, number, dict(clock))
        if bool(got) != right:
            why = {
                True: "a clock's number is the *last* event it knows of, and it knows all before that",
                False: "a clock knows an actor's events up to its number for *this* actor, and none of one that is not in it",
            }[right]
            return (
                f"Event {number} of the {actor} is {'' if right else 'not '}known to {clock}; you say otherwise: {why}"
            )
    return ""


@step("51-race", "which two accesses are a race")
def races(race):
    """Two readers; a reader and a writer that know each other one way, the other way, or not at all; two writers."""

    def access(actor, number, clock, writes):
        return {"actor": actor, "number": number, "clock": clock, "writes": writes}

    product, later = access("product", 1, {"copy": 1}, False), access("copy", 2, {"product": 1}, True)
    hasty, other = access("copy", 2, {"multiplier": 1}, True), access("second product", 1, {"copy": 1}, False)
    stored = access("loader", 4, {"multiplier": 3}, True), access("multiplier", 3, {"loader": 2}, True)
    for a, b, right, why in (
        (product, hasty, True, "one writes, and neither knows of the other"),
        (hasty, product, True, "one writes, and neither knows of the other, whichever is named first"),
        (product, other, False, "two readers disturb nobody"),
        (product, later, False, "the copy knows of the product, so it came after"),
        (later, product, False, "the copy knows of the product, whichever is named first"),
        (*stored, False, "the loader knows of the multiplier's event, and one that knows is enough"),
        (hasty, access("store", 1, {}, True), True, "two writers that nothing orders are a race, too"),
    ):
        got = race(dict(a), dict(b))
        if bool(got) != right:
            told = " and ".join(
                f"{'writing' if x['writes'] else 'reading'} by {x['actor']}, its event {x['number']}, knowing {x['clock']}"
                for x in (a, b)
            )
            return f"{told.capitalize()} {'is a race' if right else 'is none'}, and you say otherwise: {why}"
    return ""
