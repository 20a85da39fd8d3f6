"""The photos or volumes of the page: those that the user named, by their paths, and uploads, by their content."""

import io
import os
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

from PIL import Image

from ebcli.datatypes.input_spec import InputSpec
from ebcli.drawing.overlay import downscale
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.clips import ClipOptions
from ebcli.files.images import decode, limit_pixels
from ebcli.files.media.medium import INPUT_FORMATS, PHOTO, InputFormat
from ebcli.files.paths import RemoteOptions, url_of
from ebcli.files.sources import Source, find_sources
from ebcli.models.classes import printable
from ebcli.workers import Workers

T = TypeVar("T")

_MAX_PHOTOS = 1000
_MOST_UPLOADS = 20
_LONGEST_NAME = 100
CAMERA = "camera"  # what the page calls its camera, and so no photo
_DIGITS = 16
_UPLOAD = "added-"  # before the digest that an upload is called by
SIDE = 1024  # pixels, of a photo on the page
SMALL = 160
_CACHE_SIZE = 64  # photos in memory, as files
_VOLUME = InputSpec.as_is(channels=1).of_volumes
_OF_VOLUMES = [medium for medium in INPUT_FORMATS if medium.supports(_VOLUME)]


class PhotoCache(Generic[T]):
    """The latest results of photos. Unlike ``lru_cache``, it does not keep the photos: uploads are their bytes.

    Args:
        size: the number of results.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: dict[Hashable, T] = {}

    def get(self, source: Source, options: Hashable, make: Callable[[], T]) -> T:
        """The result for the present state of a photo with some options, which is made if it is not there."""
        key = source.path, source.version(), options
        result = self._results.pop(key, None)
        if result is None:
            result = make()
        self._results[key] = result  # as the latest one
        for oldest in [*self._results][: -self._size]:
            self._results.pop(oldest, None)
        return result


class Photos:
    """The photos that the page can show; no other file can be read through it. Volumes are called photos, too.

    Args:
        paths: files, directories and URLs.
        workers: the process that decodes them.
        remote: limits for remote files; uploads may have as many bytes in all.
        max_pixels: the size of the largest image that is decoded; None for Pillow's own limit.

    Raises:
        ConfigurationError: a file does not exist, or there are no images or volumes in a directory.

    Attributes:
        names: the path of each photo, or an upload's name, by what addresses of the page call it: the path, or a digest
            of the upload. So an address means the same photo after a restart.
        most_bytes: the size of the largest upload.
        num_hidden: how many photos there are besides the first ones, which are shown.
    """

    def __init__(
        self, paths: Sequence[Path], workers: Workers, remote: RemoteOptions, max_pixels: int | None
    ) -> None:
        for path in paths:
            if url_of(path) is None and not os.path.lexists(path):
                raise ConfigurationError(f"'{path}' does not exist: name photos or directories of photos")
        files = find_sources(paths, remote=remote, as_one=_OF_VOLUMES)
        photos = list(filter(_is_photo, files))
        volumes = list(filter(_is_volume, files))
        if paths and not (photos or volumes):
            raise ConfigurationError("there are no photos: name files, or directories that contain some")
        self.most_bytes = remote.max_bytes
        self._workers = workers
        self._max_pixels = max_pixels
        self.num_hidden = len(photos[_MAX_PHOTOS:]) + len(volumes[_MAX_PHOTOS:])
        self._sources = {"DHW": _by_path(volumes[:_MAX_PHOTOS]), "HW": _by_path(photos[:_MAX_PHOTOS])}
        self._uploads: dict[str, Source] = {}
        self._photos = ChainMap(self._uploads, *self._sources.values())
        self._drawings = PhotoCache[bytes](_CACHE_SIZE)

    @property
    def names(self) -> dict[str, str]:
        return {key: _path_text(source) for key, source in self._photos.items()}

    def names_for(self, axes: Iterable[str]) -> dict[str, str]:
        """The names of uploads, and of the files for networks with these axes; see ``InputSpec.axes``."""
        fitting = ChainMap(self._uploads, *(self._sources[kind] for kind in axes))
        return {key: name for key, name in self.names.items() if key in fitting}

    def source(self, key: str) -> Source:
        """The file of a photo.

        Raises:
            ImageError: there is no such photo.
        """
        if key in self._photos:
            return self._photos[key]
        if key.startswith(_UPLOAD):
            raise ImageError("this photo was added to the page, and is gone: add it again")
        name = printable(key)[-_LONGEST_NAME:]
        raise ImageError(
            f"'{name}' is not among the photos: choose another one, or start eb-saliency serve with it"
        )

    def encode_photo(self, key: str, longest: int) -> bytes:
        """A photo as the page shows it, JPEG.

        Raises:
            ImageError: it cannot be read.
        """
        source = self.source(key)
        return self._drawings.get(source, longest, partial(self._draw, source, longest))

    def _draw(self, source: Source, longest: int) -> bytes:
        return self._workers.call(_small, source, longest, self._max_pixels)

    def add(self, name: str, content: bytes) -> str:
        """Keep an upload; the oldest ones are dropped if there are too many. Returns what the page calls it.

        Raises:
            ImageError: it is no image.
        """
        file_name = printable(name).replace("\\", "/").rpartition("/")[2]
        safe_name = file_name[-_LONGEST_NAME:].lstrip(".").replace("\0", "")
        source = Source(Path(safe_name or "photo"), content=content)
        self._draw(source, SMALL)
        key = _UPLOAD + sha256(content).hexdigest()[:_DIGITS]
        self._uploads.pop(key, None)  # it is the latest now
        self._uploads[key] = source
        sizes = [len(upload.content or b"") for upload in self._uploads.values()]
        while len(sizes) > _MOST_UPLOADS or sum(sizes) > self.most_bytes:
            del self._uploads[next(iter(self._uploads))]
            del sizes[0]
        return key


def _small(source: Source, longest: int, max_pixels: int | None) -> bytes:
    limit_pixels(max_pixels)
    file = io.BytesIO()
    downscale(_picture(source), longest).save(file, "JPEG", quality=90)
    return file.getvalue()


def _picture(source: Source) -> Image.Image:
    """A photo, or the slice in the middle of a volume."""
    if PHOTO.has_suffix(source.path) or not _is_volume(source):
        return decode(source.open_content()[1], to_srgb=True)
    medium = next(medium for medium in _OF_VOLUMES if _looks_like(source, [medium]))
    return next(medium.frames(source.open_content()[1], _VOLUME, ClipOptions(), None)).image


def _by_path(sources: Sequence[Source]) -> dict[str, Source]:
    """Files by their paths as text; different paths can be the same text."""
    photos: dict[str, Source] = {}
    for source in sources:
        key = _path_text(source)
        while key in photos or key == CAMERA:
            key += "+"
        photos[key] = source
    return photos


def _path_text(source: Source) -> str:
    return printable(os.fsencode(source.name).decode(errors="replace"))


def _is_photo(source: Source) -> bool:
    return source.is_explicit or _looks_like(source, [PHOTO])


def _is_volume(source: Source) -> bool:
    return _looks_like(source, _OF_VOLUMES)


def _looks_like(source: Source, formats: Sequence[InputFormat]) -> bool:
    if any(medium.has_suffix(source.path) for medium in formats):
        return True
    return source.is_local and any(medium.recognizes(source.path) for medium in formats)
