"""Segmentation networks with one channel: the object is where the logit is above 0, the rest is the background."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import value_nets
from click.testing import CliRunner
from color_net import painted

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError

SQUARE = 40, 8, 56, 24  # of 64 x 64 pixels: a sixteenth of them
PHOTO = painted((64, 64), ((230, 230, 230), SQUARE))
FACTORIES = "Bright", "BrightProbability", "BrightExported", "BrightResized"


def net(name: str = "Bright") -> torch.nn.Module:
    return getattr(value_nets, name)().eval()


def pixels() -> torch.Tensor:
    """What the network gets of the photo."""
    return torch.from_numpy(np.asarray(PHOTO).copy()).movedim(2, 0).float() / 255


def inside(map_: np.ndarray) -> float:
    """The share of the map in the square."""
    width = map_.shape[1]
    left, top, right, bottom = (side * width // 64 for side in SQUARE)
    return float(map_[top:bottom, left:right].sum() / map_.sum())


@pytest.mark.parametrize("name", FACTORIES)
def test_the_object_is_explained_with_its_share_of_the_picture(name: str) -> None:
    found = ebcli.explain(net(name), pixels(), layer="cells", contrastive=False)
    assert (found.classes, found.scores) == (["object"], [1 / 16])
    assert inside(found.maps[0]) == pytest.approx(1)
    found = ebcli.explain(net(name), pixels(), "background", layer="cells", contrastive=False)
    assert (found.classes, found.scores) == (["background"], [15 / 16])
    assert inside(found.maps[0]) == pytest.approx(0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FACTORIES)
def test_the_command_says_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PHOTO.save("a.png")

    def classes(*arguments: str) -> list:
        model = (
            "--fit",
            "squash",
            "--model",
            f"{value_nets.__file__}:{name}",
            "--layer",
            "cells",
            "--workers",
            "0",
        )
        result = CliRunner().invoke(main, [*model, "--json", "--overwrite", "a.png", *arguments])
        assert result.exit_code == 0, result.output
        return [(one["name"], one["score"]) for one in json.loads(result.stdout)["classes"]]

    assert classes() == [("object", 1 / 16)]
    assert classes("--target", "background") == [("background", 15 / 16)]
    assert classes("--target", "background", "--target", "object") == [
        ("background", 15 / 16),
        ("object", 1 / 16),
    ]
    # at one pixel, the score is the sigmoid of its logit
    ((found, score),) = classes("--where", "48,16", "--layer", "cells")
    assert (found, score) == ("object", pytest.approx(1 / (1 + np.exp(5 - 10 * 230 / 255)), abs=1e-3))
    ((found, score),) = classes("--where", "5,5")
    assert (found, score) == ("background", pytest.approx(1 / (1 + np.exp(-5)), abs=1e-3))


@pytest.mark.parametrize("name", FACTORIES)
def test_what_supports_the_background_counts_against_the_object(name: str) -> None:
    """At the same pixels, the two contrastive maps are each other's opposite."""
    loaded = ebcli.load_model(getattr(value_nets, name)(size=5).eval())
    maps = ebcli.excitation_backprop(loaded, pixels()[None], [[0, 1]], "cells", contrastive=True).maps[0]
    assert maps[0].abs().max() > 1e-4
    torch.testing.assert_close(maps[1], -maps[0], rtol=1e-4, atol=1e-8)


def test_an_object_that_is_not_there_has_no_map_but_the_background_has() -> None:
    dark = torch.zeros(3, 64, 64)
    with pytest.raises(ebcli.ImageError, match="finds nothing to explain"):
        ebcli.explain(net(), dark, layer="cells")
    assert ebcli.explain(net(), dark, "background", layer="cells").scores == [1.0]


def test_what_is_never_negative_is_no_logit() -> None:
    loaded = ebcli.load_model(net("BrightAboveAverage"))
    assert (loaded.task, loaded.categories, loaded.scores) == ("maps of values", ("value",), "raw")
    found = ebcli.explain(loaded, pixels(), layer="cells", contrastive=False)
    assert found.scores == [pytest.approx((10 * 230 / 255 - 5) / 16, rel=1e-3)]  # the mean
    assert inside(found.maps[0]) == pytest.approx(1)
    assert ebcli.load_model(net("BrightAboveAverage"), scores="sigmoid").categories == (
        "object",
        "background",
    )


def test_the_object_can_be_named() -> None:
    assert ebcli.load_model(value_nets.named()).categories == ("lamp", "background")
    loaded = ebcli.load_model(net(), class_names=["window"])
    assert (loaded.categories, loaded.num_classes, loaded.scores) == (("window", "background"), 2, "sigmoid")
    with pytest.raises(
        ConfigurationError, match="there are 2 class names, but Bright has 1 output: name each"
    ):
        ebcli.load_model(net(), class_names=["window", "wall"])


def test_a_network_in_memory_stays_as_it_is() -> None:
    network = net()
    ebcli.explain(network, pixels(), layer="cells")
    assert network(pixels()[None]).shape == (1, 1, 64, 64)
    assert not network._forward_hooks
