"""Draw the pictures of the pages with the commands that stand above them.

    python docs/make_pictures.py

Writes docs/pictures/ from sample_images/ with the bundled network.
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
# a block with one command, and the line with the pictures of its results below it, in order
EXAMPLE = re.compile(r"```sh\neb-saliency ([^\n]*)\n```\n(!.*)")
SHOWN = re.compile(r"\((?:docs/)?pictures/([\w.-]+)\)")


def draw(page: Path) -> None:
    """Run the commands of a page and save the pictures shown below each."""
    for command, below in EXAMPLE.findall(page.read_text(encoding="utf-8")):
        names = SHOWN.findall(below)
        with tempfile.TemporaryDirectory() as folder:
            result = CliRunner().invoke(main, [*shlex.split(command), "-o", folder], catch_exceptions=False)
            for name, path in zip(names, result.stdout.splitlines(), strict=True):
                shutil.copyfile(path, PICTURES / name)


if __name__ == "__main__":
    import os

    os.chdir(ROOT)
    PICTURES.mkdir(exist_ok=True)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        draw(page)
