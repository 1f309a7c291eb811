"""Wrong answers to lesson 24's "Your turn" cells: definitions, and a phrase of the diagnosis."""


RIGHT = "apart.masked_fill(torch.ones_like(apart).tril(-1).bool(), -torch.inf).exp()"


def reverse(later="g.flip(0).cumsum(0).flip(0)", body=RIGHT):
    return f"def decays_back(g):\n    later = {later}\n    apart = later[:, None] - later[None, :]\n    return {body}\n"


def ragged(through="length", left="(length - 1 - torch.arange(len(k), device=k.device)).clamp(min=0)"):
    return f"""def leaving(S, k, v, gamma, length):
    left = {left}
    return (gamma * {through}).exp() * S + (k * (gamma * left).exp()[:, None]).T @ v
"""


def join(Gamma="first[0] + second[0]", S="second[0].exp()[:, None] * first[1] + second[1]"):
    return f"def join(first, second):\n    return {Gamma}, {S}\n"


LEFT = "{} - torch.arange(len(k), device=k.device)"
WRONG = {
    "24-reverse": [
        (reverse(later="-g.cumsum(0)"), "the gates of t + 1 to s"),
        (reverse(body="apart.masked_fill(torch.ones_like(apart).triu(1).bool(), -torch.inf).exp()"), "Below the diagonal"),
        (reverse(body="(apart + g[None, :]).triu().exp().triu()"), "the gate of s, too"),
        (reverse(body="(apart - g[:, None]).exp().triu(1) + torch.eye(len(g), device=g.device)"), "one gate too few"),
        (reverse(body="apart.exp() * torch.ones_like(apart).triu()"), "infinity times 0 is NaN"),
        (reverse(body="later.exp()"), "The matrix has shape"),
        (reverse(later="g.cumsum(0)"), "no decay is above 1"),
    ],
    "24-ragged": [
        (ragged("len(k)", LEFT.format("len(k) - 1")), "both parts decay through the filling"),
        (ragged("len(k)"), "the old state decays through the filling"),
        (ragged(left=LEFT.format("len(k) - 1")), "what was written decays through the filling"),
        (ragged(left=f"({LEFT.format('length')}).clamp(min=0)"), "by its own gate, too"),
        (ragged("(length - 1)"), "one token too few"),
        (ragged(left=LEFT.format("length - 1")), "infinity times a key of 0 is NaN"),
        (ragged("(length + 1)"), "The state[0, 0] is"),
    ],
    "24-join": [
        (join(Gamma="first[0] * second[0]"), "are added, not multiplied"),
        (join(Gamma="first[0].exp() * second[0].exp()"), "should be its logarithm"),
        (join(S="first[1] + second[1]"), "does not decay"),
        (join(S="first[1] + first[0].exp()[:, None] * second[1]"), "it is what stands at the end"),
        (join(S="first[0].exp()[:, None] * first[1] + second[1]"), "by its own run's gates, not"),
        (join(S="second[0].exp() * first[1] + second[1]"), "Columns decay"),
        (join(S="(first[0] + second[0]).exp()[:, None] * first[1] + second[1]"), "its own are in it"),
    ],
}
