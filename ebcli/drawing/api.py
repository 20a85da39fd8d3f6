"""Maps as pictures in Python: one laid on its image, and a whole result at a glance, as notebooks show it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor

from ebcli.drawing.color_scale import DrawingStyle
from ebcli.drawing.overlay import picture
from ebcli.drawing.panel import Tile, arranged, peak_note
from ebcli.errors import ConfigurationError, LayerError
from ebcli.files.images import Geometry, Placement, placement, to_rgb
from ebcli.run.plan import RunPlan

if TYPE_CHECKING:
    from torchvision.transforms._presets import ImageClassification

    from ebcli.eb import ExcitationResult

_SIDE = 200  # pixels, the longer side of each heatmap
_COLUMNS = 4
_AT_MOST = 32  # heatmaps; a batch may have hundreds


def draw_map(
    image: Image.Image,
    saliency: Tensor | ArrayLike,
    transforms: ImageClassification | None = None,
    *,
    style: str = "overlay",
    cmap: str | None = None,
    alpha: float = 0.85,
    signed: bool = False,
    vmin: float | None = None,
    vmax: float | None = None,
    percentile: float = 100.0,
) -> Image.Image:
    """Lay a map on the image it explains, as the command does.

    The map is up-sampled bicubically to where the network looked; outside of that the image is darker. A map that has
    nothing to show gives a grey image with stripes.

    Args:
        image: the image, of any mode and size; it is left as it is.
        saliency: one map (h, w), unclamped, such as `result.maps[0, 0]`; a tensor on any device, or an array.
        transforms: how the network's input was made of the image, such as `LoadedModel.transforms`: resized, and cut to
            its centre. None if the network saw all of it.
        style: `overlay`, `heatmap`, `side-by-side`, `mask`, `contour` or `paper`.
        cmap: a matplotlib colormap's name; None for the style's own.
        alpha: how opaque an overlay is at the scale's upper end, 0 to 1.
        signed: also draw what is below 0, on a scale symmetric about 0.
        vmin: the scale's lower end, 1 being an even spread of all probability over the map's cells; None for 0.
        vmax: its upper end, likewise; None for the map's maximum.
        percentile: of the map's values above 0, the one that its own scale ends at; 100 for the maximum.

    Returns:
        A picture of the image's size, RGB, or RGBA for the style `mask`; twice as wide for `side-by-side`.

    Raises:
        ConfigurationError: the image is none of Pillow's, the map is not of shape (h, w), or an option is out of its
            range.

    Examples:
        >>> import ebcli
        >>> from PIL import Image
        >>> image = Image.new("RGB", (640, 480), "white")
        >>> ebcli.draw_map(image, [[0.0, 0.1], [0.0, 0.9]], style="heatmap").size
        (640, 480)
    """
    look = _look(style=style, cmap=cmap, alpha=alpha, signed=signed, vmin=vmin, vmax=vmax, percentile=percentile)
    if not isinstance(image, Image.Image):
        raise ConfigurationError(f"the image is a {type(image).__name__}: open it with PIL.Image.open")
    cells = _array(saliency)
    if cells.ndim != 2 or not cells.size:
        raise ConfigurationError(
            f"the map has the shape {cells.shape}, but one map (h, w) is drawn at a time: take one out, as in "
            f"maps[{', '.join('0' * max(1, cells.ndim - 2))}]"
        )
    whole = Placement(0, 0, *image.size)
    place = whole if transforms is None else placement(image.size, Geometry.of(transforms))
    return picture(to_rgb(image), cells, place, look)


def png(result: ExcitationResult) -> bytes | None:
    """All maps of a result as heatmaps in one PNG file, each on its own scale, symmetric about 0 if contrastive.

    Targets stand beside each other, images below each other; where there is one map an image, images side by side.
    Of many maps, the first ones are shown, which it says. None where the layer has no maps.
    """
    try:
        maps = _array(result.maps)
    except LayerError:
        return None
    spatial = len(result.input_shape) - 2
    if spatial == 1:
        maps = maps[..., None, :]
    look = _look(style="heatmap", signed=result.contrastive)
    tiles = list(_tiles(maps, _array(result.mass), look))
    each = len(tiles) // len(maps) if len(tiles) > len(maps) else len(tiles)
    shown = tiles[:_AT_MOST]
    groups = [shown[start : start + each] for start in range(0, len(shown), each)]
    rows = [("", group[start : start + _COLUMNS]) for group in groups for start in range(0, len(group), _COLUMNS)]
    name = f"{'contrastive' if result.contrastive else 'marginal'} maps at {result.layer or 'the input'}"
    about = f"the first {len(shown)} of {len(tiles)}" if len(shown) < len(tiles) else ""
    file = io.BytesIO()
    arranged(name, about, rows, look).save(file, "PNG")
    return file.getvalue()


def _tiles(maps: NDArray[np.float32], mass: NDArray[np.float32], look: DrawingStyle) -> Iterator[Tile]:
    """A heatmap for each of (B, ..., h, w)."""
    height, width = maps.shape[-2:]
    scale = _SIDE / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    place = Placement(0, 0, *size)
    axes = ("image", "target", "frame") if mass.ndim == 2 else ("image", "frame")
    for at in np.ndindex(maps.shape[:-2]):
        heatmap = picture(Image.new("RGB", size), maps[at], place, look)
        title = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=False))
        notes = f"{width} × {height} cells", f"mass {mass[at[: mass.ndim]]:.3f}", peak_note(maps[at], place, size, look)
        yield Tile(heatmap, title, notes)


def _look(**options: Any) -> DrawingStyle:
    """The look that a run with these options would have, checked as a run's."""
    return DrawingStyle.of(RunPlan(images=(Path(),), **options))


def _array(values: Tensor | ArrayLike) -> NDArray[np.float32]:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu()
    return np.asarray(values, dtype=np.float32)
