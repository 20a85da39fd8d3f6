"""User-defined networks, in files and modules."""

import importlib.util
import json
import math
import os
import py_compile
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError
from ebcli.models import load_model
from ebcli.models.loaded import configuration_hash, network_settings

NETS = """
from torch import nn
import ebcli

from blocks import block  # a module next to this file

def small(num_classes=5):
    return nn.Sequential(*block(3, 8), *block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))

def complete():
    net = small(2)
    net.preprocessing = ebcli.Preprocessing(resize=72, crop=64, mean=0.5, std=0.25)
    net.categories = ["cat", "dog"]
    return net

def fails():
    raise RuntimeError("two\\nlines")

def no_net():
    return {"a": 1}

class Careless(nn.Module):
    def forward(self, x):
        return x * bias

class Choosy(nn.Module):
    def forward(self, x):
        assert x.shape[-1] == 64, "the width must be 64"

def oblong():
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(2))

def picky():
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 2))

def quits():
    raise SystemExit(0)

class Quitter(nn.Module):
    def forward(self, x):
        raise SystemExit(0)

class Talker(nn.Module):
    def forward(self, x):
        print("forward")
        return x

def talks():
    print("building")
    return nn.Sequential(Talker(), small())

def single():
    net = small(1)
    nn.init.constant_(net[-1].bias, 0.25)
    nn.init.zeros_(net[-1].weight)
    return net

def colored():
    net = small(2)
    net.categories = ["\\x1b[31mcat\\x07", "dog"]
    return net

def raw():
    net = small(2)
    net.scores = "raw"
    return net
"""
BLOCKS = (
    "from torch import nn\ndef block(i, o):\n    return nn.Conv2d(i, o, 3, 2), nn.BatchNorm2d(o), nn.ReLU()\n"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a folder of model code."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "nets.py").write_text(NETS)
    (code / "blocks.py").write_text(BLOCKS)
    (code / "exits.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path  # type: ignore[misc]
    sys.modules.pop("blocks", None)


def test_a_factory_in_a_file(folder: Path) -> None:
    path = sys.path.copy()
    loaded = load_model("code/nets.py:small")
    assert (loaded.name, loaded.weights, loaded.categories) == ("code/nets.py:small", "factory", None)
    assert loaded.net(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    assert not loaded.net.training
    assert loaded.transforms.size == (224, 224)
    assert sys.path == path
    again = load_model(f"{folder}/code/nets.py:small", "none")
    for one, other in zip(loaded.net.parameters(), again.net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_file_that_was_named_is_run_and_nothing_compiled(tmp_path: Path) -> None:
    """A compiled file that claims to be of this one is one that nobody has read."""
    compiled = tmp_path / "compiled.py"
    compiled.write_text("def network():\n    raise RuntimeError('compiled')\n")
    named = tmp_path / "named.py"
    named.write_text(
        "from torch import nn\n\ndef network():\n    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())\n"
    )
    size, time = named.stat().st_size, named.stat().st_mtime
    compiled.write_text(compiled.read_text().ljust(size, "#"))
    os.utime(compiled, (time, time))
    py_compile.compile(str(compiled), importlib.util.cache_from_source(str(named)))
    assert isinstance(load_model(f"{named}:network", "none").net, nn.Sequential)


def test_a_factory_in_a_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "code/nets.py").rename(folder / "code/nets_of_mine.py")
    monkeypatch.syspath_prepend(str(folder / "code"))
    assert load_model("nets_of_mine:complete").categories == ("cat", "dog")
    del sys.modules["nets_of_mine"]


def test_attributes_of_the_network_apply_unless_arguments_replace_them() -> None:
    loaded = load_model("code/nets.py:complete")
    preset = loaded.transforms
    assert (preset.resize, preset.size, preset.mean, preset.std) == ((72,), (64, 64), (0.5,) * 3, (0.25,) * 3)
    assert loaded.categories == ("cat", "dog")
    other = load_model(
        "code/nets.py:complete", class_names=["x", "y"], preprocessing=ebcli.Preprocessing(std=1)
    )
    preset = other.transforms
    assert (preset.resize, preset.size, preset.mean, preset.std) == ((72,), (64, 64), (0.5,) * 3, (1.0,) * 3)
    assert other.categories == ("x", "y")


def test_a_checkpoint_sets_the_number_of_classes(folder: Path) -> None:
    trained = load_model("code/nets.py:small").net
    trained[-1] = torch.nn.Linear(16, 9)
    torch.save({"state_dict": torch.nn.DataParallel(trained).state_dict()}, "nine.pth")
    loaded = load_model("code/nets.py:small", "nine.pth")
    images = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(loaded.net(images), trained(images), rtol=0, atol=0)
    with pytest.raises(ConfigurationError, match=r"complete has no parameter num_classes.* 9 classes"):
        load_model("code/nets.py:complete", "nine.pth")


def test_settings_depend_on_code_checkpoint_class_names_and_preprocessing(folder: Path) -> None:
    def settings(*arguments: str, **options: object) -> str:
        return configuration_hash(network_settings(load_model("code/nets.py:small", *arguments, **options)))  # type: ignore[arg-type]

    torch.save(load_model("code/nets.py:small").net.state_dict(), "one.pth")
    Path("other.pth").write_bytes(Path("one.pth").read_bytes())
    first = settings()
    different = {
        first,
        settings("one.pth"),
        settings(class_names=list("abcde")),
        settings(preprocessing=ebcli.Preprocessing(mean=0.5)),
        settings(preprocessing=ebcli.Preprocessing(crop=200)),
        settings(preprocessing=ebcli.Preprocessing(fit="pad")),
        settings(scores="sigmoid"),
    }
    assert len(different) == 7
    assert settings() == first
    assert settings("other.pth") == settings("one.pth")  # a checkpoint counts by its content
    with Path("code/nets.py").open("a") as file:
        file.write("\n# changed\n")
    assert settings() not in different


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("code/nets.py:smal", "no factory 'smal': did you mean 'small'"),
        ("code/nuts.py:small", "the file code/nuts.py does not exist"),
        ("code/nets.py", "is a file: add the function that returns the network, as in code/nets.py:FUNCTION"),
        ("nuts.nets:small", "failed .ModuleNotFoundError: .*nuts"),
        ("code/nets.py:fails", "failed .RuntimeError: two"),
        ("code/nets.py:no_net", "returned a dict, but a torch.nn.Module or a function of images is needed"),
        ("code/nets.py:oblong", r"returns a tensor \(B, 5, 49284\), but logits \(B, num_classes\)"),
        ("code/nets.py:quits", r"code/nets.py:quits called sys.exit\(0\)"),
        ("code/nets.py:Quitter", r"code/nets.py:Quitter called sys.exit\(0\)"),
        ("code/exits.py:small", r"code/exits.py:small called sys.exit\(0\)"),
        ("code/nets.py:picky", "does not accept images of 224 x 224 pixels"),
        (
            "code/nets.py:Choosy",
            r"does not accept images of 224 x 224 pixels \(AssertionError: the width must be 64\)",
        ),
        (
            "code/nets.py:Careless",
            r"code/nets.py:Careless failed on an image of 224 x 224 pixels \(NameError: name 'bias' is not defined; "
            r"--debug shows the traceback\)",
        ),
    ],
)
def test_errors_are_reported_in_one_sentence(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


def test_prints_of_a_factory_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    load_model("code/nets.py:talks")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["building", "forward"]


def test_escape_sequences_in_class_names_do_not_reach_the_terminal() -> None:
    assert load_model("code/nets.py:colored").categories == ("\ufffd[31mcat\ufffd", "dog")
    given = load_model("code/nets.py:colored", class_names=["\x1b]0;x\x07", "dog"])
    assert given.categories == ("\ufffd]0;x\ufffd", "dog")


def test_one_output_is_a_value_and_its_sigmoid_a_score(folder: Path) -> None:
    Image.new("RGB", (240, 240), "orange").save("photo.png")

    def numbers(*arguments: str) -> tuple[float | None, float | None]:
        network = ("--model", "code/nets.py:single", "--layer", "5", "--device", "cpu", "--workers", "0")
        result = CliRunner().invoke(main, ["photo.png", *network, "--json", "--overwrite", *arguments])
        assert result.exit_code == 0, result.output
        (record,) = json.loads(result.stdout)["classes"]
        return record["score"], record["value"]

    assert numbers() == (None, pytest.approx(0.25))
    assert numbers("--scores", "raw") == (None, pytest.approx(0.25))
    assert numbers("--scores", "sigmoid") == (pytest.approx(1 / (1 + math.exp(-0.25))), None)


def test_scores_by_attribute_and_argument() -> None:
    assert load_model("code/nets.py:small").scores == "softmax"
    assert load_model("code/nets.py:raw").scores == "raw"
    loaded = load_model("code/nets.py:raw", scores="sigmoid")
    logits = torch.tensor([[0.0, 2.0]])
    torch.testing.assert_close(loaded.to_scores(logits), torch.tensor([[0.5, 1 / (1 + math.exp(-2))]]))
    with pytest.raises(ConfigurationError, match="unknown scores 'odds'"):
        load_model("code/nets.py:raw", scores="odds")


def test_untrained_networks_are_marked(folder: Path) -> None:
    torch.save(load_model("squeezenet1_1", "none").net.state_dict(), "weights.pth")
    assert not load_model("squeezenet1_1", "none").trained
    assert load_model("squeezenet1_1", "weights.pth").trained


def test_the_number_of_class_names_must_match() -> None:
    with pytest.raises(ConfigurationError, match=r"3 class names, but code/nets.py:small has 5 outputs"):
        load_model("code/nets.py:small", class_names=["a", "b", "c"])
    with pytest.raises(ConfigurationError, match="2 class names, but squeezenet1_1 has 1000 outputs"):
        load_model("squeezenet1_1", "none", class_names=["a", "b"])
