"""The bytes of results: their format, and how they say that this program made them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ebcli.errors import ImageError
from ebcli.files.encoding import encode_arrays, encode_picture, is_own


@pytest.mark.parametrize(("suffix", "format"), [("png", "PNG"), ("jpg", "JPEG"), ("webp", "WEBP")])
def test_pictures_are_of_their_format_and_say_who_made_them(suffix: str, format: str, tmp_path: Path) -> None:
    picture = Image.linear_gradient("L").convert("RGB")
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(encode_picture(picture, suffix))
    with Image.open(path) as read:
        assert (read.format, read.mode, read.size) == (format, "RGB", picture.size)
        error = np.abs(np.asarray(read).astype(int) - np.asarray(picture)).max()
        assert error <= (0 if suffix == "png" else 6)
    assert is_own(path)
    picture.save(path, format=format)
    assert not is_own(path)


def test_what_a_format_cannot_hold_is_that_image_s_failure() -> None:
    with pytest.raises(ImageError, match=r"17000 x 1 pixels does not fit into the format webp.*use png"):
        encode_picture(Image.new("RGB", (17_000, 1)), "webp")


def test_arrays_are_readable_without_pickle_and_say_who_made_them(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(encode_arrays({"maps": np.eye(3), "layer": np.array("features.11")}))
    assert is_own(path)
    with np.load(path, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["maps"], np.eye(3))
        assert str(arrays["layer"]) == "features.11"
    np.savez(path, maps=np.eye(3))
    assert not is_own(path)


def test_what_is_no_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "own.png"
    path.write_bytes(encode_picture(Image.new("RGB", (1, 1)), "png"))
    (tmp_path / "link.png").symlink_to(path)
    (tmp_path / "empty.png").touch()
    (tmp_path / "directory.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    assert [p.name for p in sorted(tmp_path.iterdir()) if is_own(p)] == ["own.png"]
