"""What every test here needs: Chromium, and node's packages."""

import pytest

from tools.browser import Missing, chromium, packages


@pytest.fixture(scope="module", autouse=True)
def installed():
    try:
        chromium(), packages()
    except Missing as missing:
        pytest.fail(str(missing), pytrace=False)
