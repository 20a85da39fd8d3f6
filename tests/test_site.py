"""The built site: links between pages, and nothing loaded from other servers."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ebcli

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow  # .ci/run builds the site, too


class Page(HTMLParser):
    """The links and resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.path = path
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a":
            self.links.add(given.get("href", ""))
        elif tag in ("img", "script", "iframe") and given.get("src") and not given["src"].startswith("data:"):
            self.loads.add(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon"):
            self.loads.add(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """All pages except 404, by file name."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: Page(path) for path in folder.glob("*.html") if path.name != "404.html"}


def test_every_page_is_linked(site: dict[str, Page]) -> None:
    seen, waiting = {"index.html"}, ["index.html"]
    while waiting:
        led = {link.partition("#")[0].removeprefix("./") for link in site[waiting.pop()].links}
        new = {link for link in led if link in site} - seen
        seen |= new
        waiting += new
    assert seen == set(site)
    assert {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")} < seen


def test_pages_that_llms_txt_links_are_beside_it(site: dict[str, Page]) -> None:
    folder = site["index.html"].path.parent
    links = re.findall(r"\]\(([^)#]+)", (folder / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 10
    assert all((folder / link).is_file() for link in links)


def test_resources_exist(site: dict[str, Page]) -> None:
    for name, page in site.items():
        for link in page.loads:
            assert (page.path.parent / link.partition("?")[0]).is_file(), f"{name} loads {link}"


def test_the_reference_has_every_public_name(site: dict[str, Page]) -> None:
    missing = {name for name in ebcli.__all__ if name != "__version__"}
    for module in ("ebcli", "ebcli.errors"):
        missing -= {name for name in missing if f"{module}.{name}" in site["api.html"].ids}
    assert not missing
    text = site["api.html"].path.read_text(encoding="utf-8")
    assert not re.search(r":(func|class):", text)


def test_formulas_are_mathml(site: dict[str, Page]) -> None:
    text = site["method.html"].path.read_text(encoding="utf-8")
    assert text.count("<math") > 10
    assert "arithmatex" not in text
