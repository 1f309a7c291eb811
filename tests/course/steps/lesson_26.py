"""Wrong answers to lesson 26's "Your turn" cell: definitions, and a phrase of the diagnosis."""


def gamma(value):
    return f"def constant_gate(W):\n    t = torch.arange(len(W), device=W.device)\n    return {value}\n"


WRONG = {
    "26-gamma": [
        (gamma("W.sum()"), "Each pair is counted once"),
        (gamma("(W * (t[:, None] - t[None, :] + 1)).sum()"), "once too often"),
        (gamma("(W * (t[:, None] - t[None, :] - 1)).sum()"), "once too little"),
        (gamma("(W * (t[None, :] - t[:, None])).sum()"), "The sign is turned"),
        (gamma("W.sum(0)"), "A number is asked for"),
        (gamma("(W * t[:, None]).sum()"), "The gradient is"),
        (gamma("(W.sum(1) - W.sum(0)).flip(0).cumsum(0).sum()"), "their rounding stays"),
    ],
}
