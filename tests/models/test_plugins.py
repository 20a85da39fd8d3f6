"""A plug-in package with networks and rules, installed by pip and used in separate processes."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from runs import Forked
from torch import nn

import ebcli
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError
from ebcli.imports import load_plugin

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example package installed."""
    target = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run(
        [*command, "--target", str(target), str(Path(__file__).parent / "plugin")], check=True, timeout=120
    )
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
    status, out, err = run(installed, cwd, "models")
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
    status, _, err = run(installed, cwd, "layers", "--model", name)
    assert status == 2
    (line,) = (line for line in err.splitlines() if line.startswith("Error"))
    assert said in line


class Misbehaving(ebcli.ModelSource):
    """It does what its name says."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        if name == "raises early":
            raise ValueError("no\nluck")

    def build(self, num_classes: int | None = None) -> Any:
        print("built")
        if self.name == "raises":
            raise KeyError("k")
        if self.name == "ends":
            raise GeneratorExit
        return None if self.name == "no network" else nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))

    def weights(self) -> Any:
        return None if self.name == "no weights" else super().weights()

    def transforms(self, net: nn.Module, weights: str) -> InputSpec:
        return InputSpec((8, 8), resize=(8,))

    def categories(self, net: nn.Module, weights: str) -> Any:
        return {"a number": 5, "numbers": [1, 2, 3]}.get(self.name, "abc")

    def files(self, weights: str) -> Any:
        return 5 if self.name == "files" else ()


NO_CLASS = 5


def stub(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    points = [EntryPoint("acme", f"{__name__}:{what}", "ebcli.models")]
    monkeypatch.setattr("ebcli.models.sources.plugins", lambda group: points)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises early", "failed (ValueError: no luck; --debug shows the traceback)"),
        ("raises", "failed (KeyError: 'k'; --debug shows the traceback)"),
        ("ends", "raised GeneratorExit"),
        ("no network", "failed (AttributeError: "),
        ("no weights", "failed (TypeError: "),
        ("a number", "failed (TypeError: "),
        ("numbers", "failed (TypeError: "),
        ("files", "failed (TypeError: "),
    ],
)
def test_one_that_misbehaves_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    stub(monkeypatch, "Misbehaving")
    with pytest.raises(ConfigurationError) as caught:
        ebcli.load_model(f"acme/{name}")
    assert str(caught.value).startswith(f"acme/{name} {said}")
    assert not capsys.readouterr().out
    assert ebcli.load_model("acme/fine").categories == ("a", "b", "c")


def test_one_that_is_no_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, "NO_CLASS")
    with pytest.raises(ConfigurationError, match=r"^acme/x failed \(TypeError: 'int' object is not callable"):
        ebcli.load_model("acme/x")


def test_one_that_interrupts_is_named() -> None:
    """So that its user knows why every command ends."""

    def interrupt(loaded: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^while the plug-in 'acme' of the package .* was loading"):
        load_plugin(EntryPoint("acme", f"{__name__}:Misbehaving", "ebcli.models"), interrupt)
