"""Windows of an image: nine of half its sides, cut from its own pixels, for each way to fit images."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from ebcli.datatypes.input_spec import InputSpec
from ebcli.datatypes.windows import WindowSpec

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 16, 3), np.uint8)


def windows_of(pixels: Any, spec: InputSpec) -> Any:
    return WindowSpec.from_spec(spec).read(Image.fromarray(pixels))


def test_windows_overlap_by_half_and_are_as_detailed_as_the_image() -> None:
    spec = InputSpec(
        (4, 8), resize=(4, 8), fit="squash"
    )  # half of the image's sides, so windows are not resized
    windows = windows_of(PIXELS, spec)
    assert windows.shape == (9, 4, 8, 3)
    for number, window in enumerate(windows):
        top, left = 2 * (number // 3), 4 * (number % 3)
        np.testing.assert_array_equal(window, PIXELS[top : top + 4, left : left + 8])


def test_windows_of_arrays_are_the_same() -> None:
    spec = InputSpec((4, 8), resize=(4, 8), fit="squash")
    values = np.moveaxis(PIXELS, -1, 0) / np.float32(255)
    windows = WindowSpec.from_spec(spec).read_array(values)
    np.testing.assert_allclose(windows, windows_of(PIXELS, spec) / 255, atol=1e-6)


def test_windows_are_in_the_center_crop() -> None:
    """Of the eight columns in the middle, and nothing of a window is cut off."""
    spec = InputSpec((4, 4), resize=(4,), fit="crop")
    windows = windows_of(PIXELS, spec)
    np.testing.assert_array_equal(windows[0], PIXELS[:4, 4:8])
    np.testing.assert_array_equal(windows[8], PIXELS[4:, 8:12])


def test_windows_of_padded_images_have_no_more_padding() -> None:
    spec = InputSpec((8, 8), resize=(8,), fit="pad", fill=7)
    windows = windows_of(PIXELS, spec)
    assert windows.shape == (9, 8, 8, 3)
    np.testing.assert_array_equal(windows[0][2:6], PIXELS[:4, :8])
    assert (windows[0][:2] == 7).all()


@pytest.mark.parametrize("tiles", [0, 3])
def test_windows_of_whole_images_are_as_large_as_the_image_without_tiles(tiles: int) -> None:
    spec = InputSpec((64, 64), resize=(64,), fit="whole", tiles=tiles)
    whole = InputSpec((64, 64), resize=(64,), fit="whole").read(Image.fromarray(PIXELS))
    assert windows_of(PIXELS, spec).shape == (9, *whole.shape)


def test_windows_for_a_function_are_what_it_makes_of_them() -> None:
    def transform(image: Image.Image) -> Any:
        return np.moveaxis(np.asarray(image.resize((4, 4)), np.float32), -1, 0)

    windows = windows_of(PIXELS, InputSpec((4, 4), function=transform))
    expected = transform(Image.fromarray(PIXELS[4:, 8:]))
    np.testing.assert_array_equal(windows[8], np.moveaxis(expected, 0, -1))


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (3, 2)])
@pytest.mark.parametrize("fit", ["whole", "crop", "squash", "pad"])
def test_tiny_images_have_windows(size: tuple[int, int], fit: str) -> None:
    spec = InputSpec((32, 32), resize=(32,), fit=fit)
    windows = WindowSpec.from_spec(spec).read(Image.new("RGB", size, (9, 9, 9)))
    assert len(windows) == 9 and (windows == 9).any()
