"""Images of any format that Pillow reads."""

from collections.abc import Generator
from pathlib import Path

from ebcli.files.frame_ranges import ClipOptions, Clips
from ebcli.files.images import File, decode, has_image_suffix, is_recognized, pages
from ebcli.files.media.medium import Medium, Pixels, Shown, register
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

    def read(self, file: File, spec: InputSpec, part: ClipOptions) -> Pixels:
        image = decode(file)
        return spec.read(image), image.size, None

    def pages(self, file: File) -> int:
        return pages(file)

    def frames(self, file: File, spec: InputSpec, part: ClipOptions, clips: Clips | None) -> Generator[Shown]:
        yield Shown(decode(file))


PHOTO = Photo()
register(PHOTO)
