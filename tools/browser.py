"""Programs that look at pages: Chromium, and the packages of node that drive it, examine what it shows and set formulas."""

import os
import shutil
import subprocess
from pathlib import Path

from tools.kernel_environment import ROOT

NODE_FOLDER = ROOT / "build" / "browser"
PACKAGES = {
    "playwright-core": "1.65.1",  # opens pages, clicks, takes pictures
    "axe-core": "4.14.1",  # finds what a screen reader, a keyboard or weak eyes can't use
    "katex": "0.19.1",  # formulas of the reading site, which run no script
}


class Missing(Exception):
    """A program that is not installed."""


def chromium() -> str:
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    found = next(filter(None, map(shutil.which, filter(None, names))), None)
    if found is None:
        raise Missing("no Chromium: install the package `chromium`, or name one in CHROMIUM")
    return found


def packages() -> Path:
    """The folder in which node finds the packages; installed there if they are not yet."""
    if shutil.which("npm") is None:
        raise Missing("no npm: install the package `npm`")
    if not all((NODE_FOLDER / "node_modules" / name).exists() for name in PACKAGES):
        NODE_FOLDER.mkdir(parents=True, exist_ok=True)
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        command = ["npm", "install", "--loglevel=error", "--no-fund", "--no-audit", "--prefix", NODE_FOLDER, *wanted]
        subprocess.run(command, check=True)
    return NODE_FOLDER
