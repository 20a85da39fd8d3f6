"""What a kind of data is: which files are of it, what a network gets of them, what maps are drawn over; and photos."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import Size
from ebcli.datatypes.input_spec import InputSpec
from ebcli.files import images
from ebcli.files.clips import ClipOptions, Clips
from ebcli.files.coordinates import Coordinates
from ebcli.files.images import File, Notes

Pixels = tuple[AnyArray, Size, Clips | None]


class FileContent(NamedTuple):
    """What the network gets of a file.

    Attributes:
        values: 8 bits, or floats from 0 to 1. The slices of a volume are frames.
        size: the width and height of its frames.
        clips: which frames of a video these are, or slices of a volume.
        notes: what a user may not expect of the file, by topic.
    """

    values: AnyArray
    size: Size
    clips: Clips | None = None
    notes: Notes = {}  # noqa: RUF012 - nothing is added to it


class DisplayFrame(NamedTuple):
    """A frame to draw maps over: its number, counted from the first one, the number of its clip, and its place there.

    A photo is a clip of one frame, a volume a clip of its slices.
    """

    image: Image.Image
    number: int = 0
    clip: int = 0
    place: int = 0


DisplayFrames = Generator[DisplayFrame]


class InputFormat(ABC):
    """A kind of data.

    Attributes:
        unit: what a file of it is called, such as ``"image"``.
        network: what a network for it is, for messages about networks for other kinds; empty if there is none.
        axes: those of the networks that get data of this kind, see ``InputSpec.axes``.
        suffixes: of files of this kind, in lower case.
    """

    unit: str
    network: str = ""
    axes: str = "HW"
    suffixes: tuple[str, ...] = ()

    def supports(self, spec: InputSpec) -> bool:
        """Whether networks with this preprocessing get data of this kind."""
        return spec.axes == self.axes

    def has_suffix(self, path: Path) -> bool:
        """Whether a file's name says that it is of this kind."""
        return path.name[1:].lower().endswith(self.suffixes)  # a hidden file may be named like a suffix

    def recognizes(self, path: Path) -> bool:
        """Whether the content of a local file or directory says so, whatever its name is."""
        return False

    def files(self, folder: Path) -> list[Path]:
        """The files of a local directory that is one input, in order; none if it is another directory."""
        return []

    @abstractmethod
    def read(self, file: File, spec: InputSpec, part: ClipOptions) -> FileContent | Pixels:
        """What the network gets of a file, as ``FileContent`` or a tuple of its first three fields.

        Raises:
            ImageError: it cannot be read.
        """

    def pages(self, file: File) -> int:
        """The number of pages or frames of a file that ``read`` has read, of which it explains the first only."""
        return 1

    @abstractmethod
    def frames(self, file: File, spec: InputSpec, part: ClipOptions, clips: Clips | None) -> DisplayFrames:
        """The frames (RGB) that have maps, in order.

        Raises:
            ImageError: it cannot be read.
        """

    def coordinates(self, file: File, spec: InputSpec) -> Coordinates | None:
        """Where in space the pixels of an image lie that ``read`` has read; None if it does not say."""
        return None


INPUT_FORMATS: list[InputFormat] = []


def register(*media: InputFormat) -> None:
    """Add kinds of data. Of several that fit a named file without a suffix of theirs, the first one reads it."""
    INPUT_FORMATS.extend(media)


class Photo(InputFormat):
    """An image of any format that Pillow reads."""

    unit = "image"
    has_suffix = staticmethod(images.has_image_suffix)
    pages = staticmethod(images.pages)

    def recognizes(self, path: Path) -> bool:
        return images.is_recognized(path)

    def read(self, file: File, spec: InputSpec, part: ClipOptions) -> FileContent:
        image, notes = images.read_photo(file, spec.range)
        return FileContent(spec.read(image), image.size, None, notes)

    def frames(self, file: File, spec: InputSpec, part: ClipOptions, clips: Clips | None) -> DisplayFrames:
        yield DisplayFrame(images.read_photo(file, spec.range, to_srgb=True).image)


PHOTO = Photo()
register(PHOTO)
