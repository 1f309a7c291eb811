"""What `make book` looks for in the reading site's pages, it finds."""

import pytest

from tools import book

pytestmark = pytest.mark.browser

GOOD = """<!doctype html><html lang="en"><head><title>A</title><meta name="viewport" content="width=device-width"></head>
<body><main><h1 id="top">A page</h1><p><a href="other/page.html#top">other</a></p>{}</main></body></html>"""
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
FAULTS = {
    '<a href="other/none.html">gone</a>': "a dead link",
    '<a href="other/page.html#none">gone</a>': "a dead link",
    '<p id="top">again</p>': "two elements have the id top",
    f'<img src="{PIXEL}">': "no text for data:",
    f'<img src="{PIXEL}" alt="">': "no text for data:",
    '<img src="other/picture.png" alt="../other/picture.png">': "no text for file:",
    '<script src="https://127.0.0.1:9/x.js"></script>': "fetches https://127.0.0.1:9/x.js",
    "<style>p { background: url(http://127.0.0.1:9/x.png) }</style>": "fetches http://127.0.0.1:9/x.png",
    "<script>gone()</script>": "a script fails: gone is not defined",
    '<p style="width: 400px">wide</p>': "pixels wide in a window of 320",
    "<details><p style='width: 400px'>wide once it is open</p></details>": "pixels wide in a window of 320",
    '<p style="color: #aaa; background: #fff">pale</p>': "320 pixels, dark: Elements must meet minimum color contrast",
    "<style>@media (width > 900px) { p { color: #aaa } }</style><p>pale</p>": "1280 pixels, light: Elements must meet",
    "<button style='width: 50px; overflow: hidden'>uncommonly</button>": "a link is cut off: uncommonly",
    "<button>Search</button>": "320 pixels: the button Search opens nothing",
    "<button style='all: unset'>x</button><button style='all: unset'>y</button>": "target-size",
    "<h4>a level left out</h4>": "heading-order",
    "<input>": "Form elements must have labels",
}


def findings(site, capfd, addition=""):
    (site / "other").mkdir()
    (site / "page.html").write_text(GOOD.format(addition))
    (site / "other" / "page.html").write_text(GOOD.format("").replace("other/page.html", "../page.html"))
    code = book.check(site, ["page.html"])
    return code, capfd.readouterr().out


def test_a_good_site_has_no_faults(tmp_path, capfd):
    assert findings(tmp_path, capfd) == (0, "2 pages, 0 faults\n")


@pytest.mark.parametrize(("addition", "finding"), FAULTS.items())
def test_a_fault_is_found(tmp_path, capfd, addition, finding):
    code, said = findings(tmp_path, capfd, addition)
    assert code == 1 and finding in said
