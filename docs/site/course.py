"""What the reading site adds to Sphinx and MyST-NB: formulas as text, figures' texts, buttons, a glossary with addresses."""

import json
import os
import re
import shutil
import subprocess
from base64 import b64decode
from hashlib import sha256
from html import escape
from pathlib import Path

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx import addnodes

from tools.browser import packages

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = os.environ.get("GITHUB_REPOSITORY")  # OWNER/NAME, which GitHub's workflows set
COLAB = "https://colab.research.google.com/github"
FORMULAS = (nodes.math, nodes.math_block)
KATEX = "node_modules/katex/dist"
SET = """
const katex = require(process.argv[1]), formulas = JSON.parse(require("fs").readFileSync(0));
const set = ([tex, displayMode]) => katex.renderToString(tex, { displayMode, strict: "error" });
console.log(JSON.stringify(formulas.map(set)));
"""
TERM = re.compile(r"^\| ([^|]+) \| .* \| \[(\d\d)\]\(\.\./notebooks/", re.M)


def read(path: str) -> str:
    return (ROOT / path).read_text()


def terms(number: str) -> dict[str, str]:
    """The glossary's words that lesson ``number`` may use, each with its row; one with a bracket is its own part's."""
    found = {}
    for row, lesson in TERM.findall(read("docs/glossary.md")):
        words, _, qualified = row.partition(" (")
        if lesson <= number and not (qualified and lesson[0] != number[0]) and "`" not in words:
            found |= dict.fromkeys(words.split(", "), row)
    return found


def term_id(row: str) -> str:
    return "term-" + re.sub(r"\W+", "-", row.lower()).strip("-")


def address_terms(app, doctree):
    """Give each row of the glossary an address."""
    standard = app.env.get_domain("std")
    rows = {row.replace("`", "") for row, _ in TERM.findall(read("docs/glossary.md"))}
    for row in doctree.findall(nodes.row):
        name = row[0].astext()
        if name in rows and isinstance(row.parent, nodes.tbody):
            row["ids"].append(term_id(name))
            standard.note_object("term", name, term_id(name), location=row)
            # What the search shows first.
            row[0].insert(0, addnodes.index(entries=[("single", name, term_id(name), "main", None)]))


def link_terms(app, doctree, number):
    """Link a word to the glossary where a page first uses it."""
    rows = terms(number)
    spelled = (re.escape(word) if word != word.lower() else f"(?i:{re.escape(word)})" for word in sorted(rows, key=len)[::-1])
    pattern = re.compile(rf"\b({'|'.join(spelled)})s?\b")
    by_lower = {word.lower(): word for word in rows}
    quiet = (nodes.title, nodes.reference, nodes.literal, nodes.literal_block, *FORMULAS, nodes.raw)
    quiet += (addnodes.pending_xref, addnodes.download_reference)
    seen = set()
    for text in list(doctree.findall(nodes.Text)):
        above, node = [], text
        while node := node.parent:
            above.append(node)
        if any(isinstance(node, quiet) for node in above):
            continue
        pieces, end = [], 0
        for match in pattern.finditer(text):
            row = rows[by_lower[match[1].lower()]]
            if row not in seen:
                seen.add(row)
                target = {"refdomain": "std", "reftype": "term", "reftarget": row, "refdoc": app.env.docname}
                shown = nodes.inline("", match[0], classes=["term"])
                link = addnodes.pending_xref("", shown, refexplicit=True, refwarn=True, **target)
                pieces += [nodes.Text(text[end : match.start()]), link]
                end = match.end()
        if pieces:
            text.parent.replace(text, [*pieces, nodes.Text(text[end:])])


def describe(doctree, cells):
    """Give each figure its text, and each folded cell the comment that it begins with for a title."""
    texts = {}
    for output in (o for cell in cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})):
        name = sha256(b64decode(output["data"]["image/png"])).hexdigest()  # MyST-NB's
        texts[name] = output["metadata"].get("image/png", {}).get("alt")
    for image in doctree.findall(nodes.image):
        if text := texts.get(Path(image["uri"]).stem):
            image["alt"] = text
    for cell in doctree.findall(nodes.container):
        if cell.get("hide_mode"):
            first, *more = cell[0].astext().splitlines()
            first = "# imports" if any(line.startswith("import kernels") for line in (first, *more[:1])) else first
            cell["prompt_show"] = first.replace("#", "Code:", 1) if first.startswith("# ") else "Code"


def add_buttons(doctree, path):
    up = "../" * path.count("/")
    colab = f'<a href="{COLAB}/{REPOSITORY}/blob/main/{path}">Open in Colab</a>' if REPOSITORY else ""
    buttons = f"""<p class="buttons">{colab} <a href="{up}_sources/{path}" download>Download</a>
<a class="how" href="{up}README.html#two-commands">How to run it</a></p>"""
    next(doctree.findall(nodes.section)).insert(1, nodes.raw("", buttons, format="html"))


def link_files(app, doctree):
    """A link to a file that is no page leads to the repository; where there is none, its text stays."""
    for link in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        target = (Path(app.env.doc2path(app.env.docname)).parent / link["reftarget"]).resolve()
        if link.tagname == "download_reference" or link["refdomain"] is None and target.exists():
            address = f"https://github.com/{REPOSITORY}/tree/main/{target.relative_to(ROOT)}"
            new = nodes.reference(refuri=address) if REPOSITORY else nodes.inline()
            new.extend(link.children)
            link.replace_self(new)


def on_doctree(app, doctree):
    path = str(Path(app.env.doc2path(app.env.docname)).relative_to(ROOT))
    link_files(app, doctree)
    set_formulas(doctree)
    if path == "docs/glossary.md":
        address_terms(app, doctree)
    if path.endswith(".ipynb"):
        describe(doctree, json.loads(read(path))["cells"])
        add_buttons(doctree, path)
        link_terms(app, doctree, Path(path).name[:2] if path.startswith("notebooks/") else "99")  # exercises come after all


def on_source(app, docname, source):
    """What only the site shows: lists under the front page; on the README's page, where the repository is, and a title."""
    if docname == "docs/index":
        source[0] += "\n" + read("docs/site/contents.md")
    if docname == "README":
        source[0] = source[0].replace("# Kernels from Math\n", "# Set-up and the package\n", 1)
        if REPOSITORY:
            source[0] = source[0].replace("this repository", f"[this repository](https://github.com/{REPOSITORY})", 1)


def set_formulas(doctree):
    """KaTeX's HTML, with MathML for screen readers: a page runs no script for it."""
    formulas = [*doctree.findall(lambda node: isinstance(node, FORMULAS))]
    job = json.dumps([[node.astext(), isinstance(node, nodes.math_block)] for node in formulas])
    command = ["node", "-e", SET, packages() / KATEX / "katex.js"]
    done = subprocess.run(command, input=job, stdout=subprocess.PIPE, text=True, check=True)
    for node, html in zip(formulas, json.loads(done.stdout), strict=True):
        node["html"] = html
        place = node.parent.index(node) + 1  # of what stands behind it; a text would be found by its letters
        behind = node.parent[place] if place < len(node.parent) else None
        mark = re.match(r"[.,:;?!)]*", behind if isinstance(behind, nodes.Text) else "")[0]
        if mark and len(node.astext()) <= 16:  # a longer formula may have to break
            node["html"] = f'<span class="kept">{html}{mark}</span>'  # no line begins with the mark
            node.parent[place] = nodes.Text(behind[len(mark) :])


def copy_katex(app):
    there = Path(app.outdir) / "_static" / "katex"
    shutil.copytree(packages() / KATEX / "fonts", there / "fonts", dirs_exist_ok=True)
    shutil.copy(packages() / KATEX / "katex.min.css", there)


def visit_formula(self, node):
    html = node["html"]
    if isinstance(node, nodes.math_block):
        # The theme makes the second class a tab stop where it scrolls.
        html = f'<div class="math jp-RenderedHTMLCommon">{html}</div>\n'
    self.body.append(html)
    raise nodes.SkipNode


def visit_folded(self, node):
    title = "Output" if "below-input" in node["classes"] else node["prompt_show"]
    self.body.append(f"<details><summary>{escape(title)}</summary>\n")


def depart_folded(self, node):
    self.body.append("</details>\n")


def setup(app):
    app.add_html_math_renderer("katex", (visit_formula, None), (visit_formula, None))
    app.add_node(HideCodeCellNode, override=True, html=(visit_folded, depart_folded))
    app.connect("builder-inited", copy_katex)
    app.connect("source-read", on_source)
    app.connect("doctree-read", on_doctree, priority=400)  # before Sphinx collects what is to be downloaded
    return {"parallel_read_safe": True, "parallel_write_safe": True}
