"""What is known of the bundled network without loading it is what loading it finds."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plans import make_plan

from ebcli.run.explainer import Explainer
from ebcli.run.network_description import NetworkDescription

ALL_NOISE = ("test_the_bundled_network",)

SAMPLES = Path(__file__).parents[2] / "sample_images"


PROGRAM = """
import atexit, runpy, sys
packages = {"matplotlib", "sympy", "torch", "torchvision"}
atexit.register(lambda: print("imported:", *sorted(packages & set(sys.modules)), file=sys.stderr))
runpy.run_module("ebcli", None, "__main__")
"""


def run(cwd: Path, *arguments: str) -> tuple[int, str, str, str]:
    """The command's status, stdout and stderr, and which large packages it imported."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    said, _, imported = ended.stderr.rpartition("imported:")
    return ended.returncode, ended.stdout, said, imported.strip()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"target": ("tabby", "281", "7"), "scores": "raw"},
        {"contrastive": False, "top_k": 3, "resize": 300, "mean": (0.5, 0.5, 0.5)},
        {"against": ("espresso",)},
    ],
)
def test_the_bundled_network(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("a.jpg", **settings)
    known = NetworkDescription.of_bundled(plan)
    assert known is not None
    quick = Explainer(plan).network
    monkeypatch.setattr(NetworkDescription, "of_bundled", lambda _plan: None)
    found = Explainer(plan).network
    same = [
        dataclasses.replace(one, loaded=dataclasses.replace(one.loaded, net=None))
        for one in (known, quick, found)
    ]
    assert same[1] == same[2]
    assert dataclasses.replace(same[0], noise=same[1].noise) == same[1]
    if not plan.maps.against:  # with it, the network is asked
        assert same[0].noise == same[1].noise


@pytest.mark.parametrize(
    "settings", [{"model": "vgg16"}, {"layer": ("features.5",)}, {"weights": "none"}, {"crop": 96}]
)
def test_nothing_is_known_of_others(settings: dict[str, Any]) -> None:
    assert NetworkDescription.of_bundled(make_plan("a.jpg", **settings)) is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("arguments", "status", "said", "imports"),
    [
        (["missing.jpg"], 1, "missing.jpg: No such file or directory", ""),
        (["empty"], 2, "no images found in 'empty'", ""),
        (["photos", "-o", "file/maps"], 2, "'file' is not a directory", ""),
        (["photos", "--cmap", "jett"], 2, "unknown colormap 'jett': did you mean 'jet'?", "matplotlib"),
        (["photos", "--target", "expresso"], 2, "unknown class 'expresso': did you mean 'espresso'?", ""),
        (["photos", "--dry-run"], 0, "1 image: 1 to process", ""),
    ],
)
def test_torch_is_not_imported_where_no_network_is_needed(
    tmp_path: Path, arguments: list[str], status: int, said: str, imports: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/coffee.jpg").write_bytes((SAMPLES / "coffee.jpg").read_bytes())
    (tmp_path / "file").write_text("")
    ended, _, stderr, imported = run(tmp_path, *arguments)
    assert (ended, imported) == (status, imports)
    assert said in stderr


@pytest.mark.release
def test_torchvision_is_not_imported_for_the_bundled_network(tmp_path: Path) -> None:
    status, stdout, stderr, imported = run(tmp_path, str(SAMPLES / "coffee.jpg"))
    assert (status, imported) == (0, "torch"), stderr
    assert Path(tmp_path, stdout.strip()).is_file()
