"""One call from Python makes the command's own maps and picture."""

import io
import json
import re
from pathlib import Path
from typing import Any

import bright_nets
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import ExifTags, Image
from torch import nn

import ebcli
from ebcli.cli.saliency import main

ROOT = Path(__file__).parents[2]
PHOTO = ROOT / "sample_images/mosaic.jpg"


@pytest.fixture(scope="module")
def bundled() -> ebcli.LoadedModel:
    return ebcli.load_model()


def test_it_makes_the_picture_and_the_numbers_of_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, [str(PHOTO), "--target", "tiger cat", "-o", str(tmp_path / "one"), "--raw"]
    )
    assert done.exit_code == 0, done.stderr
    (raw,) = (tmp_path / "one").rglob("*.npz")
    (picture,) = (tmp_path / "one").rglob("*.jpg")
    found = ebcli.explain("efficientnet_lite0", PHOTO, "tiger cat")
    with np.load(raw) as arrays:
        np.testing.assert_allclose(found.maps, arrays["maps"], rtol=1e-5, atol=1e-9)
        assert found.scores == pytest.approx(arrays["scores"].tolist())
    assert found.classes == ["tiger cat"]
    page = (ROOT / "docs/networks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (formula,) = [block for block in blocks if "heatmap = " in block]
    (saliency,) = found.maps
    variables = {"np": np, "file": dict(np.load(raw)), "saliency": saliency}
    variables |= zip("hw", saliency.shape, strict=True)
    exec(formula, variables)
    np.testing.assert_allclose(variables["heatmap"], found.heatmap()[0], atol=1e-7)
    drawn = np.asarray(found.picture, float)
    assert np.abs(drawn - np.asarray(Image.open(picture), float)).mean() < 4  # JPEG's error


def test_an_open_image_and_a_loaded_network_do_as_well(bundled: ebcli.LoadedModel, tmp_path: Path) -> None:
    found = ebcli.explain(bundled, Image.open(PHOTO), ["tiger cat", 967], layer=["features.11", "features.4"])
    seen = ebcli.load_model(preprocessing=ebcli.Preprocessing(fit="whole")).transforms
    inputs = seen(Image.open(PHOTO))[None]
    result = ebcli.excitation_backprop(bundled, inputs, [[282, 967]], "features.11", contrastive=True)
    maps = np.stack([one.values for one in found.explanation.by_layer["features.11"]])
    np.testing.assert_allclose(maps, result.maps[0], atol=1e-5)
    assert [*found.maps] == ["features.11", "features.4"]
    np.testing.assert_array_equal(found.maps["features.11"], maps)
    assert found.maps["features.4"].shape[0] == 2 and found.maps["features.4"].shape[1] > maps.shape[1]
    found.save(tmp_path / "panel.png")
    assert Image.open(tmp_path / "panel.png").size == found.picture.size
    assert repr(found).startswith("<Saliency of tiger cat, score 0.0")
    assert len(repr(bundled)) < 100


def test_bytes_of_a_file_are_an_image_that_any_colormap_draws(
    bundled: ebcli.LoadedModel, tmp_path: Path
) -> None:
    found = ebcli.explain(bundled, PHOTO.read_bytes(), "tiger cat")
    np.testing.assert_allclose(found.maps, ebcli.explain(bundled, PHOTO, "tiger cat").maps)
    spec = ebcli.load_model(preprocessing=ebcli.Preprocessing(fit="whole")).transforms
    expected = ebcli.draw_map(Image.open(PHOTO), found.maps[0], spec, cmap="jet", alpha=0.5)
    np.testing.assert_array_equal(found.draw(cmap="jet", alpha=0.5), expected)
    found.save(tmp_path / "jet.png", cmap="jet", alpha=0.5)
    np.testing.assert_array_equal(Image.open(tmp_path / "jet.png"), expected)
    assert not np.array_equal(found.picture, expected)
    with pytest.raises(ebcli.ConfigurationError, match="alpha is 2"):
        found.draw(alpha=2)
    with pytest.raises(ebcli.ConfigurationError, match="did you mean 'jet'"):
        found.draw(cmap="jett")


def test_a_loaded_network_that_crops_sees_the_center(bundled: ebcli.LoadedModel) -> None:
    photo = ROOT / "sample_images/coffee.jpg"  # which the center crop cuts
    loaded = ebcli.explain(bundled, photo)
    cropped = ebcli.load_model(preprocessing=ebcli.Preprocessing(fit="crop"))
    assert ebcli.explain(cropped, photo).maps.shape == (1, 14, 14) != loaded.maps.shape


def test_the_network_keeps_its_type(bundled: ebcli.LoadedModel) -> None:
    loaded = ebcli.load_model("shufflenet_v2_x0_5", weights="none")
    loaded.net.double()
    found = ebcli.explain(loaded, PHOTO, 3, contrastive=False)
    assert next(loaded.net.parameters()).dtype.itemsize == 8
    assert found.strength == [None]
    assert found.maps.sum() == pytest.approx(found.explanation.maps[0].mass, rel=1e-5)


def test_boxes_take_the_thresholds_of_the_command(bundled: ebcli.LoadedModel, tmp_path: Path) -> None:
    found = ebcli.explain(bundled, PHOTO, "tiger cat")
    for threshold in (0.3, "max:0.3", "mass:0.8"):
        options = ("--annotations", "boxes", "--threshold", str(threshold), "--overwrite")
        done = CliRunner().invoke(main, [str(PHOTO), "--target", "tiger cat", "-o", str(tmp_path), *options])
        assert done.exit_code == 0, done.stderr
        (region,) = json.loads((tmp_path / "annotations.json").read_text())["annotations"]
        (box,) = found.boxes(threshold)
        assert box.xywh == pytest.approx(region["bbox"], abs=0.01)
    for wrong in (0, 1, 50, 1.5, -1, float("nan"), "area:0.5", "mass:", None):
        with pytest.raises(ebcli.ConfigurationError, match="a share between 0 and 1, as in"):
            found.boxes(wrong)


def test_against_a_class_is_signed(bundled: ebcli.LoadedModel) -> None:
    found = ebcli.explain(bundled, PHOTO, "tiger cat", against="espresso")
    assert found.style.signed
    assert "against espresso" in found.about
    assert found.maps[0, :7].sum() > 0 > found.maps[0, 7:].sum()  # the cat is above the cup


@pytest.mark.parametrize(
    ("image", "targets", "said"),
    [
        ("nowhere.jpg", (), "'nowhere.jpg': no such file"),
        (["a.jpg", "b.jpg"], (), "'a.jpg': no such file"),
        ([PHOTO, 3], (), "image is 3: pass a path, a URL, a Pillow image, an array"),
        (
            np.zeros((9, 9, 7), np.uint8),
            (),
            "image 1 of 1: it has 7 channels, but efficientnet_lite0 takes 3",
        ),
        (ROOT, (), ": pass a path"),
        (None, (), "image is None"),
        (PHOTO, ("tigercat",), "did you mean"),
        (PHOTO, (1000,), "1000"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(
    image: str | Path, targets: tuple[str | int, ...], said: str, bundled: ebcli.LoadedModel
) -> None:
    with pytest.raises(ebcli.EbcliError, match=f"(?i){said}") as caught:
        ebcli.explain(bundled, image, *targets)
    assert "\n" not in str(caught.value)


LEVELS = np.linspace(500, 3500, 16 * 16).round().reshape(16, 16)
IN_PILLOW = {
    "I;16": Image.fromarray(LEVELS.astype(np.uint16)),
    "I;16B": Image.frombytes("I;16B", (16, 16), LEVELS.astype(">u2").tobytes()),
    "I": Image.fromarray(LEVELS.astype(np.int32)),
    "F": Image.fromarray(LEVELS.astype(np.float32)),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", IN_PILLOW)
def test_an_open_image_of_more_than_8_bits_is_read_as_its_file(
    mode: str, channels: int, tmp_path: Path
) -> None:
    """The network's value is the mean of its input."""
    image = IN_PILLOW[mode]
    assert image.mode == mode
    loaded = ebcli.load_model(mean_network(channels, range=(0, 4095)), scores="raw")
    kinds = ["tif", "png"] if mode == "I;16" else ["tif"]  # PNG has no more bits
    for path in (tmp_path / f"a.{kind}" for kind in kinds):
        image.save(path)
        images = [path, Image.open(path), path.open("rb"), io.BytesIO(path.read_bytes())]
        results = [ebcli.explain(loaded, item) for item in [*images, image, LEVELS.astype(np.uint16)]]
        values = [result.scores[0] for result in results]
        assert values == pytest.approx([LEVELS.mean() / 4095] * len(values), abs=0.5 / 255)
        assert values[1] == values[0]
        drawn = [np.asarray(result.photo.image, float) for result in results]
        for pixels in drawn:  # on the scale of the range, too
            np.testing.assert_allclose(pixels[..., 0] / 255, LEVELS / 4095, atol=1 / 255)


def test_an_open_photo_is_turned_upright_as_its_file_and_one_made_in_memory_is_not(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # its first column is the upper row
    Image.new("RGB", (24, 16)).save(tmp_path / "a.jpg", exif=exif)
    loaded = ebcli.load_model(mean_network(3), scores="raw")
    photo = Image.open(tmp_path / "a.jpg")
    for image in (tmp_path / "a.jpg", photo):
        assert ebcli.explain(loaded, image).photo.image.size == (16, 24)
    assert photo.size == (24, 16)
    assert ebcli.explain(loaded, photo.resize((24, 16))).photo.image.size == (24, 16)


def test_floats_from_0_to_1_are_refused_where_the_range_is_much_wider() -> None:
    loaded = ebcli.load_model(mean_network(1, range=(0, 4095)), scores="raw")
    with pytest.raises(ebcli.ImageError, match="floats from 0 to 1, but range is 0 to 4095: pass values in"):
        ebcli.explain(loaded, LEVELS / 4095)
    assert ebcli.explain(loaded, LEVELS).scores == pytest.approx([LEVELS.mean() / 4095])
    near = ebcli.load_model(mean_network(1, range=(0, 2)), scores="raw")
    assert ebcli.explain(near, LEVELS / 4095).scores == pytest.approx([LEVELS.mean() / 4095 / 2])


def mean_network(channels: int, **options: Any) -> nn.Module:
    """A network whose value is the mean of what it gets."""
    net = nn.Sequential(
        nn.Conv2d(channels, 1, 1, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1, 1),
    )
    nn.init.constant_(net[0].weight, 1 / channels)
    nn.init.ones_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    net.preprocessing = ebcli.Preprocessing(resize=16, crop=16, mean=0, std=1, **options)
    return net


@pytest.mark.parametrize("what", ["videos", "volumes"])
def test_networks_for_videos_and_volumes_are_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(bright_nets.NETS)
    if what == "videos":
        loaded = ebcli.load_model("mc3_18", weights="none")
    else:
        loaded = ebcli.load_model(f"{tmp_path}/nets.py:fixed")
    advice = r"call excitation_backprop\(net, x, class, layer, contrastive=True\) with its input x, or use the command"
    for image in (PHOTO, torch.rand(1, 8, 8), torch.rand(1, 4, 8, 8)):
        with pytest.raises(
            ebcli.ConfigurationError, match=f"is for {what}, explain\\(\\) for images: {advice}"
        ):
            ebcli.explain(loaded, image)
    x = torch.rand(1, 1, 4, 8, 8)
    for model in (loaded, loaded.net, small_network()):
        for image in (x, [x], [x[0]], x.numpy(), x[0, 0, 0, 0]):
            with pytest.raises(
                ebcli.ConfigurationError, match=rf"an image has the shape \([148, ]+\), .*{advice}"
            ):
                ebcli.explain(model, image)


def test_classes_of_a_batch_are_those_of_every_image_or_a_row_for_each() -> None:
    net, images = small_network(), torch.rand(3, 3, 8, 8)

    def classes(*arguments: Any, **options: Any) -> list[list[str]]:
        return [found.classes for found in ebcli.explain(net, images, *arguments, **options)]

    every = [["class 1", "class 2", "class 4"]] * 3
    assert classes(1, 2, 4) == every
    assert classes(targets=[1, 2]) == [["class 1", "class 2"]] * 3
    rows = [["class 1"], ["class 2"], ["class 4"]]
    assert classes(targets=[[1], [2], [4]]) == rows
    assert classes(targets=torch.tensor([[1], [2], [4]])) == rows
    assert classes([[1, 2], [2], []], target=7)[:2] == [
        ["class 7", "class 1", "class 2"],
        ["class 7", "class 2"],
    ]
    # each image has the map that it has alone
    found = ebcli.explain(net, images, targets=[[1], [2], [4]])
    for result, image, target in zip(found, images, (1, 2, 4), strict=True):
        np.testing.assert_allclose(result.maps, ebcli.explain(net, image, target).maps, atol=1e-6)


@pytest.mark.parametrize("targets", [[1, 2, 4], (1, 2, 4), np.array([1, 2, 4])])
def test_a_list_that_can_mean_two_things_is_refused_with_both_ways_to_write_it(targets: Any) -> None:
    ways = r"targets=\[\[1\], \[2\], \[4\]\] for one class per image, or explain\(model, images, 1, 2, 4\)"
    with pytest.raises(ebcli.ConfigurationError, match=ways):
        ebcli.explain(small_network(), torch.rand(3, 3, 8, 8), targets=targets)
    assert len(ebcli.explain(small_network(), torch.rand(3, 8, 8), targets=targets).classes) == 3
    with pytest.raises(ebcli.ConfigurationError, match="targets have 2 rows, but there are 3 images"):
        ebcli.explain(small_network(), torch.rand(3, 3, 8, 8), targets=[[1], [2]])


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
