"""What MkDocs does for this site beyond its plug-ins."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

# pages that stand beside docs/, and how links between those and these begin
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")
LINKS = {
    "](docs/": "](",
    "](../": "](",
    "](README.md": "](index.md",
    "](CHANGELOG.md": "](changelog.md",
    "](CONTRIBUTING.md": "](contributing.md",
}

# what pymdownx.arithmatex makes of $...$ and $$...$$
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in the pages that stand beside docs/."""
    for path in (Path(config.config_file_path).with_name(name) for name in BESIDE):
        if path.exists():
            files.append(File.generated(config, path.name.lower(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to where the files are into links to where the pages are."""
    for link, page in LINKS.items():
        markdown = markdown.replace(link, page)
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """Make formulas MathML, which browsers show by themselves, without a script from elsewhere."""

    def mathml(match: re.Match[str]) -> str:
        formula = html.unescape(match[2])
        return f"<p>{convert(formula, display='block')}</p>" if match[1] == "div" else convert(formula)

    return FORMULA.sub(mathml, content)
