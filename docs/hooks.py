"""MkDocs hooks: pages of the root, links to them, formulas as MathML, and the pages that llms.txt links."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

# pages in the root of the repository, and the links to them
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
ROOT_FILES = ("CITATION.cff", "benchmarks/boxes.csv")
LINKS = {
    "](docs/": "](",
    "](../": "](",
    "](README.md#contributing": "](install.md#extras",
    "](README.md": "](index.md",
    **{f"]({name}": f"]({name.lower()}" for name in ROOT_PAGES},
}

# lists that docs/make_lists.py writes
LIST = re.compile(r"<!-- (names|options): (.*?) -->\n.*?<!-- end -->", re.DOTALL)

# pymdownx.arithmatex turns $...$ and $$...$$ into these
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the files there that pages link to."""
    root = Path(config.config_file_path).parent
    for name in (*ROOT_PAGES, *ROOT_FILES):
        if (root / name).exists():
            target = name.lower() if name in ROOT_PAGES else name
            files.append(File.generated(config, target, abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links between files by links between pages, and lists by what plug-ins make of the code."""
    markdown = LIST.sub(lambda found: (_documented if found[1] == "names" else _command)(found[2]), markdown)
    for link, page in LINKS.items():
        markdown = markdown.replace(link, page)
    return markdown


def _documented(names: str) -> str:
    alone = {"ebcli.ExcitationMode", "ebcli.LinearMap"}  # without their members
    return "\n\n".join(
        f"::: {name}" + "\n    options: {members: []}" * (name in alone) for name in names.split()
    )


def _command(name: str) -> str:
    listed = "\n    :list_subcommands: True" * (name == "main")
    values = f":module: ebcli.cli.saliency\n    :command: {name}\n    :prog_name: eb-saliency\n    :depth: 2{listed}"
    return f"::: mkdocs-click\n    {values}"


def on_page_content(content: str, **_: Any) -> str:
    """Convert formulas to MathML, which browsers render without scripts."""

    def mathml(match: re.Match[str]) -> str:
        formula = html.unescape(match[2])
        return f"<p>{convert(formula, display='block')}</p>" if match[1] == "div" else convert(formula)

    return FORMULA.sub(mathml, content)


def on_post_build(config: MkDocsConfig) -> None:
    """Copy the pages beside those of the site, as they are: llms.txt links them."""
    for page in Path(config.docs_dir).glob("*.md"):
        shutil.copy(page, config.site_dir)
