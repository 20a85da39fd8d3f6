"""The Dockerfile, citation, changelog and scripts agree with the package."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import ebcli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sysconfig.get_path("scripts"), "hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_installs_the_required_torch() -> None:
    installed = {str(Requirement(text)) for text in re.findall(r'"(torch[^"]*)"', DOCKERFILE)}
    assert installed == {text for text in PROJECT["dependencies"] if text.startswith("torch")}


def test_docker_gets_the_files_that_it_copies() -> None:
    """From which the wheel of tests/test_distributions.py is built."""
    seen = re.findall("^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert sorted(" ".join(copied).split()) == sorted(seen)


def test_the_citation_has_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == ebcli.__version__
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Zhang", "Lin", "Brandt", "Shen", "Sclaroff"]
    assert paper["url"].removeprefix("https://") in (ROOT / "README.md").read_text(encoding="utf-8")


def test_continuous_integration_runs_the_second_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python3 -m venv .*\.ci/check$", readme, re.MULTILINE)
    assert command in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_the_checks_refuse_an_unknown_part() -> None:
    done = subprocess.run([ROOT / ".ci/check", "taste"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown part 'taste'" in done.stderr


def test_supported_python_versions_agree() -> None:
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={named[0]}"
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert f"Python {named[0]} to {named[-1]}, " in page
    tried = {row.rpartition(".")[0] for row in re.findall(r"^\| (3\.\d+\.\d+) \|", page, re.MULTILINE)}
    assert {named[0], named[-1]} <= tried <= set(named)


def test_the_changelog_keeps_its_format() -> None:
    headings = re.findall(r"^##+ (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert all(re.fullmatch(r"\[[\d.]+\] - \d{4}-\d\d-\d\d", text) for text in headings[1:] if text not in kinds)
