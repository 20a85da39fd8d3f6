"""Every code block in the README and in docs/ runs, in the order of its page, and prints what the page shows."""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nbclient
import nbformat
import pytest
import yaml
from documented_commands import ROOT, check_mentioned, lay, run_line, run_script

import ebcli.run.explainer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.usefixtures("same_rules_afterwards")

PAGES = sorted(str(page.relative_to(ROOT)) for folder in (".", "docs") for page in (ROOT / folder).glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
INSTRUCTION = re.compile(r"(ARG|CMD|COPY|ENTRYPOINT|ENV|EXPOSE|FROM|LABEL|RUN|USER|VOLUME|WORKDIR) \S")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a page; a network that several of its commands use is built once."""
    lay(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ebcli.run.explainer.load_model", functools.cache(ebcli.run.explainer.load_model))
    return tmp_path


@dataclass
class Page:
    """What the blocks of a page leave for those below them."""

    names: dict[str, object] = field(default_factory=dict)
    printed: str = ""

    def python(self, block: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(block, self.names)
        self.printed = stream.getvalue()
        for shown in re.findall(r"print\(.*\)  # (.*)$", block, re.MULTILINE):
            assert shown in self.printed.splitlines()

    def what_python_printed(self, block: str) -> None:
        assert block == self.printed

    def sh(self, block: str) -> None:
        if block.startswith("#!"):
            run_script(block)
        else:
            for line in block.replace("\\\n", " ").splitlines():
                run_line(line)

    def console(self, block: str) -> None:
        """Commands after ``$``, and what they print; ``...`` stands for anything."""
        commands = COMMAND.findall(block)
        assert commands
        for line, shown in commands:
            result = run_line(line)
            assert result is not None
            assert doctest.OutputChecker().check_output(shown, result.output, doctest.ELLIPSIS), result.output

    def text(self, block: str) -> None:
        """Is for people to read."""

    def yaml(self, block: str) -> None:
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(block))
        check_mentioned(block)

    def json(self, block: str) -> None:
        json.loads(block)

    def toml(self, block: str) -> None:
        assert tomllib.loads(block)

    def dockerfile(self, block: str) -> None:
        for line in block.replace("\\\n", " ").splitlines():
            assert not line or line.startswith("#") or INSTRUCTION.match(line), line
        check_mentioned(block)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_of(name: str, desk: Path) -> None:
    page = Page()
    known: dict[str, Callable[[str], None]] = {
        "": page.what_python_printed,
        "python": page.python,
        "sh": page.sh,
        "console": page.console,
        "text": page.text,
        "yaml": page.yaml,
        "json": page.json,
        "toml": page.toml,
        "dockerfile": page.dockerfile,
    }
    content = (ROOT / name).read_text(encoding="utf-8")
    blocks = BLOCK.findall(content)
    assert len(blocks) == content.count("```") / 2, "a block is indented or not closed"
    for language, block in blocks:
        assert language in known, f"no test knows what to do with a block of {language}"
        known[language](block)


@pytest.mark.parametrize("name", PAGES)
def test_links_of(name: str) -> None:
    page = ROOT / name
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (page.parent / link).exists(), link


def test_the_notebook() -> None:
    notebook = nbformat.read(ROOT / "docs/notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "strip its outputs: they are made with the site"
    done = nbclient.NotebookClient(notebook, resources={"metadata": {"path": ROOT / "docs"}}).execute()
    shown = [output.get("data", {}) for cell in done.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in data for data in shown) == 6
    assert any("tiger cat" in data.get("text/plain", "") for data in shown)
