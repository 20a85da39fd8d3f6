"""One file, too, is decoded in a process that has a limit of time and of memory."""

import io
import lzma
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from runs import Forked

from ebcli.datatypes.input_spec import InputSpec
from ebcli.files.sources import Source
from ebcli.run.reading import Reader
from ebcli.workers import Workers


def slow_jpeg() -> bytes:
    """A progressive JPEG with four thousand scans too many, each of which takes a fortieth of a second."""
    file = io.BytesIO()
    Image.new("L", (4000, 4000)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    start = content.rfind(b"\xff\xda")
    return content[:-2] + content[start:-2] * 4000 + content[-2:]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", [["photo.jpg"], ["photo.jpg", "--scale", "run"]])
def test_a_single_photo_that_takes_for_ever_is_given_up(how: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "photo.jpg").write_bytes(slow_jpeg())
    (folder / "limits.toml").write_text(
        "image-timeout = 1"
    )  # the environment is that of all forked processes
    run = Forked(folder, *how, "--config", "limits.toml", tiny=True)
    assert run.wait() == 1
    assert "photo.jpg: it took longer than 1 s: raise EB_SALIENCY_IMAGE_TIMEOUT\n" in run.err.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_strips_that_are_not_counted_beforehand_cannot_take_all_memory(tmp_path: Path) -> None:
    path, packed = tmp_path / "bomb.tif", lzma.compress(bytes(1 << 24), preset=0) * 24
    tifffile.imwrite(path, np.zeros((4, 4), np.uint16), compression="lzma")
    with tifffile.TiffFile(path, mode="r+b") as tiff:
        end, tags = tiff.filehandle.seek(0, os.SEEK_END), tiff.pages[0].tags
        tags["StripOffsets"].overwrite((end,))
        tags["StripByteCounts"].overwrite((len(packed),))
    with path.open("ab") as file:
        file.write(packed)
    with Workers(1, memory=1 << 28) as workers, pytest.raises(MemoryError):
        workers.call(Reader(InputSpec(None, resize=None, channels=1)).load, Source(path))
