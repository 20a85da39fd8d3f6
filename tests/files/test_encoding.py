"""The bytes of results: their format, and how they say that this program made them."""

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from videos import moving_square, write_video

from ebcli.errors import ImageError
from ebcli.files.encoding import FACTS, encode_arrays, encode_picture, read_arrays, read_facts
from ebcli.files.video_encoding import video_writer

pytestmark = pytest.mark.usefixtures("watched")


@pytest.mark.parametrize(("suffix", "format"), [("png", "PNG"), ("jpg", "JPEG"), ("webp", "WEBP")])
def test_pictures_are_of_their_format_and_say_who_made_them(suffix: str, format: str, tmp_path: Path) -> None:
    picture = Image.linear_gradient("L").convert("RGB")
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(encode_picture(picture, suffix, {"model": "m"}))
    with Image.open(path) as read:
        assert (read.format, read.mode, read.size) == (format, "RGB", picture.size)
        error = np.abs(np.asarray(read).astype(int) - np.asarray(picture)).max()
        assert error <= (0 if suffix == "png" else 6)
        assert read.getexif()[0x0131] == "eb-saliency"
    assert read_facts(path) == {"model": "m"}
    picture.save(path, format=format)
    assert read_facts(path) == {}


def test_what_a_format_cannot_hold_is_that_image_s_failure() -> None:
    with pytest.raises(ImageError, match=r"17000 x 1 pixels does not fit into the format webp.*use png"):
        encode_picture(Image.new("RGB", (17_000, 1)), "webp")


def test_arrays_are_readable_without_pickle_and_say_who_made_them(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(encode_arrays({"maps": np.eye(3), "layer": np.array("features.11")}))
    assert read_facts(path) == {"layer": "features.11"}
    with np.load(path, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["maps"], np.eye(3))
        assert str(arrays["layer"]) == "features.11"
    np.savez(path, maps=np.eye(3), layer=np.array("features.11"))
    assert read_facts(path) == {}


def test_what_is_no_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "own.png"
    path.write_bytes(encode_picture(Image.new("RGB", (1, 1)), "png", {"model": "m"}))
    (tmp_path / "link.png").symlink_to(path)
    (tmp_path / "empty.png").touch()
    (tmp_path / "directory.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("link", "directory", "pipe"):
        with pytest.raises(OSError, match=r"symbolic link|not a regular file"):
            read_facts(tmp_path / f"{name}.png")
    for suffix in ("png", "jpg", "webp", "npz", "mp4"):
        (tmp_path / f"empty.{suffix}").touch()
        (tmp_path / f"cut.{suffix}").write_bytes(path.read_bytes()[:60])
        assert read_facts(tmp_path / f"empty.{suffix}") == read_facts(tmp_path / f"cut.{suffix}") == {}


def test_asking_who_made_a_file_does_not_unpack_it(tmp_path: Path) -> None:
    bomb = tmp_path / "a.jpg.npz"
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("software.npy", "w") as member,
    ):
        for _ in range(257):
            member.write(bytes(1 << 20))
    header = tmp_path / "header.npz"
    with zipfile.ZipFile(header, "w") as archive:  # an array that says to be a terabyte
        array = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            array, {"descr": "<U11", "fortran_order": False, "shape": (1 << 36,)}
        )
        archive.writestr("software.npy", array.getvalue())
    picture = tmp_path / "large.png"
    Image.new("1", (20_000, 8_000)).save(picture)
    tracemalloc.start()
    assert not any(map(read_facts, (bomb, header, picture)))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    with pytest.raises(ValueError, match="too large"):
        read_arrays(bomb, ["software"])
    tracemalloc.stop()


def test_arrays_are_read_by_name_and_never_as_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(encode_arrays({"maps": np.eye(3), "other": np.eye(2)}))
    found = read_arrays(path, ["maps", "missing"])
    assert list(found) == ["maps"]
    assert np.array_equal(found["maps"], np.eye(3))
    np.savez(path, maps=np.array([{}], dtype=object))
    for content in (path.read_bytes(), b"PK\x03\x04", b"", path.read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"Object arrays|not an intact"):
            read_arrays(path, ["maps"])


@pytest.mark.parametrize("suffix", ["mp4", "webp"])
def test_a_video_says_how_it_was_made(suffix: str, tmp_path: Path) -> None:
    facts = {"input": "каша.mp4" * 99, "model": "m" * 999, "class": '5 "a" <b>', "score": "0.5"}
    writer, path = video_writer(suffix, 7.5, facts), tmp_path / f"a.{suffix}"
    for frame in moving_square(6, (33, 27)):
        writer.add(frame)
    path.write_bytes(writer.finish())
    assert read_facts(path) == {name: facts[name][:300] for name in FACTS if name in facts}
    foreign = tmp_path / f"b.{suffix}"
    if suffix == "mp4":
        write_video(foreign, moving_square(3))
    else:
        moving_square(1)[0].save(foreign, save_all=True, append_images=moving_square(3)[1:])
    assert read_facts(foreign) == {}
