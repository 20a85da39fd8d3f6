"""Drawing from Python: a map over its image, and a whole result at a glance for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.explanation import Box
from ebcli.datatypes.input_spec import InputSpec
from ebcli.drawing.figure import Row, Tile, lay_out, peak_note
from ebcli.drawing.legend import scale_labels
from ebcli.drawing.overlay import fitted_size, picture
from ebcli.drawing.style import ATLAS, DrawingStyle, Style
from ebcli.errors import ConfigurationError, LayerError
from ebcli.files.images import to_rgb

if TYPE_CHECKING:
    from torchvision.transforms._presets import ImageClassification

    from ebcli.eb import ExcitationResult

_SIDE = 200  # pixels, the longer side of each heatmap
_MAX_TILES = 32  # a batch can have hundreds of maps


def draw_map(
    image: Image.Image,
    saliency: Tensor | ArrayLike,
    transforms: InputSpec | ImageClassification | None = None,
    *,
    style: Style = "overlay",
    cmap: str | None = None,
    alpha: float = 0.85,
    signed: bool = False,
    vmin: float = 0.0,
    vmax: float | None = None,
    percentile: float | None = None,
    cells: bool = False,
    background: float = 0.0,
) -> Image.Image:
    """Draw a map over the image it explains, as the command does.

    The map is upsampled bicubically to the region that the network saw, which has a thin frame where the image goes
    on. A blank map gives a gray image with stripes.

    Args:
        image: an image of any mode and size; not modified.
        saliency: one map (h, w), unclamped, such as `result.maps[0, 0]`; a tensor on any device, or an array.
        transforms: the preprocessing of the network's input (resize and center crop), such as
            `LoadedModel.transforms`, or a preset of torchvision. None if the network saw the whole image.
        style: `overlay`, `heatmap`, `side-by-side`, `mask`, `contour` or `paper`.
        cmap: the name of a matplotlib colormap; None for the style's own.
        alpha: the opacity of an overlay at the upper end of the scale, 0 to 1.
        signed: draw negative values as well, on a scale symmetric about 0.
        vmin: the lower end of the scale, in units of a uniform map (1 over the number of cells).
        vmax: the upper end of the scale in the same units; None for the map's maximum.
        percentile: end the map's own scale at this percentile of its positive values; 100 is the maximum. None for
            the maximum, and 99.5 for maps of at least 10,000 cells.
        cells: draw the cells with hard edges, without interpolation.
        background: the opacity of a mask where the map is 0, 0 to 1.

    Returns:
        A picture of the image's size, RGB, or RGBA for the style `mask`; about twice as wide for `side-by-side`.

    Raises:
        ConfigurationError: the image is not a Pillow image, the map is not of shape (h, w), or an option is out of
            range.

    Examples:
        >>> import ebcli
        >>> from PIL import Image
        >>> image = Image.new("RGB", (640, 480), "white")
        >>> ebcli.draw_map(image, [[0.0, 0.1], [0.0, 0.9]], style="heatmap").size
        (640, 480)
    """
    drawing = DrawingStyle(
        style,
        cmap=cmap,
        alpha=alpha,
        signed=signed,
        vmin=vmin,
        vmax=vmax,
        percentile=percentile,
        cells=cells,
        background=background,
    )
    if not isinstance(image, Image.Image):
        kind = type(image).__name__
        raise ConfigurationError(f"the image is a {kind}, not a Pillow image: open it with PIL.Image.open")
    values = _array(saliency)
    if values.ndim != 2 or not values.size:
        index = ", ".join("0" * max(1, values.ndim - 2))
        problem = f"the map has shape {values.shape}, but one map (h, w) is drawn at a time"
        raise ConfigurationError(f"{problem}: index one, as in maps[{index}]")
    if style == ATLAS:
        raise ConfigurationError("an atlas needs the maps of several classes: call explain() with this style")
    region = Box(0, 0, *image.size)
    if transforms is not None:
        region = InputSpec.from_preset(transforms).place(image.size)
    return picture(to_rgb(image), values, region, drawing)


def png(result: ExcitationResult) -> bytes | None:
    """Draw all maps of a result as heatmaps in one PNG, each on its own scale, symmetric about 0 if contrastive.

    Each image has a row with its targets; with one map per image, images share rows. A large result is cut to its
    first maps, and the figure says so. None if the layer has no maps.
    """
    try:
        maps = _array(result.maps)
    except LayerError:
        return None
    if len(result.input_shape) == 3:  # (B, C, L)
        maps = maps[..., None, :]
    style = DrawingStyle("heatmap", signed=result.contrastive)
    tiles = list(_tiles(maps, result, style))
    count = len(tiles)
    per_row = count if count == len(maps) else count // len(maps)
    first_tiles = tiles[:_MAX_TILES]
    rows = [Row("", first_tiles[start : start + per_row]) for start in range(0, len(first_tiles), per_row)]
    method = "contrastive" if result.contrastive else "marginal"
    name = f"{method} maps at {result.layer or 'the input'}"
    subtitle = f"the first {_MAX_TILES} of {count}" if count > _MAX_TILES else ""
    figure = lay_out(name, subtitle, rows, style, scale_labels(style, maps[0].size))
    return figure.encode("png", {})


def _tiles(maps: FloatArray, result: ExcitationResult, style: DrawingStyle) -> Iterator[Tile]:
    """One heatmap for each of the maps (B, ..., h, w) of a result."""
    height, width = maps.shape[-2:]
    size = fitted_size((width, height), _SIDE)
    region = Box(0, 0, *size)
    is_several = result.relevance.ndim > len(result.layer_shape)
    axes = ("image", "target", "frame") if is_several else ("image", "frame")
    for index in np.ndindex(maps.shape[:-2]):
        heatmap = picture(Image.new("RGB", size), maps[index], region, style)
        title = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=False))
        notes = [f"{width} × {height} cells"]
        if result.mass is not None:
            mass = result.mass[index[: 1 + is_several]]
            notes.append(f"mass {float(mass):.3f}")
        notes.append(peak_note(maps[index], region, size, style))
        yield Tile(heatmap, title, notes)


def _array(values: Tensor | ArrayLike) -> FloatArray:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu()
    return np.asarray(values, dtype=np.float32)
