"""A plug-in package with networks and rules, installed by pip and used in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import Forked

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example package installed."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(Path(__file__).parent / "plugin")], check=True, timeout=120)
    return target


def run(installed: Path, cwd: Path, *arguments: str) -> tuple[int, str, str]:
    """The command's exit status, stdout and stderr."""
    command = Forked(cwd, *arguments, packages=installed)
    return command.wait(), command.out.read_text(), command.err.read_text()


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_its_networks_are_listed_and_broken_plugins_are_named(installed: Path, cwd: Path) -> None:
    status, out, err = run(installed, cwd, "--list-models")
    assert status == 0
    assert {"acme/tiny", "acme/large", "vgg16"} <= set(out.splitlines())
    broken, quits = (line for line in err.splitlines() if line.startswith("Warning"))
    for part in ("'broken'", "acme-nets", "acme_nets.broken:Broken", "a_package_that_is_not_there"):
        assert part in broken
    assert "acme_nets.quits:Quits called sys.exit(0)" in quits
    assert "goodbye" not in out
    assert "goodbye" in err


def test_help_does_not_import_it(installed: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ebcli", "--help"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])},
    )
    assert "acme_nets" not in result.stderr
    assert "ebcli.cli.saliency" in result.stderr  # the import times


def test_its_network_is_explained_with_its_rule(installed: Path, cwd: Path) -> None:
    photo = str(ROOT / "sample_images/chelsea.jpg")
    network = ("--model", "acme/tiny", "--weights", "none", "--target", "rocket", "--layer", "stem")
    status, out, err = run(installed, cwd, photo, "-o", str(cwd), *network)
    assert status == 0, err
    (picture,) = out.splitlines()
    assert picture.endswith("chelsea.jpg.1-rocket.jpg")
    assert Path(picture).is_file()
    broken, untrained = sorted(err.splitlines(), key=lambda line: "untrained" in line)
    assert "broken" in broken
    assert "acme/tiny is untrained" in untrained


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme/huge", "Acme has no network 'huge'"),
        ("broken/x", "the plug-in for 'broken/x' cannot be imported"),
        ("quits/x", "the plug-in for 'quits/x' cannot be imported"),
        ("akme/tiny", "unknown model source 'akme': did you mean 'acme'"),
    ],
)
def test_wrong_names_are_reported_in_one_sentence(installed: Path, cwd: Path, name: str, said: str) -> None:
    status, _, err = run(installed, cwd, "--list-layers", "--model", name)
    assert status == 2
    (line,) = (line for line in err.splitlines() if line.startswith("Error"))
    assert said in line
