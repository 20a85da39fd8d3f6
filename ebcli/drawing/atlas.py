"""The atlas of a photo: its regions, tinted and labeled by the class that has the most evidence there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.atlas import CLEAR, Atlas, leads
from ebcli.datatypes.explanation import Size, Subject
from ebcli.drawing.figure import SECONDARY, Figure
from ebcli.drawing.frame_maps import Frames, MapsOfImage
from ebcli.drawing.legend import in_lines, printable, truncate
from ebcli.drawing.overlay import resize
from ebcli.drawing.painters import slope

# Told apart by color-blind readers, also as tints of a photo (after Okabe and Ito 2008); the largest region gets the
# first one
COLORS = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
)

_SMALLEST = 0.015  # of the photo; smaller regions are not marked
_TINT = 0.45  # opacity
_SATURATION = 0.4  # the part of a photo's that is left, lest its own colors look like tints
_STEP = 4  # pixels between the places that are tried for a label

# In pixels at 100 dpi
_PICTURE = 640  # the longer side
_LEGEND = 230  # room for its words
_EDGE = 2.5  # the width of a region's line


_Place = tuple[int, int] | None  # x and y in a picture


class AtlasRegion(NamedTuple):
    """Where a class has the most evidence in a picture.

    Attributes:
        subject: the class.
        lead: how far it is ahead of the other classes, less what is clear, (height, width); above 0 in the region.
    """

    subject: Subject
    lead: FloatArray

    @property
    def name(self) -> str:
        return printable(self.subject.label)

    @property
    def share(self) -> float:
        """Of the picture, 0 to 1."""
        return float((self.lead > 0).mean())


def regions(atlas: Atlas, image: Size, size: Size) -> list[AtlasRegion]:
    """The largest regions of an image (width, height) in a picture of it of another size, as many as there are colors.

    Args:
        atlas: the evidence.
        image, size: (width, height).
    """
    width, height = size
    x = (np.arange(width) + 0.5) * image[0] / width
    y = (np.arange(height) + 0.5) * image[1] / height
    margins = leads(atlas.sample(x, y)) - CLEAR
    candidates = list(map(AtlasRegion, atlas.subjects, margins))
    candidates.sort(key=lambda region: -region.share)
    return [region for region in candidates[: len(COLORS)] if region.share >= _SMALLEST]


def places_of_labels(with_labels: Sequence[AtlasRegion], sizes: Sequence[Size]) -> list[_Place]:
    """The left and top of each region's label (width, height): inside the picture, beside the others, and with its
    center in the region, where the class leads by most; None if there is no room.
    """
    places: list[_Place] = [None] * len(with_labels)
    numbers = sorted(range(len(with_labels)), key=lambda number: with_labels[number].share)
    for number in numbers:  # the small ones first, which have less choice
        width, height = sizes[number]
        lead = with_labels[number].lead
        lefts = np.arange(0, lead.shape[1] - width + 1, _STEP)
        tops = np.arange(0, lead.shape[0] - height + 1, _STEP)
        centers = lead[np.ix_(tops + height // 2, lefts + width // 2)]
        for place, (wide, high) in zip(places, sizes, strict=True):
            if place is not None:
                left, top = place
                overlaps_x = (lefts + width >= left) & (lefts <= left + wide)
                overlaps_y = (tops + height >= top) & (tops <= top + high)
                centers[np.ix_(overlaps_y, overlaps_x)] = 0
        if centers.max(initial=0) > 0:
            row, column = np.unravel_index(centers.argmax(), centers.shape)
            places[number] = int(lefts[column]), int(tops[row])
    return places


def atlas_figure(frames: Frames, maps: MapsOfImage, name: str, subtitle: str, pixel: _Place = None) -> Figure:
    """Draw the regions of a photo's classes, with a legend beside it.

    Args:
        frames, maps, name, subtitle: as for ``panel``; the maps are those of the classes at one layer.
        pixel: a pixel of the photo to mark.
    """
    image = frames[0].image
    style = maps[0].style
    figure = Figure(style.dpi)
    gap = figure.gap
    line = figure.line
    photo = resize(image, style.cell_size or figure.pixels(_PICTURE))
    atlas = Atlas.from_maps([frame_maps.map for frame_maps in maps])
    marked_regions = regions(atlas, image.size, photo.size)
    photo = _tint(photo, [region.lead for region in marked_regions], _EDGE * style.dpi / 100)
    if pixel is not None:
        center = [(position + 0.5) * photo.width / image.width for position in pixel]
        _mark(photo, center, 6 * style.dpi / 100)
    room = figure.pixels(_LEGEND)
    left = photo.width + 2 * gap
    figure.width = left + room + gap
    figure.write_title(name, subtitle, style)
    if style.header:
        figure.height += gap
    _add_photo(figure, photo, marked_regions)
    letters = figure.letters
    size = round(letters.size)
    y = figure.height
    for region, color in zip(marked_regions, COLORS, strict=False):
        figure.pictures.append((left, y + line // 8, Image.new("RGB", (size, size), color)))
        x = left + size + gap // 2
        figure.write(x, y, region.name)
        subject = region.subject
        details = [f"{region.share:.0%} of the photo, score {subject.score:.3f}"]
        if subject.window_score is not None:
            details.append(f"best window {subject.window_score:.3f}")
        for words in details:
            y += line
            figure.write(x, y, words, fill=SECONDARY)
        y += line + gap // 2
    remaining_share = 1 - sum(region.share for region in marked_regions)
    words = f"{remaining_share:.0%} is unmarked: no class has clear evidence there"
    for text in in_lines(words, letters, room):
        figure.write(left, y, text, fill=SECONDARY)
        y += line
    figure.height = max(figure.height + photo.height, y) + gap
    return figure


def _add_photo(figure: Figure, photo: Image.Image, marked_regions: Sequence[AtlasRegion]) -> None:
    """Add the photo, with a label on each of its regions that has room for one."""
    top = figure.height
    figure.pictures.append((figure.gap, top, photo))
    letters = figure.letters
    height = round(1.5 * letters.size)
    names = [truncate(region.name, letters, photo.width - 2 * figure.gap) for region in marked_regions]
    sizes = [(round(letters.getlength(name)) + height, height) for name in names]
    draw = ImageDraw.Draw(photo)
    places = places_of_labels(marked_regions, sizes)
    for name, (width, _), place, color in zip(names, sizes, places, COLORS, strict=False):
        if place is not None:
            x, y = place
            box = (x, y, x + width - 1, y + height - 1)
            draw.rounded_rectangle(box, height // 3, "white", color, max(1, figure.pixels(_EDGE)))
            offset = (height - sum(letters.getmetrics())) // 2
            figure.write(figure.gap + x + height // 2, top + y + offset, name)


def _tint(photo: Image.Image, leads: Sequence[FloatArray], edge: float) -> Image.Image:
    """A photo with regions in their colors; the distance to a region's edge is about its lead over the lead's slope."""
    result = ImageEnhance.Color(photo).enhance(_SATURATION)
    for lead, color in zip(leads, COLORS, strict=False):
        distance = lead / np.maximum(slope(lead), 1e-9)
        inside = (distance + 0.5).clip(0, 1)
        line = ((edge + 1) / 2 - abs(distance - edge / 2)).clip(0, 1)  # inside, so that neighbors have both
        opacity = np.maximum(_TINT * inside, line)
        result.paste(color, (0, 0), Image.fromarray((255 * opacity).round().astype(np.uint8)))
    return result


def _mark(canvas: Image.Image, center: Sequence[float], radius: float) -> None:
    """A ring around a place, seen on any photo."""
    x, y = center
    draw = ImageDraw.Draw(canvas)
    for ring, color in ((radius + 1.5, "white"), (radius, "black"), (radius - 1.5, "white")):
        draw.ellipse((x - ring, y - ring, x + ring, y + ring), outline=color, width=2)
