"""Ways to draw a map over a photo, side by side on many photos, with the difference that a reader sees.

    python -m benchmarks.overlays overlays.png   # prints a table and draws the sheet

The photos are sample_images/, those of scikit-image, scikit-learn and matplotlib, and plain ones. The difference is the
mean distance between photo and overlay in CIELAB. It should rise by at least 8 from each fifth of the scale to the next
on every photo, and be about equally large at the top. docs/figures.md has the choice.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import skimage
import sklearn
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from skimage.color import rgb2lab

import ebcli
from ebcli.drawing.painters import overlay_colors
from ebcli.drawing.style import DrawingStyle
from ebcli.files.images import to_rgb

Pixels = NDArray[np.floating]  # (..., 3), 0 to 255
Treatment = Callable[[Pixels, NDArray[np.floating]], Pixels]  # draws a map, 0 to 1, over a photo

SAMPLES = Path(__file__).resolve().parents[1] / "sample_images"
SCIKIT_IMAGE, SCIKIT_LEARN = (
    Path(skimage.__file__).parent / "data",
    Path(sklearn.__file__).parent / "datasets/images",
)
FILES = [
    *(SAMPLES / f"{name}.jpg" for name in ("chelsea", "coffee", "mosaic", "rocket")),
    *(SCIKIT_IMAGE / name for name in ("hubble_deep_field.jpg", "retina.jpg")),
    *(SCIKIT_IMAGE / f"{name}.png" for name in ("astronaut", "ihc", "camera", "grass")),
    *(SCIKIT_IMAGE / f"{name}.png" for name in ("moon", "color", "page", "logo")),
    SCIKIT_IMAGE / "motorcycle_left.png",
    *(SCIKIT_LEARN / name for name in ("china.jpg", "flower.jpg")),
    Path(matplotlib.get_data_path()) / "sample_data/grace_hopper.jpg",
]  # fmt: skip
SIDE, TILE = 300, (150, 114)
FIFTHS = np.linspace(0, 1, 6)
LEVELS = np.linspace(0, 1, 256)


def photos() -> dict[str, Image.Image]:
    """Twenty-three photos, with transparency on white."""
    text = Image.new("RGB", (SIDE, 225), "white")
    for top in range(20, 210, 14):
        ImageDraw.Draw(text).rectangle((25, top, 90 + top * 37 % 190, top + 4), fill=(60, 60, 60))
    hue = Image.linear_gradient("L").rotate(90).resize(text.size)
    shade = Image.linear_gradient("L").resize(text.size)
    made = {
        "bright page": text,
        "hues": Image.merge("HSV", (hue, Image.new("L", text.size, 255), shade)).convert("RGB"),
        **{name: Image.new("RGB", text.size, name) for name in ("white", "gray", "black")},
    }
    found = {path.stem: to_rgb(Image.open(path)) for path in FILES}
    for one in (found | made).values():
        one.thumbnail((SIDE, SIDE))
    return found | made


def maps(pictures: dict[str, Image.Image]) -> dict[str, NDArray[np.float32]]:
    """The bundled network's map of each photo; of the plain ones, two spots."""
    loaded = ebcli.load_model("efficientnet_lite0")
    y, x = np.mgrid[:14, :18]
    spots = np.exp(-((x - 5) ** 2 + (y - 6) ** 2) / 10) + 0.5 * np.exp(-((x - 13) ** 2 + (y - 8) ** 2) / 6)
    plain = {"bright page", "hues", "color", "white", "gray", "black"}
    return {
        name: spots.astype(np.float32) if name in plain else ebcli.explain(loaded, one).maps[0]
        for name, one in pictures.items()
    }


def blend(colors: Pixels, opacities: NDArray[np.floating], muted: bool = False) -> Treatment:
    """The treatment with these 256 colors and opacities, over the photo or over a dark one with little color."""

    def drawn(photo: Pixels, values: NDArray[np.floating]) -> Pixels:
        if muted:
            photo = 25 + (0.45 * photo + 0.55 * (photo @ [0.299, 0.587, 0.114])[..., None]) * 90 / 255
        levels = (255 * values).round().astype(int)
        share = opacities[levels][..., None]
        return (1 - share) * photo + share * colors[levels]

    return drawn


def between(*colors: tuple[int, int, int]) -> Pixels:
    """256 colors that lead from one to the next."""
    return np.stack(
        [np.interp(LEVELS, np.linspace(0, 1, len(colors)), channel) for channel in np.transpose(colors)], 1
    )


def of(cmap: str, low: float = 0.0, high: float = 1.0) -> Pixels:
    return 255 * colormaps[cmap](low + (high - low) * LEVELS)[:, :3]


OWN, SIGNED = DrawingStyle(), overlay_colors(DrawingStyle(signed=True)).astype(float)
TREATMENTS = {
    "violet": blend(overlay_colors(OWN).astype(float), OWN.alpha * LEVELS),
    "green": blend(SIGNED[np.linspace(127, 0, 256).astype(int)], OWN.alpha * LEVELS),
    "muted, inferno": blend(of("inferno", 0.45), 0.92 * LEVELS**0.8, muted=True),
    "jet (paper)": blend(of("jet"), LEVELS**0.8),
    "inferno": blend(of("inferno", 0.45), 0.92 * LEVELS**0.8),
    "turbo": blend(of("turbo", 0.3), 0.85 * LEVELS**0.9),
    "red": blend(between((255, 40, 0), (255, 40, 0)), 0.85 * LEVELS),
    "yellow to red": blend(between((255, 205, 0), (255, 60, 0), (225, 0, 60)), 0.85 * LEVELS),
    "pink to violet": blend(between((255, 90, 190), (230, 0, 255), (120, 0, 255)), 0.85 * LEVELS),
}


def differences(draw: Treatment, photo: Image.Image) -> NDArray[np.floating]:
    """The difference from the photo at each fifth of the scale, the bottom first."""
    pixels = np.asarray(photo.resize((60, 60)), float)
    lab = rgb2lab(pixels / 255)
    drawn = [rgb2lab(draw(pixels, np.full((60, 60), value)) / 255) for value in FIFTHS]
    return np.array([np.linalg.norm(one - lab, axis=-1).mean() for one in drawn])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sheet", nargs="?", default="overlays.png", help="the picture to write")
    path = parser.parse_args().sheet
    pictures = photos()
    print("| treatment | at 0 | least rise of a fifth | on | at the top | ratio |\n|---|--:|--:|---|--:|--:|")
    for name, draw in TREATMENTS.items():
        seen = {photo: differences(draw, one) for photo, one in pictures.items()}
        table = np.array(list(seen.values()))
        rises, top = np.diff(table, axis=1).min(1), table[:, -1]
        print(
            f"| {name} | {table[:, 0].max():.0f} | {rises.min():.1f} | {list(seen)[rises.argmin()]} "
            f"| {top.min():.0f} to {top.max():.0f} | {top.max() / top.min():.2f} |"
        )
    found, (width, height) = maps(pictures), TILE
    sheet = Image.new("RGB", (width * (1 + len(TREATMENTS)), 16 + height * len(pictures)), "white")
    for row, (name, one) in enumerate(pictures.items()):
        one.thumbnail((width - 4, height - 4))
        values = np.maximum(found[name] / found[name].max(), 0)
        values = np.asarray(Image.fromarray(values).resize(one.size, Image.Resampling.BICUBIC)).clip(0, 1)
        drawn = [
            np.asarray(one, float),
            *(draw(np.asarray(one, float), values) for draw in TREATMENTS.values()),
        ]
        for column, pixels in enumerate(drawn):
            sheet.paste(
                Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)),
                (column * width, 16 + row * height),
            )
    for column, name in enumerate(["photo", *TREATMENTS]):
        ImageDraw.Draw(sheet).text((column * width, 2), name, fill="black")
    sheet.save(path)


if __name__ == "__main__":
    main()
