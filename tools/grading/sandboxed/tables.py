"""Lists, tables, tuples and constants of kernels: what of a submission could keep numbers, in a launcher or past a launch."""

import triton.language as tl

KINDS = (list, dict, tuple, tl.constexpr)


def copied(value):
    """A table anew, with the tables that it holds; anything else is itself."""
    if type(value) is tl.constexpr:
        return tl.constexpr(copied(value.value))
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return {name: copied(each) for name, each in value.items()} if type(value) is dict else value


def tables_of(namespace: dict) -> dict:
    """A namespace's tables by their names, but for what Python keeps there."""
    return {name: value for name, value in namespace.items() if type(value) in KINDS and not name.startswith("__")}


def same(one, other) -> bool:
    """Whether two tables hold the same things, not merely equal ones: a tensor is compared with nothing."""
    if type(one) is not type(other) or type(one) not in KINDS:
        return one is other
    if type(one) is tl.constexpr:
        return same(one.value, other.value)
    if type(one) is dict:
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return len(one) == len(other) and all(map(same, one, other))
