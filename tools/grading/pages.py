"""Pages that need no network and run no script: markdown with its mathematics as MathML, code with its colours.

Whatever comes from a submission is escaped; the page's own policy forbids the browser to run or fetch anything.
"""

import html
import re

import mistune
from latex2mathml.converter import convert
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer, TextLexer

from tools.grading import foreign

_MATHS = re.compile(r"(?s)(?P<code>```.*?```|``.+?``|`[^`\n]*`)|\$\$(?P<display>.+?)\$\$|\$(?P<inline>[^$]+?)\$")
MOST_COLOURED = 30_000  # characters, of which an honest answer has a tenth
_FORMATTER = HtmlFormatter(linenos="inline", nobackground=True)

STYLE = """
:root { color-scheme: light; --line: #8886; --good: #1a7f37; --bad: #b3261e; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { line-height: 1.2; } .mark { font-size: 1.5rem; font-weight: 600; } .about { color: #777; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0 1rem; } td, th { text-align: left; vertical-align: top;
  padding: 0.35rem 0.6rem; border-top: 1px solid var(--line); }
td.text { overflow-wrap: anywhere; white-space: pre-wrap; } td.points { white-space: nowrap; text-align: right; }
.passed { color: var(--good); } .failed { color: var(--bad); } .notice { border-left: 4px solid var(--bad);
  padding: 0.2rem 1rem; background: var(--soft); } .remark { border-left: 4px solid var(--line); padding: 0.2rem 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: 0.7rem; border-radius: 4px; }
pre, code { font: 14px/1.45 ui-monospace, monospace; } .answer { border-left: 4px solid #3a7bd5; padding-left: 0.7rem; }
math[display=block] { margin: 0.6rem 0; } .linenos { color: #999; user-select: none; padding-right: 0.8em; }
@media print { body { max-width: none; } }
"""


def mathematics(tex: str, display: bool) -> str:
    """LaTeX as MathML; what cannot be set is shown as it was written."""
    plain = re.sub(r"\\(texttt|mathtt|text)\{([^{}]*)\}", lambda m: m[0].replace(r"\_", "_"), tex.strip())
    if not re.search(r"\\(href|class|style|url|html)", plain):
        try:
            return convert(plain, display="block" if display else "inline")
        except Exception:  # the converter raises what its parser happens to raise
            pass
    return f"<code>{html.escape(tex)}</code>"


def markdown(text: str) -> str:
    """The course's own markdown as HTML."""
    formulas: list[str] = []

    def keep(match):
        if match["code"]:
            return match[0]
        formulas.append(mathematics(match["display"] or match["inline"], bool(match["display"])))
        return f"\ue000{len(formulas) - 1}\ue001"

    text = _MATHS.sub(keep, re.sub("[\ue000\ue001]", "", text))
    page = mistune.create_markdown(escape=False, plugins=["table", "strikethrough"])(text)
    page = re.sub(r'(<a [^>]*?)href="(?!https?://)[^"]*"', r"\1", page)  # a page that is handed on has no neighbours
    return re.sub("\ue000(\\d+)\ue001", lambda match: formulas[int(match[1])], page)


def code(source: str) -> str:
    """Python with line numbers, as the diagnoses count them; colours are a short text's."""
    # At each line the lexer looks through all blank ones that follow: it needs them empty.
    source = "\n".join("" if line.isspace() else line for line in foreign.visible(source).split("\n"))
    return highlight(source, (PythonLexer if len(source) <= MOST_COLOURED else TextLexer)(stripnl=False), _FORMATTER)


def page(title: str, body: str) -> str:
    """A whole page."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n"
        f"<style>{STYLE}{_FORMATTER.get_style_defs('.highlight')}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
