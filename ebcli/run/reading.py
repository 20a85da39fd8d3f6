"""Reading a file for the network, and again to draw, in any process. Imports no torch."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from os.path import isdir
from pathlib import Path
from time import perf_counter
from typing import Any

from PIL import Image

from ebcli.datatypes.arrays import AnyArray
from ebcli.datatypes.explanation import Size
from ebcli.datatypes.input_spec import InputSpec
from ebcli.datatypes.query import Query
from ebcli.datatypes.windows import WindowSpec
from ebcli.errors import ImageError
from ebcli.files.clips import ClipOptions, Clips, Slices
from ebcli.files.coordinates import Coordinates
from ebcli.files.images import File, Notes, allow_truncated, limit_pixels
from ebcli.files.media.film import FILM, Film, FilmFormat, survey
from ebcli.files.media.medium import INPUT_FORMATS, DisplayFrame, FileContent, InputFormat, Photo
from ebcli.files.media.video import is_animation, is_video
from ebcli.files.naming import MOVING
from ebcli.files.paths import FileState
from ebcli.files.sources import Source

_FEW = 64  # files; with more, full batches and all processes are used anyway


@dataclass(frozen=True, kw_only=True)
class NetworkInput:
    """An image or a video as the network gets it.

    Attributes:
        pixels: (crop, crop, C), or (height, width, C) for networks that see whole images; 8 bits, or floats of arrays.
            Of a video, (clips, frames, crop, crop, C), and of a volume, (slices, height, width, C).
        size: the image's width and height.
        stamp: the state of the file that was read.
        seconds: the time that loading took.
        label: its true class, if it is known.
        clips: which clips of a video these are, or the slices of a volume.
        pages: the number of pages or frames of an image file, of which this is the first.
        path: of the file; None if it is no file.
        others: what a network of several inputs gets beside the pixels, tensors (1, ...) by name; None if it reads that
            itself.
        query: what a vision-language model is asked about it; None for other networks.
        windows: what the network would get of each window, (9, height, width, C), if the classes are found in windows.
        notes: what a user may not expect of the file, by topic.
    """

    pixels: AnyArray
    size: Size
    stamp: FileState = FileState(0, 0)  # noqa: RUF009 - it is frozen
    seconds: float = 0.0
    label: int | None = None
    clips: Clips | None = None
    pages: int = 1
    path: str | None = None
    others: Any = None
    query: Query | None = None
    windows: AnyArray | None = None
    notes: Notes = field(default_factory=dict)

    @classmethod
    def from_image(cls, image: Image.Image, spec: InputSpec) -> "NetworkInput":
        """An RGB image that is no file."""
        return cls(pixels=spec.read(image), size=image.size, notes=spec.notes_of_size(image.size))

    @property
    def video_clips(self) -> Clips | None:
        """Which clips of a video these are; None for photos and volumes."""
        return None if isinstance(self.clips, Slices) else self.clips

    @property
    def form(self) -> tuple[object, ...]:
        """What images of one batch have in common: the shape and the data type of their pixels."""
        return *self.pixels.shape, self.pixels.dtype.name


@dataclass(frozen=True)
class Reader:
    """How the files of a run are read.

    Attributes:
        spec: what the network gets.
        part: which part of each video is explained.
        max_pixels: the size of the largest image that is decoded; None for Pillow's own limit.
        media: the kinds of data, so that other processes know those that were registered here.
        has_windows: whether to read windows of each image, too.
        allow_truncated: whether to read what is there of images that are cut off.
    """

    spec: InputSpec
    part: ClipOptions = field(default_factory=ClipOptions)
    max_pixels: int | None = None
    _: KW_ONLY
    media: Sequence[InputFormat] = field(default_factory=lambda: [*INPUT_FORMATS])
    has_windows: bool = False
    allow_truncated: bool = False

    @property
    def unit(self) -> str:
        """What a file is called, such as ``"image"``."""
        return self.formats[0].unit

    @property
    def formats(self) -> list[InputFormat]:
        """The kinds of data that the network gets."""
        return [medium for medium in self.media if medium.supports(self.spec)]

    def accepts(self, source: Source) -> bool:
        """Whether to work on a file."""
        return medium_of(source, self.spec, self.media) is not None

    def load(self, source: Source) -> NetworkInput | None:
        """Decode a file and crop what the network sees; None for a file in a directory that is not data.

        Of an animation, that is the first frame.

        Raises:
            ImageError: the file does not exist or cannot be decoded, or a video's clips do not fit into memory.
        """
        medium = self._medium(source)
        if medium is None:
            return None
        return self._load(source, medium, *source.open_content())

    def open(self, source: Source) -> NetworkInput | Film | None:
        """As ``load``; but of a video or an animation, each frame of which is explained, what is known of it."""
        medium = self._medium(source)
        if medium is None:
            return None
        stamp, file = source.open_content()
        is_film = isinstance(medium, FilmFormat)
        if isinstance(medium, Photo):
            is_directory = isinstance(file, Path) and isdir(file)
            is_film = self.part.frames is not None if is_directory else is_animation(file)
            if source.content is not None:  # which has no suffix
                is_film |= is_video(file)
        if is_film:
            return survey(file, self.spec, self.part)
        return self._load(source, medium, stamp, file)

    def _load(self, source: Source, medium: InputFormat, stamp: FileState, file: File) -> NetworkInput:
        start = perf_counter()
        for other in self.media:
            is_other = other.has_suffix(source.path) and not medium.has_suffix(source.path)
            if other.network and not other.supports(self.spec) and is_other:
                unit = medium.unit
                article = "an" if unit[0] in "aeiou" else "a"
                raise ImageError(f"it is a {other.unit}, not {article} {unit}: choose {other.network}")
        item = FileContent(*medium.read(file, self.spec, self.part))
        windows = None
        if self.has_windows:
            windows, *_ = medium.read(file, WindowSpec.from_spec(self.spec), self.part)
        return NetworkInput(
            pixels=item.values,
            size=item.size,
            stamp=stamp,
            seconds=perf_counter() - start,
            label=source.label,
            query=source.query,
            clips=item.clips,
            notes=item.notes | self.spec.notes_of_size(item.size),
            pages=medium.pages(file),
            path=None if source.content is not None else source.name,
            windows=windows,
        )

    def _medium(self, source: Source) -> InputFormat | None:
        """The kind of data of a file."""
        self.set_limits()
        return medium_of(source, self.spec, self.media)

    def set_limits(self) -> None:
        """Make this process decode images as the run says, from here on."""
        limit_pixels(self.max_pixels)
        allow_truncated(self.allow_truncated)

    def frames(self, source: Source, network_input: NetworkInput) -> Iterator[DisplayFrame]:
        """The frames to draw, all of one size. They are decoded a second time: keeping thousands of photos until the
        network is done with them would take far more memory than decoding takes time.

        Raises:
            ImageError: the file changed since the network saw it.
        """
        medium = self._medium(source)
        stamp, file = source.open_content()
        if stamp != network_input.stamp or medium is None:
            raise ImageError("the file changed during the run")
        with closing(medium.frames(file, self.spec, self.part, network_input.clips)) as frames:
            for frame in frames:
                if frame.image.size == network_input.size:
                    yield frame
                else:
                    yield frame._replace(image=frame.image.resize(network_input.size))

    def coordinates(self, source: Source) -> Coordinates | None:
        """Where in space the pixels of a file lie; None if it does not say.

        Raises:
            ImageError: it cannot be read any more.
        """
        medium = medium_of(source, self.spec, self.media)
        return None if medium is None else medium.coordinates(source.open_content()[1], self.spec)


def sample_inputs(film: Film) -> list[NetworkInput]:
    """What the network gets of some frames of a video."""
    return [NetworkInput(pixels=pixels, size=film.size) for pixels in film.sample]


def has_films(sources: Sequence[Source]) -> bool:
    """Whether some of the first files are videos by their names, animations or directories of frames."""
    return any(map(_is_film, sources[:_FEW]))


def _is_film(source: Source) -> bool:
    path = source.path
    if FILM.has_suffix(path):
        return True
    return source.is_local and (isdir(path) or (path.suffix.lower() in MOVING and is_animation(path)))


def medium_of(
    source: Source, spec: InputSpec | None = None, media: Sequence[InputFormat] = INPUT_FORMATS
) -> InputFormat | None:
    """The kind of data of a file, among those that a network gets; None for a file that is not to be worked on.

    A file is worked on if the user named it or if it looks like data: local ones by their content as well, remote ones
    by their suffixes only, as opening every one would be slow.
    """
    fitting = [medium for medium in media if spec is None or medium.supports(spec)]
    for medium in reversed(fitting):  # of TIFF files, photos are only some
        if medium.has_suffix(source.path):
            return medium
    for medium in fitting:
        if source.is_local and medium.recognizes(source.path):
            return medium
    return fitting[0] if source.is_explicit else None
