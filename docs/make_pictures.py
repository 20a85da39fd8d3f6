"""Draws all pictures of the README and of docs/gallery.md, by the very commands that stand there.

    python docs/make_pictures.py

Writes docs/pictures/, from sample_images/ and with the bundled network alone.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from pathlib import Path

from click.testing import CliRunner

from ebcli.cli.saliency import main

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs/pictures"
# a command in a block of its own, and the pictures below it: `name.jpg` shows its only result, or those in their order
EXAMPLE = re.compile(r"```sh\neb-saliency (.*?)\n```\n(.*?)(?=\n```|\Z)", re.DOTALL)
SHOWN = re.compile(r"\((?:docs/)?pictures/([\w.-]+)\)")


def draw(page: Path) -> None:
    """Run a page's commands, and keep the pictures that it shows below each of them."""
    for command, below in EXAMPLE.findall(page.read_text(encoding="utf-8")):
        names = SHOWN.findall(below)
        if not names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = CliRunner().invoke(main, [*shlex.split(command), "-o", folder], catch_exceptions=False)
            for name, path in zip(names, result.stdout.splitlines(), strict=True):
                shutil.copyfile(path, PICTURES / name)


if __name__ == "__main__":
    import os

    os.chdir(ROOT)
    PICTURES.mkdir(exist_ok=True)
    draw(ROOT / "docs/gallery.md")
