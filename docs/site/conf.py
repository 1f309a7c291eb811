"""The reading site: `make book`. Sphinx reads the repository as it lies, so a link on a page is the link in its source."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]  # the extension, and tools

project = html_title = "Kernels from Math"
language = "en"
root_doc = "docs/index"
include_patterns = ["docs/*.md", "notebooks/*.ipynb", "exercises/*/*.ipynb", "*.md"]
exclude_patterns = [".*", "build"]  # not to be walked through
extensions = ["myst_nb", "course"]

nb_execution_mode = "off"  # what is stored is shown
nb_mime_priority_overrides = [("html", "image/png", 0)]  # before the HTML that a figure has for JupyterLab's sake
nb_render_markdown_format = "gfm"
myst_enable_extensions = ["dollarmath", "html_image"]
myst_dmath_double_inline = True
myst_heading_anchors = 3
highlight_language = "none"  # of a block that names none: a check's message, commands
html_math_renderer = "katex"

html_theme = "sphinx_book_theme"
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "use_fullscreen_button": False,
    "use_download_button": False,  # each notebook has a button of its own, where it is seen
    "footer_content_items": [],
    "search_bar_text": "Search",
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"**": ["search-button-field.html", "sbt-sidebar-nav.html"]}
html_static_path = ["course.css"]
html_css_files = ["katex/katex.min.css", "course.css"]
html_extra_path = ["index.html"]
html_use_index = False
html_show_sphinx = False
