"""Settings that replace those of a preset; torchvision's preset is the reference."""

import pytest
import torch
from torch import nn
from torchvision.transforms import functional
from torchvision.transforms._presets import ImageClassification

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError
from ebcli.models import Preprocessing, load_model
from ebcli.models.running import probe


def test_settings_replace_those_of_the_preset() -> None:
    preset = InputSpec.from_preset(ImageClassification(crop_size=224, resize_size=256))
    photo = torch.rand(3, 90, 120)
    changed = Preprocessing(resize=72, crop=64, mean=0.5, std=(0.25, 0.5, 0.125)).apply(preset)
    expected = ImageClassification(crop_size=64, resize_size=72, mean=(0.5,) * 3, std=(0.25, 0.5, 0.125))
    torch.testing.assert_close(changed(photo), expected(photo), rtol=0, atol=0)
    untouched = ImageClassification(crop_size=224, resize_size=256)
    torch.testing.assert_close(preset(photo), untouched(photo), rtol=0, atol=0)
    torch.testing.assert_close(Preprocessing().apply(preset)(photo), untouched(photo), rtol=0, atol=0)


def test_a_fit_replaces_the_presets_and_shows_the_whole_image() -> None:
    preset = InputSpec((64, 64), resize=(72,), mean=(0.5, 0.25, 0.0), std=(1.0,) * 3)
    photo = torch.rand(3, 32, 128)
    squashed = Preprocessing(fit="squash").apply(preset)
    small = functional.resize(photo, [64, 64], antialias=True)
    torch.testing.assert_close(squashed(photo), functional.normalize(small, preset.mean, preset.std))
    padded = Preprocessing(fit="pad").apply(preset)(photo)  # 16 x 64 pixels between bands of the mean color
    small = functional.resize(photo, [16, 64], antialias=True)
    torch.testing.assert_close(padded[:, 24:40], functional.normalize(small, preset.mean, preset.std))
    bands = torch.cat([padded[:, :24], padded[:, 40:]], 1)
    assert bands.abs().max() <= 0.5 / 255 + 1e-6  # the mean color in 8 bits
    for fit in ("squash", "pad"):  # whole without a crop
        resized = Preprocessing(fit=fit, resize=96).apply(preset)
        assert (resized.resize, resized.size) == ((96,), (96, 96))
    assert Preprocessing(fit="squash", resize=72, crop=64).apply(preset).size == (64, 64)
    assert Preprocessing(std=2).apply(squashed).fit == "squash"
    cropped = Preprocessing(fit="crop", resize=72).apply(squashed)
    torch.testing.assert_close(cropped(photo), preset(photo), rtol=0, atol=0)


def test_networks_of_one_size_squash_whole_images_if_they_did_so_before_and_else_pad_them() -> None:
    photo = torch.rand(3, 32, 128)
    for own, expected in (("crop", "pad"), ("squash", "squash"), ("pad", "pad")):
        preset = InputSpec((64, 64), resize=(64,), fit=own)
        found = Preprocessing(fit="whole").apply_fixed_size(preset)
        torch.testing.assert_close(
            found(photo), Preprocessing(fit=expected).apply(preset)(photo), rtol=0, atol=0
        )


def test_one_number_equals_three() -> None:
    assert Preprocessing(mean=0.5) == Preprocessing(mean=[0.5]) == Preprocessing(mean=(0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fit": "stretch"}, "unknown fit 'stretch': choose crop, squash, pad"),
        ({"resize": 0}, "resize is 0"),
        ({"mean": ()}, "a number, or one for each channel"),
        ({"mean": float("nan")}, "mean is nan"),
        ({"std": 0}, "above 0"),
        ({"std": (1, 1, float("inf"))}, "above 0"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Preprocessing(**settings)  # type: ignore[arg-type]


def test_as_many_numbers_as_channels_are_needed() -> None:
    with pytest.raises(ConfigurationError, match=r"^--mean has 2 values, but the network takes 3 channels$"):
        Preprocessing(mean=(0.5, 0.25)).apply(InputSpec((224, 224)))
    assert Preprocessing(mean=(0.5, 0.25)).apply(InputSpec((224, 224), channels=2, std=(1, 1))).std == (1, 1)
    assert Preprocessing(std=2).apply(InputSpec((224, 224), channels=5, mean=(0.0,) * 5)).std == (2,) * 5


def test_a_crop_larger_than_the_resized_image_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="300 pixels is larger than the resized image of 256"):
        Preprocessing(crop=300).apply(InputSpec((224, 224)))
    for settings, advice in (
        ({"crop": 300}, "set --resize, too"),
        ({"resize": 160}, "set --crop 160, too"),
        ({"crop": 300, "resize": 160}, "crop less, or resize to more"),
    ):
        with pytest.raises(ConfigurationError, match=f": {advice}$"):
            Preprocessing(**settings).apply(InputSpec((224, 224)))


def test_a_crop_that_the_network_does_not_accept_is_reported_in_one_sentence() -> None:
    with pytest.raises(
        ConfigurationError, match="squeezenet1_1 does not accept images of 8 x 8 pixels"
    ) as caught:
        load_model("squeezenet1_1", "none", preprocessing=Preprocessing(crop=8))
    assert "\n" not in str(caught.value)


def test_a_crop_as_long_as_the_resized_image_ends_exactly_at_its_edges() -> None:
    """Or maps would seem to peak at the border of a crop."""
    preset = InputSpec((224, 224), resize=(224,))
    for side in range(1, 3000, 7):
        placed = preset.place((side, 3000))
        assert (placed.left, placed.right) == (0, side)
        placed = preset.place((3000, side))
        assert (placed.top, placed.bottom) == (0, side)


@pytest.mark.parametrize("side", [0, 50_000, 10**20])
@pytest.mark.parametrize("name", ["resize", "crop"])
def test_absurd_sides_are_refused(name: str, side: int) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is {side}, but it must be between 1 and 16384$"):
        Preprocessing(**{name: side})


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 2 bytes")]
)
def test_a_size_that_needs_too_much_memory_is_named(error: Exception) -> None:
    def run(images: torch.Tensor) -> None:
        raise error

    with pytest.raises(ConfigurationError) as caught:
        probe("the network", nn.Identity(), InputSpec((4000, 5000)), run)
    assert str(caught.value) == (
        "there is not enough memory for the network on an image of 4000 x 5000 pixels: choose a smaller --resize and "
        "--crop"
    )
