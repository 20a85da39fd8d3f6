"""The atlas of a photo: its regions, tinted and labeled by the class that has the most evidence there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance

from ebcli.datatypes.atlas import CLEAR, Atlas, leads
from ebcli.datatypes.explanation import Subject
from ebcli.drawing.figure import GAP, LINE, SECONDARY, TEXT, Figure, Words
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import font, in_lines, printable, truncate
from ebcli.drawing.overlay import fitted_size
from ebcli.files.media.medium import DisplayFrame

# Told apart by color-blind readers, also as tints of a photo (after Okabe and Ito 2008); the largest region gets the
# first one
COLORS = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66))

_SMALLEST = 0.015  # of the photo; smaller regions are not marked
# opacity; the part of a photo's saturation that is left, lest its own colors look like tints
_TINT, _SATURATION = 0.45, 0.4
_STEP = 4  # pixels between the places that are tried for a label

# In pixels at 100 dpi
_PICTURE, _LEGEND = 640, 230  # the longer side; room for the words of the legend
_EDGE = 2.5  # the width of a region's line


class AtlasRegion(NamedTuple):
    """Where a class has the most evidence in a picture.

    Attributes:
        subject: the class.
        lead: how far it is ahead of the other classes, less what is clear, (height, width); above 0 in the region.
    """

    subject: Subject
    lead: NDArray[np.float32]

    @property
    def name(self) -> str:
        return printable(self.subject.name or f"class {self.subject.index}")

    @property
    def share(self) -> float:
        """Of the picture, 0 to 1."""
        return float((self.lead > 0).mean())


def regions(atlas: Atlas, image: tuple[int, int], size: tuple[int, int]) -> list[AtlasRegion]:
    """The largest regions of an image (width, height) in a picture of it of another size, as many as there are colors.

    Args:
        atlas: the evidence.
        image, size: (width, height).
    """
    x, y = ((np.arange(new_length) + 0.5) * length / new_length for length, new_length in zip(image, size, strict=True))
    evidence = atlas.sample(x, y)
    all_regions = [
        AtlasRegion(subject, lead - CLEAR) for subject, lead in zip(atlas.subjects, leads(evidence), strict=True)
    ]
    all_regions.sort(key=lambda region: -region.share)
    return [region for region in all_regions if region.share >= _SMALLEST][: len(COLORS)]


def places_of_labels(
    with_labels: Sequence[AtlasRegion], sizes: Sequence[tuple[int, int]]
) -> list[tuple[int, int] | None]:
    """The left and top of each region's label (width, height): inside the picture, beside the others, and with its
    center in the region, where the class leads by most; None if there is no room.
    """
    places: list[tuple[int, int] | None] = [None] * len(with_labels)
    for number in sorted(range(len(with_labels)), key=lambda i: with_labels[i].share):  # small ones have less choice
        (width, height), lead = sizes[number], with_labels[number].lead
        lefts, tops = (np.arange(0, room + 1, _STEP) for room in (lead.shape[1] - width, lead.shape[0] - height))
        centers = lead[np.ix_(tops + height // 2, lefts + width // 2)]
        for place, (wide, high) in zip(places, sizes, strict=True):
            if place is not None:
                overlaps = (lefts + width >= place[0]) & (lefts <= place[0] + wide)
                centers[np.ix_((tops + height >= place[1]) & (tops <= place[1] + high), overlaps)] = 0
        if centers.max(initial=0) > 0:
            row, column = np.unravel_index(centers.argmax(), centers.shape)
            places[number] = int(lefts[column]), int(tops[row])
    return places


def atlas_figure(
    frames: Sequence[DisplayFrame],
    maps: Sequence[FrameMaps],
    name: str,
    subtitle: str,
    at: tuple[int, int] | None = None,
) -> Figure:
    """Draw the regions of a photo's classes, with a legend beside it.

    Args:
        frames, maps, name, subtitle: as for ``panel``; the maps are those of the classes at one layer.
        at: a pixel of the photo to mark.
    """
    image, style = frames[0].image, maps[0].style
    figure = Figure(style.dpi, 0)
    gap, line, size, room, picture, edge = figure.zoom(GAP, LINE, TEXT, _LEGEND, _PICTURE, _EDGE)
    longest, letters, zoom = style.cell_size or picture, font(size), style.dpi / 100
    small = image.resize(fitted_size(image.size, longest), Image.Resampling.LANCZOS, reducing_gap=2.0)
    marked_regions = regions(Atlas.from_maps([maps_.map for maps_ in maps]), image.size, small.size)
    tinted_photo = _tint(small, [region.lead for region in marked_regions], _EDGE * zoom)
    if at is not None:
        _mark(tinted_photo, [(position + 0.5) * tinted_photo.width / image.width for position in at], 6 * zoom)
    left, top, figure.width = 2 * gap + tinted_photo.width, 2 * gap + 2 * line, 3 * gap + tinted_photo.width + room
    figure.write(gap, gap, name, bold=True)
    figure.write(gap, gap + line, subtitle, fill=SECONDARY)
    figure.pictures.append((gap, top, tinted_photo))
    texts = [truncate(region.name, letters, tinted_photo.width - 2 * gap) for region in marked_regions]
    places = places_of_labels(marked_regions, [_label(text, size) for text in texts])
    for text, color, place in zip(texts, COLORS, places, strict=False):
        if place is not None:
            x, y, width, height = *place, *_label(text, size)
            box = (x, y, x + width - 1, y + height - 1)
            ImageDraw.Draw(tinted_photo).rounded_rectangle(box, height // 3, "white", color, max(1, edge))
            offset = (height - sum(letters.getmetrics())) // 2
            figure.words.append(Words(gap + x + height // 2, top + y + offset, text, size, False, (0, 0, 0)))
    y, x = top, left + size + gap // 2
    for region, color in zip(marked_regions, COLORS, strict=False):
        figure.pictures.append((left, y + line // 8, Image.new("RGB", (size, size), color)))
        figure.write(x, y, region.name)
        words = f"{region.share:.0%} of the photo, score {region.subject.score:.3f}"
        figure.write(x, y + line, words, fill=SECONDARY)
        y += 2 * line + gap // 2
    rest_share = 1 - sum(region.share for region in marked_regions)
    for text in in_lines(f"{rest_share:.0%} is unmarked: no class has clear evidence there", letters, room):
        figure.write(left, y, text, fill=SECONDARY)
        y += line
    figure.height = max(top + tinted_photo.height, y) + gap
    return figure


def _label(text: str, size: int) -> tuple[int, int]:
    """The width and height of a label in letters of a size."""
    height = round(1.5 * size)
    return round(font(size).getlength(text)) + height, height


def _tint(photo: Image.Image, leads: Sequence[NDArray[np.float32]], edge: float) -> Image.Image:
    """A photo with regions in their colors; the distance to a region's edge is about its lead over the lead's slope."""
    result = ImageEnhance.Color(photo).enhance(_SATURATION)
    for lead, color in zip(leads, COLORS, strict=False):
        distance = lead / np.maximum(np.hypot(*np.gradient(np.pad(lead, 1, mode="edge")))[1:-1, 1:-1], 1e-9)
        inside = (distance + 0.5).clip(0, 1)
        line = ((edge + 1) / 2 - abs(distance - edge / 2)).clip(0, 1)  # inside, so that neighbors have both
        opacity = np.maximum(_TINT * inside, line)
        result.paste(color, (0, 0), Image.fromarray((255 * opacity).round().astype(np.uint8)))
    return result


def _mark(canvas: Image.Image, center: Sequence[float], radius: float) -> None:
    """A ring around a place, seen on any photo."""
    (x, y), draw = center, ImageDraw.Draw(canvas)
    for ring, color in ((radius + 1.5, "white"), (radius, "black"), (radius - 1.5, "white")):
        draw.ellipse((x - ring, y - ring, x + ring, y + ring), outline=color, width=2)
