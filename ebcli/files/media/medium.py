"""What a kind of data is: which files are of it, what a network gets of them, and what maps are drawn over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.files.frame_ranges import ClipOptions, Clips
from ebcli.files.input_spec import InputSpec


class Shown(NamedTuple):
    """A frame to draw maps over: its number, counted from the first one, the number of its clip, and its place there.

    A photo is a clip of one frame.
    """

    image: Image.Image
    number: int = 0
    clip: int = 0
    place: int = 0


class Medium(ABC):
    """A kind of data.

    Attributes:
        unit: what a file of it is called, such as ``"image"``.
    """

    unit: str

    @abstractmethod
    def takes(self, spec: InputSpec) -> bool:
        """Whether networks with this preprocessing get data of this kind."""

    @abstractmethod
    def has_suffix(self, path: Path) -> bool:
        """Whether a file's name says that it is of this kind."""

    def recognizes(self, path: Path) -> bool:
        """Whether the content of a local file or directory says so, whatever its name is."""
        return False

    @abstractmethod
    def read(
        self, file: Path | IO[bytes], spec: InputSpec, part: ClipOptions
    ) -> tuple[NDArray[np.uint8], tuple[int, int], Clips | None]:
        """What the network gets of a file, the width and height of its frames, and of a video which clips that is.

        Raises:
            ImageError: it cannot be read.
        """

    def pages(self, file: Path | IO[bytes]) -> int:
        """The number of pages or frames of a file that ``read`` has read, of which it explains the first only."""
        return 1

    @abstractmethod
    def frames(self, file: Path | IO[bytes], rate: float, part: ClipOptions, clips: Clips | None) -> Generator[Shown]:
        """The frames (RGB) that have maps, in order.

        Raises:
            ImageError: it cannot be read.
        """


MEDIA: list[Medium] = []


def register(medium: Medium) -> None:
    """Add a kind of data. Of several that fit a named file without a suffix of theirs, the first one reads it."""
    MEDIA.append(medium)
