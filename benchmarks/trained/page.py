"""The sections of a page in Markdown."""

from __future__ import annotations


def section(page: str, heading: str) -> str:
    """The text below a heading; empty if there is none."""
    return f"\n{page}".partition(f"\n## {heading}\n")[2].partition("\n## ")[0].strip()


def with_section(page: str, heading: str, text: str) -> str:
    """A page with a section of that heading, which replaces an earlier one or comes last."""
    before, found, rest = page.partition(f"\n## {heading}\n")
    after = rest.partition("\n## ")[2] if found else ""
    page = f"{before.rstrip()}\n\n## {heading}\n\n{text.rstrip()}\n"
    return f"{page}\n## {after}" if after else page
