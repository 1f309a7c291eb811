"""A page for whoever teaches: marks by exercise, and the properties that the class is stuck at."""

import base64
import collections
import html
import io
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from tools.grading import pages  # noqa: E402
from tools.grading.results import STATUSES, Result  # noqa: E402

_MOST = 12  # bars of a histogram


def page_of(results: list[Result]) -> str:
    """The whole page."""
    parts = ["<h1>How the class is doing</h1>"]
    for name in sorted({result.assignment for result in results}):
        mine = [result for result in results if result.assignment == name]
        counts = collections.Counter(result.status for result in mine)
        said = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
        parts += [f"<h2>{html.escape(name)}</h2>", f"<p>{len(mine)} submissions: {said}.</p>"]
        points = [result.points for result in mine if result.points is not None]
        if points:
            parts.append(_picture(_marks(points, mine[0].most), f"histogram of {len(points)} marks"))
            parts.append(_properties(mine))
    return pages.page("How the class is doing", "\n".join(parts))


def _marks(points, most):
    figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
    axes.hist(points, bins=_MOST, range=(0, most), color="#3a7bd5", edgecolor="white")
    axes.set(xlabel=f"points, of {most:g}", ylabel="students", xlim=(0, most))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def stuck(results: list[Result]) -> list[tuple[str, str, int, int, str, int]]:
    """For each property: function, name, how many passed, of how many, the cause that was named most often, how often."""
    passed, tried, causes = collections.Counter(), collections.Counter(), collections.defaultdict(collections.Counter)
    for result in results:
        for check in result.checks:
            said = {line.name: line.text for line in check.lines}
            for line in check.lines:
                if line.most:
                    key = check.function, line.name
                    tried[key] += 1
                    passed[key] += line.outcome == "passed"
                    if line.outcome == "failed":
                        again = re.search(r'the error of "(.+)" again', line.text)
                        causes[key][_cause(said.get(again[1], line.text) if again else line.text)] += 1
    found = []
    for key in tried:
        cause, often = causes[key].most_common(1)[0] if causes[key] else ("", 0)
        found.append((*key, passed[key], tried[key], cause, often))
    return found


def _cause(text: str) -> str:
    """What a diagnosis gives as the cause, without the numbers of its case."""
    if "missing: " in text:
        return "not written yet"
    if ": an error with " in text:
        text = re.sub(r"Lesson \d\d, step \d+[.]?$", "", text).strip()
        return text.rpartition(": ")[2].rstrip(".")
    head, _, rest = text.partition("): ")
    cause = rest or text.partition("as above, ")[2] or text.partition(": ")[2]
    return re.sub(r"[.]? Lesson \d\d, step \d+[.]?$", "", cause.strip()).rstrip(".")


def _properties(results) -> str:
    rows = []
    for function, name, passed, tried, cause, often in stuck(results):
        share = passed / tried
        bar = f'<span style="display:inline-block;height:0.8em;width:{6 * share:.2f}em;background:#3a7bd5"></span>'
        told = f"{often} ×: {html.escape(cause[:160])}" if often else ""
        rows.append(
            f"<tr><td><code>{html.escape(function)}</code></td><td>{html.escape(name)}</td>"
            f'<td class="points">{passed} of {tried}</td><td>{bar}</td><td class="text">{told}</td></tr>'
        )
    head = "<tr><th>function</th><th>property</th><th>passed</th><th></th><th>named most often</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _picture(figure, alt: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    plt.close(figure)
    return f'<p><img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"></p>'
