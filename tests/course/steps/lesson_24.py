"""Wrong answers to lesson 24's "Your turn" cell: definitions, and a phrase of the diagnosis."""

RIGHT = "apart.masked_fill(torch.ones_like(apart).tril(-1).bool(), -torch.inf).exp()"


def reverse(later="g.clamp(min=-104).flip(0).cumsum(0).flip(0)", body=RIGHT):
    return f"def decays_back(g):\n    later = {later}\n    apart = later[:, None] - later[None, :]\n    return {body}\n"


WRONG = {
    "24-reverse": [
        (reverse(later="-g.cumsum(0)"), "the gates of t + 1 to s"),
        (reverse(body="apart.masked_fill(torch.ones_like(apart).triu(1).bool(), -torch.inf).exp()"), "Below the diagonal"),
        (reverse(body="(apart + g[None, :]).triu().exp().triu()"), "the gate of s, too"),
        (reverse(body="(apart - g[:, None]).exp().triu(1) + torch.eye(len(g), device=g.device)"), "one gate too few"),
        (reverse(body="apart.exp() * torch.ones_like(apart).triu()"), "infinity times 0 is NaN"),
        (reverse(body="apart.exp().triu()"), "its gradient is NaN"),
        (reverse(later="g.flip(0).cumsum(0).flip(0)"), "expected e^-0.5"),
        (reverse(body="later.exp()"), "The matrix has shape"),
        (reverse(later="g.cumsum(0)"), "no decay is above 1"),
    ],
}
