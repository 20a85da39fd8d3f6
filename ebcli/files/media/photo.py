"""Images of any format that Pillow reads."""

from collections.abc import Generator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ebcli.files.frame_ranges import ClipOptions, Clips
from ebcli.files.images import decode, has_image_suffix, is_recognized, pages
from ebcli.files.media.medium import Medium, Shown, register
from ebcli.nouns.input_spec import InputSpec


class Photo(Medium):
    """An image."""

    unit = "image"

    def takes(self, spec: InputSpec) -> bool:
        return spec.axes == "HW"

    def has_suffix(self, path: Path) -> bool:
        return has_image_suffix(path)

    def recognizes(self, path: Path) -> bool:
        return is_recognized(path)

    def read(
        self, file: Path | IO[bytes], spec: InputSpec, part: ClipOptions
    ) -> tuple[NDArray[np.uint8], tuple[int, int], Clips | None]:
        image = decode(file)
        return spec.read(image), image.size, None

    def pages(self, file: Path | IO[bytes]) -> int:
        return pages(file)

    def frames(
        self, file: Path | IO[bytes], spec: InputSpec, part: ClipOptions, clips: Clips | None
    ) -> Generator[Shown]:
        yield Shown(decode(file))


PHOTO = Photo()
register(PHOTO)
