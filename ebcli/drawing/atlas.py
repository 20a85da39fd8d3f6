"""The atlas of a photo: its regions, tinted and labeled by the class that has the most evidence there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance

from ebcli.datatypes.atlas import CLEAR, Atlas, leads
from ebcli.datatypes.explanation import Size, Subject
from ebcli.drawing.figure import GAP, LINE, SECONDARY, TEXT, Figure, Words
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import font, in_lines, printable, truncate
from ebcli.drawing.overlay import resize
from ebcli.drawing.painters import Values, slope
from ebcli.files.media.medium import DisplayFrame

# Told apart by color-blind readers, also as tints of a photo (after Okabe and Ito 2008); the largest region gets the
# first one
COLORS = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66))

_SMALLEST = 0.015  # of the photo; smaller regions are not marked
_TINT = 0.45  # opacity
_SATURATION = 0.4  # the part of a photo's that is left, lest its own colors look like tints
_STEP = 4  # pixels between the places that are tried for a label

# In pixels at 100 dpi
_PICTURE, _LEGEND = 640, 230  # the longer side; room for the words of the legend
_EDGE = 2.5  # the width of a region's line


_Place = tuple[int, int] | None  # x and y in a picture


class AtlasRegion(NamedTuple):
    """Where a class has the most evidence in a picture.

    Attributes:
        subject: the class.
        lead: how far it is ahead of the other classes, less what is clear, (height, width); above 0 in the region.
    """

    subject: Subject
    lead: Values

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
    x, y = ((np.arange(new_length) + 0.5) * length / new_length for length, new_length in zip(image, size, strict=True))
    margins = leads(atlas.sample(x, y)) - CLEAR
    candidates = [AtlasRegion(subject, lead) for subject, lead in zip(atlas.subjects, margins, strict=True)]
    candidates.sort(key=lambda region: -region.share)
    return [region for region in candidates if region.share >= _SMALLEST][: len(COLORS)]


def places_of_labels(with_labels: Sequence[AtlasRegion], sizes: Sequence[Size]) -> list[_Place]:
    """The left and top of each region's label (width, height): inside the picture, beside the others, and with its
    center in the region, where the class leads by most; None if there is no room.
    """
    places: list[_Place] = [None] * len(with_labels)
    for number in sorted(range(len(with_labels)), key=lambda i: with_labels[i].share):  # small ones have less choice
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


def atlas_figure(
    frames: Sequence[DisplayFrame], maps: Sequence[FrameMaps], name: str, subtitle: str, at: _Place = None
) -> Figure:
    """Draw the regions of a photo's classes, with a legend beside it.

    Args:
        frames, maps, name, subtitle: as for ``panel``; the maps are those of the classes at one layer.
        at: a pixel of the photo to mark.
    """
    image = frames[0].image
    style = maps[0].style
    figure = Figure(style.dpi, 0)
    gap, line, size, room, picture, edge = figure.zoom(GAP, LINE, TEXT, _LEGEND, _PICTURE, _EDGE)
    small = resize(image, style.cell_size or picture)
    atlas = Atlas.from_maps([frame_maps.map for frame_maps in maps])
    marked_regions = regions(atlas, image.size, small.size)
    zoom = style.dpi / 100
    photo = _tint(small, [region.lead for region in marked_regions], _EDGE * zoom)
    if at is not None:
        _mark(photo, [(position + 0.5) * photo.width / image.width for position in at], 6 * zoom)
    left = 2 * gap + photo.width
    top = 2 * gap + 2 * line
    figure.width = left + room + gap
    figure.write_title(name, subtitle)
    figure.pictures.append((gap, top, photo))
    letters = font(size)
    texts = [truncate(region.name, letters, photo.width - 2 * gap) for region in marked_regions]
    height = round(1.5 * size)  # of a label
    widths = [round(letters.getlength(text)) + height for text in texts]
    places = places_of_labels(marked_regions, [(width, height) for width in widths])
    for text, color, width, place in zip(texts, COLORS, widths, places, strict=False):
        if place is not None:
            x, y = place
            box = (x, y, x + width - 1, y + height - 1)
            ImageDraw.Draw(photo).rounded_rectangle(box, height // 3, "white", color, max(1, edge))
            offset = (height - sum(letters.getmetrics())) // 2
            figure.words.append(Words(gap + x + height // 2, top + y + offset, text, size))
    x = left + size + gap // 2
    y = top
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
    figure.height = max(top + photo.height, y) + gap
    return figure


def _tint(photo: Image.Image, leads: Sequence[Values], edge: float) -> Image.Image:
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
