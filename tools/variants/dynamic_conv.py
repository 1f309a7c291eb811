"""Exercise 03 in other words: a window that reads the future, counts its taps from the nearest, or lags behind."""

import torch

from kernels.check.dynamic_conv_mistakes import Window
from tools.variants.edits import Edits

X = [1, 2, 3, 4, 5]


class Words:
    """What a window reads, in formulas, in code and in words."""

    def __init__(self, task: Window):
        self.task, self.lag = task, task.lag
        self.past, self.far_first = task.reads == "past", task.first == "farthest"
        self.sign, self.other = "-+" if self.past else "+-"
        self.steps = "(W - 1 - w) * dilation" if self.far_first else "w * dilation"
        self.tex_steps = r"(W-1-w)\,\delta" if self.far_first else r"w\,\delta"

    def code(self, start: str, forward: bool = True) -> str:
        """The time that tap w reads, or at which it was read."""
        sign = self.sign if forward else self.other
        return f"{start} {sign} {self.steps}" + f" {sign} {self.lag}" * bool(self.lag)

    def tex(self, start: str, forward: bool = True) -> str:
        """The same as a formula."""
        sign = self.sign if forward else self.other
        return f"{start} {sign} {self.tex_steps}" + f" {sign} {self.lag}" * bool(self.lag)


def edits(task: Window) -> Edits:
    """What changes in the solution of exercise 03."""
    w = Words(task)
    return {
        **_specification(w),
        **_by_hand(w),
        **_forward(w),
        **_dx(w),
        **_dweight(w),
        "symptoms": (
            r"""The dilation stands at one of two places only: $(W - 1 - w)\,\delta$ is neither
  $(W-1)\,\delta - w$ nor $W - 1 - w\,\delta$.""",
            r"From one tap to the next it is $\delta$ tokens, wherever the window begins.",
            *(
                ()
                if w.past
                else (
                    "**The first tokens are wrong, all others are right.** Time runs below 0: those loads read what lies before the sequence, which is the\n"
                    "  end of the previous sequence of the batch,",
                    "**The last tokens are wrong, all others are right.** Time runs past T: those loads read what lies behind the sequence, which is the\n"
                    "  beginning of the next sequence of the batch,",
                    "**`dx` is wrong in the last tokens only.** The same at the other end: tokens beyond `T` have no gradient to give.",
                    "**`dx` is wrong in the first tokens only.** The same at the other end: before the first token nobody has a gradient to give.",
                )
            ),
        ),
    }


def _specification(w: Words) -> Edits:
    nearest, next_one, farthest = ("W-1", "W-2", "0") if w.far_first else ("0", "1", "W-1")
    back = "back" if w.past else "ahead"
    itself = f"the token {w.lag} {back}" if w.lag else "the token itself"
    outside = "j < 0" if w.past else r"j \ge T"
    return {
        "title": (
            "You write a causal convolution whose taps lie further apart than one token,",
            f"You write a convolution that reads the {'past' if w.past else 'future'}, whose taps lie further apart than one token,",
        ),
        "specification": (
            "A short window sees only the last few tokens.",
            f"A short window sees only the {'last' if w.past else 'next'} few tokens.",
            r"x_{t-(W-1-w)\,\delta,\,d} \qquad\text{with } x_{j,d} = 0 \text{ for } j < 0",
            rf"x_{{{w.tex('t')},\,d}} \qquad\text{{with }} x_{{j,d}} = 0 \text{{ for }} {outside}",
            r"* Tap $W-1$ reads the token itself, tap $W-2$ the one $\delta$ tokens back, tap 0 the oldest. Nothing reads the future.",
            rf"* Tap ${nearest}$ reads {itself}, tap ${next_one}$ the one $\delta$ tokens further {back}, tap ${farthest}$ the farthest."
            f" Nothing reads the {'future' if w.past else 'past'}.",
            r"* $\delta = 1$ is the convolution of the lessons. Products",
            "* This is not the lessons' window, not even where $\\delta = 1$. Products",
        ),
    }


def _by_hand(w: Words) -> Edits:
    x, k = torch.tensor(X).double().view(1, 5, 1), torch.stack([torch.arange(5.0), torch.ones(5)], -1).double()
    x, k = x.requires_grad_(), k.view(1, 5, 1, 2).requires_grad_()
    y = w.task.forward(x, k, 2)
    dx, dk = torch.autograd.grad(y.sum(), (x, k))
    reads = [-w.task.back(tap, 2, 2) for tap in (0, 1)]
    names = [f"x_{{t {'+' if back > 0 else '-'} {abs(back)}}}" if back else "x_t" for back in reads]
    outside = "before the start" if w.past else "past the end"
    rows = []
    for t in range(5):
        seen = [f"{X[t + back]}" if 0 <= t + back < 5 else f"0 ({outside})" for back in reads]
        rows.append(f"| {t} | {t} | {seen[0]} | 1 | {seen[1]} | {y.flatten()[t]:g} |")
    table = "\n".join(rows)
    dweight = [", ".join(f"{n:g}" for n in dk[..., tap].flatten()) for tap in (0, 1)]
    end, start = ("start", "successor") if w.past else ("end", "predecessor")
    return {
        "by-hand-text": (
            "",
            f"""## By hand

One sequence of five tokens, one channel, $W = 2$ and $\\delta = 2$, $x = (1, 2, 3, 4, 5)$, and weights $k_t = (t, 1)$, so that
$y_t = t\\,{names[0]} + {names[1]}$:

| $t$ | $k_{{t,0}}$ | ${names[0]}$ | $k_{{t,1}}$ | ${names[1]}$ | $y_t$ |
|---|---|---|---|---|---|
{table}""",
        ),
        "by-hand": (
            """def dilated_conv(x, weight, dilation):  # an ordinary window with zeros between the taps reads the same
    wide = weight.new_zeros(*weight.shape[:-1], (weight.shape[-1] - 1) * dilation + 1)
    wide[..., ::dilation] = weight
    return dynamic_conv_reference(x, wide)
""",
            f"""def dilated_conv(x, weight, dilation):  # the equation, a tap after the other
    (_, T, _), W, y = x.shape, weight.shape[-1], 0.0
    for w in range(W):
        time = {w.code("torch.arange(T, device=device)")}
        inside = ((time >= 0) & (time < T))[:, None]
        y = y + weight[..., w] * torch.where(inside, x[:, time.clamp(0, T - 1)], 0.0)
    return y
""",
        ),
        "dx-task": (
            "Until which time does the sequence last? The lesson's formula is the case $\\delta = 1$.",
            f"{'Until when does the sequence last' if w.past else 'When does the sequence begin'}? The lesson's formula is another window's.",
            """By hand, with the numbers above and $\\mathrm{d}y = 1$ everywhere: $x_t$ went into $y_t$ with weight $1$ and into $y_{t+2}$ with weight
$t + 2$, so $\\mathrm{d}x = (3, 4, 5, 1, 1)$. The last two tokens have no successor that saw them.""",
            f"""By hand, with the numbers above and $\\mathrm{{d}}y = 1$ everywhere, $\\mathrm{{d}}x = ({", ".join(f"{n:g}" for n in dx.flatten())})$: each $x_t$ went
into two outputs, unless the sequence ends before. Follow one of them, and mark which weight it met in each.""",
        ),
        "dweight-task": (
            "Tokens at the start\nhave slots whose tap read nothing.",
            f"Tokens at the {end}\nhave slots whose tap read nothing.",
            "By hand, with $\\mathrm{d}y = 1$: slot 0 holds $x_{t-2} = (0, 0, 1, 2, 3)$, slot 1 holds $x_t = (1, 2, 3, 4, 5)$.",
            f"By hand, with $\\mathrm{{d}}y = 1$: slot 0 holds ${names[0]} = ({dweight[0]})$, slot 1 holds ${names[1]} = ({dweight[1]})$.",
        ),
        "dx-formula": (
            "what the tokens get that have a successor so far on.",
            f"what the tokens get that have a {start} so far on.",
            "later = (W - 1 - w) * dilation\n",
            f"later = {w.steps}{f' + {w.lag}' * bool(w.lag)}\n",
            "seen = max(T - later, 0)  # tokens that tap w of a later token saw",
            f"seen = max(T - later, 0)  # tokens that tap w of {'a later' if w.past else 'an earlier'} token saw",
            "dx[:, :seen] += dy[:, T - seen :] * weight[:, T - seen :, :, w]",
            "dx[:, :seen] += dy[:, T - seen :] * weight[:, T - seen :, :, w]"
            if w.past
            else "dx[:, T - seen :] += dy[:, :seen] * weight[:, :seen, :, w]",
        ),
    }


def _forward(w: Words) -> Edits:
    mask = "(time >= 0) & mask_t & mask_d" if w.past else "(time < T) & mask_d"
    bound = (
        "The mask of `x` gains $j \\ge 0$. Since $j \\le t$, no second bound is needed."
        if w.past
        else "The mask of `x` is $j < T$. Since $j \\ge t$, no second bound is needed."
    )
    return {
        "forward-kernel": (
            "x there (0 before the start)",
            f"x there (0 {'before the start' if w.past else 'past the end'})",
            "time = offs_t - (W - 1 - w) * dilation",
            f"time = {w.code('offs_t')}",
            "mask=(time >= 0) & mask_t & mask_d",
            f"mask={mask}",
        ),
        "forward-hints": (
            """Take $t = 3$, $W = 4$ and $\\delta = 2$ in the equation and write down the four times that are read. Two of them are negative. What does
memory hold at the address of `x[b, -1]` when $b > 0$?""",
            """Take $t = 3$, $W = 4$ and $\\delta = 2$ in the equation and write down the four times that are read. Which of them are negative? What does
memory hold at the address of `x[b, -1]` when $b > 0$?"""
            if w.past
            else """Take $T = 8$, $t = 3$, $W = 4$ and $\\delta = 2$ in the equation and write down the four times that are read. Which of them are 8 or more?
What does memory hold at the address of `x[b, 8]` when another sequence follows?""",
            "Tap $w$ reads $W - 1 - w$ taps back, and each of them is $\\delta$ tokens: $j = t - (W - 1 - w)\\,\\delta$.",
            f"From one tap to the next it is $\\delta$ tokens: $j = {w.tex('t')}$.",
            "The mask of `x` gains $j \\ge 0$. Since $j \\le t$, no second bound is needed.",
            bound,
        ),
    }


def _dx(w: Words) -> Edits:
    mask = "(time < T) & mask_d" if w.past else "(time >= 0) & mask_t & mask_d"
    exists = r"s < T" if w.past else r"s \ge 0"
    return {
        "dx-kernel": (
            "time = offs_t + (W - 1 - w) * dilation",
            f"time = {w.code('offs_t', forward=False)}",
            "dy = tl.load(dy_ptrs, mask=(time < T) & mask_d,",
            f"dy = tl.load(dy_ptrs, mask={mask},",
            "k = tl.load(k_ptrs, mask=(time < T) & mask_d,",
            f"k = tl.load(k_ptrs, mask={mask},",
        ),
        "dx-hints": (
            "reads $j = s - (W - 1 - w)\\,\\delta$. Solve for $s$: $s = j + (W - 1 - w)\\,\\delta$. So",
            f"reads $j = {w.tex('s')}$. Solve for $s$: $s = {w.tex('j', forward=False)}$. So",
            r"[\,s < T\,]",
            rf"[\,{exists}\,]",
            "$$\n\nThe pairs $(s, w)$ lie on a diagonal of the table of weights that falls by $\\delta$ rows a tap.",
            "$$\n\nThe pairs $(s, w)$ lie on a diagonal of the table of weights, $\\delta$ rows from tap to tap.",
            r"with } s = t + (W - 1 - w)\,\delta",
            rf"with }} s = {w.tex('t', forward=False)}",
        ),
    }


def _dweight(w: Words) -> Edits:
    mask = "(time >= 0) & mask_t & mask_d" if w.past else "(time < T) & mask_d"
    where = "first" if w.past else "last"
    lag = f" + {w.lag}" * bool(w.lag)
    return {
        "dweight-kernel": (
            "time = offs_t - (W - 1 - w) * dilation",
            f"time = {w.code('offs_t')}",
            "mask=(time >= 0) & mask_t & mask_d",
            f"mask={mask}",
        ),
        "dweight-hints": (
            r"$x_{t-(W-1-w)\delta,\,d}$",
            rf"$x_{{{w.tex('t')},\,d}}$",
            "The\nfirst $(W - 1)\\,\\delta$ tokens have slots whose factor lies before the start:",
            f"The\n{where} $(W - 1)\\,\\delta{lag}$ tokens have slots whose factor lies {'before the start' if w.past else 'past the end'}:",
        ),
    }
