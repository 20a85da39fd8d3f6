"""The contents of the wheel and the source distribution, and the installed wheel."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import click
import pytest
from stub_run import program

import ebcli
from ebcli.cli.benchmark import benchmark
from ebcli.cli.click_types import Setting
from ebcli.cli.saliency import run

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.release


def printed(*command: str | Path, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with both, the wheel built from the files sent to Docker alone. Nothing is downloaded."""
    folder, sent = tmp_path_factory.mktemp("distributions"), tmp_path_factory.mktemp("sent")
    for name in re.findall("^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, sent / name)
    printed(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder, ROOT)
    printed(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, sent)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel.

    Its dependencies come from this environment, through a path, because installing them takes minutes. An editable
    install of this package does not come along: .pth files count only in an environment's own directory.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    printed(sys.executable, "-m", "pip", "--python", folder, "install", "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_twine_accepts_both(built: Path) -> None:
    shown = printed(
        sys.executable, "-m", "twine", "--no-color", "check", "--strict", *sorted(built.iterdir())
    )
    assert shown.count("PASSED") == 2


def test_the_source_distribution_has_the_files_known_to_git(built: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    known = printed(
        program("git"), "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).split("\0")
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert inside == {name for name in known if (ROOT / name).is_file()} | {"PKG-INFO"}


def test_the_wheel_has_the_package_and_two_manual_pages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    data = f"eb_saliency-{ebcli.__version__}.data/data/share/man/man1"
    source = {path for path in (ROOT / "ebcli").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    pages = {f"{data}/eb-saliency.1", f"{data}/eb-saliency-benchmark.1"}
    assert inside == {path.relative_to(ROOT).as_posix() for path in source} | pages
    assert {"ebcli/py.typed", "ebcli/pages/gallery.html"} <= inside
    assert wheel.stat().st_size < 20_000_000  # without the weights, which are a requirement


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def test_the_metadata(wheel: Path) -> None:
    fields = metadata(wheel)
    assert fields["Name"] == "eb-saliency"
    assert (
        fields["Version"] == re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    )  # type: ignore[index]
    assert fields["Requires-Python"] == ">=3.11"
    assert fields["Author"] == "The eb-saliency authors"
    assert fields.get_all("Project-URL") is None  # until there is an address
    assert fields.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_on_the_index_is_that_of_the_repository_with_absolute_links() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    home = "https://code.example/we/eb-saliency"
    project = {"version": ebcli.__version__}
    runpy.run_path(str(ROOT / "hatch_build.py"))["Links"](str(ROOT), {"home": home}).update(project)
    assert project["urls"]["Homepage"] == home
    page = project["readme"]["text"]
    links = re.findall(r"\]\(([^)]*)\)|(?:src|href)=[\"']([^\"']*)", page)
    assert all(link.startswith(("https://", "#")) for pair in links for link in pair if link)
    tree = f"{re.escape(home)}/(blob|raw)/v{re.escape(ebcli.__version__)}/"
    assert re.sub(rf"\]\({tree}", "](", page) == text
    pictures = re.findall(rf"!\[[^\]]*\]\({tree}([^)]*)\)", page)
    assert pictures
    assert all(kind == "raw" and (ROOT / path).is_file() for kind, path in pictures)


def test_the_installed_wheel_works(environment: Path, tmp_path: Path) -> None:
    place = printed(environment / "bin/python", "-c", "import ebcli; print(ebcli.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(environment)
    command = environment / "bin/eb-saliency"
    assert printed(command, "--version") == f"eb-saliency {ebcli.__version__}\n"

    shutil.copy(ROOT / "sample_images/chelsea.jpg", tmp_path)
    (picture,) = printed(command, "chelsea.jpg", "--report", cwd=tmp_path).splitlines()
    assert re.fullmatch(r"saliency/chelsea\.jpg\.\d+-[\w-]+\.jpg", picture)
    assert (tmp_path / picture).stat().st_size > 1000
    assert "<html" in (tmp_path / "saliency/report/index.html").read_text()
    assert "grid" in printed(command, "benchmark", "--help")


@pytest.mark.parametrize(("name", "command"), [("eb-saliency", run), ("eb-saliency-benchmark", benchmark)])
def test_the_manual_pages(name: str, command: click.Command, environment: Path) -> None:
    """They pass mandoc's checks and have the help text of each command and option."""
    page = environment / "share/man/man1" / f"{name}.1"
    assert printed(program("mandoc"), "-T", "lint", "-W", "warning", page) == ""
    shown = " ".join(printed(program("mandoc"), "-T", "utf8", "-O", "width=1000", page).split())
    shown = re.sub(r".\x08", "", shown).replace("’", "'")  # bold and underlined are overstruck
    inner = {**getattr(command, "commands", {}), **getattr(command, "commands_beside", {})}
    inner.pop("benchmark", None)  # which has a page of its own
    for part in (command, *inner.values()):
        assert " ".join((part.help or "").split()) in shown
        for option in part.params:
            if isinstance(option, click.Option):
                variable = f"_{str(option.name).upper()}"
                assert (variable if isinstance(option, Setting) else option.opts[-1]) in shown
                assert option.help in shown
    assert all(
        f"{name.replace('-benchmark', ' benchmark')} {subname} [OPTIONS]" in shown for subname in inner
    )
    assert " ".join((command.epilog or "").split()) in shown


def test_roff_syntax_is_escaped(tmp_path: Path) -> None:
    manual_page = runpy.run_path(str(ROOT / "hatch_build.py"))["manual_page"]
    awkward = [".TH is no heading", "'quoted' from the first letter", "C:\\folder\\name and --long-option"]
    options = [click.Option([f"--{letter}"], help=text) for letter, text in zip("abc", awkward, strict=True)]
    page = tmp_path / "page.1"
    page.write_text(
        manual_page("name", click.Command("name", help="Do it.", params=options, epilog="."), "1", "other")
    )
    assert printed(program("mandoc"), "-T", "lint", "-W", "warning", page) == ""
    shown = printed(program("mandoc"), "-T", "utf8", page).replace("’", "'")
    assert all(text in shown for text in awkward)
