"""Run the code blocks of the documentation, page by page, and compare what they print."""

import contextlib
import dataclasses
import doctest
import functools
import inspect
import io
import json
import math
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import nbformat
import pytest
import torch
import yaml
from documented_commands import ROOT, check_mentioned, check_options, run_line, run_script, write_files
from method_maps import method_maps
from PIL import Image

import ebcli
import ebcli.run.explainer
from docs import make_lists
from ebcli.cli.saliency import main, run
from ebcli.files.records import ClassRecord, Record

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    str(page.relative_to(ROOT)) for folder in (".", "docs") for page in (ROOT / folder).glob("*.md")
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MOST_WORDS = 20_000
RELEASE = pytest.mark.release
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


# the bundled one, and the one or two others of a page
load_model = functools.lru_cache(maxsize=3)(ebcli.run.explainer.load_model)


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with the files that the pages mention. Networks are cached between commands."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for python in the working directory
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)


@dataclass
class Page:
    """The Python names and the output of the blocks so far."""

    names: dict[str, object] = field(default_factory=dict)
    printed: str = ""

    def python(self, block: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(block, self.names)
        self.printed = stream.getvalue()
        for shown in re.findall(r"print\(.*\)  # (.*)$", block, re.MULTILINE):
            assert shown in self.printed.splitlines()

    def output(self, block: str) -> None:
        assert block == self.printed

    def sh(self, block: str) -> None:
        if block.startswith("#!"):
            run_script(block)
        else:
            for line in block.replace("\\\n", " ").splitlines():
                run_line(line)

    def console(self, block: str) -> None:
        """Commands after ``$`` and their output, where ``...`` matches anything."""
        commands = COMMAND.findall(block)
        assert commands
        for line, shown in commands:
            result = run_line(line)
            assert result is not None
            assert doctest.OutputChecker().check_output(shown, result.output, doctest.ELLIPSIS), result.output

    def text(self, block: str) -> None:
        """Not checked."""

    def yaml(self, block: str) -> None:
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(block))
        check_mentioned(block)

    def json(self, block: str) -> None:
        json.loads(block)

    def toml(self, block: str) -> None:
        assert tomllib.loads(block)


@pytest.mark.parametrize(
    "name", ["README.md", *(pytest.param(one, marks=RELEASE) for one in PAGES if one != "README.md")]
)
@pytest.mark.usefixtures("working_folder")
def test_blocks_of(name: str) -> None:
    page = Page()
    known: dict[str, Callable[[str], None]] = {
        "": page.output,
        "python": page.python,
        "sh": page.sh,
        "console": page.console,
        "text": page.text,
        "yaml": page.yaml,
        "json": page.json,
        "toml": page.toml,
    }
    content = (ROOT / name).read_text(encoding="utf-8")
    blocks = BLOCK.findall(content)
    assert len(blocks) == content.count("```") / 2, "a block is indented or unclosed"
    for language, block in blocks:
        assert language in known, f"unknown language: {language}"
        known[language](block)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as on GitHub."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*PAGES, "docs/llms.txt"])
def test_links_of(name: str) -> None:
    page = ROOT / name
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        target = page.parent / link if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def test_no_page_has_the_marks_of_a_merge() -> None:
    marks = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
    assert not [name for name in PAGES if marks.search((ROOT / name).read_text(encoding="utf-8"))]


def test_the_list_for_language_models_has_its_format_and_commands_that_exist() -> None:
    """As on llmstxt.org: a title, a summary, details, and lists of links."""
    text = (ROOT / "docs/llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# eb-saliency\n\n> .+\n\n(?:[^#\n].*\n|\n)+## ", text)
    _, *lists = re.split(r"^## .*\n", text, flags=re.MULTILINE)
    assert all(line.startswith("- [") for block in lists for line in block.splitlines() if line)
    commands = re.findall(r"`(eb-saliency .*?)`", text)
    assert len(commands) > 5
    for command in commands:
        check_options(shlex.split(command))


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_opens_with_a_picture_or_a_command(page: Path) -> None:
    opening = page.read_text(encoding="utf-8").partition("\n## ")[0]
    assert "\n```" in opening or "\n![" in opening or "| ![" in opening


def test_pages_stay_short() -> None:
    """What a reader has to read: all but the lists and tables that are made from the code and from files."""
    made = re.compile(r"<!-- \w+( of torchvision)?: .*?<!-- [^>]*\bend -->", re.DOTALL)
    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    words = {name: len(made.sub("", text).split()) for name, text in pages.items()}
    assert sum(words.values()) <= MOST_WORDS, words


def test_what_the_readme_says_of_its_picture_holds() -> None:
    """Computed once more, of the whole photo: how much of each map is on the half that shows the class."""
    loaded = ebcli.load_model(preprocessing=ebcli.Preprocessing(fit="whole"))
    image = loaded.transforms(Image.open(ROOT / "sample_images/mosaic.jpg"))[None]
    cat, cup = 282, 967
    shares = {}
    for method in ("contrastive", "grad-cam"):
        for layer, side in (("features.11", 14), ("features.17", 7)):
            maps = method_maps(method, loaded.net, image, torch.tensor([[cat, cup]]), layer)
            maps = maps.reshape(2, side, side).clamp(min=0)
            rows = maps.sum(2) / maps.sum((1, 2))[:, None]
            half = side // 2
            on_upper = rows[:, :half].sum(1) + side % 2 * rows[:, half] / 2
            shares[method, layer] = min(float(on_upper[0]), float(1 - on_upper[1]))
    right = [key for key, share in shares.items() if share > 0.75]
    assert right == [
        ("contrastive", "features.11"),
        ("contrastive", "features.17"),
        ("grad-cam", "features.17"),
    ]
    assert shares["grad-cam", "features.11"] < 0.5
    layers = {layer.name: layer.shape for layer in ebcli.layers(loaded)}
    assert math.prod(layers["features.11"][1:]) == 4 * math.prod(layers["features.17"][1:])


def test_examples_are_on_the_pages_and_their_commands_have_valid_options() -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
    for name in ("nets.py", "heads.py", "arrays.py", "digits.py", "diagnosis.py", "strong.py"):
        assert f"```python\n{(ROOT / 'docs/examples' / name).read_text(encoding='utf-8')}```\n" in text, name
    run_script((ROOT / "docs/examples/slurm.sh").read_text(encoding="utf-8"))
    job = (ROOT / "docs/examples/kubernetes.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(job)["kind"] == "RayJob"
    check_mentioned(job)


@pytest.mark.parametrize("page", make_lists.PAGES, ids=lambda page: page.stem)
def test_lists_of_options_and_names_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert make_lists.written(text) == text, "run python docs/make_lists.py"


def test_all_names_options_and_fields_are_listed() -> None:
    names, options, *_ = (page.read_text(encoding="utf-8") for page in make_lists.PAGES)
    listed = set(re.findall(r"^\| `ebcli\.(?:\w+\.)*(\w+)` \| [^ |]", names, re.MULTILINE))
    assert {*ebcli.__all__} - {"__version__"} <= listed
    for command in (run, *main.commands.values()):
        known = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        assert all(one.opts[-1] in options for one in known), command.name
    tables = re.findall(r"<!-- fields:.*?<!-- end -->", options, re.DOTALL)
    for table, record in zip(tables, (Record, ClassRecord), strict=True):
        rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        assert sorted(re.findall(r"\w+", " ".join(rows))) == sorted(
            one.name for one in dataclasses.fields(record)
        )


def test_all_arguments_of_explain_are_listed() -> None:
    table = (
        (ROOT / "docs/python.md")
        .read_text(encoding="utf-8")
        .partition("## Arguments")[2]
        .partition("\n## ")[0]
    )
    first = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    assert set(re.findall(r"`\*?(\w+)=?`", first)) == {*inspect.signature(ebcli.explain).parameters}


def test_home_names_every_page() -> None:
    home = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= set(
        re.findall(r"\]\((\S+?)\)", home)
    )
    assert "](../SECURITY.md)" in home


@pytest.mark.slow
def test_the_notebook() -> None:
    import nbclient  # not before a test needs it

    notebook = nbformat.read(ROOT / "docs/notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
        "strip the outputs: they are created with the site"
    )
    done = nbclient.NotebookClient(notebook, resources={"metadata": {"path": ROOT / "docs"}}).execute()
    shown = [output.get("data", {}) for cell in done.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in data for data in shown) == 6
    assert any("tiger cat" in data.get("text/plain", "") for data in shown)
