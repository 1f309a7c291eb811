"""Exercise 04 in other words: another order of decay, write and read, gates to the base 2, or of value channels."""

import re

from kernels.check.recurrence import Gated
from tools.variants.edits import Edits
from tools.variants.recurrences import Words

Q, KV, S0 = (1, 1, 2), (4, 2, 1), 8
RENAMED = ("forward-kernel", "dq-kernel", "dkv-kernel")
LOAD = "at(stride_gk, t, h, offs_k), mask=mask_k,"


def edits(task: Gated) -> Edits:
    """What changes in the solution of exercise 04."""
    w = Words(task)
    changes = {
        **_specification(task, w),
        **_by_hand(w),
        **_forward(task, w),
        **_backward(task, w),
        **_gate(w),
        "symptoms": _symptoms(task, w),
        "setup": ("\n\nfrom kernels.recurrent_attention.reference import recurrent_attention_reference", ""),
    }
    if task.gate == "value":
        for cell in RENAMED:
            changes[cell] = (
                LOAD,
                "at(stride_gk, t, h, offs_v), mask=mask_v,",
                *changes[cell],
                re.compile(r"gk(?=\b|_ptr)"),
                "gv",
            )
        changes["launcher"] = (re.compile(r"\bgk\b"), "gv")
    return changes


def _specification(task: Gated, w: Words) -> Edits:
    values = task.gate == "value"
    gate = "g^v_t" if values else "g^k_t"
    decay = f"2^{{g_t + {gate}}}" if w.two else rf"\exp(g_t + {gate})"
    changes = [
        r"$D_t = \exp(g_t + g^k_t)$, one factor for each row of the state:",
        f"$D_t = {decay}$, one factor for each {'column' if values else 'row'} of the state:",
        r"S_t = D_t \odot S_{t-1} + k_t v_t^\top \qquad o_t = \mathtt{scale}\; S_t^\top q_t",
        rf"S_t = {w.state} \qquad o_t = \mathtt{{scale}}\; {w.read}^\top q_t",
        "* Decay, then write, then read: $o_t$ includes token $t$. Gates are logarithms:",
        f"* {w.order}: $o_t$ {'leaves out' if w.read_first else 'includes'} token $t$"
        + (", whose write decays by its own gate" if w.write_first else "")
        + f". Gates are logarithms{' to the base 2' * w.two}:",
    ]
    if values:
        changes += ["`q, k, gk` are\n`[T, H, K]`, `v, o` are", "`q, k` are\n`[T, H, K]`, `v, o, gv` are"]
    return {"specification": tuple(changes)}


def _by_hand(w: Words) -> Edits:
    rows = []
    for t, (before, after, o) in enumerate(w.walk(S0, Q, KV, (0.5,) * 3), 1):
        write = f"1 · {KV[t - 1]}"
        if w.write_first:
            cells = (write, before + KV[t - 1], after, Q[t - 1], o)
        elif w.read_first:
            cells = (before, Q[t - 1], o, before / 2, write, after)
        else:
            cells = (before / 2, write, after, Q[t - 1], o)
        rows.append(" | ".join([str(t), *(one if isinstance(one, str) else f"{one:g}" for one in cells)]))
    if w.write_first:
        head = r"$t$ | $k_t v_t$ | $S_{t-1} + k_t v_t$ | $S_t$, half of it | $q_t$ | $o_t$"
    elif w.read_first:
        head = r"$t$ | $S_{t-1}$ | $q_t$ | $o_t$ | $\tfrac12 S_{t-1}$ | $k_t v_t$ | $S_t$"
    else:
        head = r"$t$ | $\tfrac12 S_{t-1}$ | $k_t v_t$ | $S_t$ | $q_t$ | $o_t$"
    table = "\n".join(f"| {row} |" for row in (head, "|".join(["---"] * (head.count("|") + 1)), *rows))
    return {
        "by-hand-text": (
            "",
            f"""## By hand

One sequence of three tokens, $K = V = 1$, each gate ${w.half}$, $S_0 = 8$, `scale` 1:

{table.replace("| ---", "|---").replace("--- |", "---|")}""",
        ),
        "by-hand": (
            """def column(*values):
    return torch.tensor(values, device=device).view(1, -1, 1, 1)  # the reference's [B, T, H, K]
""",
            f"""def column(*values):
    return torch.tensor(values, device=device).view(-1, 1, 1)  # [T, K, V]


def walk(q, k, v, g, S):  # the equation, a token after the other
    o = []
    for t in range(len(q)):
        D, write = torch.{"exp2" if w.two else "exp"}(g[t]), k[t] * v[t]
        {w.code}
        o.append(read * q[t])
    return torch.stack(o), S
""",
            "g, S0 = column(0.5, 0.5, 0.5)[..., 0].log(), torch.full((1, 1, 1, 1), 8.0, device=device)",
            f"g, S0 = column(0.5, 0.5, 0.5).log{'2' if w.two else ''}(), torch.full((1, 1), 8.0, device=device)",
            "o, ST = recurrent_attention_reference(q, k, v, g=g, scale=1.0, initial_state=S0, output_final_state=True)",
            "o, ST = walk(q, k, v, g, S0)",
        ),
        "backward-by-hand": (
            "o, _ = recurrent_attention_reference(*wanted[:3], g=g, scale=1.0, initial_state=wanted[3])",
            "o, _ = walk(*wanted[:3], g, wanted[3])",
        ),
        "gate-by-hand": (
            "o, _ = recurrent_attention_reference(q, k, v, g=gate, scale=1.0, initial_state=S0)",
            "o, _ = walk(q, k, v, gate, S0)",
        ),
    }


def _step(w: Words) -> str:
    """The kernel's line that makes the next state."""
    state = "(S + k * v)" if w.write_first else "S + k * v"
    return f"S = {w.exp}(g + gk) * {state}"


def _forward(task: Gated, w: Words) -> Edits:
    values = task.gate == "value"
    exponent = r"g_t + g^v_{t,j}" if values else r"g_t + g^k_{t,i}"
    power = f"2^{{{exponent}}}" if w.two else rf"\exp({exponent})"
    gates = (
        "Load one token: q, k, gk as columns, v as a row, g as a number.",
        "Load one token: q, k as columns, v, gk as rows, g as a number.",
    )
    read = "        o = scale * tl.sum(q * S, axis=0)[None, :]\n        tl.store(o_ptr + at(stride_o, t, h, offs_v), o, mask=mask_v)\n"
    step = "        S = tl.exp(g + gk) * S + k * v\n"
    new = f"        {_step(w)}\n"
    lines = read + new if w.read_first else new + read
    looks = "the old state is halved, then the product is added, then the query looks"
    if w.write_first:
        looks = "the product is added to the old state, then both are halved, then the query looks"
    elif w.read_first:
        looks = "the query looks first, then the old state is halved and the product added"
    first = w.walk(S0, Q, KV, (0.5,) * 3)[0]
    return {
        "forward-task": (),
        "forward-kernel": (
            "# Decay, write, read; store the row of o.",
            f"# {w.task.order.capitalize()}; store the row of o.",
            step + read,
            lines,
            *(gates if values else ()),
        ),
        "forward-hints": (
            "the old state is halved, then the product is added, then the query looks. Where does the\nfirst row's 8 come from,",
            f"{looks}. From which state does\nthe first row's $o_1 = {first[2]:g}$ come,",
            r"""Row $i$ of the state decays by $\exp(g_t + g^k_{t,i})$: a number plus a column. $o_t$ sums over the rows: $o_{t,j} = \mathtt{scale} \sum_i q_{t,i}\, S_{ij}$.
A lane beyond $K$ must leave the sum alone, so its `k`, its `q` and its gate are 0 and its decay is 1.""",
            rf"""{"Column $j$" if values else "Row $i$"} of the state decays by ${power}$: a number plus a {"row" if values else "column"}. $o_t$ sums over the rows: $o_{{t,j}} = \mathtt{{scale}} \sum_i q_{{t,i}}\, S_{{ij}}$, {"before the step" if w.read_first else "after it"}.
A lane beyond {"$K$ must leave the sum alone, so its `k` and its `q` are 0; one beyond $V$ has a gate of 0 and a decay of 1." if values else "$K$ must leave the sum alone, so its `k`, its `q` and its gate are 0 and its decay is 1."}""",
        ),
    }


def _backward(task: Gated, w: Words) -> Edits:
    step = f"        {_step(w)}\n"
    dq = "        dq = scale * tl.sum(S * do, axis=1)[:, None]\n        tl.store(dq_ptr + at(stride_dq, t, h, offs_k), dq, mask=mask_k)\n"
    own, decay = "        dS += scale * q * do\n", "        dS *= tl.exp(g + gk)\n"
    gives = """        dk = tl.sum(dS * v, axis=1)[:, None]
        dv = tl.sum(dS * k, axis=0)[None, :]
        tl.store(dk_ptr + at(stride_dk, t, h, offs_k), dk, mask=mask_k)
        tl.store(dv_ptr + at(stride_dv, t, h, offs_v), dv, mask=mask_v)
"""
    decays = f"        dS *= {w.exp}(g + gk)\n"
    if w.write_first:
        back, said = own + decays + gives, "dS takes in a token's read, decays, gives dk and dv."
    elif w.read_first:
        back, said = gives + decays + own, "dS gives dk and dv, decays, takes in a token's read."
    else:
        back, said = own + gives + decays, "dS takes in a token's read, gives dk and dv, decays."
    through = r"(D_t \odot \mathrm{d}S_t)" if w.write_first else r"\mathrm{d}S_t"
    before = r"q_{t+1}\, \mathrm{d}o_{t+1}^\top" if w.read_first else r"q_t\, \mathrm{d}o_t^\top"
    left = 0.0
    leaves = []
    for query in reversed(Q):
        total = left if w.read_first else left + query
        leaves.append(total)
        left = w.task.step_back(left, 0.5, query)[0]
    changes = {
        "backward-task": (
            r"\mathrm{d}S_t = \mathtt{scale}\; q_t\, \mathrm{d}o_t^\top + D_{t+1} \odot \mathrm{d}S_{t+1}",
            rf"\mathrm{{d}}S_t = \mathtt{{scale}}\; {before} + D_{{t+1}} \odot \mathrm{{d}}S_{{t+1}}",
            r"\mathrm{d}q_t = \mathtt{scale}\; S_t\, \mathrm{d}o_t \quad \mathrm{d}k_t = \mathrm{d}S_t\, v_t \quad \mathrm{d}v_t = \mathrm{d}S_t^\top k_t",
            rf"\mathrm{{d}}q_t = \mathtt{{scale}}\; {w.read}\, \mathrm{{d}}o_t \quad \mathrm{{d}}k_t = {through}\, v_t \quad \mathrm{{d}}v_t = {through}^\top k_t",
            r"$\mathrm{d}S = (2, 2, 2)$ for $t = 1, 2, 3$, and $\mathrm{d}S_0 = \tfrac12 \cdot 2 = 1$.",
            rf"$\mathrm{{d}}S = ({', '.join(f'{n:g}' for n in reversed(leaves))})$ for $t = 1, 2, 3$, and $\mathrm{{d}}S_0 = {left:g}$.",
        ),
        "dq-kernel": ("        S = tl.exp(g + gk) * S + k * v\n" + dq, dq + step if w.read_first else step + dq),
        "dkv-kernel": (
            own + gives + decay,
            back,
            "dS takes in a token's read, gives dk and dv, decays.",
            said,
        ),
    }
    if w.write_first:
        changes["backward-hints"] = (
            r"At which moment of step $t$ do you multiply with $D_t$, before or after $\mathrm{d}k_t$?",
            r"The write of token $t$ crosses $D_t$ too: at which moment of step $t$ do you multiply with it?",
            r"""Adding the token's own read makes it $\mathrm{d}S_t$. $\mathrm{d}k_t$ sums over
columns, $\mathrm{d}v_t$ over rows. Then multiply with $D_t$, and the step is done.""",
            r"""Adding the token's own read makes it $\mathrm{d}S_t$. Multiply with $D_t$; then
$\mathrm{d}k_t$ sums over columns, $\mathrm{d}v_t$ over rows, and the step is done.""",
        )
    elif w.read_first:
        changes["backward-hints"] = (
            r"""the same one, $D_{t+1}$. At which moment of step $t$ do you multiply with $D_t$, before or after $\mathrm{d}k_t$?""",
            r"""the same one, $D_{t+1}$. Token $t$ reads before both: in which order do you go back through its three steps?""",
            r"""Before step $t$, let `dS` hold $D_{t+1} \odot \mathrm{d}S_{t+1}$, or $\mathrm{d}S_T$ at the last token. Adding the token's own read makes it $\mathrm{d}S_t$. $\mathrm{d}k_t$ sums over
columns, $\mathrm{d}v_t$ over rows. Then multiply with $D_t$, and the step is done.""",
            r"""Before step $t$, let `dS` hold $\mathrm{d}S_t$, which is given at the last token. $\mathrm{d}k_t$ sums over columns, $\mathrm{d}v_t$ over rows. Then multiply
with $D_t$ and add the token's own read, which makes it $\mathrm{d}S_{t-1}$, and the step is done.""",
        )
    return changes


def _gate(w: Words) -> Edits:
    log2 = r"\log 2 \cdot " * w.two
    s, r = r"s \le t" if w.write_first else "s < t", "r > t" if w.read_first else r"r \ge t"
    between = w.power(f"{w.to_read} - {w.at_write}")
    end = r"\Gamma_T"
    terms = (
        rf"\mathtt{{scale}}\; {w.power(w.to_read)}\, q_r \cdot (S_0\, \mathrm{{d}}o_r) \qquad "
        rf"{w.power(f'{end} - {w.at_write}')}\, k_s \cdot (\mathrm{{d}}S_T\, v_s) \qquad "
        rf"{w.power(end)} \langle S_0, \mathrm{{d}}S_T \rangle"
    )
    if w.write_first:
        numbers, total = (
            r"2 \cdot \tfrac18 \cdot 8,\; 2 \cdot \tfrac18 \cdot 4,\; 2 \cdot \tfrac14 \cdot 2,\; 2 \cdot \tfrac12 \cdot 1",
            5,
        )
        said = rf"$\mathrm{{d}}g_3$ has one read, $r = 3$, and the writes $s = 0, 1, 2, 3$: $W = {numbers}$"
    elif w.read_first:
        numbers, total = r"2 \cdot \tfrac14 \cdot 8,\; 2 \cdot \tfrac12 \cdot 4", 8
        said = rf"$\mathrm{{d}}g_2$ has one read, $r = 3$, and the writes $s = 0, 1$: $W = {numbers}$"
    else:
        numbers, total = r"2 \cdot \tfrac18 \cdot 8,\; 2 \cdot \tfrac14 \cdot 4,\; 2 \cdot \tfrac12 \cdot 2", 6
        said = rf"$\mathrm{{d}}g_3$ has one read, $r = 3$, and the writes $s = 0, 1, 2$: $W = {numbers}$"
    which = "2" if w.read_first else "3"
    result = rf"in all ${total}$" + rf", and $\mathrm{{d}}g_{which} = {total} \log 2$" * w.two
    return {
        "gate-task": (
            r"every pair of a write $s < t$ and a read $r \ge t$.",
            rf"every pair of a write ${s}$ and a read ${r}$.",
            r"\mathrm{d}g_t = \sum_{s < t \le r} W_{rs} \qquad W_{rs} = \mathtt{scale}\; e^{\Gamma_r - \Gamma_s}\,",
            rf"\mathrm{{d}}g_t = {log2}\sum_{{{w.pairs}}} W_{{rs}} \qquad W_{{rs}} = \mathtt{{scale}}\; {between}\,",
            r"\mathtt{scale}\; e^{\Gamma_r}\, q_r \cdot (S_0\, \mathrm{d}o_r) \qquad e^{\Gamma_T - \Gamma_s}\, k_s \cdot (\mathrm{d}S_T\, v_s) \qquad e^{\Gamma_T} \langle S_0, \mathrm{d}S_T \rangle",
            terms,
        ),
        "gate-by-hand-text": (
            r"$\mathrm{d}g_3$ has one read, $r = 3$, and the writes $s = 0, 1, 2$: $W = 2 \cdot \tfrac18 \cdot 8,\; 2 \cdot \tfrac14 \cdot 4,\; 2 \cdot \tfrac12 \cdot 2$, in all $6$.",
            f"{said}, {result}.",
        ),
        "gate-kernel": _gate_kernel(w),
        "gate-hints": _gate_hints(w),
    }


def _gate_kernel(w: Words) -> tuple[str, ...]:
    gamma_r, resets_r = ("gamma_r", "resets_r") if w.read_first else ("gamma", "resets")
    gamma_s, resets_s = ("gamma_s", "resets_s") if w.write_first else ("gamma", "resets")
    own = ""
    if w.write_first:
        own = "    # A write has its own gate before it, too.\n"
    elif w.read_first:
        own = "    # A read has not its own gate behind it.\n"
    if own:
        which = "s" if w.write_first else "r"
        own += f"""    reset = g == -float("inf")
    gamma_{which}, resets_{which} = gamma - tl.where(reset, 0.0, g), resets - reset.to(tl.int32)
"""
    i_r = "i[:, None] > i" if w.read_first else "i[:, None] >= i"
    summed = {
        "write": "dg = tl.sum(tl.where(i <= i[:, None], tl.cumsum(W, axis=0, reverse=True), 0.0), axis=1)",
        "read": """later = tl.dot((i > i[:, None]).to(tl.float32), W, input_precision="ieee")  # the sum over r > t
    dg = tl.sum(tl.where(i < i[:, None], later, 0.0), axis=1)""",
        "decay": "dg = tl.sum(tl.where(i < i[:, None], tl.cumsum(W, axis=0, reverse=True), 0.0), axis=1)",
    }[w.task.order.partition(",")[0]]
    said = w.pairs.replace(r"\le", "<=")
    store = "0.6931471805599453 * dg" if w.two else "dg"
    return (
        "for each t the sum over s < t <= r. (roughly 6 lines)",
        f"for each t the sum over {said}. (roughly {6 + 2 * bool(own) + w.read_first} lines)",
        """    seen = (i[:, None] >= i) & (resets[:, None] == resets)
    decay = tl.exp(tl.where(seen, gamma[:, None] - gamma, -float("inf")))
""",
        f"""{own}    seen = ({i_r}) & ({resets_r}[:, None] == {resets_s})
    decay = {w.exp}(tl.where(seen, {gamma_r}[:, None] - {gamma_s}, -float("inf")))
""",
        "dg = tl.sum(tl.where(i < i[:, None], tl.cumsum(W, axis=0, reverse=True), 0.0), axis=1)",
        summed,
        "reads *= scale * tl.where(resets == 0, tl.exp(gamma), 0.0)",
        f"reads *= scale * tl.where({resets_r} == 0, {w.exp}({gamma_r}), 0.0)",
        "writes *= tl.where(resets == resets_T, tl.exp(gamma_T - gamma), 0.0)",
        f"writes *= tl.where({resets_s} == resets_T, {w.exp}(gamma_T - {gamma_s}), 0.0)",
        "dg += tl.sum(tl.where(i >= i[:, None], reads, 0.0), axis=1)",
        f"dg += tl.sum(tl.where(i {'>' if w.read_first else '>='} i[:, None], reads, 0.0), axis=1)",
        "dg += tl.sum(tl.where(i < i[:, None], writes, 0.0), axis=1)",
        f"dg += tl.sum(tl.where(i {'<=' if w.write_first else '<'} i[:, None], writes, 0.0), axis=1)",
        "tl.where(resets_T == 0, tl.exp(gamma_T), 0.0)",
        f"tl.where(resets_T == 0, {w.exp}(gamma_T), 0.0)",
        "h * stride_dg[1], dg, mask=mask_t)",
        f"h * stride_dg[1], {store}, mask=mask_t)",
    )


def _gate_hints(w: Words) -> tuple[str, ...]:
    shown = "2" if w.read_first else "3"
    s, r = "s \\le t" if w.write_first else "s < t", "r > t" if w.read_first else "r \\ge t"
    future = "s \\ge r" if w.read_first else "s > r"
    own = ""
    if w.write_first:
        own = " $\\Gamma_{s-1}$ is $\\Gamma_s$ less the token's own gate, and so is its count."
    elif w.read_first:
        own = " $\\Gamma_{r-1}$ is $\\Gamma_r$ less the token's own gate, and so is its count."
    down = (
        r"$U_{ts} = \sum_{r > t} W_{rs}$ is a product with a triangle of ones, and nothing is subtracted"
        if w.read_first
        else r"$U_{ts} = \sum_{r \ge t} W_{rs}$ is a running sum down the columns from the last row"
    )
    return (
        r"$\mathrm{d}g_3$ adds up. They fill a rectangle in a corner: which one, and"
        + "\ndoes it ever touch the diagonal?",
        rf"$\mathrm{{d}}g_{shown}$ adds up. They fill a rectangle in a corner: which one, and"
        + "\ndoes it ever touch the diagonal?",
        r"$U_{ts} = \sum_{r \ge t} W_{rs}$ is a running sum down the columns from the last row; $\mathrm{d}g_t$ adds up its row $t$ over $s < t$. The two states' terms are vectors, one summed over $r \ge t$, one"
        "\nover $s < t$: the same two comparisons as masks. For $s > r$ the exponent is positive: put $-\\infty$ there *before* `tl.exp`.",
        rf"{down}; $\mathrm{{d}}g_t$ adds up its row $t$ over ${s}$. The two states' terms are vectors, one summed over ${r}$, one"
        f"\nover ${s}$: the same two comparisons as masks.{own} For ${future}$ {'nothing was written yet, and the exponent may be' if w.read_first else 'the exponent is'} positive: put $-\\infty$ there *before* `{w.exp}`.",
    )


def _symptoms(task: Gated, w: Words) -> tuple[str, ...]:
    order = {
        "decay": "The order: the write of token $t$ does not decay at token $t$; its gradient decays by $D_t$ only on leaving it.",
        "write": "The order: the write of token $t$ decays at token $t$, and so does its gradient.",
        "read": "The order: token $t$ reads before anything decays; on the way back its read comes last.",
    }
    changes = [
        order["decay"],
        order[task.order.partition(",")[0]] + (" Then the base: `tl.exp2`." if w.two else ""),
    ]
    if task.gate == "value":
        changes += ["mask `q`, `k`, `gk` and the state.", "mask `q`, `k` and the state."]
    return tuple(changes)
