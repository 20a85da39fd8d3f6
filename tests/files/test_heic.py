"""Photos as phones make them."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import invoke

from ebcli.errors import ImageError
from ebcli.files import images
from ebcli.files.images import decode, has_image_suffix, is_recognized

pytestmark = pytest.mark.usefixtures("watched")


def test_a_heic_photo_is_read_like_others(working_directory: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    gradient = Image.merge(
        "RGB", [Image.linear_gradient("L").rotate(angle) for angle in (0, 90, 180)]
    ).resize((64, 48))
    gradient.save("photo.HEIC", quality=95)
    path = Path("photo.HEIC")
    assert has_image_suffix(path)
    assert is_recognized(path)
    found = decode(path)
    assert (found.mode, found.size) == ("RGB", (64, 48))
    assert np.abs(np.asarray(found).astype(int) - np.asarray(gradient)).mean() < 5
    result = invoke("--target", "3", "photo.HEIC")
    assert (result.exit_code, result.stdout) == (0, "saliency/photo.HEIC.3-class-d.png\n"), result.output


@pytest.mark.parametrize(
    ("size", "said"),
    [((60000, 60000), "it has too many pixels: raise EB_SALIENCY_MAX_PIXELS"), ((16, 16), "it is broken: ")],
)
def test_a_heic_photo_of_another_size_than_it_says_is_refused(
    size: tuple[int, int], said: str, tmp_path: Path
) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.new("RGB", (256, 256)).save(path := tmp_path / "photo.heic")
    content = bytearray(path.read_bytes())
    struct.pack_into(">2I", content, content.index(b"ispe") + 8, *size)
    path.write_bytes(content)
    with pytest.raises(ImageError, match=said):
        decode(path)


def test_without_the_package_a_heic_photo_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    images._add_heif.cache_clear()
    try:
        path = tmp_path / "photo.heic"
        path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
        monkeypatch.setattr(images, "_formats", lambda: ["PNG", "JPEG"])
        assert has_image_suffix(path)  # so it is a failure rather than some other file
        with pytest.raises(ImageError, match=r"pip install 'eb-saliency\[heif\]'"):
            decode(path)
    finally:
        images._add_heif.cache_clear()
