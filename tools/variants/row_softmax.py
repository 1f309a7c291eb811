"""Exercise 01 in other words: a factor before the softmax, powers of 2, or the softmax's logarithm."""

from kernels.check.row_softmax import Softmax
from tools.variants.edits import Edits

FACTORS = {1.0: "", -1.0: "-", 0.5: r"\tfrac12\,", -0.5: r"-\tfrac12\,", 2.0: "2\\,", -2.0: "-2\\,"}
INVERSE = {1.0: "", -1.0: "-", 0.5: "2", -0.5: "-2", 2.0: r"\tfrac12", -2.0: r"-\tfrac12"}


def edits(task: Softmax) -> Edits:
    """What changes in the solution of exercise 01."""
    two = task.base == "2"
    b, log, exp, overflow = ("2", r"\log_2", "exp2", 128) if two else ("e", r"\ln", "exp", 89)
    nothing = r"\infty" if task.factor < 0 else r"-\infty"
    z = rf"z_{{m,n}} = {FACTORS[task.factor]}x_{{m,n}}"
    where = rf"\qquad {z}, \quad \mu_m = \max_{{j<N}} z_{{m,j}}"
    total = rf"\sum_{{j<N}} {b}^{{\,z_{{m,j}} - \mu_m}}"
    if task.log:
        formula = rf"\text{{out}}_{{m,n}} = z_{{m,n}} - \mu_m - {log} {total},"
        cancels = "which the logarithm of the sum subtracts again"
    else:
        formula = rf"\text{{out}}_{{m,n}} = \frac{{{b}^{{\,z_{{m,n}} - \mu_m}}}}{{{total}}},"
        cancels = "which cancels in the quotient"
    p = rf"{b}^{{\,\text{{out}}_{{m,n}}}}" if task.log else r"\text{out}_{m,n}"
    stored, empty = (r"$-\infty$ is stored", r"$-\infty$ throughout") if task.log else ("its softmax is 0", "zeros")
    return {
        "title": ("turns each row of a matrix into its softmax.", f"turns each row of a matrix, x, into {task.asked}."),
        "specification": (
            r"""$$\text{out}_{m,n} = \frac{e^{\,x_{m,n} - \mu_m}}{\sum_{j<N} e^{\,x_{m,j} - \mu_m}}, \qquad \mu_m = \max_{j<N} x_{m,j}$$""",
            f"$${formula} {where}$$",
            r"""For any $c$ is $e^{x} = e^{c}\,e^{x - c}$, and the factor $e^{c}$ cancels in the quotient. So on paper every $c$
  gives the same. In float32 $e^{x}$ overflows from $x = 89$ on, and with""",
            rf"""For any $c$ is ${b}^{{z}} = {b}^{{c}}\,{b}^{{z - c}}$, with a factor ${b}^{{c}}$ {cancels}. So on paper every $c$
  gives the same. In float32 ${b}^{{z}}$ overflows from $z = {overflow}$ on, and with""",
            r"""An entry that is $-\infty$ takes no part: its softmax is 0, and in the entropy $0 \ln 0$ counts as 0. A row of nothing but
  $-\infty$ gives zeros, and the entropy 0.""",
            rf"""An entry ${nothing}$ of `x` takes no part, for its power is 0: {stored}, and in the entropy $0 {log} 0$
  counts as 0. A row of nothing but ${nothing}$ gives {empty}, and the entropy 0.""",
            r"""-\sum_{n<N} p_{m,n} \ln p_{m,n}, \qquad p_{m,n} = \text{out}_{m,n}""",
            rf"""-\sum_{{n<N}} p_{{m,n}} {log} p_{{m,n}}, \qquad p_{{m,n}} = {p}""",
            r"""and $\ln N$ where""",
            f"and ${log} N$ where",
        ),
        **_by_hand(task, log, exp),
        "task": ("for the quotients.", "for the logarithms.") if task.log else (),
        "kernel": _kernel(task, exp),
        "hints": (
            r"""$e^{-\infty} = 0$ and $\max(a, -\infty) = a$, so one value is neutral for both. For a row that is all $-\infty$ the maximum is
$-\infty$ too,""",
            rf"""${b}^{{-\infty}} = 0$ and $\max(a, -\infty) = a$, so one value of $z$ is neutral for both: of which $x$ is it the $z$? For a row
without any other the maximum is $-\infty$ too,""",
            r"""$d_n = x_n - \mu$. Then $p_n = e^{d_n} / Z$ and $\ln p_n = d_n - \ln Z$, so

$$-\sum_n p_n \ln p_n = \ln Z - \frac1Z \sum_n e^{d_n}\, d_n$$""",
            rf"""$d_n = z_n - \mu$. Then $p_n = {b}^{{d_n}} / Z$ and ${log} p_n = d_n - {log} Z$, so

$$-\sum_n p_n {log} p_n = {log} Z - \frac1Z \sum_n {b}^{{d_n}}\, d_n$$""",
            "where $e^{d_n}$ is 0",
            f"where ${b}^{{d_n}}$ is 0",
            *(
                (
                    """Then every exponential is 0, and so is their sum, by
which nothing can be divided.""",
                    r"""Then every power is 0, and so is their sum:
put a number in its place whose logarithm changes nothing.""",
                )
                if task.log
                else ("Then every exponential is 0,", "Then every power is 0,")
            ),
        ),
        "symptoms": (
            r"`other=0.0` adds $e^{0-\mu}$",
            rf"`other=0.0` adds ${b}^{{0-\mu}}$",
            "$e^{89}$ is more",
            f"${b}^{{{overflow}}}$ is more",
            r"It is the row that is all $-\infty$;",
            f"It is the row that is all ${nothing}$;",
            "**My rows sum to less than 1.**",
            "**The powers of what is stored sum to less than 1.**" if task.log else "**My rows sum to less than 1.**",
        ),
    }


def _by_hand(task: Softmax, log: str, exp: str) -> Edits:
    scale = INVERSE[task.factor]
    entries = ", ".join(f"{scale}{log} {n}" for n in (2, 3))
    out = r"(\tfrac16, \tfrac26, \tfrac36)"
    if task.log:
        out = rf"({log} \tfrac16, {log} \tfrac26, {log} \tfrac36)"
    logarithm = {"exp": "torch.log", "exp2": "torch.log2"}[exp]
    x = f"{logarithm}(torch.tensor([[1.0, 2.0, 3.0]])){'' if task.factor == 1 else f' / {task.factor}'}"
    z = "x" if task.factor == 1 else f"{task.factor} * x"
    shown, unit = f"{logarithm}(p)" if task.log else "p", task.unit
    return {
        "by-hand-text": (
            r"""chosen so that the exponentials are 1, 2 and 3: $x = (0, \ln 2, \ln 3)$. The sum is 6, so the softmax
is $(\tfrac16, \tfrac26, \tfrac36)$. Its entropy is $\tfrac16 \ln 6 + \tfrac26 \ln 3 + \tfrac36 \ln 2 = 1.011$; three equal numbers would
have $\ln 3 = 1.099$.""",
            rf"""chosen so that the powers are 1, 2 and 3: $x = (0, {entries})$. Their sum is 6, so `out` is
${out}$. The entropy is $\tfrac16 {log} 6 + \tfrac26 {log} 3 + \tfrac36 {log} 2 = {1.0114 / unit:.3f}$; three equal numbers
would have ${log} 3 = {1.0986 / unit:.3f}$.""",
        ),
        "by-hand": (
            "x = torch.log(torch.tensor([[1.0, 2.0, 3.0]])).to(device)",
            f"x = ({x}).to(device)\npower = torch.{exp}({z})",
            "torch.softmax(x, dim=1)",
            "power / power.sum()",
            "p[0].tolist()",
            f"{shown}[0].tolist()",
            "p * torch.log(p)",
            f"p * {logarithm}(p)",
        ),
    }


def _kernel(task: Softmax, exp: str) -> tuple[str, ...]:
    infinity = 'float("inf")' if task.factor < 0 else '-float("inf")'
    scaled = "" if task.factor == 1 else f" * {task.factor}"
    third = f"tl.{exp}(load_block(x_row, offs_n, N, stride_xn) - row_max) / row_sum"
    if task.log:
        third = f"load_block(x_row, offs_n, N, stride_xn) - row_max - tl.{exp.replace('exp', 'log')}(row_sum)"
    return (
        "# One block of a row, in float32.", "# One block of z, in float32.",
        'other=-float("inf")).to(tl.float32)', f"other={infinity}).to(tl.float32){scaled}",
        "# First walk: the maximum of the row. Mind the row that is all -inf.",
        f"# First walk: the maximum of z. Mind the row that is all {task.nothing}.",
        "# Second walk: the sum of the exponentials.", "# Second walk: the sum of the powers.",
        "power = tl.exp(", f"power = tl.{exp}(",
        "tl.log(row_sum)", f"tl.{exp.replace('exp', 'log')}(row_sum)",
        "# Third walk: the quotients, stored.", f"# Third walk: the {'logarithms' if task.log else 'quotients'}, stored.",
        "tl.exp(load_block(x_row, offs_n, N, stride_xn) - row_max) / row_sum", third,
    )  # fmt: skip
