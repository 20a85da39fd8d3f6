"""Decoding, and where the network looks."""

import os
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from synthetic import noise
from torchvision.transforms import InterpolationMode, functional
from torchvision.transforms._presets import ImageClassification

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ImageError
from ebcli.files.images import decode, has_image_suffix, is_recognized, read_photo
from ebcli.files.sources import Source
from ebcli.run.reading import Reader

pytestmark = pytest.mark.usefixtures("watched")

COFFEE = Path(__file__).parents[2] / "sample_images" / "coffee.jpg"


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


NO_DATA = np.array([[np.nan, 40.0, 80.0], [np.inf, 60.0, -np.inf]], np.float32)


def tiff_of_floats(path: Path, values: np.ndarray, no_data: str | None = None) -> Path:
    extra = [] if no_data is None else [(42113, "s", 0, no_data, True)]  # as GDAL writes it
    tifffile.imwrite(path, values, extratags=extra)
    return path


@pytest.mark.parametrize("marked", [None, "-9999", "-3.4028234663852886e+38"])
def test_no_data_is_white_and_leaves_the_range_to_the_rest(marked: str | None, tmp_path: Path) -> None:
    """Half of the values are none; the others are from 40 to 80, so 60 is the middle."""
    missing = np.float32(marked or "nan")
    values = np.where(np.isfinite(NO_DATA), NO_DATA, missing)
    path = tiff_of_floats(tmp_path / "heights.tif", NO_DATA if marked is None else values, marked)
    image, notes = read_photo(path)
    assert np.asarray(image)[..., 0].tolist() == [[255, 0, 255], [255, 128, 255]]
    assert notes["no data"].startswith("50.0% of its values are no data")
    assert read_photo(path, (0, 80)).image.getpixel((1, 0)) == (128, 128, 128)


def test_only_no_data_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="none of its values is a finite number"):
        decode(tiff_of_floats(tmp_path / "none.tif", NO_DATA * np.nan))


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_twelve_bits_in_sixteen_are_said_to_be_dark(name: str, tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 2000, 4000]], np.uint16)).save(tmp_path / name)
    image, notes = read_photo(tmp_path / name)
    assert np.asarray(image).max() == 16  # 255 * 4000 / 65535
    assert "highest value is 4000 of 65535" in notes["dark"] and "--range 0,4095" in notes["dark"]
    scaled, notes = read_photo(tmp_path / name, (0, 4095))
    assert np.asarray(scaled)[0, :, 0].tolist() == [0, 125, 249] and not notes
    Image.fromarray(np.array([[0, 40000]], np.uint16)).save(tmp_path / name)
    assert not read_photo(tmp_path / name).notes


# An RGB color space of gamma 1 with the primaries of Display P3: enough to be another one than sRGB
def wide_profile() -> bytes:
    def xyz(*values: float) -> bytes:
        return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(value * 65536) for value in values))

    curve = b"curv\0\0\0\0" + struct.pack(">I", 0)  # a straight line
    text = b"desc\0\0\0\0" + struct.pack(">I", 5) + b"wide\0" + bytes(78)
    tags = {
        b"desc": text,
        b"wtpt": xyz(0.9642, 1, 0.8249),
        b"rXYZ": xyz(0.5151, 0.2412, -0.0011),
        b"gXYZ": xyz(0.2919, 0.6922, 0.0419),
        b"bXYZ": xyz(0.1572, 0.0666, 0.7841),
        b"rTRC": curve,
        b"gTRC": curve,
        b"bTRC": curve,
    }
    table = b""
    data = b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        padded = content + bytes(-len(content) % 4)
        table += name + struct.pack(">II", start + len(data), len(content))
        data += padded
    header = struct.pack(">I4sI4s4s4s", start + len(data), b"lcms", 0x02100000, b"mntr", b"RGB ", b"XYZ ")
    header += bytes(12) + b"acsp" + bytes(24) + struct.pack(">I", 0)
    header += struct.pack(">3i", 63190, 65536, 54061)
    return header.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + data


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_pictures_are_in_srgb_and_networks_get_what_is_stored(suffix: str, tmp_path: Path) -> None:
    """Linear light of 0.5 is 188 in sRGB: 255 * (1.055 * 0.5 ** (1 / 2.4) - 0.055)."""
    options = {"lossless": True} if suffix == "webp" else {"quality": 100}
    path = tmp_path / f"wide.{suffix}"
    Image.new("RGB", (16, 16), (128, 128, 128)).save(path, icc_profile=wide_profile(), **options)
    loaded = Reader(InputSpec(None, resize=None)).load(Source(path))
    assert loaded is not None and set(np.unique(loaded.pixels)) == {128}
    (frame,) = Reader(InputSpec(None, resize=None)).frames(Source(path), loaded)
    assert np.abs(np.asarray(frame.image).astype(int) - 188).max() <= 1
    assert "icc_profile" not in frame.image.info


def test_a_broken_profile_is_ignored(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "a.png", icc_profile=b"no profile")
    assert decode(tmp_path / "a.png", to_srgb=True).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("name", ["cut.jpg", "cut.png", "progressive.jpg"])
def test_what_is_there_of_a_truncated_image(name: str, tmp_path: Path) -> None:
    scene = decode(COFFEE)
    scene.save(tmp_path / name, **({"progressive": True} if name == "progressive.jpg" else {}))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(
        ImageError, match=r"^it is truncated.*copy it again, or .* --allow-truncated$"
    ) as caught:
        decode(tmp_path / name)
    rows = re.search(r"about (\d+)% of its rows", str(caught.value))
    assert (rows is None) == (name == "progressive.jpg")  # which has all rows, at half of their detail
    assert rows is None or 40 <= int(rows[1]) <= 60
    reader = Reader(InputSpec(None, resize=None), allow_truncated=True)
    loaded = reader.load(Source(tmp_path / name))
    assert loaded is not None and "truncated" in loaded.notes
    part = loaded.pixels[: scene.height // 3].astype(int)
    assert np.abs(part - np.asarray(scene)[: scene.height // 3]).mean() < 10
    assert np.ptp(loaded.pixels[-20:]) == 0 or name == "progressive.jpg"
    with pytest.raises(ImageError, match="truncated"):  # of another run, in the same process
        Reader(InputSpec(None, resize=None)).load(Source(tmp_path / name))
