"""What a network gets is read off its first layer, or declared by it."""

import json
from pathlib import Path

import bright_nets
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

import ebcli
from ebcli.cli.saliency import main
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError
from ebcli.models import load_model
from ebcli.models.running import fitting_first_layer

NETS = """
import ebcli
import torch
from torch import nn

def classifier(channels):
    torch.manual_seed(0)
    first = nn.Conv2d(channels, 8, 3, stride=2)
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), *end)

def gray():
    return classifier(1)

def bands():
    net = classifier(13)
    net.preprocessing = ebcli.Preprocessing(resize=32, crop=32, mean=2, std=range(1, 14))
    return net

class Scaled(nn.Module):
    channels = 5
    def __init__(self):
        super().__init__()
        self.net = classifier(5)
        self.scale = nn.Parameter(torch.ones(5, 1, 1))
    def forward(self, x):
        return self.net(x * self.scale)

class Backwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
        self.last = nn.Conv2d(4, 8, 3)
        self.first = nn.Conv2d(1, 4, 3)
    def forward(self, x):
        return self.head(self.last(self.first(x)))

def wrong():
    net = gray()
    net.preprocessing = ebcli.Preprocessing(mean=(1, 2, 3))
    return net
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    Path("bright.py").write_text(bright_nets.NETS)
    pixels = np.arange(48 * 64 * 3).reshape(48, 64, 3) % 251
    Image.fromarray(pixels.astype(np.uint8)).save("photo.png")


@pytest.mark.parametrize(
    ("name", "channels", "axes", "shape"),
    [
        ("nets.py:gray", 1, "HW", (224, 224)),
        ("nets.py:bands", 13, "HW", (32, 32)),
        ("bright.py:solid", 1, "DHW", (64, 64, 64)),
        ("bright.py:fixed", 1, "DHW", (12, 16, 16)),
        ("nets.py:Scaled", 5, "HW", (224, 224)),
        ("nets.py:Backwards", 1, "HW", (224, 224)),
    ],
)
def test_channels_and_axes_are_those_of_the_first_layer(
    name: str, channels: int, axes: str, shape: tuple[int, ...]
) -> None:
    spec = load_model(name).transforms
    assert (spec.channels, spec.axes, spec.shape) == (channels, axes, shape)
    assert len(spec.mean) == len(spec.std) == channels


def test_declared_numbers_are_kept_and_others_leave_values_as_they_are() -> None:
    assert load_model("nets.py:bands").transforms.std == tuple(range(1, 14))
    assert load_model("nets.py:bands").transforms.mean == (2,) * 13
    assert (load_model("nets.py:gray").transforms.mean, load_model("nets.py:gray").transforms.std) == (
        (0,),
        (1,),
    )
    with pytest.raises(
        ConfigurationError, match=r"^--mean has 3 values, but nets.py:wrong takes 1 channels$"
    ):
        load_model("nets.py:wrong")


def test_a_network_of_one_channel_gets_photos_in_gray() -> None:
    spec = load_model("nets.py:gray").transforms
    photo = Image.open("photo.png")
    expected = torch.tensor(spec.read(photo.convert("L"))).movedim(-1, 0) / 255
    assert expected.shape == (1, 224, 224)
    torch.testing.assert_close(spec.normalize(spec.read(photo)[None])[0], expected)
    torch.testing.assert_close(spec(photo), expected, atol=0.02, rtol=0)  # resized in 8 bits or as tensors
    done = CliRunner().invoke(main, ["photo.png", "--model", "nets.py:gray", "--json", "--workers", "0"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["status"] == "done"


def test_a_photo_with_too_few_channels_is_refused_with_both_sides() -> None:
    done = CliRunner().invoke(main, ["photo.png", "--model", "nets.py:bands", "--json", "--workers", "0"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"] == "it has 3 channels, but nets.py:bands takes 13"


def test_sizes_that_do_not_fit_name_the_channels() -> None:
    with pytest.raises(
        ConfigurationError, match="Sequential does not accept images of 4 x 4 pixels with 1 channel "
    ):
        ebcli.layers(nn.Sequential(nn.Conv2d(1, 2, 7)), input_size=4)
    with pytest.raises(
        ConfigurationError, match="does not accept volumes of 64 slices of 64 x 64 pixels with 2 chan"
    ):
        ebcli.layers(nn.Sequential(nn.Conv3d(2, 2, 70)))


def test_layers_of_bare_networks() -> None:
    found = ebcli.layers(
        nn.Sequential(nn.Conv3d(2, 4, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 2)), (16,) * 3
    )
    assert (found[0].shape, found[0].stride) == ((4, 8, 8, 8), 2)


def test_networks_without_convolutions_take_photos() -> None:
    calls = []
    net = nn.Flatten()
    net.register_forward_hook(lambda *_: calls.append(1))
    assert fitting_first_layer(net, InputSpec((8, 8))) == InputSpec((8, 8))
    assert not calls
