"""Exercise 05 in other words: another order of decay, write and read, or gates to the base 2."""

from fractions import Fraction

from kernels.check.recurrence import Chunked
from tools.variants.edits import Edits
from tools.variants.recurrences import Words

HALF = Fraction(1, 2)
SHOWN = {Fraction(1, 2): "½", Fraction(1, 4): "¼", Fraction(1, 8): "⅛"}
OWN = """        reset = g == -float("inf")
        gamma_s, resets_s = gamma - tl.where(reset, 0.0, g), resets - reset.to(tl.int32)
"""


def edits(task: Chunked) -> Edits:
    """What changes in the solution of exercise 05."""
    w = Words(task)
    return {
        **_specification(w),
        **_by_hand(w),
        **_states(w),
        **_outputs(w),
        "symptoms": (
            "A write decays by the gates *after* it up to the chunk's end; a read by those up to and including its own.",
            f"A write decays by {'its own gate and those' if w.write_first else 'the gates'} *after* it up to the chunk's end; "
            f"a read by those {'before' if w.read_first else 'up to and including'} its own"
            + ", and by `tl.exp2`." * w.two
            + "." * (not w.two),
        ),
    }


def _shown(n: Fraction) -> str:
    """A number as it stands in a table."""
    return SHOWN.get(n) or f"{float(n):g}"


def _keeps(task: Chunked, gates: list[Fraction]) -> tuple[list[list[Fraction | None]], list[Fraction]]:
    """What is left of each write s at each read t, None where it is not seen, and of each at the end."""
    L, at, end = len(gates), [], []
    for s in range(L):
        S, column = Fraction(0), []
        for t, D in enumerate(gates):
            S, read = task.step(S, D, Fraction(s == t))
            column.append(read if task.seen(t, s) else None)
        at.append(column)
        end.append(S)
    return [[at[s][t] for s in range(L)] for t in range(L)], end


def _specification(w: Words) -> Edits:
    at_read = r"\Gamma_{t-1,v}" if w.read_first else r"\Gamma_{tv}"
    at_write = r"\Gamma_{s-1,v}" if w.write_first else r"\Gamma_{sv}"
    seen = "s < t" if w.read_first else r"s \le t"
    whole = r"\Gamma_{Cv}"
    return {
        "specification": (
            "logarithms and never positive,",
            f"logarithms{' to the base 2' * w.two} and never positive,",
            r"S^{(n+1)}_{kv} = e^{\Gamma_{Cv}} S^{(n)}_{kv} + \sum_{s} k_{sk}\, e^{\Gamma_{Cv} - \Gamma_{sv}} x_{sv} \qquad",
            rf"S^{{(n+1)}}_{{kv}} = {w.power(whole)} S^{{(n)}}_{{kv}} + \sum_{{s}} k_{{sk}}\, {w.power(f'{whole} - {at_write}')} x_{{sv}} \qquad",
            r"e^{\Gamma_{tv}} \big(S^{(n)\top} q_t\big)_v + \sum_{s \le t} (q_t \cdot k_s)\, e^{\Gamma_{tv} - \Gamma_{sv}}\, x_{sv}",
            rf"{w.power(at_read)} \big(S^{{(n)\top}} q_t\big)_v + \sum_{{{seen}}} (q_t \cdot k_s)\, {w.power(f'{at_read} - {at_write}')}\, x_{{sv}}",
            "* `states` is `[B, H, N, K, V]`:",
            f"* One token after the other it is: {w.task.order.replace(', ', ', then ')}.\n* `states` is `[B, H, N, K, V]`:",
        )
    }


def _by_hand(w: Words) -> Edits:
    channels = (((4, 2, 1, 2), HALF, Fraction(8)), ((1, 1, 1, 1), Fraction(1), Fraction(0)))
    rows, states = [], [S for _, _, S in channels]
    for chunk in range(2):
        for channel, (values, gate, _) in enumerate(channels):
            enters = S = states[channel]
            outputs = []
            for value in values[2 * chunk : 2 * chunk + 2]:
                S, read = w.task.step(S, gate, Fraction(value))
                outputs.append(read)
            old = gate**2 * enters
            states[channel] = S
            cells = (chunk, channel, *(f"{float(n):g}" for n in (enters, old, S - old, S, *outputs)))
            rows.append("| " + " | ".join(map(str, cells)) + " |")
    first = w.power(r"\Gamma_C") if w.write_first else w.power(r"\Gamma_C - \Gamma_1")
    second = (w.power(r"\Gamma_C - \Gamma_1") if w.write_first else "") + r"\, x_2"
    head = (
        rf"| chunk | channel | enters | ${w.power(chr(92) + 'Gamma_C')} S$ | ${first}\, x_1 + {second.removeprefix(chr(92) + ', ')}$ "
        "| leaves | $o_1$ | $o_2$ |"
    )
    published = r"| chunk | channel | enters | $e^{\Gamma_C} S$ | $e^{\Gamma_C - \Gamma_1} x_1 + x_2$ | leaves | $o_1$ | $o_2$ |"
    lines = (
        "| 0 | 0 | 8 | 2 | ½ · 4 + 2 = 4 | 6 | ½ · 8 + 4 = 8 | ¼ · 8 + ½ · 4 + 2 = 6 |",
        "| 0 | 1 | 0 | 0 | 1 + 1 = 2 | 2 | 1 | 2 |",
        "| 1 | 0 | 6 | 1.5 | ½ · 1 + 2 = 2.5 | 4 | 4 | 4 |",
        "| 1 | 1 | 2 | 2 | 1 + 1 = 2 | 4 | 3 | 4 |",
    )
    changes = [x for pair in zip(lines, rows) for x in pair]
    exp = "exp2" if w.two else "exp"
    return {
        "by-hand-text": (
            r"The first channel has gates $\log\tfrac12$,",
            f"The first channel has gates ${w.half}$,",
            published,
            head,
            *changes,
        ),
        "setup": ("\n\nfrom kernels.recurrent_attention.reference import recurrent_attention_reference", ""),
        "by-hand": (
            "    return torch.tensor(values, device=device).view(1, 4, 1, -1)  # [B, T, H, channels]\n",
            f"""    return torch.tensor(values, device=device).view(1, 4, 1, -1)  # [B, T, H, channels]


def walk(q, k, v, g, S, scale):  # the equation, a token after the other
    o = []
    for t in range(q.shape[1]):
        D, write = torch.{exp}(g[:, t, :, None]), k[:, t, :, :, None] * v[:, t, :, None]
        {w.code}
        o.append(scale * torch.einsum("bhkv,bhk->bhv", read, q[:, t]))
    return torch.stack(o, dim=1), S
""",
            "[0.5, 1.0] * 4).log()",
            f"[0.5, 1.0] * 4).log{'2' * w.two}()",
            "o, ST = recurrent_attention_reference(q, k, v, gv=g, scale=1.0, initial_state=S0, output_final_state=True)",
            "o, ST = walk(q, k, v, g, S0, 1.0)",
        ),
        "together": (
            """expected = recurrent_attention_reference(
    *(x.double() for x in (q, k, v)), gv=g.double(), scale=0.2, initial_state=S0.double(), output_final_state=True
)
""",
            "expected = walk(*(x.double() for x in (q, k, v, g, S0)), 0.2)\n",
        ),
    }


def _states(w: Words) -> Edits:
    gamma_s, resets_s = ("gamma_s", "resets_s") if w.write_first else ("gamma", "resets")
    left = {Fraction(1, 2): "halved", Fraction(1, 4): "quartered", Fraction(1): "as it is"}
    _, end = _keeps(w.task, [HALF] * 2)
    own = "Its own is among them." if w.write_first else "Its own is not\namong them."
    at_write = r"\Gamma_{s-1,v}" if w.write_first else r"\Gamma_{sv}"
    gone = "a reset comes after token $s$, and the factor is 0;"
    if w.write_first:
        gone = "a reset comes at token $s$ or after it, and the factor is 0;"
    return {
        "states-kernel": (
            "# The decay of each write to the chunk's end, that of the old state, and the new state. (roughly 5 lines)",
            "# The decay of each write to the chunk's end, that of the old state, and the new state. "
            f"(roughly {7 if w.write_first else 5} lines)",
            "        to_end = tl.where(resets == resets_C, tl.exp(gamma_C - gamma), 0.0)\n",
            f"{OWN * w.write_first}        to_end = tl.where({resets_s} == resets_C, {w.exp}(gamma_C - {gamma_s}), 0.0)\n",
            "through = tl.where(resets_C == 0, tl.exp(gamma_C), 0.0)",
            f"through = tl.where(resets_C == 0, {w.exp}(gamma_C), 0.0)",
        ),
        "states-hints": (
            "arrives in the leaving state halved, the 2 as it is: which gates lie between a write and the end of its chunk? Its own is not\namong them.",
            f"arrives in the leaving state {left[end[0]]}, the 2 {left[end[1]]}: which gates lie between a write and the end of its chunk? {own}",
            r"$\sum_s k_{sk}\, e^{\Gamma_{Cv} - \Gamma_{sv}} x_{sv}$",
            rf"$\sum_s k_{{sk}}\, {w.power(r'{C} - {W}').replace('{C}', chr(92) + 'Gamma_{Cv}').replace('{W}', at_write)} x_{{sv}}$",
            "Where `resets` differs from its value at the end, a\nreset comes after token $s$, and the factor is 0;",
            f"Where the count {'before token $s$' if w.write_first else 'of resets'} differs from that at the end,\n{gone}",
            *_small_states(w),
        ),
    }


def _small_states(w: Words) -> tuple[str, ...]:
    """The table of the third hint: three tokens, two channels, one with a reset."""
    old = (
        r"| 0 | $\log\tfrac12$ | 0 | ¼ | 0 | 0 | 0, for the end has 1 |",
        r"| 1 | $\log\tfrac14$ | 0 | ½ | 0 | 1 | 1 |",
        r"| 2 | $\log\tfrac18$ | 0 | 1 | 0 | 1 | 1 |",
    )
    ends = [_keeps(w.task, gates)[1] for gates in ([HALF] * 3, [Fraction(1), Fraction(0), Fraction(1)])]
    gammas = ("-1", "-2", "-3") if w.two else (r"\log\tfrac12", r"\log\tfrac14", r"\log\tfrac18")
    changes = []
    for t, (line, gamma) in enumerate(zip(old, gammas)):
        changes += [line, f"| {t} | ${gamma}$ | 0 | {_shown(ends[0][t])} | 0 | {min(t, 1)} | {_shown(ends[1][t])} |"]
    totals = [old_state + sum(end) for old_state, end in zip((Fraction(1), Fraction(0)), ends)]
    sums = [" + ".join(_shown(n) for n in end) for end in ends]
    return (
        r"The gates of the first channel are $\log\tfrac12$ three times, those of the" + "\nsecond",
        f"The gates of the first channel are ${w.half}$ three times, those of the\nsecond",
        *changes,
        "leaves with ⅛ · 8 + (¼ + ½ + 1) = 2.75; the second with 0 · 8 + (0 + 1 + 1) = 2. Before anything of this, (8, 8) is stored in slot 0; slot 1 gets (2.75, 2).",
        f"leaves with ⅛ · 8 + ({sums[0]}) = {_shown(totals[0])}; the second with 0 · 8 + ({sums[1]}) = {_shown(totals[1])}. "
        f"Before anything of this, (8, 8) is stored in slot 0; slot 1 gets ({_shown(totals[0])}, {_shown(totals[1])}).",
    )


def _outputs(w: Words) -> Edits:
    gamma_t, resets_t = ("gamma_t", "resets_t") if w.read_first else ("gamma", "resets")
    gamma_s, resets_s = ("gamma_s", "resets_s") if w.write_first else ("gamma", "resets")
    own = OWN.replace("        ", "    ").replace("_s", "_t" if w.read_first else "_s")
    at_read = r"\Gamma_{t-1,v}" if w.read_first else r"\Gamma_{tv}"
    at_write = r"\Gamma_{s-1,v}" if w.write_first else r"\Gamma_{sv}"
    first = (
        "decayed once by each channel's own gate: that comes before its read. What is its score with itself, and how many scores does it have?",
        "as it is: its gate comes after its read. How many scores does the first token have, and how many the second?"
        if w.read_first
        else "decayed once by each channel's own gate: that comes before its read. What is its score with itself, and by what does it decay?"
        if w.write_first
        else "decayed once by each channel's own gate: that comes before its read. What is its score with itself, and how many scores does it have?",
    )
    return {
        "outputs-task": (
            r"and $e^{\Gamma_{tv}}$ times $e^{-\Gamma_{sv}}$ overflows.",
            f"and ${w.power(at_read)}$ times ${w.power('-' + at_write)}$ overflows.",
            *(
                (
                    "and cut to a lower triangle. But",
                    "and cut to a triangle below the diagonal. But",
                    "what lies above the diagonal must",
                    "what lies on the diagonal or above it must",
                )
                if w.read_first
                else ()
            ),
        ),
        "outputs-kernel": (
            "    # [t, s, v]: what decays from token s to token t, each channel at its own rate\n"
            "    seen = (i[:, None] >= i)[:, :, None] & (resets[:, None, :] == resets[None, :, :])\n"
            '    decay = tl.exp(tl.where(seen, gamma[:, None, :] - gamma[None, :, :], -float("inf")))\n',
            f"{own * (w.write_first or w.read_first)}"
            "    # [t, s, v]: what decays from token s to token t, each channel at its own rate\n"
            f"    seen = (i[:, None] {'>' if w.read_first else '>='} i)[:, :, None] & ({resets_t}[:, None, :] == {resets_s}[None, :, :])\n"
            f'    decay = {w.exp}(tl.where(seen, {gamma_t}[:, None, :] - {gamma_s}[None, :, :], -float("inf")))\n',
            "from_start = tl.where(resets == 0, tl.exp(gamma), 0.0)",
            f"from_start = tl.where({resets_t} == 0, {w.exp}({gamma_t}), 0.0)",
        ),
        "outputs-hints": (
            *first,
            r"element $(t, v)$ times $e^{\Gamma_{tv}}$, what is read of the state.",
            f"element $(t, v)$ times ${w.power(at_read)}$, what is read of the state.",
            r"the decay $e^{\Gamma_{tv} - \Gamma_{sv}}$, the values with a first axis before. Where $s > t$, or where a channel's counts of resets differ, the exponent",
            f"the decay ${w.power(f'{at_read} - {at_write}')}$, the values with a first axis before. Where "
            rf"${'s ' + chr(92) + 'ge t' if w.read_first else 's > t'}$, or where a channel's counts of resets differ, the exponent",
            *_small_outputs(w),
        ),
    }


def _small_outputs(w: Words) -> tuple[str, ...]:
    """The table of the third hint: the decays of two channels, and what is read of the values 1, 2, 4."""
    old = (
        "| 0 | 1, –, – | 1 | 1, –, – | 1 |",
        "| 1 | ½, 1, – | ½ + 2 = 2.5 | 0, 1, – | 2 |",
        "| 2 | ¼, ½, 1 | ¼ + 1 + 4 = 5.25 | 0, 1, 1 | 2 + 4 = 6 |",
    )
    channels = [_keeps(w.task, gates)[0] for gates in ([HALF] * 3, [Fraction(1), Fraction(0), Fraction(1)])]
    changes = []
    for t, line in enumerate(old):
        cells = []
        for at in channels:
            cells.append(", ".join("–" if n is None else _shown(n) for n in at[t]))
            cells.append(_shown(sum((n or 0) * x for n, x in zip(at[t], (1, 2, 4)))))
        changes += [line, f"| {t} | {' | '.join(cells)} |"]
    between = 3 if w.read_first else 1 if w.write_first else 2
    exponent = (r"\Gamma_{-1,0}" if w.read_first else r"\Gamma_{00}") + (
        r" - \Gamma_{10}" if w.write_first else r" - \Gamma_{20}"
    )
    value = f"{between}" if w.two else rf"\log {2**between}"
    said = "with nothing in $\\Gamma_{-1}$, " * w.read_first
    return (
        r"The gates of the first channel are $\log\tfrac12$ three times, those of the second",
        f"The gates of the first channel are ${w.half}$ three times, those of the second",
        *changes,
        r"$e^{-\infty}$, cut off before the exponential:"
        + "\n"
        + r"in channel 0, $\Gamma_{00} - \Gamma_{20} = \log 4$ would be positive.",
        rf"${w.power('-' + chr(92) + 'infty')}$, cut off before the exponential:"
        + "\n"
        + rf"in channel 0, {said}${exponent} = {value}$ would be positive.",
    )
