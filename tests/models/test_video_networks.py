"""Networks for video: how clips are cut, and where maps are drawn."""

from pathlib import Path

import pytest
import torch
import torchvision
import zoo
from videos import NETS

import ebcli
from ebcli.models import default_layer, layers, load_model, model_names
from ebcli.models.sources.torchvision import Torchvision


@pytest.mark.parametrize("name", model_names("video"))
def test_clips_are_those_by_which_torchvision_measured_its_weights(name: str) -> None:
    weights = torchvision.models.get_model_weights(name)["DEFAULT"]
    preset = Torchvision(name).transforms(torch.nn.Identity(), "DEFAULT")
    said = weights.meta["_docs"]  # such as "`frame_rate=15`, `clips_per_video=5`, and `clip_len=16`"
    assert f"`frame_rate={preset.rate:g}`" in said
    assert f"`clip_len={preset.frames}`" in said
    clip = torch.randint(0, 256, (3, 3, 200, 300), dtype=torch.uint8)
    assert torch.equal(preset(clip), weights.transforms()(clip))
    assert preset.shape == (preset.frames, *weights.transforms().crop_size)


@pytest.mark.parametrize(("name", "layer", "shape"), [("mc3_18", "layer2", (128, 16, 28, 28))])
def test_strides_are_those_in_space_and_resnets_have_a_default_layer_that_was_measured(
    name: str, layer: str, shape: tuple[int, ...]
) -> None:
    loaded = zoo.shapes_only(name)
    assert (loaded.task, loaded.num_classes, loaded.categories[0]) == ("video", 400, "abseiling")
    assert default_layer(loaded) == layer
    (found,) = (one for one in layers(loaded) if one.name == layer)
    assert (found.shape, found.stride) == (shape, 4)


def test_own_code_says_how_clips_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    loaded = load_model("nets.py:colors")
    assert (loaded.task, loaded.num_classes, loaded.categories) == ("video", 3, ("red", "green", "blue"))
    assert (loaded.transforms.frames, loaded.transforms.rate) == (8, 10)
    clip = loaded.transforms(torch.full((8, 3, 40, 50), 255, dtype=torch.uint8))
    assert torch.equal(clip, torch.ones(3, 8, 32, 32))
    result = ebcli.excitation_backprop(loaded.net, clip[None], 0, layer="2")
    assert result.maps.shape == (1, 8, 32, 32)
    with pytest.raises(ebcli.ConfigurationError, match="drop --fit"):
        load_model("nets.py:colors", preprocessing=ebcli.Preprocessing(fit="pad"))


def test_a_network_that_does_not_take_such_clips_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(
        NETS + "\ndef flat():\n    net = nn.Conv2d(3, 3, 1)\n    net.task = 'video'\n    return net\n"
    )
    with pytest.raises(
        ebcli.ConfigurationError, match="does not accept clips of 16 frames of 112 x 112 pixels"
    ):
        load_model(f"{file}:flat")
