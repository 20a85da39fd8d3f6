"""A plug-in package with networks and rules, installed by pip and used in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example package installed."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(Path(__file__).parent / "plugin")], check=True, timeout=120)
    return target


def run(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT)])
    return subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_its_networks_are_listed_and_broken_plugins_are_named(installed: Path) -> None:
    result = run(installed, "-m", "ebcli", "--list-models")
    assert result.returncode == 0
    assert {"acme/tiny", "acme/large", "vgg16"} <= set(result.stdout.splitlines())
    broken, quits = (line for line in result.stderr.splitlines() if line.startswith("Warning"))
    for part in ("'broken'", "acme-nets", "acme_nets.broken:Broken", "a_package_that_is_not_there"):
        assert part in broken
    assert "acme_nets.quits:Quits called sys.exit(0)" in quits
    assert "goodbye" not in result.stdout
    assert "goodbye" in result.stderr


def test_help_does_not_import_it(installed: Path) -> None:
    result = run(installed, "-X", "importtime", "-m", "ebcli", "--help")
    assert result.returncode == 0
    assert "acme_nets" not in result.stderr
    assert "ebcli.cli.saliency" in result.stderr  # the import times


def test_its_network_is_explained_with_its_rule(installed: Path, tmp_path: Path) -> None:
    result = run(
        installed,
        *("-m", "ebcli", str(ROOT / "sample_images/chelsea.jpg"), "-o", str(tmp_path)),
        *("--model", "acme/tiny", "--weights", "none", "--target", "rocket", "--layer", "stem"),
    )
    assert result.returncode == 0, result.stderr
    (picture,) = result.stdout.splitlines()
    assert picture.endswith("chelsea.jpg.1-rocket.jpg")
    assert Path(picture).is_file()
    broken, untrained = sorted(result.stderr.splitlines(), key=lambda line: "untrained" in line)
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
def test_wrong_names_are_reported_in_one_sentence(installed: Path, name: str, said: str) -> None:
    result = run(installed, "-m", "ebcli", "--list-layers", "--model", name)
    assert result.returncode == 2
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error"))
    assert said in line
