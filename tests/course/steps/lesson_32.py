"""Wrong answers to lesson 32's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def prefix(sees, value="torch.where(sees, score, -torch.inf)"):
    return f"""def prefix_window(prefix, size):
    def mod(score, b, h, q_idx, kv_idx):
        back = q_idx - kv_idx
        sees = {sees}
        return {value}

    return mod
"""


def divide(value):
    return f"import math\n\n\ndef divide(a, b):\n    return {value}\n"


def depends(value):
    return f"def depends(x, name):\n    return {value}\n"


WINDOW = "(back >= 0) & (back < size)"
WRONG = {
    "32-prefix": [
        (prefix("kv_idx < prefix[b] or back < size"), "ask for one truth"),
        (prefix(f"(kv_idx < prefix[b]) & {WINDOW}"), "not only if it is in both"),
        (prefix("(kv_idx < prefix[b]) | (back < size)"), "Queries see later keys"),
        (prefix("(kv_idx < prefix[b]) | ((back >= 0) & (back <= size))"), "The window holds 4 keys"),
        (prefix("(kv_idx < prefix[b]) | ((back > 0) & (back <= size))"), "No query sees its own key"),
        (prefix(f"(kv_idx <= prefix[b]) | ({WINDOW})"), "one key too long"),
        (prefix(f"(q_idx < prefix[b]) | ({WINDOW})"), "It is keys that make the prefix"),
        (prefix(f"(kv_idx < prefix[0]) | ({WINDOW})"), "the prefix of the first"),
        (prefix(WINDOW), "never seen from behind"),
        (prefix(f"(kv_idx < prefix[b]) | ({WINDOW})", "torch.where(sees, -torch.inf, score)"), "Just the other keys"),
        (prefix(f"(kv_idx < prefix[b]) | ({WINDOW})", "torch.where(sees, 0.0 * score, -torch.inf)"), "keeps its score"),
        (prefix(f"(kv_idx < prefix[b]) | ({WINDOW})", "torch.where(sees, score, -1e9)"), "yours makes -1e+09 of"),
        (prefix("back < 0"), "query 0 does not see key 0"),
    ],
    "32-divide": [
        (divide('f"{a} / {b}"'), "a product gives the same number"),
        (divide('f"{a} * {1 / b}" if not isinstance(b, str) else f"{a} / {b}"'), "rounds twice"),
        (divide('f"{a} * {1 / b}"'), "rounds twice"),
        (divide('f"{a} * {1 / b}" if math.frexp(b)[0] == 0.5 else f"{a} / {b}"'), "For divide('x', -8.0)"),
        (divide('f"{a} * {1 / b}" if b != "y" and (b == 0 or abs(math.frexp(b)[0]) == 0.5) else f"{a} / {b}"'), "by zero"),
        (divide('f"{a} * {1 / b}" if abs(math.frexp(b)[0]) == 0.5 else f"{a} / {b}"'), "may also be a name"),
        (divide('f"{a} * {b}" if b == 2 else f"{a} / {b}"'), "gives another number"),
        (divide("1 / 2"), "must return a text"),
    ],
    "32-depends": [
        (depends("x.name == name"), "may be a number"),
        (depends("isinstance(x, torch.fx.Node) and name in str(x.args)"), "depends on itself"),
        (depends("isinstance(x, torch.fx.Node) and (x.name == name or name in str(x.args))"), "has operands of its own"),
        (
            depends("isinstance(x, torch.fx.Node) and (x.name == name or any(depends(i, name) for i in x.args))"),
            "looks into it",
        ),
        (depends("isinstance(x, torch.fx.Node)"), "which it does not read"),
        (depends("x"), "must return True or False"),
    ],
}
