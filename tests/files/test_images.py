"""Decoding, and where the network looks."""

import os
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from synthetic import noise
from torchvision.transforms import InterpolationMode, functional
from torchvision.transforms._presets import ImageClassification

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ImageError
from ebcli.files.images import decode, has_image_suffix, is_recognized, to_rgb

pytestmark = pytest.mark.usefixtures("watched")


def photo(width: int, height: int) -> Image.Image:
    """Red grows to the right, green downwards."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, np.zeros_like(x)], -1).round().astype(np.uint8))


def test_modes_that_hold_the_same_picture_decode_alike(tmp_path: Path) -> None:
    grey = photo(256, 3).getchannel("R")
    sixteen = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    variants = {
        "l.png": grey,
        "la.png": grey.convert("LA"),
        "rgba.png": grey.convert("RGBA"),
        "sixteen.png": sixteen,
        "sixteen.tif": sixteen,
        "int32.tif": Image.fromarray(np.asarray(sixteen).astype(np.int32)),
        "float.tif": Image.fromarray(np.asarray(grey).astype(np.float32) / 255),
        "palette.gif": grey.quantize(256),
        "cmyk.tif": grey.convert("RGB").convert("CMYK"),
    }
    expected = np.asarray(grey.convert("RGB")).astype(int)
    for name, image in variants.items():
        image.save(tmp_path / name)
        decoded = decode(tmp_path / name)
        assert decoded.mode == "RGB", name
        assert np.abs(np.asarray(decoded).astype(int) - expected).max() <= 2, name


def test_one_bit(tmp_path: Path) -> None:
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "bits.png")
    assert np.asarray(decode(tmp_path / "bits.png")).tolist() == [[[255] * 3, [0] * 3]]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white_whatever_colour_hides_there(mode: str, tmp_path: Path) -> None:
    hidden = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    hidden.putpixel((1, 0), (0, 0, 0, 255))
    hidden.convert(mode).save(tmp_path / "hidden.png")
    assert np.asarray(decode(tmp_path / "hidden.png")).tolist() == [[[255] * 3, [0] * 3]]


def test_floats_that_are_not_finite_do_not_spoil_the_rest() -> None:
    pixels = np.asarray(to_rgb(Image.fromarray(np.array([[0, 1, np.nan, np.inf]], dtype=np.float32))))
    assert pixels[0, :2, 0].tolist() == [0, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_honoured(orientation: int, tmp_path: Path) -> None:
    """The EXIF standard: the value tells which edges of the scene row 0 and column 0 of the file are."""
    scene = np.asarray(photo(48, 32))
    stored = {
        1: scene,  # row 0 is the top, column 0 the left
        2: scene[:, ::-1],  # top, right
        3: scene[::-1, ::-1],  # bottom, right
        4: scene[::-1],  # bottom, left
        5: scene.transpose(1, 0, 2),  # left, top
        6: scene[:, ::-1].transpose(1, 0, 2)[:, :],  # right, top
        7: scene[::-1, ::-1].transpose(1, 0, 2),  # right, bottom
        8: scene[::-1].transpose(1, 0, 2),  # left, bottom
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "turned.png"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif)
    assert np.array_equal(np.asarray(decode(path)), scene)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an image"),
        (b"hello, world", "not an image"),
        (png(100_000, 100_000, zlib.compress(b"")), "too many pixels"),
        (png(10, 10, b"no deflate stream"), "broken|truncated"),
    ],
    ids=["empty", "text", "decompression bomb", "broken stream"],
)
def test_what_cannot_be_decoded_says_why(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(ImageError, match=reason) as caught:
        decode(tmp_path / "bad.png")
    assert "\n" not in str(caught.value)


def test_a_truncated_jpeg_is_refused_rather_than_filled_with_grey(tmp_path: Path) -> None:
    photo(200, 200).save(tmp_path / "whole.jpg")
    (tmp_path / "half.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:1500])
    with pytest.raises(ImageError, match="truncated"):
        decode(tmp_path / "half.jpg")


def test_missing_files_pipes_and_programs_are_never_opened(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="No such file"):
        decode(tmp_path / "none.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="regular file"):
        decode(tmp_path / "pipe.png")
    photo(4, 4).save(tmp_path / "script.eps")  # would be handed to Ghostscript
    with pytest.raises(ImageError, match="not an image"):
        decode(tmp_path / "script.eps")


def test_an_image_is_told_by_its_name_or_by_its_content(tmp_path: Path) -> None:
    photo(4, 4).save(tmp_path / "picture.dat", format="PNG")
    (tmp_path / "notes.txt").write_text("no picture")
    assert has_image_suffix(Path("A.JPG"))
    assert not has_image_suffix(Path("notes.txt"))
    assert not has_image_suffix(Path("paper.pdf"))
    assert is_recognized(tmp_path / "picture.dat")
    assert not is_recognized(tmp_path / "notes.txt")


def preprocessed(preset: ImageClassification, fit: str, image: Any) -> torch.Tensor:
    """What torchvision's preset makes of an image; for other fits, what its functions make of it, step by step."""
    if fit == "crop":
        return preset(image)
    side, crop = preset.resize_size[0], preset.crop_size[0]
    _, *size = functional.get_dimensions(image)
    size = (
        [side, side] if fit == "squash" else [max(1, round(length / (max(size) / side))) for length in size]
    )
    small = functional.resize(image, size, preset.interpolation, antialias=preset.antialias)
    pixels = small if isinstance(small, torch.Tensor) else functional.pil_to_tensor(small)
    fill = torch.tensor([round(255 * mean) / 255 * (fit == "pad") for mean in preset.mean])[:, None, None]
    values = (
        functional.center_crop(functional.convert_image_dtype(pixels) - fill, crop) + fill
    )  # pads with zeros
    return functional.normalize(values, preset.mean, preset.std)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [(640, 427), (427, 640), (500, 500), (301, 999), (97, 61), (3000, 100)])
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (232, 224), (236, 235), (224, 224), (64, 100)])
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_the_placement_is_where_the_preset_really_looks(
    size: tuple[int, int], resize: int, crop: int, fit: str
) -> None:
    """An image of its own coordinates goes through the preset, and comes out as what the placement says."""
    width, height = size
    x, y = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
    preset = ImageClassification(
        crop_size=crop, resize_size=resize, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), antialias=False
    )
    seen = preprocessed(preset, fit, torch.stack([x, y, torch.ones_like(x)]))
    assert seen.shape == (3, crop, crop)
    place = replace(InputSpec.from_preset(preset), fit=fit).place(size)
    fraction = (torch.arange(crop) + 0.5) / crop
    expected_x = place.left + fraction * (place.right - place.left)
    expected_y = place.top + fraction * (place.bottom - place.top)
    # Interpolation holds the outermost pixels' centres, and padding is 0 in every channel.
    inside = seen[2] == 1
    for seen_at, side in ((seen[0], width), (seen[1], height)):
        inside &= (seen_at > 0.501) & (seen_at < side - 0.501)
    assert inside.any()
    assert torch.allclose(seen[0][inside], expected_x.expand(crop, crop)[inside], atol=2e-3)
    assert torch.allclose(seen[1][inside], expected_y[:, None].expand(crop, crop)[inside], atol=2e-3)
    outside = (expected_x < 0) | (expected_x > width) | ((expected_y < 0) | (expected_y > height))[:, None]
    assert torch.equal(seen[2] == 0, outside)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size", [(640, 427), (99, 700), (1, 1), (31, 31), (256, 256), (3, 2)])
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (64, 100)])
@pytest.mark.parametrize("mode", [InterpolationMode.BILINEAR, InterpolationMode.BICUBIC])
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_the_network_sees_what_the_preset_makes_to_the_pixel(
    size: tuple[int, int], resize: int, crop: int, mode: InterpolationMode, fit: str
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    preset = ImageClassification(
        crop_size=crop, resize_size=resize, mean=(0.2, 0.45, 0.0), std=(1.0,) * 3, interpolation=mode
    )
    spec = replace(InputSpec.from_preset(preset), fit=fit)
    torch.testing.assert_close(spec(image), preprocessed(preset, fit, image))
    pixels = preprocessed(preset, fit, image) + torch.tensor(preset.mean)[:, None, None]
    expected = (pixels * 255).round().byte().permute(1, 2, 0).numpy()
    assert np.array_equal(spec.read(image), expected)


@pytest.mark.parametrize("size", [(2000, 20), (20, 2000)])
def test_of_a_long_strip_only_what_the_crop_keeps_is_resized(size: tuple[int, int]) -> None:
    """The preset can do these two as well, if slowly; of 10000 x 3 it would make 853333 x 256 pixels."""
    image, preset = photo(*size), ImageClassification(crop_size=224, mean=(0.0,) * 3, std=(1.0,) * 3)
    expected = (preset(image) * 255).round().permute(1, 2, 0).numpy()
    seen = InputSpec.from_preset(preset).read(image).astype(int)
    assert np.abs(seen - expected).max() <= 1
    # the middle of a strip: the short side runs from black to full, the long one stays at its middle value
    grey = InputSpec((224, 224)).read(photo(10_000, 3))
    assert grey.shape == (224, 224, 3)
    assert set(np.unique(grey[..., 0])) <= {127, 128}


@pytest.mark.parametrize(
    ("size", "side", "tiles", "expected"),
    [
        ((640, 480), 224, 0, (288, 224)),  # 298.7 x 224
        ((50, 50), 224, 0, (224, 224)),
        ((600, 400), 299, 0, (459, 299)),  # 448.5 x 299: 5 times 32 more than a square
        ((48, 40), 32, 0, (40, 32)),  # networks for small images have smaller strides
        ((2400, 200), 224, 0, (2688, 224)),
        ((600, 400), 224, 2, (672, 448)),
    ],
)
def test_whole_images_keep_their_aspect_ratio_in_steps(
    size: tuple[int, int], side: int, tiles: int, expected: tuple[int, int]
) -> None:
    spec = InputSpec((side, side), resize=(side,), fit="whole", mean=(0.0,) * 3, std=(1.0,) * 3, tiles=tiles)
    image = noise(size, 64)
    pixels = spec.read(image)
    assert (pixels.shape[1], pixels.shape[0]) == expected
    assert spec.place(size) == (0, 0, *size)
    np.testing.assert_array_equal(pixels, np.asarray(image.resize(expected, spec.resample)))
    torch.testing.assert_close(spec(image), spec.normalize(pixels[None])[0])
